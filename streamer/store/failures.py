"""The errors of streamer for the answers of a store; shared by every store.

Messages name the url and what to check. They carry no text of the foreign error, because that may quote signed
urls; its text, with secrets struck out, stays in `__cause__`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from streamer.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectNotFoundError,
    ShortReadError,
    StoreError,
    StoreTimeoutError,
    StreamerError,
    ThrottledError,
)
from streamer.manifest.model import ObjectRecord
from streamer.store.urls import shown

Mapper = Callable[[str, Exception, ObjectRecord | None], StreamerError]

_SECRET = re.compile(
    r"((?:sig|signature|x-amz-signature|x-amz-security-token|x-amz-credential|x-goog-signature|access_token"
    r"|token|key|secret|password|authorization)\"?\s*[=:]\s*\"?)[^&\s\"',]+",
    re.IGNORECASE,
)


class Answer(msgspec.Struct, frozen=True):
    """The answer of a store that is not the object.

    Attributes:
        status: of HTTP; None when there was no answer at all.
        code: the store's error code, e.g. "SlowDown"; shown in messages.
        retry_after_seconds: as the store asked.
    """

    status: int | None
    code: str = ""
    retry_after_seconds: float | None = None


_CODE = re.compile(r"<Code>(\w+)</Code>")


def code_of(body: str) -> str:
    """The error code in an XML answer; empty: none."""
    found = _CODE.search(body)
    return found[1] if found else ""


def asked_seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds; its date form is not used by object stores and is ignored."""
    try:
        seconds = float(retry_after) if retry_after else math.nan
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < math.inf else None


def error_of(url: str, answer: Answer) -> StoreError:
    """The error for an answer; a StoreError's `details` has url, status and, when asked for, retry_after_seconds."""
    kind, advice = _KINDS.get(answer.status or 0, (StoreError, ""))
    if answer.code in EXPIRED_CODES:
        kind, advice = AccessDeniedError, "the credentials have expired; renew them"
    answered = " ".join(str(word) for word in (answer.status, answer.code) if word)
    return kind(
        f"{shown(url)}: the store answered {answered or 'nothing'}" + (f"; {advice}" if advice else ""),
        url=shown(url),
        status=answer.status,
        code=answer.code or None,
        retry_after_seconds=answer.retry_after_seconds,
    )


EXPIRED_CODES = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired")
_ACCESS = "check the credentials (key, secret, token, profile, anon=True) and the bucket's policy"
_SLOWER = "it asks for fewer requests"
_KINDS: dict[int, tuple[type[StoreError], str]] = {
    301: (StoreError, "the bucket lives in another region; set client_kwargs={'region_name': ...}"),
    307: (StoreError, "the bucket lives in another region; set client_kwargs={'region_name': ...}"),
    400: (StoreError, "check the region, the endpoint and the credentials"),
    401: (AccessDeniedError, _ACCESS),
    403: (AccessDeniedError, _ACCESS),
    404: (ObjectNotFoundError, "check the bucket and the key"),
    408: (StoreTimeoutError, ""),
    410: (ObjectNotFoundError, "it was deleted"),
    412: (ObjectChangedError, "the object changed since it was indexed; index it again"),
    416: (ObjectChangedError, "the object is shorter than the manifest says; index it again"),
    429: (ThrottledError, _SLOWER),
    503: (ThrottledError, _SLOWER),
    504: (StoreTimeoutError, ""),
}


UNRESOLVED = "the name of the endpoint cannot be resolved"
NO_CONNECTION = "no connection"
LATE_CONNECTION = "no connection in time"
INVALID = "its certificate is not valid (expired, or of another name)"
UNTRUSTED = "its certificate is not trusted (a private CA: client_kwargs={'verify': '/path/ca.pem'})"


def unreachable(url: str, reason: str) -> StoreError:
    """No connection, or it broke: worth another try."""
    return StoreError(
        f"{shown(url)}: {reason}; check the endpoint and the network",
        url=shown(url),
        status=None,
        unreached=reason in (UNRESOLVED, NO_CONNECTION, LATE_CONNECTION),
        untrusted=reason in (UNTRUSTED, INVALID),
    )


def redirected(url: str, status: int, host: str) -> StoreError:
    """An S3 endpoint sends its client to a host that no option names."""
    return StoreError(
        f"{shown(url)}: the store redirects to {host}; if that is a server of the same cluster of caches, allow it: "
        f"storage_options={{'redirects': [{host!r}]}}; otherwise the bucket lives in another region: set "
        "client_kwargs={'region_name': ...}",
        url=shown(url),
        status=status,
        option="redirects",
    )


def no_credentials(url: str) -> AccessDeniedError:
    """None were found anywhere."""
    return AccessDeniedError(
        f"{shown(url)}: no credentials were found: neither in storage_options, nor in the environment, nor in a "
        "profile, nor does this machine have a role; set them, or anon=True (gs: token='anon') for a public bucket",
        url=shown(url),
        status=None,
    )


def short_read(url: str, start: int, stop: int, received: int) -> ShortReadError:
    """The body ended early."""
    return ShortReadError(
        f"{shown(url)}: the body of [{start}, {stop}) ended after {received} of {stop - start} bytes",
        url=shown(url),
        start=start,
        stop=stop,
        received=received,
    )


def after_fork(root: str, opener: int) -> StoreError:
    """Threads and sockets of a client do not survive a fork: the child would hang."""
    return StoreError(
        f"{shown(root)} was opened by process {opener} and used after a fork in {os.getpid()}; "
        "open stores in the process that reads",
        url=shown(root),
    )


@contextmanager
def translating(mapper: Mapper, url: str, target: ObjectRecord | None = None) -> Iterator[None]:
    """Maps every foreign error of the block to one of streamer by the store's `mapper`."""
    try:
        yield
    except StreamerError:
        raise
    except Exception as error:  # noqa: BLE001 - the edge: whatever a library raises becomes ours
        raise mapper(url, error, target) from redacted(error)


def redacted(error: BaseException) -> BaseException:
    """The foreign error as a cause; a copy without secrets when its text may hold one."""
    text = str(error)
    clean = _SECRET.sub(r"\1***", text)
    return error if clean == text else RuntimeError(f"{type(error).__name__}: {clean}")
