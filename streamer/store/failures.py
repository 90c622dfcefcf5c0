"""Makes the errors of streamer for the answers of stores and issuers of credentials.

Used by every store and by `credentials/`; `fetch/retry.py` reads its codes. Messages name the url and what to check.
They do not contain the text of a library's error, which may quote signed urls. That text, with secrets removed, stays
in `__cause__`. Most functions only return an error, which the caller raises.
"""

from __future__ import annotations

import html
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from streamer.errors import (
    AccessDeniedError,
    ClosedError,
    ObjectChangedError,
    ObjectNotFoundError,
    ShortReadError,
    StoreError,
    StoreTimeoutError,
    StreamerError,
    ThrottledError,
)
from streamer.manifest.model import ObjectRecord
from streamer.store.addresses.urls import shown

# Returns the error of streamer for a library's exception, given the url, and the object that was read or None.
Mapper = Callable[[str, Exception, ObjectRecord | None], StreamerError]

# Matches the values of secrets in urls and texts.
_SECRET = re.compile(
    r"((?:sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|access_token"
    r"|token|key|secret|password|authorization)\"?\s*[=:]\s*\"?)[^&\s\"',]+",
    re.IGNORECASE,
)


class StoreAnswer(msgspec.Struct, frozen=True):
    """Holds an answer of a store that is not the object.

    Attributes:
        status: HTTP status, or None if there was no answer.
        code: the store's error code, such as "SlowDown", or "". Messages show it.
        retry_after_seconds: pause that the store asked for, or None.
        message: the store's own sentence, or "". Messages show it if the status is 400, 401 or 403.
        region: region of the bucket according to the store, or "".
    """

    status: int | None
    code: str = ""
    retry_after_seconds: float | None = None
    message: str = ""
    region: str = ""


_MESSAGE = re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_MOST_OF_SENTENCE = 200


def word_of(body: str, field: str) -> str:
    """Returns the word in a field of an XML answer ("Code", "Region"), or "" if there is none."""
    found = re.search(rf"<{field}>([\w.-]+)</{field}>", body)
    return found[1] if found else ""


def message_of(body: str) -> str:
    """Returns the store's own sentence in an XML answer, or "" if there is none."""
    found = _MESSAGE.search(body)
    return html.unescape(found[1]) if found else ""


def sentence(text: str) -> str:
    """Returns a text of a store or an issuer for a message: one line of at most 200 characters, without secrets."""
    line = " ".join(_SECRET.sub(r"\1***", text).replace(";", ",").split())
    return line if len(line) <= _MOST_OF_SENTENCE else line[: _MOST_OF_SENTENCE - 3] + "..."


def parse_retry_after(retry_after: str | None) -> float | None:
    """Returns Retry-After in seconds, or None if it is no number: object stores do not use its form with a date."""
    try:
        seconds = float(retry_after) if retry_after else math.nan
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < math.inf else None


def error_of(url: str, answer: StoreAnswer) -> StoreError:
    """Returns the error for an answer, with advice. Its `details` have url, status, code and retry_after_seconds.

    They have region, too, if the answer names one.
    """
    kind, advice = _KINDS.get(answer.status or 0, (StoreError, ""))
    if answer.code in EXPIRED_CODES:
        kind = AccessDeniedError
        advice = "the credentials have expired; renew them"
    elif answer.code in OTHER_KEYS_CODES:
        kind = AccessDeniedError
    advice = _ADVICE.get(answer.code, advice)
    answered = " ".join(str(word) for word in (answer.status, answer.code) if word)
    if answer.status in _SENTENCED and (own := sentence(answer.message)):
        answered += f" ({own})"
    return kind(
        f"{shown(url)}: the store answered {answered or 'nothing'}" + (f"; {advice}" if advice else ""),
        url=shown(url),
        status=answer.status,
        code=answer.code or None,
        retry_after_seconds=answer.retry_after_seconds,
        **({"region": answer.region} if answer.region else {}),
    )


# Codes for credentials that have expired.
EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
# Codes for keys that were rotated away, belong to another store, or have a damaged token (status 400 at AWS).
OTHER_KEYS_CODES = ("InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId")
# Statuses with which the store's sentence says more than its code: the missing action, the key of KMS, the role.
_SENTENCED = (400, 401, 403)
_ADVICE = {
    **dict.fromkeys(
        OTHER_KEYS_CODES,
        "the store does not know this key: it was deleted or rotated, or belongs to another endpoint (endpoint_url)",
    ),
    "InvalidObjectState": "the object is archived; restore it, or take it out of the dataset",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it (chrony or ntp)",
    "SignatureDoesNotMatch": "check the secret key, and that no proxy changes the request",
    "AuthorizationPermissionMismatch": 'give this identity the role "Storage Blob Data Reader" on the container',
    "AuthorizationFailure": "check the firewall and the networks of the storage account, and its keys' permission",
    "KMS.DisabledException": "the KMS key of the object is disabled",
}
_ACCESS = "check the credentials (key, secret, token, profile, anon=True) and the bucket's policy"
_SLOWER = "it asks for fewer requests"
_KINDS: dict[int, tuple[type[StoreError], str]] = {
    301: (StoreError, "the bucket lives in another region; set client_kwargs={'region_name': ...}"),
    307: (StoreError, "the bucket lives in another region; set client_kwargs={'region_name': ...}"),
    400: (StoreError, "check the region, the endpoint and the credentials"),
    401: (AccessDeniedError, _ACCESS),
    403: (AccessDeniedError, _ACCESS),
    404: (ObjectNotFoundError, "check the bucket and the key"),
    405: (StoreError, "the server takes neither HEAD nor reads of ranges, which streamer needs"),
    408: (StoreTimeoutError, ""),
    410: (ObjectNotFoundError, "it was deleted"),
    412: (ObjectChangedError, "the object changed since it was indexed; index it again"),
    416: (ObjectChangedError, "the object is shorter than the manifest says; index it again"),
    429: (ThrottledError, _SLOWER),
    501: (
        StoreError,
        "the store does not implement this request; where it is If-Match, which pins reads to a version, give "
        "storage_options={'pin': 'size'} and index again",
    ),
    503: (ThrottledError, _SLOWER),
    504: (StoreTimeoutError, ""),
}


_ISSUER_ADVICE = "check the metadata server, the role and its trust policy, or the sign-in"

UNRESOLVED = "the name of the endpoint cannot be resolved"
NO_LENGTH = "the server does not say how long the object is"
NO_CONNECTION = "no connection"
LATE_CONNECTION = "no connection in time"
INVALID = "its certificate is not valid (expired, or of another name)"
UNTRUSTED = "its certificate is not trusted (a private CA: client_kwargs={'verify': '/path/ca.pem'})"


def unreachable(url: str, reason: str) -> StoreError:
    """Returns the error for a connection that failed or broke. Its details say whether no server was reached.

    Args:
        url: url of the request.
        reason: one of the texts above this function, or any other. It is part of the message.
    """
    return StoreError(
        f"{shown(url)}: {reason}; check the endpoint and the network",
        url=shown(url),
        status=None,
        unreached=reason in (UNRESOLVED, NO_CONNECTION, LATE_CONNECTION),
        untrusted=reason in (UNTRUSTED, INVALID),
    )


def make_redirect_error(url: str, status: int, host: str) -> StoreError:
    """Returns the error for an S3 endpoint that redirects to a host that no option names."""
    return StoreError(
        f"{shown(url)}: the store redirects to {host}; if that is a server of the same cluster of caches, allow it: "
        f"storage_options={{'redirects': [{host!r}]}}; otherwise the bucket lives in another region: set "
        "client_kwargs={'region_name': ...}",
        url=shown(url),
        status=status,
        option="redirects",
    )


def make_endless_error(folder: str, pages: int, empty_pages: int) -> StoreError:
    """Returns the error for a list without an end.

    Args:
        folder: url of the folder.
        pages: number of the page that continues where an earlier one did.
        empty_pages: number of empty pages in a row. 0 means that a page was repeated.
    """
    what = (
        f"{empty_pages:,} pages in a row are empty"
        if empty_pages
        else f"page {pages} continues where an earlier one did"
    )
    return StoreError(
        f"the listing of {folder} has no end: {what}; the store does not list as S3 does: name the objects by a list "
        "of urls, or report it to the store",
        url=folder,
        pages=pages,
    )


def make_upload_error(url: str, status: int, host: str) -> StoreError:
    """Returns the error for a web server that redirects an upload so that clients follow without the content."""
    return StoreError(
        f"{shown(url)}: the server answers an upload with {status}, a redirect to {host or 'no host'} that clients "
        "follow without the bytes; nothing was written: name the address where it takes uploads",
        url=shown(url),
        status=status,
    )


def make_size_error(url: str, size: object, expected: int) -> StoreError:
    """Returns the error for an upload after which the object has another size than the file."""
    return StoreError(
        f"{shown(url)} has {size} bytes after an upload of {expected}; see whether another program writes it, and "
        "whether the store has space",
        url=shown(url),
        status=None,
    )


def make_move_error(url: str) -> StoreError:
    """Returns the error for a store that does not move an uploaded file to its url, where another object is."""
    return StoreError(
        f"{shown(url)}: the store does not replace this object; remove it, or let this user rename and delete there",
        url=shown(url),
        status=None,
    )


def make_encoding_error(url: str, encoding: str) -> StoreError:
    """Returns the error for an object that its store sends with a Content-Encoding, so that ranges are not its own."""
    return StoreError(
        f"{shown(url)}: the store sends it with Content-Encoding: {encoding}, so that neither its length nor its "
        "ranges are those of the file; store it without that header: uncompressed, or compressed under a name that "
        "says so (.gz)",
        url=shown(url),
        status=415,
    )


def make_ranges_error(url: str) -> StoreError:
    """Returns the error for a server that sends only whole objects, no ranges."""
    return StoreError(f"{shown(url)}: the server serves no ranges, which streamer reads", url=shown(url), status=405)


def page_instead(url: str) -> AccessDeniedError:
    """Returns the error for a web server that redirects to a page of HTML instead of the object."""
    return AccessDeniedError(
        f"{shown(url)}: the server redirects to a page (text/html), which is not the file; it probably asks for a "
        "sign-in: give headers in storage_options (Authorization, Cookie), or a login in ~/.netrc",
        url=shown(url),
        status=200,
    )


def no_credentials(url: str, why: str = "", *, soon: bool = False) -> AccessDeniedError:
    """Returns the error for a machine without credentials.

    Args:
        url: url of the request, or root of the urls.
        why: what the metadata server answered, or that it did not, or "".
        soon: whether another try within seconds may succeed, as a pod's metadata server needs some time.
    """
    return AccessDeniedError(
        f"{shown(url)}: no credentials were found: neither in storage_options, nor in the environment, nor in a "
        f"profile, nor does this machine have a role{f' ({why})' if why else ''}; set them, or anon=True (gs: "
        "token='anon') for a public bucket",
        url=shown(url),
        status=None,
        soon=soon,
    )


def unobtainable(url: str, what: str, advice: str = _ISSUER_ADVICE) -> StoreError:
    """Returns the error for an issuer that gives no credentials now; another try may succeed.

    Args:
        url: url of the request, or root of the urls.
        what: what the issuer did.
        advice: advice to the user.
    """
    return StoreError(
        f"{shown(url)}: the credentials cannot be obtained now ({what}); {advice}", url=shown(url), status=None
    )


def refused_by_issuer(url: str, what: str, advice: str = _ISSUER_ADVICE, *, soon: bool = False) -> AccessDeniedError:
    """Returns the error for an issuer that refuses credentials.

    Args:
        url: url of the request, or root of the urls.
        what: the issuer's answer.
        advice: advice to the user.
        soon: whether another try within seconds may succeed.
    """
    text = f"{shown(url)}: the issuer of the credentials refuses: {what}; {advice}"
    return AccessDeniedError(text, url=shown(url), status=None, soon=soon)


def short_read(url: str, start: int, stop: int, received: int) -> ShortReadError:
    """Returns the error for a body of the range [start, stop) that ended after `received` bytes."""
    return ShortReadError(
        f"{shown(url)}: the body of [{start}, {stop}) ended after {received} of {stop - start} bytes",
        url=shown(url),
        start=start,
        stop=stop,
        received=received,
    )


def wrong_range(url: str, start: int, stop: int, answered: str) -> ShortReadError:
    """Returns the error for an answer to the range [start, stop) whose Content-Range is another one (`answered`)."""
    return ShortReadError(
        f"{shown(url)}: asked for bytes {start}-{stop - 1}, answered with Content-Range: {answered or 'none'}; what "
        "stands between (a proxy, a cache) changes ranges",
        url=shown(url),
        start=start,
        stop=stop,
        received=0,
    )


def after_fork(root: str, opener: int) -> StoreError:
    """Returns the error for a store that is used after a fork, in which it would hang; `opener`: pid that opened it."""
    return StoreError(
        f"{shown(root)} was opened by process {opener} and used after a fork in {os.getpid()}; "
        "open stores in the process that reads",
        url=shown(root),
    )


def explain_close(url: str) -> ClosedError:
    """Returns the error for a request that was in flight when its store was closed; does not raise it."""
    return ClosedError(f"{shown(url)}: its store was closed while a request was in flight", url=shown(url))


@contextmanager
def translate_errors(mapper: Mapper, url: str, target: ObjectRecord | None = None) -> Iterator[None]:
    """Maps every exception inside the `with` that is not a StreamerError, by `mapper`.

    Args:
        mapper: returns the error that is raised instead.
        url: url of the request.
        target: the object and version that is read, or None.
    """
    try:
        yield
    except StreamerError:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: whatever a library raises becomes ours
        raise mapper(url, error, target) from redact(error)


def redact(error: BaseException) -> BaseException:
    """Returns a library's error for `__cause__`: itself, or a RuntimeError with its text if that had secrets."""
    text = str(error)
    clean = _SECRET.sub(r"\1***", text)
    return error if clean == text else RuntimeError(f"{type(error).__name__}: {clean}")
