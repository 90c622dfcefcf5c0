"""Address and region of a bucket, as botocore computes them without sending anything.

Options that name an endpoint and have keys need no botocore. Without it the public hosts of AWS are known.

The url of a bucket does not say where the bucket is: an endpoint, an account or another partition of a cloud is another
place, with other bytes under the same url. In a shared cache the one must not be taken for the other: `named_endpoint`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

import msgspec

from streamer.errors import ConfigError
from streamer.store import failures
from streamer.store.addresses.hosts import check_names, is_of_aws, is_plain, is_region
from streamer.store.addresses.urls import Address, shown, split
from streamer.store.options import ENDPOINT_VARIABLES, Translation, family, translate

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.client import BaseClient
    from botocore.session import Session

# Other partitions: no keys are valid in two of them.
_PARTITIONS = ("cn-", "eusc-", "us-gov-", "us-iso")
# All other regions belong to amazonaws.com.
_DOMAINS = {"cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu"}
_DEFAULT_REGION = "us-east-1"
_REGION = re.compile(r"[a-z0-9-]{1,40}")
# Names that can be part of a host name; for one with a dot no TLS certificate is valid.
_HOST_PART = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_OF_AWS = re.compile(r"\.amazonaws\.(?:com|com\.cn|eu)$")
_SCOPE = re.compile(r"Credential=[^/]+/\d+/([^/]+)/")
# These options change the host in ways that only botocore knows.
_HOST_VARIABLES = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
_ENDPOINT_RULES = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT", "AWS_DEFAULTS_MODE")
# The same in a profile, with its endpoints.
_HOST_SETTINGS = (
    "defaults_mode",
    "endpoint_url",
    "ignore_configured_endpoint_urls",
    "s3",
    "services",
    "use_dualstack_endpoint",
    "use_fips_endpoint",
)
# Prefixes and suffixes of access points and directory buckets.
_ALIASES = ("-s3alias", "--x-s3", "--ol-s3")


class Place(msgspec.Struct, frozen=True):
    """Address and region of a bucket.

    Attributes:
        base: url to which the escaped key is appended, e.g. "https://bucket.s3.eu-west-1.amazonaws.com/".
        ca_file: PEM file to trust, from the AWS configuration.
    """

    base: str
    region: str
    ca_file: str | None = None


class Places:
    """The place of one root's bucket, as far as it is known; a store may report another one."""

    def __init__(self, address: Address, translation: Translation) -> None:
        self._address = address
        self._translation = translation
        self._known: dict[str | None, Place] = {}
        self._moved: list[str] = []

    def __repr__(self) -> str:
        return f"Places({shown(self._address.root)!r}, {list(self._known.values())})"

    @property
    def is_own(self) -> bool:
        """Whether the options name the endpoint."""
        return "endpoint" in self._translation.config

    def find(self, region: str | None) -> Place:
        """Returns the place; the first call may read the AWS configuration.

        Args:
            region: Region if neither the options nor the store name one. By default that of the configuration.

        Raises:
            ConfigError: options or AWS configuration do not make an address.
        """
        known = self._moved[-1] if self._moved else str(self._translation.config.get("region") or region or "")
        if known not in self._known:
            self._known[known] = _checked(self._address, find(self._address, self._translation, known or None))
        return self._known[known]

    def may_move(self, region: str | None) -> bool:
        """Whether AWS can say that the bucket is in another region: no other store has more than one."""
        if family(self._address.scheme) != "s3" or self.is_own:
            return False
        return _OF_AWS.search(urlsplit(self.find(region).base).hostname or "") is not None

    def asked(self, region: str | None) -> str:
        """Returns the region that AWS names in its answer to an unsigned HEAD of the bucket; "" if it names none.

        For clients that do not show the headers of an answer. It is blocking I/O of a few seconds at most.
        """
        # Imported here: 15 ms of an engine's start, and libcurl asks wherever it reads.
        from streamer.store.bucket_region import asked

        place = self.find(region)
        return asked(place.base, self._translation.ca_file or place.ca_file)

    def moved(self, region: str) -> bool:
        """Notes the region that the store names; False if it was known, or if the present keys are not valid there."""
        here = [place.region for place in self._known.values()]
        if region in self._moved or not _REGION.fullmatch(region) or {*map(partition, here)} != {partition(region)}:
            return False
        self._moved.append(region)
        return True


def of_endpoint(address: Address, translation: Translation, endpoint: str) -> str:
    """The url to which keys are appended at an endpoint: with the bucket in the path, or in the host if asked."""
    bucket = address.root.partition("://")[2]
    parts = urlsplit(endpoint)
    plain_host = _HOST_PART.fullmatch(bucket) and not is_ip(parts.hostname or "")
    if translation.config.get("virtual_hosted_style_request") and plain_host:
        return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path.rstrip('/')}/"
    return f"{endpoint.rstrip('/')}/{quote(bucket)}/"


def find(
    address: Address, translation: Translation, region: str | None, variables: Mapping[str, str] = os.environ
) -> Place:
    """Finds the place of a bucket from options, AWS configuration and environment.

    Raises:
        ConfigError: they do not make an address, or only botocore could compute it, which is not installed.
    """
    config = translation.config
    endpoint = config.get("endpoint")
    has_keys = "access_key_id" in config or "skip_signature" in config
    if endpoint and has_keys and not translation.boto:
        base = of_endpoint(address, translation, str(endpoint))
        return Place(base, _region(region, variables), variables.get("AWS_CA_BUNDLE"))
    try:
        from botocore.session import Session
    except ImportError:
        return _without_boto(address, translation, region, variables)
    try:
        session = Session(profile=translation.profile)
        region = region or session.get_config_variable("region") or variables.get("AWS_REGION")
        if _is_plain(session, address, translation, region, variables):
            place = _without_boto(address, translation, region, variables)
            return msgspec.structs.replace(place, ca_file=session.get_config_variable("ca_bundle"))
        return _by_boto(session, address, translation, region)
    except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises becomes ours
        raise ConfigError(
            f"{shown(address.root)}: options and AWS configuration make no address of this bucket "
            f"({type(error).__name__}: {failures.sentence(str(error))})",
            field="storage_options",
        ) from failures.redacted(error)


def _is_plain(
    session: Session, address: Address, translation: Translation, region: str | None, variables: Mapping[str, str]
) -> bool:
    """Whether the usual address applies, for which botocore's client would take 85 ms of CPU (2026-11-24)."""
    bucket = address.root.partition("://")[2]
    is_named = any(map(variables.get, ENDPOINT_VARIABLES))
    return not (
        translation.boto
        # Without a region, and in this one, botocore uses the global host.
        or ((region or _DEFAULT_REGION) == _DEFAULT_REGION and not is_named)
        or any(map(variables.get, (*_HOST_VARIABLES, *_ENDPOINT_RULES)))
        or set(session.get_scoped_config()).intersection(_HOST_SETTINGS)
        or bucket.endswith(_ALIASES)
        or not _HOST_PART.fullmatch(bucket)
    )


def _region(known: str | None, variables: Mapping[str, str]) -> str:
    return known or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION


def _without_boto(
    address: Address, translation: Translation, region: str | None, variables: Mapping[str, str]
) -> Place:
    wanted = [name for name in _HOST_VARIABLES if variables.get(name, "").lower() == "true"]
    bucket = address.root.partition("://")[2]
    ca_file = variables.get("AWS_CA_BUNDLE")
    if translation.boto or wanted or ":" in bucket:
        what = ", ".join([*translation.boto, *wanted]) or "an ARN"
        raise ConfigError(
            f"{shown(address.root)}: {what} needs botocore; pip install 'streamer-data[aws]'", field="storage_options"
        )
    region = _region(region, variables)
    endpoint = translation.config.get("endpoint") or next(filter(None, map(variables.get, ENDPOINT_VARIABLES)), None)
    if endpoint:
        return Place(of_endpoint(address, translation, str(endpoint)), region, ca_file)
    if not is_region(region, own_endpoint=False):
        raise ConfigError(
            f"{shown(address.root)}: {region[:40]!r} is no region of AWS; write it as eu-central-1", field="region"
        )
    domain = next((domain for prefix, domain in _DOMAINS.items() if region.startswith(prefix)), "amazonaws.com")
    virtual = translation.config.get("virtual_hosted_style_request", True)
    asked = msgspec.structs.replace(translation, config={"virtual_hosted_style_request": virtual})
    base = of_endpoint(address, asked, f"https://s3.{region}.{domain}")
    if not is_of_aws(base):
        raise ConfigError(f"{shown(address.root)}: {shown(base)} is no address of AWS", field="storage_options")
    return Place(base, region, ca_file)


def _by_boto(session: Session, address: Address, translation: Translation, region: str | None) -> Place:
    from botocore.config import Config

    virtual = translation.config.get("virtual_hosted_style_request")
    style = {} if virtual is None else {"addressing_style": "virtual" if virtual else "path"}
    of_s3 = {**style, **cast("dict[str, object]", translation.boto.get("s3", {}))}
    endpoint = translation.config.get("endpoint")
    ca_file = session.get_config_variable("ca_bundle")
    # S3 Express would be asked for a session token.
    session.set_config_variable("s3_disable_express_session_auth", True)
    client = session.create_client(
        "s3",
        region_name=region,
        endpoint_url=None if endpoint is None else str(endpoint),
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(signature_version="s3v4", **{**translation.boto, "s3": of_s3 or None}),
    )
    try:
        request = _unsent(client, address.root.partition("://")[2])
    finally:
        client.close()
    signed = request.headers["Authorization"]
    found = _SCOPE.search(signed.decode("ascii") if isinstance(signed, bytes) else str(signed))
    return Place(str(request.url).partition("?")[0].removesuffix("x"), found[1] if found else "", ca_file)


def _unsent(client: BaseClient, bucket: str) -> AWSPreparedRequest:
    """Returns the request that botocore would send for the key "x"."""
    from botocore.awsrequest import AWSResponse

    asked: list[AWSPreparedRequest] = []

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        asked.append(request)
        return AWSResponse(request.url, 200, {}, _NoBody())

    client.meta.events.register("before-send.s3", answer)
    client.head_object(Bucket=bucket, Key="x")
    return asked[-1]


class _NoBody:
    """An empty body with urllib3's interface."""

    def stream(self, **_: object) -> tuple[bytes, ...]:
        return ()


def _checked(address: Address, place: Place) -> Place:
    """The same place; refuses an address that clients may read in two ways."""
    if not is_plain(place.base):
        raise ConfigError(
            f"{shown(address.root)}: options and AWS configuration make no address of a bucket: {shown(place.base)}",
            field="storage_options",
        )
    return place


def partition(region: str) -> str:
    """The beginning of the names of the regions of one partition of AWS; "" for the usual one."""
    return next(filter(region.startswith, _PARTITIONS), "")


def is_ip(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def named_endpoint(url: str, options: Mapping[str, object], variables: Mapping[str, str] = os.environ) -> str:
    """Returns what the options say of the place of a url's root; "" if the environment or the cloud decides.

    The text has no credentials: it is stored with the manifest.

    Raises:
        ConfigError: the url has no bucket, or a name in url or options is not one.
    """
    address = split(url)
    kind = family(address.scheme)
    if not options or kind is None or kind == "http":
        return ""
    outcome = translate(address, options)
    check_names(address, kind, outcome.config)
    chosen: dict[str, object] = {}
    for name in ("endpoint", "base_url"):
        if given := outcome.config.get(name):
            parts = urlsplit(str(given))
            chosen["endpoint"] = f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}{parts.path.rstrip('/')}"
    if kind == "az" and "@" not in address.root:
        account = outcome.config.get("account_name")
        if account != variables.get("AZURE_STORAGE_ACCOUNT_NAME", variables.get("AZURE_STORAGE_ACCOUNT")):
            chosen["account"] = account
    if kind == "s3" and not chosen:
        region = variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or ""
        if (named := outcome.config.get("region")) and partition(str(named)) != partition(region):
            chosen["partition"] = partition(str(named)) or "aws"
        chosen["profile"] = outcome.profile
        if outcome.boto.get("ignore_configured_endpoint_urls") is not None:
            chosen["configured endpoints"] = outcome.boto["ignore_configured_endpoint_urls"]
    return ", ".join(f"{name} {value}" for name, value in sorted(chosen.items()) if value)
