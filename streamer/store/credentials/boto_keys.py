"""Finds AWS credentials as boto does: environment, profiles, sso, web identity, container, instance.

`store/root.py` passes `find` to the key ring of a bucket; the clients of stores read the keys in options
(`store/obstore_clients.py`, `store/curl/access.py`). `streamer doctor` shows which keys they are. obstore's own search
does not read profiles, and libcurl has none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from streamer.errors import ConfigError, StreamerError
from streamer.store import failures
from streamer.store.credentials import find_in_home
from streamer.store.credentials.key_ring import Issued

if TYPE_CHECKING:
    from botocore.session import Session

# Timeouts for an issuer, which is asked once in a look: the key ring looks again.
_CONNECT_SECONDS = 5.0
_READ_SECONDS = 10.0
_METADATA = "http://169.254.169.254/"
_ROLES = "latest/meta-data/iam/security-credentials/"
_HOP_LIMIT = (
    "in a container the instance's hop limit must be 2: aws ec2 modify-instance-metadata-options "
    "--http-put-response-hop-limit 2"
)
# Settings of a profile that only boto understands.
_OF_BOTO = ("aws_access_key_id", "role_arn", "credential_process", "sso_session", "sso_start_url")


class AwsKeys(msgspec.Struct, frozen=True):
    """Holds keys that sign requests; they are never shown.

    Attributes:
        key: id of the access key.
        secret: secret key.
        token: session token, or None for keys that do not expire.
    """

    key: str
    secret: str
    token: str | None = None

    def __repr__(self) -> str:
        return "AwsKeys()"


def find_in_environment(variables: Mapping[str, str] = os.environ) -> AwsKeys | None:
    """Returns the keys in AWS's own variables, or None. It is needed only without boto, which finds them itself."""
    key = variables.get("AWS_ACCESS_KEY_ID")
    secret = variables.get("AWS_SECRET_ACCESS_KEY")
    return AwsKeys(key, secret, variables.get("AWS_SESSION_TOKEN")) if key and secret else None


def find_in_options(config: Mapping[str, object]) -> AwsKeys | None:
    """Returns the keys in settings with obstore's names, or None. A token of the environment is not added."""
    if "access_key_id" not in config:
        return None
    token = config.get("token")
    secret = str(config.get("secret_access_key", ""))
    return AwsKeys(str(config["access_key_id"]), secret, None if token is None else str(token))


def find(root: str, profile: str | None) -> Issued[AwsKeys | None]:
    """Looks for keys as boto does, once, and asks their issuer. Blocking.

    Without botocore only AWS's own variables are read. If they have no keys, the result has None for credentials:
    obstore then looks by itself.

    Args:
        root: root of the urls, for messages.
        profile: name of the profile. None means the one that the environment names, else "default".

    Raises:
        ConfigError: only boto can find the keys and is not installed, or it rejects the configuration.
        AccessDeniedError: there are no credentials, or their issuer refuses.
        StoreError: the issuer could not be reached; another try may succeed.
    """
    try:
        from botocore.config import Config
        from botocore.session import Session
    except ImportError:
        return Issued(_find_plain_keys(profile))
    from streamer.store.credentials import issuers

    issuers.silence_library("botocore.credentials")
    with issuers.map_aws_errors(root, profile):
        session = Session(profile=profile)
        timeouts = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS}
        session.set_default_client_config(Config(**timeouts, retries={"total_max_attempts": 1}))
        credentials = session.get_credentials()
        region = session.get_config_variable("region")
        if credentials is None:
            raise _explain_no_role(root, session)
        frozen = credentials.get_frozen_credentials()
    ends = getattr(credentials, "_expiry_time", None)  # boto has no public name for it
    keys = AwsKeys(frozen.access_key, frozen.secret_key, frozen.token)
    # The time is in datetime's own UTC: botocore's times have dateutil's tzlocal(), which obstore refuses.
    utc = ends.astimezone(UTC) if isinstance(ends, datetime) else None
    return Issued(keys, utc, region, str(credentials.method or "unknown"))


def _explain_no_role(root: str, session: Session, variables: Mapping[str, str] = os.environ) -> StreamerError:
    """Returns the error for a machine where boto finds no keys; asks its metadata server for the reason."""
    if variables.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return failures.no_credentials(root)
    from streamer.store.credentials import issuers

    base = str(session.get_config_variable("ec2_metadata_service_endpoint") or _METADATA).rstrip("/") + "/"
    token = issuers.ask_metadata(f"{base}latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    if token.status != 200:
        return issuers.explain_metadata(root, token, _HOP_LIMIT)
    headers = {"X-aws-ec2-metadata-token": token.text}
    roles = issuers.ask_metadata(base + _ROLES, headers)
    if roles.status == 404:
        return failures.no_credentials(root, "its metadata server knows none")
    if roles.status != 200:
        return issuers.explain_metadata(root, roles)
    keys = issuers.ask_metadata(base + _ROLES + roles.text.strip(), headers)
    if keys.status == 200:
        try:
            answer = json.loads(keys.text)
        except ValueError:
            answer = None
        code = answer.get("Code") if isinstance(answer, Mapping) else None
        if code not in (None, "", "Success"):
            what = f"the metadata server answered {code} for the role {roles.text.strip()}"
            return failures.refused_by_issuer(root, what)
    return failures.unobtainable(root, f"the metadata server answered {keys.status}")


def _find_plain_keys(profile: str | None, variables: Mapping[str, str] = os.environ) -> AwsKeys | None:
    """Returns the keys of the environment, or None; for use without botocore.

    Raises:
        ConfigError: a profile names keys, which only boto reads. obstore would use the machine's role instead.
    """
    named = profile or variables.get("AWS_PROFILE")
    if named is not None and (profile or find_in_environment(variables) is None):
        what = f"profile={named!r}" if profile else f"AWS_PROFILE={named!r}"
        raise ConfigError(f"{what} needs botocore; pip install 'streamer-data[aws]'", field="profile")
    if (keys := find_in_environment(variables)) is not None or variables.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return keys
    for name, file in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
        path = Path(variables[name]) if variables.get(name) else find_in_home(".aws", file)
        if path is not None and _has_default(path):
            raise ConfigError(
                f"{path} has a default profile, which needs botocore; pip install 'streamer-data[aws]', or set "
                f"{name} to an empty file for the role of this machine",
                field="profile",
            )
    return None


def _has_default(path: Path) -> bool:
    """Whether a file of AWS has credentials in its default profile, or cannot be parsed."""
    from configparser import ConfigParser
    from configparser import Error as ConfigParserError

    parser = ConfigParser(interpolation=None, strict=False)
    try:
        parser.read(path, "utf-8")
    except (OSError, UnicodeDecodeError, ConfigParserError):
        return True  # boto would refuse it
    return parser.has_section("default") and any(parser.has_option("default", name) for name in _OF_BOTO)
