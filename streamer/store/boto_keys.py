"""AWS credentials as boto finds them: environment, profiles, sso, web identity, container, instance.

obstore's own chain does not read profiles, and libcurl has none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from streamer.errors import AccessDeniedError, ConfigError, StoreError
from streamer.store import failures

if TYPE_CHECKING:
    from botocore.credentials import Credentials


class Keys(msgspec.Struct, frozen=True):
    """The keys that sign requests; never shown."""

    key: str
    secret: str
    token: str | None = None

    def __repr__(self) -> str:
        return "Keys()"


def of_environment(variables: Mapping[str, str] = os.environ) -> Keys | None:
    """The keys in AWS's own variables, which boto would find, too, where it is installed."""
    key, secret = variables.get("AWS_ACCESS_KEY_ID"), variables.get("AWS_SECRET_ACCESS_KEY")
    return Keys(key, secret, variables.get("AWS_SESSION_TOKEN")) if key and secret else None


def of_options(config: Mapping[str, object]) -> Keys | None:
    """The keys in the translated options, with their own token or none."""
    if "access_key_id" not in config:
        return None
    token = config.get("token")
    secret = str(config.get("secret_access_key", ""))
    return Keys(str(config["access_key_id"]), secret, None if token is None else str(token))


class BotoKeys:
    """Credentials that boto found, renewed as it says.

    Attributes:
        region: of the profile or the environment.
    """

    def __init__(self, credentials: Credentials, region: str | None) -> None:
        self._credentials = credentials
        self.region = region

    def now(self) -> Keys:
        """Returns the current keys; may ask their issuer when they are about to expire.

        Raises:
            StoreError: the issuer did not give any.
        """
        try:
            frozen = self._credentials.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises becomes ours
            raise unobtainable(error) from failures.redacted(error)
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    @property
    def source(self) -> str:
        """Where boto found them, in its own word, for example "iam-role" or "assume-role-with-web-identity"."""
        return str(getattr(self._credentials, "method", "") or "unknown")

    @property
    def expires_at(self) -> datetime | None:
        """When they expire; None: never."""
        expiry = getattr(self._credentials, "_expiry_time", None)
        return expiry if isinstance(expiry, datetime) else None


def find(profile: str | None) -> BotoKeys | None:
    """Looks as boto does; None: botocore is missing or finds nothing.

    Raises:
        ConfigError: botocore is missing and a profile is asked for, or boto finds the configuration wrong.
        StoreError: boto could not reach their issuer; worth another try.
    """
    try:
        from botocore import exceptions
        from botocore.session import Session
    except ImportError:
        if profile is not None:
            raise ConfigError(
                f"profile={profile!r} needs botocore; pip install 'streamer-data[s3]'", field="profile"
            ) from None
        return None
    wrong = (
        exceptions.ProfileNotFound,
        exceptions.PartialCredentialsError,
        exceptions.InvalidConfigError,
        exceptions.ConfigParseError,
    )
    try:
        session = Session(profile=profile)
        credentials, region = session.get_credentials(), session.get_config_variable("region")
    except wrong as error:
        named = f"profile={profile!r}: " if profile is not None else ""
        raise ConfigError(
            f"{named}the AWS configuration is not usable ({type(error).__name__})", field="profile"
        ) from failures.redacted(error)
    except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises becomes ours
        raise unobtainable(error) from failures.redacted(error)
    return None if credentials is None else BotoKeys(credentials, region)


def unobtainable(error: Exception) -> StoreError:
    """Returns the StoreError for an error of boto, without its text, which may quote the output of a program.

    An issuer that refuses is an AccessDeniedError with the operation and the code; everything else is worth another
    try.
    """
    if isinstance(error, StoreError):
        return error
    response, operation = getattr(error, "response", None), getattr(error, "operation_name", None)
    if isinstance(response, Mapping) and operation:
        code = str(response.get("Error", {}).get("Code", ""))
        return AccessDeniedError(
            f"the issuer of the AWS credentials answered {operation} with {code}; check the role, its trust policy "
            "and the sign-in",
            status=None,
            code=code or None,
        )
    return StoreError(
        f"the AWS credentials cannot be obtained now ({type(error).__name__}); "
        "check the metadata service, the role or the sign-in",
        status=None,
    )
