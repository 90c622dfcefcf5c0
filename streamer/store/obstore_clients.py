"""Builds obstore's clients, one per bucket, container or host, and maps obstore's errors to those of streamer.

Used by `store/obstore_store.py`; `store/curl/access.py` reads files of certificates with it.
"""

from __future__ import annotations

import errno
import os
import re
import ssl
import stat
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypedDict, cast

from streamer.errors import ConfigError, StreamerError
from streamer.manifest.model import ObjectRecord
from streamer.store import failures, versions
from streamer.store.credentials import boto_keys, issuers
from streamer.store.credentials.boto_keys import AwsKeys
from streamer.store.credentials.key_ring import AnyRing, Issued
from streamer.store.root import StoreRoot

if TYPE_CHECKING:
    from obstore.store import (
        AzureConfig,
        ClientConfig,
        GCSConfig,
        ObjectStore,
        RetryConfig,
        S3Config,
        S3Credential,
        S3CredentialProvider,
    )


class TokenCredential(TypedDict):
    """Holds a bearer token in obstore's form, for stores of Google and Azure.

    Attributes:
        token: the token.
        expires_at: time at which it expires, in UTC, or None if it does not.
    """

    token: str
    expires_at: datetime | None


# obstore's timeout covers a whole body, and would break a good one on a slow link. `fetch/` has deadlines on progress.
_REQUEST_TIMEOUT = timedelta(hours=1)
# `fetch/` repeats requests, and must see each 503.
_NO_RETRIES: RetryConfig = {"max_retries": 0}

# A longer file of certificates is refused; the system's own has 0.2 MB.
_MOST_CA_BYTES = 16 << 20
# The parts of obstore's texts that contain no value of an option: a missing setting, and types of Google's files.
_WITHOUT_VALUES = re.compile(r"[\w ]+ must be (?:specified|provided)|unknown variant `\w+`|missing field `\w+`")
# Uploads repeat their parts, so that a shard of a gigabyte does not begin again for one of them. In this time a part of
# 8 MiB is sent at 28 kB/s.
_PART_TIMEOUT = timedelta(minutes=5)
_PART_RETRIES: RetryConfig = {"max_retries": 10, "retry_timeout": timedelta(minutes=10)}


def make_client(root: StoreRoot, ring: AnyRing | None = None, *, uploads: bool = False) -> ObjectStore:
    """Builds obstore's client for one root. It sends nothing, but may read the AWS configuration and a CA file.

    Args:
        root: the root.
        ring: the ring of its credentials, whose first look the caller has waited for (`KeyRing.keys`). None means that
            options have them, or that obstore finds them by itself.
        uploads: whether the client is for uploads in parts: it repeats a part that fails, and gives up one that hangs.

    Raises:
        ConfigError: obstore refuses an option, options make no address, or a CA file cannot be read. The message names
            no values.
    """
    from obstore.exceptions import BaseError

    makers = {"s3": _make_s3, "gs": _make_google, "az": _make_azure, "http": _make_http}
    retries = _PART_RETRIES if uploads else _NO_RETRIES
    try:
        return makers[str(root.family)](root, ring, _PART_TIMEOUT if uploads else _REQUEST_TIMEOUT, retries)
    except ConfigError:
        raise
    except (BaseError, ValueError, TypeError) as error:
        # The foreign text is shown if it contains no value.
        reason = type(error).__name__
        if (found := _WITHOUT_VALUES.search(str(error).partition("\n")[0])) is not None:
            reason = f"{reason}: {found[0]}"
        raise ConfigError(
            f"{root.url}: the storage options {sorted(root.settings.config)} do not make a client ({reason})",
            field="storage_options",
        ) from None  # the foreign text may quote the values


def _client_options(root: StoreRoot, timeout: timedelta, ca_file: str | None, **more: object) -> ClientConfig:
    """Returns obstore's settings for its HTTP client: timeout, trusted certificates, and those of the root."""
    options: dict[str, object] = {"timeout": timeout, **root.settings.client, **more}
    if ca_file is not None:
        options["root_certificate"] = certificates(ca_file)
    return cast("ClientConfig", options)


def certificates(path: str) -> bytes:
    """Returns the content of a PEM file of certificates.

    Raises:
        ConfigError: the file cannot be read, is no regular file, is longer than 16 MiB, or has no certificates.
    """
    try:
        content = _read_regular(path)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii", "ignore"))
        return content
    except (ssl.SSLError, ValueError) as error:  # ValueError: the file is empty
        raise ConfigError(f"verify={path!r} cannot be read: it has no certificates", field="verify") from error
    except OSError as error:
        raise ConfigError(f"verify={path!r} cannot be read: {error.strerror}", field="verify") from error


def _read_regular(path: str) -> bytes:
    """Returns the content of a regular file. A pipe or a device is refused, since it may hold the thread for ever.

    Raises:
        OSError: it is no regular file, longer than `_MOST_CA_BYTES`, or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", path)
        if found.st_size > _MOST_CA_BYTES:
            raise OSError(errno.EFBIG, f"it has {found.st_size} bytes, more than {_MOST_CA_BYTES}", path)
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(_MOST_CA_BYTES)
    finally:
        os.close(descriptor)


def _make_s3(root: StoreRoot, ring: AnyRing | None, timeout: timedelta, retries: RetryConfig) -> ObjectStore:
    """Builds the client of a bucket of S3, at the place that `StoreRoot.find_place` gives. Raises ConfigError."""
    from obstore.store import S3Store

    place = root.find_place(None if ring is None else ring.issued.region)
    provider: S3CredentialProvider | None = None
    keys = boto_keys.find_in_options(root.settings.config)
    if keys is not None and keys.secret:
        # Keys of options are given by a function: obstore would add the environment's session token to mere options.
        provider = partial(_give_credential, Issued(keys))
    elif ring is not None and ring.issued.credentials is not None:
        provider = lambda: _give_credential(ring.issued)  # noqa: E731
    # obstore is told that the address has the bucket already. It would put the bucket into the path of an endpoint, or
    # nowhere (object_store 0.12).
    base = place.base.rstrip("/")
    where = {"endpoint": base, "virtual_hosted_style_request": True, "region": place.region}
    if "AWS_ENDPOINT_URL_S3" in os.environ:  # obstore prefers this variable to options
        where["aws_endpoint_url_s3"] = base
    return S3Store(
        root.name,
        config=cast("S3Config", {**root.settings.config, **where}),
        client_options=_client_options(root, timeout, root.settings.ca_file or place.ca_file, allow_http=True),
        retry_config=retries,
        credential_provider=provider,
    )


def _give_credential(issued: Issued[AwsKeys]) -> S3Credential:
    """Returns keys in obstore's form."""
    keys = issued.credentials
    return {
        "access_key_id": keys.key,
        "secret_access_key": keys.secret,
        "token": keys.token,
        "expires_at": issued.ends,
    }


def _make_google(root: StoreRoot, ring: AnyRing | None, timeout: timedelta, retries: RetryConfig) -> ObjectStore:
    from obstore.store import GCSStore

    return GCSStore(
        root.name,
        config=cast("GCSConfig", root.settings.config),
        client_options=_client_options(root, timeout, root.settings.ca_file),
        retry_config=retries,
        credential_provider=_token_provider(ring),
    )


def _token_provider(ring: AnyRing | None) -> Callable[[], TokenCredential] | None:
    """Returns a function that gives obstore the present token, or None if obstore finds one by itself."""
    if ring is None or ring.issued.credentials is None:
        return None
    return lambda: {"token": ring.issued.credentials, "expires_at": ring.issued.ends}


def _make_azure(root: StoreRoot, ring: AnyRing | None, timeout: timedelta, retries: RetryConfig) -> ObjectStore:
    """Builds the client of a container of Azure; ConfigError if no account is named."""
    from obstore.store import AzureStore

    from streamer.store.credentials.azure_tokens import has_account

    container = root.name.partition("@")[0]
    if not has_account(root.settings.config):
        raise ConfigError(
            f"{root.url}: no storage account is named: set account_name in storage_options or "
            f"AZURE_STORAGE_ACCOUNT, or write abfs://{container}@ACCOUNT.dfs.core.windows.net",
            field="storage_options",
            option="account_name",
        )
    return AzureStore(
        container,
        config=cast("AzureConfig", root.settings.config),
        client_options=_client_options(root, timeout, root.settings.ca_file),
        retry_config=retries,
        credential_provider=_token_provider(ring),
    )


def _make_http(root: StoreRoot, ring: AnyRing | None, timeout: timedelta, retries: RetryConfig) -> ObjectStore:
    from obstore.store import HTTPStore

    options = _client_options(root, timeout, root.settings.ca_file)
    options.setdefault("allow_http", root.scheme == "http")
    return HTTPStore(root.url, client_options=options, retry_config=retries)


# ---------------------------------------------------------------- errors

# obstore 0.12 has no attribute for the status. Its message begins "... status code: 503 Service Unavailable: <body>".
_STATUS = re.compile(r"status code: (\d{3})")
# obstore's words for a bucket in another region, instead of a status.
_ELSEWHERE = "redirect without LOCATION"
# The host that obstore asked, in its texts. It strikes out the url of AWS's token service (STS).
_ASKED = re.compile(r"Error performing \w+ (?:https?://([^/\s]+)|REDACTED)")
# Hosts that obstore asks for credentials by itself: metadata servers of machines, and issuers of tokens.
_METADATA = ("169.254.169.254", "169.254.170.2", "169.254.170.23", "metadata.google.internal", "metadata")
_ISSUERS = re.compile(r"sts|oauth2\.googleapis\.com|login\.\w+\.\w+|sts[\w.-]*\.amazonaws\.com[\w.]*")
_STATUS_OF_TYPE = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "PreconditionError": 412,
    "PermissionDeniedError": 403,
}


def map_error(url: str, error: Exception, target: ObjectRecord | None) -> StreamerError:
    """Returns the error of streamer for one of obstore, by its type, and by the status in its text.

    Args:
        url: url of the request.
        error: the exception.
        target: the object and version that was read, or None for other requests.
    """
    text = str(error).partition("\n\nDebug source")[0]
    if type(error).__name__ == "NotSupportedError":
        return failures.make_ranges_error(url)
    if type(error).__name__ in ("UnknownConfigurationKeyError", "InvalidPathError", "ValueError"):
        return ConfigError(f"{url}: obstore cannot take this url or option: {text}", field="url")
    if _ELSEWHERE in text:
        answer = failures.StoreAnswer(301)
    else:
        found = _STATUS.search(text)
        status = int(found[1]) if found else _STATUS_OF_TYPE.get(type(error).__name__)
        answer = failures.StoreAnswer(status, failures.word_of(str(error), "Code"), message=failures.message_of(text))
    if (found := _ASKED.search(text)) and (failure := _explain_issuer(url, (found[1] or "STS").lower(), answer)):
        return failure
    if type(error).__name__ == "UnauthenticatedError" and answer.status is None:
        return failures.no_credentials(url)
    if answer.status == 412 and target is not None:
        return versions.make_change_error(target, None)
    if answer.status is not None:
        return failures.error_of(url, answer)
    reason = next((reason for sign, reason in _REASONS.items() if sign in str(error)), "the request failed")
    if reason == failures.NO_LENGTH and url.startswith("gs://"):
        # Google decompresses an object that is stored with Content-Encoding: gzip, and then names no length.
        return failures.make_encoding_error(url, "gzip")
    return failures.unreachable(url, reason)


def _explain_issuer(url: str, host: str, answer: failures.StoreAnswer) -> StreamerError | None:
    """Returns the error if an issuer or metadata server was asked, not the store; None if it was the store."""
    if host in _METADATA:
        is_azure = url.startswith(("az://", "abfs"))
        return issuers.explain_metadata(
            url, issuers.MetadataAnswer(answer.status, is_connected=False), missing_is_busy=is_azure
        )
    if not _ISSUERS.fullmatch(host):
        return None
    if answer.status is None or answer.status >= 500 or answer.status == 429:
        return failures.unobtainable(url, f"{host} answered {answer.status or 'nothing'}")
    return failures.refused_by_issuer(url, f"{host} answered {answer.status}")


# Causes of failures without an answer, by words in obstore's text (0.12). The first match wins.
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
