"""Describes the credentials and the address with which a root is reached, for error messages. Pure. Never a secret."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from streamer.errors import AccessDeniedError, StoreError, StreamerError
from streamer.store.addresses.urls import Address
from streamer.store.options import ENDPOINT_VARIABLES, Translation, family


class Reached(msgspec.Struct, frozen=True):
    """The way in which requests to a root are made.

    Attributes:
        credentials: description of the credentials that sign the requests.
        endpoint: address, and the setting that names it.
        fixed: whether the credentials stay the same until this process ends.
    """

    credentials: str
    endpoint: str
    fixed: bool = False
    sizes_only: bool = False

    def explain(self, error: StreamerError) -> StreamerError:
        """Returns the same error; a refusal names the credentials, a missing connection the address."""
        if isinstance(error, AccessDeniedError):
            text = error.message
            if error.details.get("status") in (401, 403):
                fact, _, advice = text.partition("; ")
                text = f"{fact} to a request {self.credentials}; {advice}"
            return AccessDeniedError(text, **{**error.details, "fixed": self.fixed})
        if isinstance(error, StoreError) and error.details.get("unreached"):
            return type(error)(f"{error.message}; tried {self.endpoint}", **error.details)
        return error


def reached(address: Address, translation: Translation, variables: Mapping[str, str] = os.environ) -> Reached:
    """Describes how a root is reached with these options and this environment."""
    kind = family(address.scheme)
    if kind == "http":
        return Reached(
            translation.login or "without credentials (a server that asks: headers in storage_options, or ~/.netrc)",
            address.root,
            sizes_only=translation.sizes_only,
        )
    found, fixed = _credentials(str(kind), translation, variables)
    return Reached(found, _endpoint(str(kind), translation, variables), fixed, translation.sizes_only)


def _credentials(kind: str, translation: Translation, variables: Mapping[str, str]) -> tuple[str, bool]:
    """Describes what signs requests, and whether it is fixed."""
    config = translation.config
    if config.get("skip_signature"):
        return "without credentials (anonymous, as storage_options says)", True
    if translation.profile is not None:
        return f"with the profile {translation.profile!r}", False
    if any(name in config for name in _OPTIONS[kind]) or translation.google_user is not None:
        return "with the credentials in storage_options", True
    if name := next((name for name in _VARIABLES[kind] if variables.get(name)), None):
        return f"with the credentials of the environment ({name})", name in _VALUES
    return "with the credentials that this machine has (default profile or role)", False


def _endpoint(kind: str, translation: Translation, variables: Mapping[str, str]) -> str:
    given = translation.config.get("endpoint") or translation.config.get("base_url")
    if given:
        return f"{given} (endpoint_url in storage_options)"
    if kind == "s3":
        if name := next((name for name in ENDPOINT_VARIABLES if variables.get(name)), None):
            return f"{variables[name]} ({name} in the environment)"
        return (
            "AWS, because neither storage_options nor AWS_ENDPOINT_URL names an endpoint_url (MinIO, Ceph, R2 need one)"
        )
    return _CLOUDS[kind]


_OPTIONS = {
    "s3": ("access_key_id",),
    "gs": ("service_account_key", "application_credentials"),
    "az": ("account_key", "sas_key", "client_secret"),
}
_VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET"),
}
# Variables that contain a secret, not its place.
_VALUES = ("AWS_ACCESS_KEY_ID", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET")
_CLOUDS = {
    "gs": "Google, because storage_options names no endpoint_url",
    "az": "Azure, because storage_options names no account_host or connection_string",
}
