"""Finds tokens of Azure as Azure's own library does: environment, workload identity, managed identity, `az login`.

`store/root.py` passes `find` to the key ring of a container, and adds the environment's variables to its options.
`store/obstore_clients.py` asks whether an account is named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime

from streamer.store import failures
from streamer.store.credentials import issuers
from streamer.store.credentials.key_ring import Issued

_SCOPE = "https://storage.azure.com/.default"
_SECRETS = ("account_key", "sas_key", "client_secret")
# Variables of the environment with which obstore signs requests by itself.
_VARIABLES = (
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY"),
    *("AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_TOKEN"),
)
_IDENTIFYING = ("connection_string", "account_name", "account_key", "sas_token", "credential", "anon")
_METADATA = "http://169.254.169.254"
_TOKEN = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://storage.azure.com/"


def add_variables(options: Mapping[str, object], variables: Mapping[str, str] = os.environ) -> Mapping[str, object]:
    """Returns the storage options with connection string, or account and key, of the environment, as the Azure CLI.

    Options that name an account or credentials are returned as they are: a key of the environment must not be sent to
    an account that the options name. obstore reads other variables by itself.
    """
    if not any(options.get(name) for name in _IDENTIFYING):
        if connection := variables.get("AZURE_STORAGE_CONNECTION_STRING"):
            return {"connection_string": connection, **options}
        named = {"account_name": "AZURE_STORAGE_ACCOUNT", "account_key": "AZURE_STORAGE_KEY"}
        return {**{name: variables[key] for name, key in named.items() if variables.get(key)}, **options}
    return options


def has_account(config: Mapping[str, object], variables: Mapping[str, str] = os.environ) -> bool:
    """Whether a storage account is named by the settings in obstore's names (`config`) or by the environment."""
    return any(name in config for name in ("account_name", "endpoint")) or bool(
        variables.get("AZURE_STORAGE_ACCOUNT_NAME")
    )


def has_secret(config: Mapping[str, object], variables: Mapping[str, str] = os.environ) -> bool:
    """Whether the settings (`config`) or the environment have what signs requests, so that no token is needed."""
    return any(name in config for name in _SECRETS) or any(map(variables.get, _VARIABLES))


def find(root: str, config: Mapping[str, object], variables: Mapping[str, str] = os.environ) -> Issued[str | None]:
    """Looks for a token as Azure's library does, once, and asks its issuer. Blocking.

    Args:
        root: root of the urls, for messages.
        config: settings in obstore's names, of which client_id and tenant_id are used.
        variables: environment.

    Returns:
        The token with its end. The token is None if azure-identity is not installed: obstore then looks by itself.

    Raises:
        AccessDeniedError: there are no credentials, or their issuer refuses.
        StoreError: the issuer could not be reached; another try may succeed. The key ring makes StoreErrors of other
            errors of Azure's library, too.
    """
    try:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import DefaultAzureCredential
    except ImportError:
        return Issued(None)
    # The library tries each way once. The key ring tries again, and requests that wait get the reason meanwhile.
    client: dict[str, object] = {"retry_total": 0}
    if "client_id" in config:
        client["managed_identity_client_id"] = str(config["client_id"])
    tenant = str(config["tenant_id"]) if "tenant_id" in config else None
    issuers.silence_library("azure.identity")
    try:
        with DefaultAzureCredential(**client) as credential:
            token = credential.get_token(_SCOPE, tenant_id=tenant)
    except ClientAuthenticationError as error:  # the key ring tries again after any other error
        if "AADSTS" in str(error):  # Entra ID has answered
            code = str(error).partition("AADSTS")[2].partition(":")[0]
            raise failures.refused_by_issuer(
                root, f"Entra ID says AADSTS{code[:8]}", "check the identity, or: az login"
            ) from failures.redact(error)
        # All of the library's ways have failed: the metadata server says why.
        base = variables.get("AZURE_POD_IDENTITY_AUTHORITY_HOST") or _METADATA
        answer = issuers.ask_metadata(base.rstrip("/") + _TOKEN, {"Metadata": "true"})
        raise issuers.explain_metadata(root, answer, missing_is_busy=True) from failures.redact(error)
    return Issued(token.token, datetime.fromtimestamp(token.expires_on, UTC), source="azure-identity")
