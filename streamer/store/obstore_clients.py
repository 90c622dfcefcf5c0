"""Builds obstore's clients: one per bucket, container or host."""

from __future__ import annotations

import errno
import os
import re
import ssl
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypedDict, cast

from msgspec.structs import replace

from streamer.errors import ConfigError
from streamer.store.addresses.urls import Address
from streamer.store.credentials import boto_keys
from streamer.store.credentials.boto_keys import Keys
from streamer.store.credentials.key_ring import AnyRing, Issued
from streamer.store.options import Translation, family
from streamer.store.places import Place, Places

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
    """A bearer token in obstore's form, for Google's and Azure's stores."""

    token: str
    expires_at: datetime | None


# The library's timeout covers a whole body and would break a good one on a slow link. Our own deadline is on progress.
_REQUEST_TIMEOUT = timedelta(hours=1)
# Our own retries see each 503.
_NO_RETRIES: RetryConfig = {"max_retries": 0}

# The parts of obstore's texts that contain no value: a missing setting, and types of Google's files.
# The system's own file has 0.2 MB.
_MOST_CA_BYTES = 16 << 20
_WITHOUT_VALUES = re.compile(r"[\w ]+ must be (?:specified|provided)|unknown variant `\w+`|missing field `\w+`")
# A part of 8 MiB at 28 kB/s; a shard of a gigabyte must not begin again for one of its parts.
_PART_TIMEOUT = timedelta(minutes=5)
_PART_RETRIES: RetryConfig = {"max_retries": 10, "retry_timeout": timedelta(minutes=10)}


def make_client(
    address: Address, translation: Translation, places: Places, ring: AnyRing | None = None, *, uploads: bool = False
) -> ObjectStore:
    """Builds the client for one root.

    Args:
        address: address of the root.
        translation: its options.
        places: its place, if it is a bucket of S3.
        ring: Credentials, which the caller has waited for, or None if options have them or obstore finds them by
            itself.
        uploads: whether to repeat a part that fails, and to give up one that hangs.

    Raises:
        ConfigError: an option that obstore refuses, or an unreadable CA file; names the url, not the values.
    """
    with options_refused(address, translation):
        translation = replace(translation, uploads=uploads)
        if family(address.scheme) == "s3":
            return _s3(address, translation, places.find(None if ring is None else ring.issued.region), ring)
        return _MAKERS[cast("str", family(address.scheme))](address, translation, ring)


@contextmanager
def options_refused(address: Address, translation: Translation) -> Iterator[None]:
    """Maps obstore's errors about options to a ConfigError that names the options and not their values."""
    from obstore.exceptions import BaseError

    try:
        yield
    except ConfigError:
        raise
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{address.root}: the storage options {sorted(translation.config)} do not make a client ({_reason(error)})",
            field="storage_options",
        ) from None  # the foreign text may quote the values


def _reason(error: Exception) -> str:
    """The foreign text if it contains no value, otherwise its type."""
    text = str(error).partition("\n")[0]
    found = _WITHOUT_VALUES.search(text)
    return f"{type(error).__name__}: {found[0]}" if found else type(error).__name__


def _retries(translation: Translation) -> RetryConfig:
    return _PART_RETRIES if translation.uploads else _NO_RETRIES


def _client_options(translation: Translation) -> ClientConfig:
    timeout = _PART_TIMEOUT if translation.uploads else _REQUEST_TIMEOUT
    options: dict[str, object] = {"timeout": timeout, **translation.client}
    if translation.ca_file is not None:
        options["root_certificate"] = certificates(translation.ca_file)
    return cast("ClientConfig", options)


def certificates(path: str) -> bytes:
    """Reads a PEM file.

    Raises:
        ConfigError: it cannot be read, or contains no certificates.
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
    """Reads a file; a pipe or a device would hold the thread for ever.

    Raises:
        OSError: it is no regular file, longer than any file of certificates, or cannot be read.
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


def _s3(address: Address, translation: Translation, place: Place, ring: AnyRing | None) -> ObjectStore:
    from obstore.store import S3Store

    provider: S3CredentialProvider | None = None
    keys = boto_keys.of_options(translation.config)
    if keys is not None and keys.secret:
        # By a provider: to options alone obstore would add the environment's session token.
        provider = partial(_credential, Issued(keys))
    elif ring is not None and ring.issued.credentials is not None:
        provider = lambda: _credential(ring.issued)  # noqa: E731
    # By itself obstore would put the bucket into the path of an endpoint, or nowhere (object_store 0.12).
    base = place.base.rstrip("/")
    where = {"endpoint": base, "virtual_hosted_style_request": True, "region": place.region}
    if "AWS_ENDPOINT_URL_S3" in os.environ:  # obstore prefers it to options
        where["aws_endpoint_url_s3"] = base
    ca_file = translation.ca_file or place.ca_file
    return S3Store(
        address.root.partition("://")[2],
        config=cast("S3Config", {**translation.config, **where}),
        client_options={**_client_options(replace(translation, ca_file=ca_file)), "allow_http": True},
        retry_config=_retries(translation),
        credential_provider=provider,
    )


def _credential(issued: Issued[Keys]) -> S3Credential:
    keys = issued.credentials
    return {
        "access_key_id": keys.key,
        "secret_access_key": keys.secret,
        "token": keys.token,
        "expires_at": issued.ends,
    }


def _google(address: Address, translation: Translation, ring: AnyRing | None) -> ObjectStore:
    from obstore.store import GCSStore

    return GCSStore(
        address.root.partition("://")[2],
        config=cast("GCSConfig", translation.config),
        client_options=_client_options(translation),
        retry_config=_retries(translation),
        credential_provider=_tokens(ring),
    )


def _tokens(ring: AnyRing | None) -> Callable[[], TokenCredential] | None:
    """Returns a function that gives obstore the present token; None if obstore finds one by itself."""
    if ring is None or ring.issued.credentials is None:
        return None
    return lambda: {"token": ring.issued.credentials, "expires_at": ring.issued.ends}


def _azure(address: Address, translation: Translation, ring: AnyRing | None) -> ObjectStore:
    from obstore.store import AzureStore

    from streamer.store.credentials.azure_tokens import has_account

    container = address.root.partition("://")[2].partition("@")[0]
    if not has_account(translation.config):
        raise ConfigError(
            f"{address.root}: no storage account is named: set account_name in storage_options or "
            f"AZURE_STORAGE_ACCOUNT, or write abfs://{container}@ACCOUNT.dfs.core.windows.net",
            field="storage_options",
            option="account_name",
        )
    return AzureStore(
        container,
        config=cast("AzureConfig", translation.config),
        client_options=_client_options(translation),
        retry_config=_retries(translation),
        credential_provider=_tokens(ring),
    )


def _http(address: Address, translation: Translation, ring: AnyRing | None) -> ObjectStore:
    from obstore.store import HTTPStore

    translation.client.setdefault("allow_http", address.scheme == "http")
    return HTTPStore(address.root, client_options=_client_options(translation), retry_config=_retries(translation))


_MAKERS: dict[str, Callable[[Address, Translation, AnyRing | None], ObjectStore]] = {
    "gs": _google,
    "az": _azure,
    "http": _http,
}
