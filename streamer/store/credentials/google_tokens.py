"""Finds tokens of Google as Google's own library does: files, federation, impersonation, metadata server.

`store/root.py` passes `find` to the key ring of a bucket, and adds an emulator that the environment names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING

from streamer.errors import ConfigError, StreamerError
from streamer.store import failures
from streamer.store.credentials import issuers
from streamer.store.credentials.key_ring import Issued

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_OF_OBSTORE = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_USER_ISSUER = "https://oauth2.googleapis.com/token"
_METADATA = "169.254.169.254"
# Words in the texts of RefreshError, which has no status, that tell of a metadata server or issuer that is failing.
_IS_BUSY = re.compile(r"metadata server|compute engine|: 5\d\d|status: 5\d\d|unavailable|internal").search
# Codes of OAuth 2.0 (RFC 6749, 5.2 and RFC 8693, 2.2.2) for a refusal.
_IS_REFUSED = re.compile(r"invalid_\w+|unauthorized_client|unsupported_grant_type|access_denied").search
_AWS = "aws:token-type:aws4_request"


def add_emulator(options: Mapping[str, object], variables: Mapping[str, str] = os.environ) -> Mapping[str, object]:
    """Returns the storage options with the emulator that STORAGE_EMULATOR_HOST names, if they have no endpoint.

    Without a token in the options, requests to the emulator have none.

    Source: Google, "google-cloud-storage" (Python): the endpoint, and anonymous credentials.
    """
    host = variables.get("STORAGE_EMULATOR_HOST")
    if not host or options.get("endpoint_url"):
        return options
    return {"token": "anon", **options, "endpoint_url": host if "://" in host else f"http://{host}"}


def find(
    root: str,
    config: Mapping[str, object],
    variables: Mapping[str, str] = os.environ,
    *,
    user: Mapping[str, str] | None = None,
) -> Issued[str | None]:
    """Looks for a token as Google's library does, once, and asks its issuer. Blocking.

    Args:
        root: root of the urls, for messages.
        config: settings in obstore's names.
        variables: environment.
        user: a user's sign-in that the storage options hold, as arguments of google-auth's user credentials. None means
            that they hold none.

    Returns:
        The token with its end. The token is None if obstore finds credentials by itself: there is a key of a service
        account, the options name a file, or google-auth is not installed.

    Raises:
        ConfigError: credentials of this type are not taken from the options, a file of them is invalid, or google-auth
            is not installed and obstore cannot read them.
        AccessDeniedError: there are no credentials, or their issuer refuses.
        StoreError: the issuer could not be reached; another try may succeed.
    """
    if user is not None:
        return _find_user_token(root, user, variables)
    option = config.get("application_credentials")
    path = variables.get(_FILE)
    kind = _read_type(str(option or path)) if option or path else ""
    if "service_account_key" in config or any(map(variables.get, _OF_OBSTORE)) or kind == "service_account":
        return Issued(None)
    if option and kind not in ("", "authorized_user"):  # google-auth warns against files from untrusted sources
        raise ConfigError(
            f"{option}: credentials of the type {kind!r} are taken from {_FILE}, not from storage_options",
            field="token",
        )
    try:
        import google.auth
        from google.auth.transport.requests import Request
    except ImportError:
        if kind not in ("", "authorized_user"):
            raise ConfigError(
                f"{path}: credentials of the type {kind!r} need google-auth; pip install 'streamer-data[gcs]'",
                field="token",
            ) from None
        return Issued(None)
    if option:
        return Issued(None)
    with _map_errors(root, path, variables):
        issuers.silence_library("google.auth")
        if path and kind == "external_account":
            credentials = _load_external_account(path)
        else:
            credentials, _ = google.auth.default(scopes=_SCOPES)
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
    return _wrap_token(credentials)


def _find_user_token(root: str, user: Mapping[str, str], variables: Mapping[str, str]) -> Issued[str | None]:
    """Returns a token for a user's sign-in in the storage options; asks only Google's own issuer. Raises as `find`."""
    try:
        from google.auth.transport.requests import Request
        from google.oauth2.credentials import Credentials as UserCredentials
    except ImportError:
        raise ConfigError(
            f"{root}: a user's sign-in as token needs google-auth; pip install 'streamer-data[gcs]'", field="token"
        ) from None
    with _map_errors(root, "token in storage_options", variables):
        credentials = UserCredentials(None, token_uri=_USER_ISSUER, **user)  # type: ignore[no-untyped-call]
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
    return _wrap_token(credentials)


def _wrap_token(credentials: Credentials) -> Issued[str | None]:
    ends = credentials.expiry
    utc = None if ends is None else ends.replace(tzinfo=UTC)
    return Issued(str(credentials.token), utc, source=type(credentials).__module__.removeprefix("google."))


def _read_type(path: str) -> str:
    """Returns the type that a file of credentials names; "" if it names none or cannot be read."""
    try:
        content = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return ""
    return str(content.get("type", "")) if isinstance(content, Mapping) else ""


def _load_external_account(path: str) -> Credentials:
    """Loads a file that names the identity of another cloud.

    `google.auth.default` is not used, since it asks for the identity's project as well, which may fail.
    """
    from google.auth import aws, identity_pool, pluggable

    info = json.loads(Path(path).read_bytes())
    by_program = "executable" in (info.get("credential_source") or {})
    kind = pluggable if by_program else aws if str(info.get("subject_token_type")).endswith(_AWS) else identity_pool
    credentials: Credentials = kind.Credentials.from_info(info, scopes=_SCOPES)
    return credentials


@contextmanager
def _map_errors(root: str, path: object, variables: Mapping[str, str]) -> Iterator[None]:
    """Maps whatever google-auth raises inside its `with` to an error of streamer; `path`: the file of credentials."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the edge: whatever the library raises becomes ours
        raise _failure(root, error, path, variables) from failures.redact(error)


def _failure(root: str, error: Exception, path: object, variables: Mapping[str, str]) -> StreamerError:
    """Returns the error for one of google-auth; may ask the metadata server for the reason."""
    kind = type(error).__name__
    text = str(error).lower()
    if kind == "DefaultCredentialsError" and not path:
        host = variables.get("GCE_METADATA_HOST") or variables.get("GCE_METADATA_IP") or _METADATA
        return issuers.explain_metadata(root, issuers.ask_metadata(f"http://{host}/", {"Metadata-Flavor": "Google"}))
    if kind in ("DefaultCredentialsError", "MalformedError"):
        return ConfigError(f"{root}: {path} is not a file of Google's credentials ({kind})", field="token")
    is_final = kind in ("RefreshError", "OAuthError", "ReauthFailError") and not getattr(error, "retryable", False)
    if not is_final or _IS_BUSY(text) or (kind == "OAuthError" and not _IS_REFUSED(text)):
        return failures.unobtainable(root, kind)
    advice = "check the account, its federation and its right to impersonate, or sign in: gcloud auth "
    return failures.refused_by_issuer(root, kind, advice + "application-default login")
