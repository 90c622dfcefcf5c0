"""From the exceptions of fsspec and the libraries below it to ours, at this one place."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Iterator, Mapping

from streamer.errors import StoreTimeoutError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.urls import shown

_STATUS_OF_ERRNO = {errno.ENOENT: 404, errno.EACCES: 403, errno.EPERM: 403, errno.EBUSY: 503}


def mapped(url: str, error: Exception, target: ObjectRecord | None) -> StreamerError:
    """Our error for a foreign one: by the HTTP answer in its chain, else by type and errno."""
    if any(type(step).__name__ in _NO_CREDENTIALS for step in _chain(error)):
        return failures.no_credentials(url)
    answer = _answer(error)
    if answer.status == 412 and target is not None:
        return versions.changed(target, None)
    if answer.status is not None:
        return failures.error_of(url, answer)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return StoreTimeoutError(f"{shown(url)}: timed out", url=shown(url), status=None)
    untrusted = any(isinstance(step, ssl.SSLError) or type(step).__name__ == "SSLError" for step in _chain(error))
    reason = failures.UNTRUSTED if untrusted else f"the request failed ({type(error).__name__})"
    return failures.unreachable(url, reason)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from."""
    step: BaseException | None = error
    while step is not None:
        yield step
        step = step.__cause__ or step.__context__


def _answer(error: BaseException) -> failures.Answer:
    """The first HTTP answer in the chain of causes; s3fs and gcsfs translate theirs into OSErrors and keep it there."""
    for step in _chain(error):
        if (found := _http_answer(step)) is not None:
            return found
    return failures.Answer(_status_of_type(error))


def _http_answer(error: BaseException) -> failures.Answer | None:
    response = getattr(error, "response", None)  # botocore's ClientError: a dict
    if isinstance(response, Mapping) and "ResponseMetadata" in response:
        metadata = response["ResponseMetadata"]
        headers = metadata.get("HTTPHeaders", {})
        code = str(response.get("Error", {}).get("Code", ""))
        return failures.Answer(metadata.get("HTTPStatusCode"), code, failures.asked_seconds(headers.get("retry-after")))
    for name in ("status", "status_code", "code"):  # aiohttp, azure, gcsfs
        # aiohttp calls a truncated body "code 400" of its own making: `code` is a status only of gcsfs.
        is_status = name != "code" or type(error).__module__.startswith("gcsfs")
        status = getattr(error, name, None) if is_status else None
        if isinstance(status, int) and 300 <= status < 600:
            headers = getattr(error, "headers", None) or {}
            return failures.Answer(status, "", failures.asked_seconds(headers.get("Retry-After")))
    return None


def _status_of_type(error: BaseException | None) -> int | None:
    if isinstance(error, FileNotFoundError):
        return 404
    if isinstance(error, PermissionError) or type(error).__name__ in _REFUSED_CREDENTIALS:
        return 403
    return _STATUS_OF_ERRNO.get(error.errno or 0) if isinstance(error, OSError) else None


_NO_CREDENTIALS = ("NoCredentialsError",)
_REFUSED_CREDENTIALS = ("PartialCredentialsError", "ClientAuthenticationError")
