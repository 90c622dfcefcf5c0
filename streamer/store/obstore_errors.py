"""Maps obstore's exceptions to ours, in this one place."""

from __future__ import annotations

import re

from streamer.errors import ConfigError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.credentials import metadata

# obstore 0.12 has no attribute for the status; its message begins "... status code: 503 Service Unavailable: <body>".
_STATUS = re.compile(r"status code: (\d{3})")
# obstore's words for a bucket in another region, instead of a status.
_ELSEWHERE = "redirect without LOCATION"
# Where obstore asks for credentials by itself: a machine's metadata server, or an issuer of tokens.
# It strikes the url of STS out of its texts.
_ASKED = re.compile(r"Error performing \w+ (?:https?://([^/\s]+)|REDACTED)")
_METADATA = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "metadata.google.internal", "metadata")
_ISSUERS = re.compile(r"sts|oauth2\.googleapis\.com|login\.\w+\.\w+|sts[\w.-]*\.amazonaws\.com[\w.]*")
_STATUS_OF_TYPE = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "PreconditionError": 412,
    "PermissionDeniedError": 403,
}


def mapped(url: str, error: Exception, target: ObjectRecord | None) -> StreamerError:
    """Returns our error for obstore's, by type first, then by the status in the first line of its text."""
    text = str(error).partition("\n\nDebug source")[0]
    if type(error).__name__ == "NotSupportedError":
        return failures.without_ranges(url)
    if type(error).__name__ in ("UnknownConfigurationKeyError", "InvalidPathError", "ValueError"):
        return ConfigError(f"{url}: obstore cannot take this url or option: {text}", field="url")
    answer = _answer(error, text)
    if (found := _ASKED.search(text)) and (failure := _of_issuer(url, (found[1] or "STS").lower(), answer)):
        return failure
    if type(error).__name__ == "UnauthenticatedError" and answer.status is None:
        return failures.no_credentials(url)
    if answer.status == 412 and target is not None:
        return versions.changed(target, None)
    if answer.status is not None:
        return failures.error_of(url, answer)
    reason = next((reason for sign, reason in _REASONS.items() if sign in str(error)), "the request failed")
    if reason == failures.NO_LENGTH and url.startswith("gs://"):
        # Google unpacks what is stored with this header for each request that does not accept gzip.
        return failures.encoded(url, "gzip")
    return failures.unreachable(url, reason)


def _of_issuer(url: str, host: str, answer: failures.Answer) -> StreamerError | None:
    """Returns the error if an issuer was asked and not the store."""
    if host in _METADATA:
        is_azure = url.startswith(("az://", "abfs"))
        return metadata.failure(url, metadata.Answer(answer.status, is_connected=False), missing_is_busy=is_azure)
    if not _ISSUERS.fullmatch(host):
        return None
    if answer.status is None or answer.status >= 500 or answer.status == 429:
        return failures.unobtainable(url, f"{host} answered {answer.status or 'nothing'}")
    return failures.refused_by_issuer(url, f"{host} answered {answer.status}")


def _answer(error: Exception, text: str) -> failures.Answer:
    if _ELSEWHERE in text:
        return failures.Answer(301)
    found = _STATUS.search(text)
    status = int(found[1]) if found else _STATUS_OF_TYPE.get(type(error).__name__)
    return failures.Answer(status, failures.word_of(str(error), "Code"), message=failures.message_of(text))


# Without an answer there is no status; obstore 0.12 distinguishes the causes only in its text. The first match wins.
_REASONS = {
    "dns error": failures.UNRESOLVED,
    "UnknownIssuer": failures.UNTRUSTED,
    "CaUsedAsEndEntity": failures.UNTRUSTED,  # a self-signed certificate
    "InvalidCertificate": failures.INVALID,
    "Content-Length Header missing": failures.NO_LENGTH,
    "kind: Connect": failures.NO_CONNECTION,
    "kind: Timeout": "timed out",
    "kind: Decode": "the connection broke in the body",
    "kind: Interrupted": "the connection broke",
}
