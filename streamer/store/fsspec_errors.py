"""Maps the exceptions of fsspec and the libraries below it to ours, in this one place."""

from __future__ import annotations

import asyncio
import errno
import json
import ssl
from collections.abc import Iterator, Mapping

from streamer.errors import ConfigError, StoreTimeoutError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.addresses.urls import shown

_STATUS_OF_ERRNO = {errno.ENOENT: 404, errno.EACCES: 403, errno.EPERM: 403, errno.EBUSY: 503}


def map_error(url: str, error: Exception, target: ObjectRecord | None) -> StreamerError:
    """Returns our error for a foreign one: by the HTTP answer in its chain, otherwise by type and errno."""
    from streamer.store.credentials import issuers  # local files need none of these

    if any(type(step).__name__ in _NO_CREDENTIALS for step in _chain(error)):
        return failures.no_credentials(url)
    if (refusal := issuers.find_issuer_error(shown(url), list(_chain(error)))) is not None:
        return refusal
    if isinstance(error, _FINAL) and not isinstance(error, _UNREADABLE):
        text = failures.sentence(str(error))
        return ConfigError(
            f"{shown(url)}: the library of this url cannot do this ({type(error).__name__}: {text}); check that what "
            "it needs is installed, and the storage options",
            field="url",
        )
    answer = _answer(error)
    if answer.status == 412 and target is not None:
        return versions.make_change_error(target, None)
    if answer.status is not None:
        return failures.error_of(url, answer)
    if isinstance(error, (TimeoutError, asyncio.TimeoutError)):
        return StoreTimeoutError(f"{shown(url)}: timed out", url=shown(url), status=None)
    untrusted = any(isinstance(step, ssl.SSLError) or type(step).__name__ == "SSLError" for step in _chain(error))
    reason = failures.UNTRUSTED if untrusted else f"the request failed ({type(error).__name__})"
    return failures.unreachable(url, reason)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and its causes."""
    step: BaseException | None = error
    while step is not None:
        yield step
        step = step.__cause__ or step.__context__


def _answer(error: BaseException) -> failures.StoreAnswer:
    """Returns the first HTTP answer in the chain of causes: s3fs and gcsfs make OSErrors and keep it there."""
    for step in _chain(error):
        if (found := _http_answer(step)) is not None:
            return found
    if isinstance(error, FileNotFoundError):
        return failures.StoreAnswer(404)
    if isinstance(error, PermissionError) or type(error).__name__ in _REFUSED_CREDENTIALS:
        return failures.StoreAnswer(403)
    return failures.StoreAnswer(_STATUS_OF_ERRNO.get(error.errno or 0) if isinstance(error, OSError) else None)


def _http_answer(error: BaseException) -> failures.StoreAnswer | None:
    response = getattr(error, "response", None)  # botocore's ClientError: a dict
    if isinstance(response, Mapping) and "ResponseMetadata" in response:
        metadata = response["ResponseMetadata"]
        headers = metadata.get("HTTPHeaders", {})
        refusal = response.get("Error", {})
        after = failures.parse_retry_after(headers.get("retry-after"))
        return failures.StoreAnswer(
            metadata.get("HTTPStatusCode"), str(refusal.get("Code", "")), after, str(refusal.get("Message", ""))
        )
    if isinstance(status := getattr(response, "status_code", None), int) and status >= 300:  # requests, httpx
        return failures.StoreAnswer(
            status, "", failures.parse_retry_after(getattr(response, "headers", {}).get("Retry-After"))
        )
    for name in ("status", "status_code", "code"):  # aiohttp, azure, gcsfs
        # aiohttp calls a truncated body "code 400" of its own making: `code` is a status only of gcsfs.
        is_status = name != "code" or type(error).__module__.startswith("gcsfs")
        status = getattr(error, name, None) if is_status else None
        if isinstance(status, int) and 300 <= status < 600:
            headers = getattr(error, "headers", None) or {}
            return failures.StoreAnswer(status, "", failures.parse_retry_after(headers.get("Retry-After")))
    return None


# Errors of foreign libraries that another try would repeat, except where they could not parse a server's answer.
_FINAL = (ImportError, AttributeError, TypeError, ValueError, NotImplementedError)
_UNREADABLE = (json.JSONDecodeError, UnicodeError)
_NO_CREDENTIALS = ("NoCredentialsError",)
_REFUSED_CREDENTIALS = ("PartialCredentialsError", "ClientAuthenticationError")
