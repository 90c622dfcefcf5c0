"""Tokens of Google as its own library finds them: files of every type, federation, impersonation, metadata server."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from streamer.errors import ConfigError, StreamerError
from streamer.store import failures
from streamer.store.credentials import metadata
from streamer.store.credentials.key_ring import Issued

if TYPE_CHECKING:
    from google.auth.credentials import Credentials


class Load(Protocol):
    """Finds credentials; requests no token yet."""

    def __call__(self, *, scopes: Sequence[str]) -> tuple[Credentials, str | None]:
        """The credentials, and their project."""
        ...


_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_OF_OBSTORE = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT_KEY")
_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_METADATA = "169.254.169.254"
# In the texts of RefreshError, which has no status: of the metadata server, or of an issuer that is not well.
_IS_BUSY = re.compile(r"metadata server|compute engine|: 5\d\d|status: 5\d\d|unavailable|internal").search


def find(root: str, config: Mapping[str, object], variables: Mapping[str, str] = os.environ) -> Issued[str | None]:
    """Looks as Google's library does, and asks the issuer; no token: obstore looks by itself.

    That is where a key of a service account is given, which obstore signs with on its own, or where google-auth is
    missing.

    Raises:
        ConfigError: google-auth is missing for a file of credentials that obstore does not know.
        AccessDeniedError: there are none, or their issuer refuses.
        StoreError: the issuer could not be reached; worth another try.
    """
    path = config.get("application_credentials") or variables.get(_FILE)
    kind = _type_of(str(path)) if path else ""
    if "service_account_key" in config or any(map(variables.get, _OF_OBSTORE)) or kind == "service_account":
        return Issued(None)
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
    with _mapped(root, path, variables):
        load: Load = partial(google.auth.load_credentials_from_file, str(path)) if path else google.auth.default
        credentials, _ = load(scopes=_SCOPES)
        credentials.refresh(Request())  # type: ignore[no-untyped-call]
    ends = credentials.expiry
    utc = None if ends is None else ends.replace(tzinfo=UTC)
    return Issued(str(credentials.token), utc, source=type(credentials).__module__.removeprefix("google."))


def _type_of(path: str) -> str:
    """The type of a file of credentials; empty: it has none, or cannot be read, which its reader says."""
    try:
        content = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return ""
    return str(content.get("type", "")) if isinstance(content, Mapping) else ""


@contextmanager
def _mapped(root: str, path: object, variables: Mapping[str, str]) -> Iterator[None]:
    """Maps what Google's library raises."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - the edge: whatever the library raises becomes ours
        raise _failure(root, error, path, variables) from failures.redacted(error)


def _failure(root: str, error: Exception, path: object, variables: Mapping[str, str]) -> StreamerError:
    kind, text = type(error).__name__, str(error).lower()
    if kind == "DefaultCredentialsError" and not path:
        host = variables.get("GCE_METADATA_HOST") or variables.get("GCE_METADATA_IP") or _METADATA
        return metadata.failure(root, metadata.ask(f"http://{host}/", {"Metadata-Flavor": "Google"}))
    if kind in ("DefaultCredentialsError", "MalformedError"):
        return ConfigError(f"{root}: {path} is no file of Google's credentials ({kind})", field="token")
    if kind != "ReauthFailError" and (kind != "RefreshError" or getattr(error, "retryable", False) or _IS_BUSY(text)):
        return failures.unobtainable(root, kind)
    advice = "check the account, its federation and its right to impersonate, or sign in: gcloud auth "
    return failures.refused_by_issuer(root, kind, advice + "application-default login")
