"""Builds obstore's clients: one per bucket, container or host."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

from streamer.errors import ConfigError
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
    )

# The library's timeout covers a whole body; a slow link must not break a good one. Our own deadline is on progress.
_REQUEST_TIMEOUT = timedelta(hours=1)
# Ours are on top, they see each 503.
_NO_RETRIES: RetryConfig = {"max_retries": 0}


def make_client(address: Address, translation: Translation) -> ObjectStore:
    """The client for one root.

    Raises:
        ConfigError: an option that obstore refuses, or an unreadable CA file; names the option's url, not its value.
    """
    from obstore.exceptions import BaseError

    try:
        return _MAKERS[cast("str", family(address.scheme))](address, translation)
    except ConfigError:
        raise
    except (BaseError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{address.root}: the storage options {sorted(translation.config)} do not make a client "
            f"({type(error).__name__})",
            field="storage_options",
        ) from None  # the foreign text quotes the values


def _client_options(translation: Translation) -> ClientConfig:
    options: dict[str, object] = {"timeout": _REQUEST_TIMEOUT, **translation.client}
    if translation.ca_file is not None:
        try:
            options["root_certificate"] = Path(translation.ca_file).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"verify={translation.ca_file!r} cannot be read: {error.strerror}", field="verify"
            ) from error
    return cast("ClientConfig", options)


def _s3(address: Address, translation: Translation) -> ObjectStore:
    from obstore.store import S3Store

    config = {"region": "us-east-1", **translation.config}
    provider: S3CredentialProvider | None = None
    if not {"access_key_id", "skip_signature"} & config.keys():
        found = _boto_credentials(translation.profile)
        if found is not None:
            region, provider = found
            if "region" not in translation.config and region:
                config["region"] = region
    bucket = address.root.partition("://")[2]
    return S3Store(
        bucket,
        config=cast("S3Config", config),
        client_options=_client_options(translation),
        retry_config=_NO_RETRIES,
        credential_provider=provider,
    )


def _boto_credentials(
    profile: str | None,
) -> tuple[str | None, S3CredentialProvider] | None:
    """What boto finds (environment, profiles, sso, web identity, instance), refreshed as it says.

    obstore's own chain does not read profiles. None: botocore is missing or finds nothing; obstore then looks
    itself.
    """
    try:
        from botocore.session import Session
    except ImportError:
        if profile is not None:
            raise ConfigError(
                f"profile={profile!r} needs botocore; pip install 'streamer[s3]'", field="profile"
            ) from None
        return None
    session = Session(profile=profile)
    credentials = session.get_credentials()
    if credentials is None:
        return None

    def provide() -> S3Credential:
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": _expiry(credentials),
        }

    return session.get_config_variable("region"), provide


def _expiry(credentials: object) -> datetime | None:
    """When boto's credentials end; None for those that do not."""
    expiry = getattr(credentials, "_expiry_time", None)
    return expiry if isinstance(expiry, datetime) else None


def _google(address: Address, translation: Translation) -> ObjectStore:
    from obstore.store import GCSStore

    return GCSStore(
        address.root.partition("://")[2],
        config=cast("GCSConfig", translation.config),
        client_options=_client_options(translation),
        retry_config=_NO_RETRIES,
    )


def _azure(address: Address, translation: Translation) -> ObjectStore:
    from obstore.store import AzureStore

    container, _, host = address.root.partition("://")[2].partition("@")
    config = {**({"account_name": host.partition(".")[0]} if host else {}), **translation.config}
    return AzureStore(
        container,
        config=cast("AzureConfig", config),
        client_options=_client_options(translation),
        retry_config=_NO_RETRIES,
    )


def _http(address: Address, translation: Translation) -> ObjectStore:
    from obstore.store import HTTPStore

    translation.client.setdefault("allow_http", address.scheme == "http")
    return HTTPStore(address.root, client_options=_client_options(translation), retry_config=_NO_RETRIES)


_MAKERS: dict[str, Callable[[Address, Translation], ObjectStore]] = {
    "s3": _s3,
    "gs": _google,
    "az": _azure,
    "http": _http,
}
