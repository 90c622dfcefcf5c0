"""Translates the storage options of fsspec to options of obstore. Pure.

Options without a counterpart are listed, so that the caller uses fsspec for the whole root instead of silently dropping
an option.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import msgspec

from streamer.store.urls import Address

Options = Mapping[str, object]

# They tune buffering and pooling of fsspec, which are not used here, and do not change the bytes read.
WITHOUT_EFFECT = frozenset(
    [
        "default_block_size",
        "default_cache_type",
        "default_fill_cache",
        "use_listings_cache",
        "listings_expiry_time",
        "max_paths",
        "max_concurrency",
        "cache_regions",
        "asynchronous",
        "loop",
        "skip_instance_cache",
        "project",
        "access",
        "consistency",
        "block_size",
        "cache_timeout",
        "use_ssl",
        "version_aware",
        "fixed_upload_size",
        "local_expiry_check",
        "encoded",
        "size_policy",
    ]
)
# The ending of S3 Express's bucket names: their requests are signed with keys of a session, which s3fs asks for, and
# and their listings have no order (AWS, "S3 directory bucket naming rules" and "Differences for directory buckets").
_EXPRESS = "--x-s3"
# What gcsfs takes of a Google user's sign-in.
_OF_GOOGLE_USER = {"client_id", "client_secret", "refresh_token"}
# Azure's public cloud, which obstore knows.
_AZURE_SUFFIX = "core.windows.net"
_ONELAKE = ".fabric.microsoft.com"
# The first one that is set names the endpoint of S3, if no option does.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
# Arguments of botocore's Config that do not change a GET signed with Signature Version 4.
_CONFIG_WITHOUT_EFFECT = frozenset(
    [
        *("retries", "max_pool_connections", "read_timeout", "tcp_keepalive", "parameter_validation"),
        *("request_checksum_calculation", "response_checksum_validation", "disable_request_compression"),
        *("request_min_compression_size_bytes", "user_agent", "user_agent_extra", "user_agent_appid"),
    ]
)
# Those that change a bucket's address.
_CONFIG_OF_PLACE = ("use_fips_endpoint", "use_dualstack_endpoint", "ignore_configured_endpoint_urls")
_S3_CONFIG_OF_PLACE = (
    *("use_accelerate_endpoint", "use_dualstack_endpoint", "use_arn_region", "us_east_1_regional_endpoint"),
)


class Translation(msgspec.Struct):
    """The result of a translation.

    Attributes:
        config: obstore's store configuration; contains secrets, never shown.
        client: obstore's client options.
        profile: AWS profile; the credentials are then found as boto finds them.
        boto: arguments of botocore's Config that change a bucket's address, which only botocore can compute.
        ca_file: PEM file to trust in addition to the system's.
        redirects: hosts to which S3 may redirect.
        sizes_only: whether objects are pinned by their size, not by the store's versions.
        login: description of the login to a web server, for messages.
        unknown: options without a counterpart; if there are none, obstore can serve the root.
        uploads: options of a client that uploads.
        google_user: the sign-in of a Google user, which only google-auth exchanges for tokens; secret.
    """

    config: dict[str, object] = msgspec.field(default_factory=dict)
    client: dict[str, object] = msgspec.field(default_factory=dict)
    profile: str | None = None
    boto: dict[str, object] = msgspec.field(default_factory=dict)
    ca_file: str | None = None
    redirects: tuple[str, ...] = ()
    sizes_only: bool = False
    login: str = ""
    unknown: list[str] = msgspec.field(default_factory=list)
    uploads: bool = False
    google_user: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        return f"Translation({sorted(self.config)}, unknown={self.unknown})"

    def endpoint(self, name: str, url: object) -> None:
        """Sets a custom endpoint; plain http only if the url says so."""
        self.config[name] = str(url).rstrip("/")
        self.client["allow_http"] = str(url).startswith("http://")

    def verify(self, value: object) -> None:
        """Translates boto's `verify`: a CA file, or True; False has no counterpart and is left to fsspec."""
        if isinstance(value, str):
            self.ca_file = value
        elif value is not True and value is not None:
            self.unknown.append("verify")


def translate(address: Address, options: Options) -> Translation:
    """Translates the options for one root."""
    outcome, kind = Translation(), _FAMILY[address.scheme]
    table = _TABLES[kind]
    for name, value in options.items():
        if name in table:
            if value is not None:
                table[name](outcome, value)
        elif name not in WITHOUT_EFFECT:
            outcome.unknown.append(name)
    if kind == "az":
        _azure_host(outcome, address.root.partition("@")[2])
    elif kind == "s3" and address.root.endswith(_EXPRESS):
        outcome.unknown.append("S3 Express One Zone")
    return outcome


def family(scheme: str) -> str | None:
    """The family "s3", "gs", "az" or "http" of the schemes that obstore serves; None for others."""
    return _FAMILY.get(scheme)


_FAMILY = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "http",
}


def names(kind: str) -> list[str]:
    """The options of a family that have a counterpart."""
    return list(_TABLES[kind])


Setter = Callable[[Translation, object], None]


def _config(name: str) -> Setter:
    def put(outcome: Translation, value: object) -> None:
        outcome.config[name] = str(value)

    return put


def _anonymous(outcome: Translation, value: object) -> None:
    if value:
        outcome.config["skip_signature"] = True


def _each(prefix: str, table: Mapping[str, Setter], ignored: frozenset[str] = frozenset()) -> Setter:
    """Translates a nested mapping of options, such as s3fs' client_kwargs."""

    def put(outcome: Translation, value: object) -> None:
        for name, inner in value.items() if isinstance(value, Mapping) else ():
            if name in table:
                table[name](outcome, inner)
            elif name not in ignored:
                outcome.unknown.append(f"{prefix}.{name}")

    return put


def _redirects(outcome: Translation, value: object) -> None:
    outcome.redirects = tuple(str(host) for host in value) if isinstance(value, (list, tuple)) else ()


def _pin(outcome: Translation, value: object) -> None:
    outcome.sizes_only = value == "size"


def _requester_pays(outcome: Translation, value: object) -> None:
    if value:
        outcome.config["request_payer"] = True


def _profile(outcome: Translation, value: object) -> None:
    outcome.profile = str(value)


def _addressing(outcome: Translation, value: object) -> None:
    if value in ("virtual", "path"):
        outcome.config["virtual_hosted_style_request"] = value == "virtual"


def _of_place(name: str) -> Setter:
    def put(outcome: Translation, value: object) -> None:
        outcome.boto[name] = value

    return put


def _of_s3_place(name: str) -> Setter:
    def put(outcome: Translation, value: object) -> None:
        known = outcome.boto.get("s3")
        outcome.boto["s3"] = {**(known if isinstance(known, Mapping) else {}), name: value}

    return put


def _signature(outcome: Translation, value: object) -> None:
    if value not in ("s3v4", "v4"):
        outcome.unknown.append("config_kwargs.signature_version")


def _proxies(outcome: Translation, value: object) -> None:
    if value:
        outcome.unknown.append("config_kwargs.proxies")


def _connect_timeout(outcome: Translation, value: object) -> None:
    outcome.client["connect_timeout"] = f"{value}s"


def _google_token(outcome: Translation, value: object) -> None:
    if value == "anon":
        outcome.config["skip_signature"] = True
    elif isinstance(value, Mapping) and value.get("type") == "service_account":
        outcome.config["service_account_key"] = json.dumps(dict(value))
    elif isinstance(value, Mapping) and value.keys() >= _OF_GOOGLE_USER:
        outcome.google_user = {name: str(value[name]) for name in _OF_GOOGLE_USER}
    elif isinstance(value, str) and (value.endswith(".json") or value.startswith(("/", "./", "../"))):
        outcome.config["application_credentials"] = value
    elif value not in ("google_default", "cloud"):
        outcome.unknown.append("token")


def _google_payer(outcome: Translation, value: object) -> None:
    if isinstance(value, str):
        outcome.client["default_headers"] = {"x-goog-user-project": value}
    elif value:
        outcome.unknown.append("requester_pays")


def _azure_connection(outcome: Translation, value: object) -> None:
    parts = dict(part.split("=", 1) for part in str(value).split(";") if "=" in part)
    for name, setter in _AZURE_CONNECTION.items():
        if name in parts:
            setter(outcome, parts[name])
    suffix = parts.get("EndpointSuffix", _AZURE_SUFFIX)
    if "AccountName" in parts and "BlobEndpoint" not in parts and suffix != _AZURE_SUFFIX:
        scheme = parts.get("DefaultEndpointsProtocol", "https")
        outcome.endpoint("endpoint", f"{scheme}://{parts['AccountName']}.blob.{suffix}")


def _azure_host(outcome: Translation, host: str) -> None:
    """Uses the host in a url such as `account.dfs.core.usgovcloudapi.net`: other clouds, private zones, OneLake.

    Source: Microsoft, "Use the Azure Data Lake Storage URI", "OneLake access and APIs", "Compare Azure Government and
    global Azure".
    """
    if not host:
        return
    outcome.config.setdefault("account_name", host.partition(".")[0])
    if host.endswith(_ONELAKE):
        outcome.config.setdefault("use_fabric_endpoint", True)
        return
    is_public = "." not in host or host.endswith((f".blob.{_AZURE_SUFFIX}", f".dfs.{_AZURE_SUFFIX}"))
    if not is_public and "endpoint" not in outcome.config:
        outcome.endpoint("endpoint", f"https://{host.replace('.dfs.', '.blob.', 1)}")


def _azure_credential(outcome: Translation, value: object) -> None:
    if not isinstance(value, str):
        outcome.unknown.append("credential")
    else:
        outcome.config["sas_key" if "sig=" in value else "account_key"] = value.removeprefix("?")


def _sas(outcome: Translation, value: object) -> None:
    outcome.config["sas_key"] = str(value).removeprefix("?")


def _account_host(outcome: Translation, value: object) -> None:
    outcome.endpoint("endpoint", f"https://{value}")


def _headers(outcome: Translation, value: object) -> None:
    if isinstance(value, Mapping):
        outcome.client["default_headers"] = {str(name): str(text) for name, text in value.items()}


def _ca(outcome: Translation, value: object) -> None:
    outcome.verify(value)


def _s3_endpoint(outcome: Translation, value: object) -> None:
    outcome.endpoint("endpoint", value)


def _google_endpoint(outcome: Translation, value: object) -> None:
    outcome.endpoint("base_url", value)


_AZURE_CONNECTION: dict[str, Setter] = {
    "AccountName": _config("account_name"),
    "AccountKey": _config("account_key"),
    "SharedAccessSignature": _sas,
    "BlobEndpoint": _s3_endpoint,
}

_TABLES: dict[str, dict[str, Setter]] = {
    "s3": {
        "key": _config("access_key_id"),
        "username": _config("access_key_id"),
        "secret": _config("secret_access_key"),
        "password": _config("secret_access_key"),
        "token": _config("token"),
        "anon": _anonymous,
        "endpoint_url": _s3_endpoint,
        "requester_pays": _requester_pays,
        "redirects": _redirects,
        "profile": _profile,
        "client_kwargs": _each(
            "client_kwargs",
            {
                "endpoint_url": _s3_endpoint,
                "region_name": _config("region"),
                "aws_access_key_id": _config("access_key_id"),
                "aws_secret_access_key": _config("secret_access_key"),
                "aws_session_token": _config("token"),
                "verify": _ca,
            },
            frozenset({"use_ssl"}),
        ),
        "config_kwargs": _each(
            "config_kwargs",
            {
                "connect_timeout": _connect_timeout,
                "region_name": _config("region"),
                "signature_version": _signature,
                "proxies": _proxies,
                **{name: _of_place(name) for name in _CONFIG_OF_PLACE},
                "s3": _each(
                    "config_kwargs.s3",
                    {"addressing_style": _addressing, **{name: _of_s3_place(name) for name in _S3_CONFIG_OF_PLACE}},
                    frozenset({"payload_signing_enabled"}),
                ),
            },
            _CONFIG_WITHOUT_EFFECT,
        ),
        "pin": _pin,
    },
    "gs": {
        "token": _google_token,
        "endpoint_url": _google_endpoint,
        "requester_pays": _google_payer,
        "pin": _pin,
    },
    "az": {
        "account_name": _config("account_name"),
        "account_key": _config("account_key"),
        "sas_token": _sas,
        "tenant_id": _config("tenant_id"),
        "client_id": _config("client_id"),
        "client_secret": _config("client_secret"),
        "anon": _anonymous,
        "connection_string": _azure_connection,
        "credential": _azure_credential,
        "account_host": _account_host,
        "pin": _pin,
    },
    "http": {"headers": _headers, "client_kwargs": _each("client_kwargs", {"headers": _headers}), "pin": _pin},
}
