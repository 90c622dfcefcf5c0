"""From obstore's exceptions to ours, at this one place."""

from __future__ import annotations

import re

from streamer.errors import AccessDeniedError, ConfigError, StoreError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions

# obstore 0.12 has no attribute for the status; its message begins "... status code: 503 Service Unavailable: <body>".
_STATUS = re.compile(r"status code: (\d{3})")
# Where obstore asks for a machine's role when it has found no other credentials.
_METADATA = ("http://169.254.169.254/", "http://metadata.google.internal", "http://metadata/")
# What a provider of credentials raised: obstore has its type and text in its own text only.
_PROVIDER = re.compile(r"External AWS credential provider: (\w+): (.*)", re.DOTALL)
_STATUS_OF_TYPE = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "PreconditionError": 412,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
}


def mapped(url: str, error: Exception, target: ObjectRecord | None) -> StreamerError:
    """Our error for obstore's; by type first, then by the status in the first line of its text."""
    if type(error).__name__ in ("UnknownConfigurationKeyError", "InvalidPathError", "ValueError"):
        return ConfigError(f"{url}: obstore cannot take this url or option: {error}", field="url")
    if any(server in str(error).partition("\n\nDebug source")[0] for server in _METADATA):
        return failures.no_credentials(url)
    if provider := _PROVIDER.search(str(error).partition("\n\nDebug source")[0]):
        kind = AccessDeniedError if provider[1] == AccessDeniedError.__name__ else StoreError
        return kind(provider[2], url=url, status=None)
    answer = _answer(error)
    if answer.status == 412 and target is not None:
        return versions.changed(target, None)
    return _unanswered(url, error) if answer.status is None else failures.error_of(url, answer)


def _answer(error: Exception) -> failures.Answer:
    text = str(error)
    found = _STATUS.search(text.partition("\n\nDebug source")[0])
    status = int(found[1]) if found else _STATUS_OF_TYPE.get(type(error).__name__)
    return failures.Answer(status, failures.code_of(text))


def _unanswered(url: str, error: Exception) -> StoreError:
    text = str(error)
    reason = next((reason for sign, reason in _REASONS.items() if sign in text), "the request failed")
    return failures.unreachable(url, reason)


# Without an answer there is no status; obstore 0.12 tells the kinds apart only in its text. First match wins.
_REASONS = {
    "dns error": failures.UNRESOLVED,
    "UnknownIssuer": failures.UNTRUSTED,
    "CaUsedAsEndEntity": failures.UNTRUSTED,  # a self-signed certificate
    "InvalidCertificate": failures.INVALID,
    "kind: Connect": failures.NO_CONNECTION,
    "kind: Timeout": "timed out",
    "kind: Decode": "the connection broke in the body",
    "kind: Interrupted": "the connection broke",
}
