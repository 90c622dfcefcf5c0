"""Finds address and region of a bucket of S3 as botocore does, from options, AWS configuration and environment.

`store/root.py` keeps what is found for its bucket; `guard.py` and `curl/addresses.py` use helpers. Options that name an
endpoint and have keys need no botocore. If botocore is not installed, the usual addresses of AWS are computed here.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, cast
from urllib.parse import quote, urlsplit

import msgspec

from streamer.errors import ConfigError
from streamer.store import failures
from streamer.store.addresses.hosts import is_of_aws, is_region
from streamer.store.addresses.urls import shown
from streamer.store.options import ENDPOINT_VARIABLES, Translation

if TYPE_CHECKING:
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.client import BaseClient
    from botocore.session import Session

# How regions of AWS's separate partitions begin. Keys of one partition are not valid in another.
_PARTITIONS = ("cn-", "eusc-", "us-gov-", "us-iso")
# The domains of regions by their beginnings. All other regions belong to amazonaws.com.
_DOMAINS = {"cn-": "amazonaws.com.cn", "eusc-": "amazonaws.eu"}
_DEFAULT_REGION = "us-east-1"
# Names of buckets that can be part of a host name. With a dot in it, no TLS certificate would be valid.
_HOST_PART = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_REGION_HEADER = "x-amz-bucket-region"
_REGION_SECONDS = 5.0
_SCOPE = re.compile(r"Credential=[^/]+/\d+/([^/]+)/")
# Variables that change the host in ways that only botocore knows.
_HOST_VARIABLES = ("AWS_USE_FIPS_ENDPOINT", "AWS_USE_DUALSTACK_ENDPOINT")
_ENDPOINT_RULES = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT", "AWS_DEFAULTS_MODE")
# Settings of a profile that do so, or name endpoints.
_HOST_SETTINGS = (
    "defaults_mode",
    "endpoint_url",
    "ignore_configured_endpoint_urls",
    "s3",
    "services",
    "use_dualstack_endpoint",
    "use_fips_endpoint",
)
# Endings of the names of access points and directory buckets, whose hosts only botocore knows.
_ALIASES = ("-s3alias", "--x-s3", "--ol-s3")


class BucketPlace(msgspec.Struct, frozen=True):
    """Says where a bucket is.

    Attributes:
        base: url to which the escaped key is appended, such as "https://bucket.s3.eu-west-1.amazonaws.com/".
        region: region in the signatures of requests.
        ca_file: PEM file of certificates to trust, by the AWS configuration, or None if it names none.
    """

    base: str
    region: str
    ca_file: str | None = None


def join_endpoint(root: str, translation: Translation, endpoint: str) -> str:
    """Returns the url to which keys are appended at an endpoint.

    The bucket is in its path; it is in the host if the settings ask for that (virtual_hosted_style_request) and the
    bucket's name allows it.

    Args:
        root: root of the urls, such as "s3://bucket".
        translation: settings of the root.
        endpoint: url of the server.
    """
    bucket = root.partition("://")[2]
    parts = urlsplit(endpoint)
    plain_host = _HOST_PART.fullmatch(bucket) and not is_ip(parts.hostname or "")
    if translation.config.get("virtual_hosted_style_request") and plain_host:
        return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path.rstrip('/')}/"
    return f"{endpoint.rstrip('/')}/{quote(bucket)}/"


def find_place(
    root: str, translation: Translation, region: str | None, variables: Mapping[str, str] = os.environ
) -> BucketPlace:
    """Finds the place of a bucket from options, AWS configuration and environment. It reads files, and sends nothing.

    Args:
        root: root of the urls, such as "s3://bucket".
        translation: settings of the root.
        region: region if it is known. None means that of the configuration or environment, else us-east-1.
        variables: environment; botocore reads that of the process besides.

    Raises:
        ConfigError: these make no address, or only botocore could compute it, which is not installed.
    """
    config = translation.config
    endpoint = config.get("endpoint")
    has_keys = "access_key_id" in config or "skip_signature" in config
    if endpoint and has_keys and not translation.boto:
        base = join_endpoint(root, translation, str(endpoint))
        return BucketPlace(base, _region(region, variables), variables.get("AWS_CA_BUNDLE"))
    try:
        from botocore.session import Session
    except ImportError:
        return _compute_place(root, translation, region, variables)
    try:
        session = Session(profile=translation.profile)
        region = region or session.get_config_variable("region") or variables.get("AWS_REGION")
        if _is_plain(session, root, translation, region=region, variables=variables):
            place = _compute_place(root, translation, region, variables)
            return msgspec.structs.replace(place, ca_file=session.get_config_variable("ca_bundle"))
        return _ask_boto(session, root, translation, region)
    except Exception as error:  # noqa: BLE001 - the edge: whatever boto raises becomes ours
        raise ConfigError(
            f"{shown(root)}: options and AWS configuration make no address of this bucket "
            f"({type(error).__name__}: {failures.sentence(str(error))})",
            field="storage_options",
        ) from failures.redact(error)


def _is_plain(
    session: Session, root: str, translation: Translation, region: str | None, variables: Mapping[str, str]
) -> bool:
    """Whether the bucket has the usual address, without botocore's client, which takes 85 ms of CPU (2026-11-24)."""
    bucket = root.partition("://")[2]
    is_named = any(map(variables.get, ENDPOINT_VARIABLES))
    return not (
        translation.boto
        # botocore uses the global host if there is no region, and in us-east-1.
        or ((region or _DEFAULT_REGION) == _DEFAULT_REGION and not is_named)
        or any(map(variables.get, (*_HOST_VARIABLES, *_ENDPOINT_RULES)))
        or set(session.get_scoped_config()).intersection(_HOST_SETTINGS)
        or bucket.endswith(_ALIASES)
        or not _HOST_PART.fullmatch(bucket)
    )


def _region(known: str | None, variables: Mapping[str, str]) -> str:
    return known or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION


def _compute_place(
    root: str, translation: Translation, region: str | None, variables: Mapping[str, str]
) -> BucketPlace:
    """Computes the place without botocore: at the endpoint that options or environment name, or at AWS.

    Raises:
        ConfigError: only botocore knows the host, or the names make no address of AWS.
    """
    wanted = [name for name in _HOST_VARIABLES if variables.get(name, "").lower() == "true"]
    bucket = root.partition("://")[2]
    ca_file = variables.get("AWS_CA_BUNDLE")
    if translation.boto or wanted or ":" in bucket:
        what = ", ".join([*translation.boto, *wanted]) or "an ARN"
        raise ConfigError(
            f"{shown(root)}: {what} needs botocore; pip install 'streamer-data[aws]'", field="storage_options"
        )
    region = _region(region, variables)
    endpoint = translation.config.get("endpoint") or next(filter(None, map(variables.get, ENDPOINT_VARIABLES)), None)
    if endpoint:
        return BucketPlace(join_endpoint(root, translation, str(endpoint)), region, ca_file)
    if not is_region(region, own_endpoint=False):
        raise ConfigError(
            f"{shown(root)}: {region[:40]!r} is no region of AWS; write it as eu-central-1", field="region"
        )
    domain = next((domain for prefix, domain in _DOMAINS.items() if region.startswith(prefix)), "amazonaws.com")
    virtual = translation.config.get("virtual_hosted_style_request", True)
    asked = msgspec.structs.replace(translation, config={"virtual_hosted_style_request": virtual})
    base = join_endpoint(root, asked, f"https://s3.{region}.{domain}")
    if not is_of_aws(base):
        raise ConfigError(f"{shown(root)}: {shown(base)} is no address of AWS", field="storage_options")
    return BucketPlace(base, region, ca_file)


def _ask_boto(session: Session, root: str, translation: Translation, region: str | None) -> BucketPlace:
    """Returns the place of a bucket that botocore computes, by a request that it prepares and does not send."""
    from botocore.config import Config

    virtual = translation.config.get("virtual_hosted_style_request")
    style = {} if virtual is None else {"addressing_style": "virtual" if virtual else "path"}
    of_s3 = {**style, **cast("dict[str, object]", translation.boto.get("s3", {}))}
    endpoint = translation.config.get("endpoint")
    ca_file = session.get_config_variable("ca_bundle")
    # Otherwise botocore would ask S3 Express for a session token.
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
        request = _prepare_request(client, root.partition("://")[2])
    finally:
        client.close()
    signed = request.headers["Authorization"]
    found = _SCOPE.search(signed.decode("ascii") if isinstance(signed, bytes) else str(signed))
    return BucketPlace(str(request.url).partition("?")[0].removesuffix("x"), found[1] if found else "", ca_file)


def _prepare_request(client: BaseClient, bucket: str) -> AWSPreparedRequest:
    """Returns the request that botocore would send for the key "x"; nothing is sent."""
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


def ask_region(base: str, ca_file: str | None) -> str:
    """Sends an unsigned HEAD for a bucket, and returns the region that the answer names, or "" if it names none.

    Used for clients that do not show the headers of an answer; the header is there whatever the status is. It blocks
    for a few seconds at most. Without an answer of HTTP the result is "", too.

    Source: AWS, "HeadBucket" (Amazon S3 API Reference).

    Args:
        base: url of the bucket at the host of any region.
        ca_file: PEM file of certificates to trust besides those of the system, or None.

    Raises:
        OSError: `ca_file` cannot be read, or has no certificates.
    """
    # The import takes 15 ms, which most engines save: where libcurl reads, it asks for the region itself.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class Unfollowed(HTTPRedirectHandler):
        """Follows no redirect: it is the answer, and names the region."""

        def redirect_request(self, *_: object) -> None:
            """Makes no request."""

    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    try:
        opener = build_opener(HTTPSHandler(context=context), Unfollowed)
        with opener.open(Request(base, method="HEAD"), timeout=_REGION_SECONDS) as answer:
            return str(answer.headers.get(_REGION_HEADER, ""))
    except HTTPError as refusal:
        with refusal:
            return str(refusal.headers.get(_REGION_HEADER, ""))
    except (OSError, HTTPException, ValueError):
        # The caller's next request meets the same error, and reports it. A ValueError is about the name of the host.
        return ""


def partition(region: str) -> str:
    """Returns how the names of the regions of a region's partition begin, such as "cn-"; "" for the usual partition."""
    return next(filter(region.startswith, _PARTITIONS), "")


def is_ip(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
