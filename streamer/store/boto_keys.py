"""AWS credentials as boto finds them: environment, profiles, sso, web identity, container, instance.

obstore's own chain does not read profiles, and libcurl has none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from streamer.errors import ConfigError

if TYPE_CHECKING:
    from botocore.credentials import Credentials


@dataclass(frozen=True, slots=True)
class Keys:
    """What requests are signed with; never shown."""

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)


class BotoKeys:
    """Credentials that boto found, renewed as it says.

    Attributes:
        region: of the profile or the environment.
    """

    def __init__(self, credentials: Credentials, region: str | None) -> None:
        self._credentials = credentials
        self.region = region

    def now(self) -> Keys:
        """Those of now; may ask a metadata service when they are about to end."""
        frozen = self._credentials.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    @property
    def expires_at(self) -> datetime | None:
        """When they end; None for those that do not."""
        expiry = getattr(self._credentials, "_expiry_time", None)
        return expiry if isinstance(expiry, datetime) else None


def find(profile: str | None) -> BotoKeys | None:
    """Looks as boto does; None: botocore is missing or finds nothing.

    Raises:
        ConfigError: a profile is asked for and botocore is missing.
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
    return None if credentials is None else BotoKeys(credentials, session.get_config_variable("region"))
