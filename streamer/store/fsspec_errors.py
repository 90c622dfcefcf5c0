"""Maps the exceptions of fsspec, the libraries below it, and the disk to the errors of streamer.

Used by the store that reads through fsspec (`store/fsspec_store.py`), and by `store/local_store.py`.
"""

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
    """Returns the error of streamer for another one: by the HTTP answer in its causes, otherwise by type and errno.

    Args:
        url: url of the request.
        error: the exception.
        target: the object and version that was read, or None for other requests.
    """
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
    """Yields the error and its causes, outermost first."""
    step: BaseException | None = error
    while step is not None:
        yield step
        step = step.__cause__ or step.__context__


def _answer(error: BaseException) -> failures.StoreAnswer:
    """Returns the first HTTP answer in the error and its causes, where s3fs and gcsfs keep it.

    Without one, the status is that of the error's type or errno, or None.
    """
    for step in _chain(error):
        if (found := _http_answer(step)) is not None:
            return found
    if isinstance(error, FileNotFoundError):
        return failures.StoreAnswer(404)
    refused = type(error).__name__ in _REFUSED_CREDENTIALS or _denies_login(error)
    if refused or isinstance(error, PermissionError):
        return failures.StoreAnswer(403)
    return failures.StoreAnswer(_STATUS_OF_ERRNO.get(error.errno or 0) if isinstance(error, OSError) else None)


def _denies_login(error: BaseException) -> bool:
    """Whether a server of FTP refuses the login (RFC 959, reply 530)."""
    return type(error).__module__ == "ftplib" and str(error).startswith("530")


def _http_answer(error: BaseException) -> failures.StoreAnswer | None:
    """Returns the HTTP answer that an exception of a known library holds, or None."""
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
        # `code` is a status only if gcsfs has set it: aiohttp sets it to 400 for a truncated body.
        is_status = name != "code" or type(error).__module__.startswith("gcsfs")
        status = getattr(error, name, None) if is_status else None
        if isinstance(status, int) and 300 <= status < 600:
            headers = getattr(error, "headers", None) or {}
            return failures.StoreAnswer(status, "", failures.parse_retry_after(headers.get("Retry-After")))
    return None


# Types of errors that another try would meet again.
_FINAL = (ImportError, AttributeError, TypeError, ValueError, NotImplementedError)
# Types among them after which another try may succeed: a server's answer could not be parsed.
_UNREADABLE = (json.JSONDecodeError, UnicodeError)
_NO_CREDENTIALS = ("NoCredentialsError",)
_REFUSED_CREDENTIALS = (
    *("PartialCredentialsError", "ClientAuthenticationError"),
    *("AuthenticationException", "BadAuthenticationType"),  # paramiko
    *("LogonFailure", "SMBAuthenticationError"),  # smbprotocol
)
