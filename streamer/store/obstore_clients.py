"""Builds obstore's clients: one per bucket, container or host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from streamer.errors import ConfigError
from streamer.store import boto_keys
from streamer.store.boto_keys import Keys
from streamer.store.options import Translation, family
from streamer.store.urls import Address

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
        S3Store,
    )

# The library's timeout covers a whole body; a slow link must not break a good one. Our own deadline is on progress.
_REQUEST_TIMEOUT = timedelta(hours=1)
# Ours are on top, they see each 503.
_NO_RETRIES: RetryConfig = {"max_retries": 0}

# A part of 8 MiB at 28 kB/s; a shard of a gigabyte must not begin again for one of its parts.
_PART_TIMEOUT = timedelta(minutes=5)
_PART_RETRIES: RetryConfig = {"max_retries": 10, "retry_timeout": timedelta(minutes=10)}


def make_client(address: Address, translation: Translation, *, uploads: bool = False) -> ObjectStore:
    """The client for one root.

    Args:
        address: the root's.
        translation: of the options.
        uploads: repeats a part that fails, and gives up one that hangs.

    Raises:
        ConfigError: an option that obstore refuses, or an unreadable CA file; names the option's url, not its value.
    """
    with options_refused(address, translation):
        return _MAKERS[cast("str", family(address.scheme))](address, replace(translation, uploads=uploads))


@contextmanager
def options_refused(address: Address, translation: Translation) -> Iterator[None]:
    """What obstore raises when it makes a client, as a ConfigError that names the options and not their values."""
    from obstore.exceptions import BaseError

    try:
        yield
    except ConfigError:
        raise
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{address.root}: the storage options {sorted(translation.config)} do not make a client "
            f"({type(error).__name__})",
            field="storage_options",
        ) from None  # the foreign text quotes the values


def _retries(translation: Translation) -> RetryConfig:
    return _PART_RETRIES if translation.uploads else _NO_RETRIES


def _client_options(translation: Translation) -> ClientConfig:
    timeout = _PART_TIMEOUT if translation.uploads else _REQUEST_TIMEOUT
    options: dict[str, object] = {"timeout": timeout, **translation.client}
    if translation.ca_file is not None:
        options["root_certificate"] = certificates(translation.ca_file)
    return cast("ClientConfig", options)


def certificates(path: str) -> bytes:
    """A PEM file.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"verify={path!r} cannot be read: {error.strerror}", field="verify") from error


def _s3(address: Address, translation: Translation) -> ObjectStore:
    provider: S3CredentialProvider | None = None
    region: str | None = None
    config = translation.config
    keys = boto_keys.of_options(config)
    if keys is not None and keys.secret:
        # By a provider: of the options alone, obstore would add the environment's session token to them.
        provider = partial(_credential, keys)
    elif keys is None and "skip_signature" not in config:
        found = boto_keys.find(translation.profile)
        if found is not None:
            provider, region = partial(_provide, found), found.region
    return s3_client(address, translation, provider, region)


def s3_client(
    address: Address, translation: Translation, keys: S3CredentialProvider | Keys | None, region: str | None
) -> S3Store:
    """A client of a bucket.

    Args:
        address: the bucket's.
        translation: of the options.
        keys: instead of the options'; None: those, or what obstore finds.
        region: where the options say none; None: AWS_REGION's, else us-east-1.
    """
    from obstore.store import S3Store

    config = {**({} if region is None else {"region": region}), **translation.config}
    if isinstance(keys, Keys):
        config |= {"access_key_id": keys.key, "secret_access_key": keys.secret, "skip_signature": False}
    return S3Store(
        address.root.partition("://")[2],
        config=cast("S3Config", config),
        # An endpoint of the environment (AWS_ENDPOINT_URL) is plain where it says so, as one of the options is.
        client_options={"allow_http": True, **_client_options(translation)},
        retry_config=_retries(translation),
        credential_provider=None if isinstance(keys, Keys) else keys,
    )


def _provide(found: boto_keys.BotoKeys) -> S3Credential:
    return _credential(found.now(), found.expires_at)


def _credential(keys: Keys, ends: datetime | None = None) -> S3Credential:
    # obstore takes no other UTC than datetime's own; botocore's times have dateutil's tzlocal().
    expires_at = None if ends is None else ends.astimezone(UTC)
    return {"access_key_id": keys.key, "secret_access_key": keys.secret, "token": keys.token, "expires_at": expires_at}


def _google(address: Address, translation: Translation) -> ObjectStore:
    from obstore.store import GCSStore

    return GCSStore(
        address.root.partition("://")[2],
        config=cast("GCSConfig", translation.config),
        client_options=_client_options(translation),
        retry_config=_retries(translation),
    )


def _azure(address: Address, translation: Translation) -> ObjectStore:
    from obstore.store import AzureStore

    container, _, host = address.root.partition("://")[2].partition("@")
    config = {**({"account_name": host.partition(".")[0]} if host else {}), **translation.config}
    return AzureStore(
        container,
        config=cast("AzureConfig", config),
        client_options=_client_options(translation),
        retry_config=_retries(translation),
    )


def _http(address: Address, translation: Translation) -> ObjectStore:
    from obstore.store import HTTPStore

    translation.client.setdefault("allow_http", address.scheme == "http")
    return HTTPStore(address.root, client_options=_client_options(translation), retry_config=_retries(translation))


_MAKERS: dict[str, Callable[[Address, Translation], ObjectStore]] = {
    "s3": _s3,
    "gs": _google,
    "az": _azure,
    "http": _http,
}
