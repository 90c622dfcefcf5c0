"""Translates the user's storage options, which are those of fsspec, for obstore and libcurl, and checks their names.

`store/root.py` translates the options of each root, and `store/__init__.py` checks them when it opens a store;
`places.py` and `credentials/web_login.py` read the translation. It does no I/O. A misspelt option is an error that
names the nearest one, before a request is made. An option without a counterpart is listed, so that the whole root is
read through fsspec, and the option is not dropped.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias, cast

import msgspec

from streamer.base.user_urls import LOGINS, without_login
from streamer.errors import ConfigError
from streamer.store.addresses import hosts as redirects
from streamer.store.addresses.hosts import is_of_azure
from streamer.store.addresses.urls import Address

Options = Mapping[str, object]

# The ending of the names of S3 Express's buckets. Requests to them are signed with keys of a session, which s3fs asks
# for, and their lists have no order (AWS, "S3 directory bucket naming rules", "Differences for directory buckets").
_EXPRESS = "--x-s3"
# The fields of the file of a service account's key (Google, "Create and delete service account keys").
_OF_SERVICE_ACCOUNT = ("type", "project_id", "private_key_id", "private_key", "client_email", "client_id")
# Settings that obstore would read from the text of a service account's key, though no such key has them.
_NOT_OF_A_KEY = ("gcs_base_url", "disable_oauth")
# Fields of a Google user's sign-in that gcsfs takes.
_OF_GOOGLE_USER = {"client_id", "client_secret", "refresh_token"}
# Azure's public cloud, which obstore knows.
_AZURE_SUFFIX = "core.windows.net"
_ONELAKE = ".fabric.microsoft.com"
# Variables that may name the endpoint of S3 if no option does; the first one that is set counts.
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class Translation(msgspec.Struct):
    """Holds the settings of a root that its storage options mean. Most have secrets, and are never shown.

    Attributes:
        config: settings of the store, in obstore's names.
        client: settings of the HTTP client, in obstore's names.
        profile: AWS profile that the options name, or None.
        boto: arguments of botocore's Config that change a bucket's address, which only botocore can compute then.
        ca_file: PEM file of certificates to trust besides the system's, or None.
        redirects: hosts and networks to which an S3 endpoint may redirect.
        sizes_only: whether objects are pinned by their size alone.
        login: words for the login to a web server, for messages, or "".
        unknown: names of options without a counterpart. If there are any, only fsspec can read the root.
        google_user: sign-in of a Google user, which only google-auth exchanges for tokens, or None.
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
    google_user: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        return f"Translation({sorted(self.config)}, unknown={self.unknown})"

    def endpoint(self, name: str, url: object) -> None:
        """Sets the url of an endpoint as the setting `name` of obstore; allows plain http only if the url has it."""
        self.config[name] = str(url).rstrip("/")
        self.client["allow_http"] = str(url).startswith("http://")

    def apply(self, table: Table, options: Options, prefix: str = "") -> None:
        """Adds options to the settings, by the rules of a table; `prefix` stands before their names in `unknown`."""
        for name, value in options.items():
            rule = table.get(name)
            if rule is None:
                self.unknown.append(f"{prefix}{name}")
            elif value is None:
                continue
            elif isinstance(rule, str):
                self.config[rule] = str(value)
            elif isinstance(rule, Mapping):
                self.apply(rule, value if isinstance(value, Mapping) else {}, f"{prefix}{name}.")
            else:
                rule(self, name, value)


def translate(address: Address, options: Options) -> Translation:
    """Returns the settings for the options of a root with a family; ConfigError if one cannot have such a value."""
    outcome = Translation()
    kind = str(address.family)
    outcome.apply(_TABLES[kind], options)
    if kind == "az":
        _set_azure_host(outcome, address.root.partition("@")[2])
    elif kind == "s3" and address.root.endswith(_EXPRESS):
        outcome.unknown.append("S3 Express One Zone")
    return outcome


# ---------------------------------------------------------------- the rules of options

# Changes settings by an option, given its name and value.
Setter = Callable[[Translation, str, object], None]


def _no_effect(outcome: Translation, name: str, value: object) -> None:
    """Does nothing: the option tunes fsspec or botocore, and does not change the bytes that are read."""


def _flag(key: str) -> Setter:
    """Returns the rule of an option that, if it is true, sets the setting `key` of obstore."""

    def put(outcome: Translation, name: str, value: object) -> None:
        if value:
            outcome.config[key] = True

    return put


def _endpoint(key: str) -> Setter:
    """Returns the rule of an option that is the url of an endpoint, the setting `key` of obstore."""
    return lambda outcome, name, value: outcome.endpoint(key, value)


def _unless(*values: object) -> Setter:
    """Returns the rule of an option of botocore's Config that has no counterpart unless it has one of these values."""

    def put(outcome: Translation, name: str, value: object) -> None:
        if value not in values:
            outcome.unknown.append(f"config_kwargs.{name}")

    return put


def _set_pin(outcome: Translation, name: str, value: object) -> None:
    outcome.sizes_only = value == "size"


def _set_redirects(outcome: Translation, name: str, value: object) -> None:
    outcome.redirects = tuple(str(host) for host in value) if isinstance(value, (list, tuple)) else ()


def _set_profile(outcome: Translation, name: str, value: object) -> None:
    outcome.profile = str(value)


def _set_verify(outcome: Translation, name: str, value: object) -> None:
    """Translates boto's `verify`, the path of a CA file or True. Other values have no counterpart."""
    if isinstance(value, str):
        outcome.ca_file = value
    elif value is not True:
        outcome.unknown.append("verify")


def _set_address_style(outcome: Translation, name: str, value: object) -> None:
    if value in ("virtual", "path"):
        outcome.config["virtual_hosted_style_request"] = value == "virtual"


def _set_place(outcome: Translation, name: str, value: object) -> None:
    outcome.boto[name] = value


def _set_s3_place(outcome: Translation, name: str, value: object) -> None:
    outcome.boto["s3"] = {**cast("Options", outcome.boto.get("s3", {})), name: value}


def _set_connect_timeout(outcome: Translation, name: str, value: object) -> None:
    outcome.client["connect_timeout"] = f"{value}s"


def _set_google_token(outcome: Translation, name: str, value: object) -> None:
    """Translates gcsfs's `token`: "anon", a key or sign-in as a mapping, or a file. Others have no counterpart."""
    if value == "anon":
        outcome.config["skip_signature"] = True
    elif isinstance(value, Mapping) and value.get("type") == "service_account":
        # obstore would take these from the text of the key as settings.
        if own := [key for key in _NOT_OF_A_KEY if key in value]:
            raise ConfigError(
                f"the token has {own[0]!r}, which is not a part of a service account's key; use endpoint_url",
                field="storage_options",
                option="token",
            )
        known = {key: text for key, text in value.items() if key in _OF_SERVICE_ACCOUNT}
        outcome.config["service_account_key"] = json.dumps(known)
    elif isinstance(value, Mapping) and value.keys() >= _OF_GOOGLE_USER:
        outcome.google_user = {key: str(value[key]) for key in _OF_GOOGLE_USER}
    elif isinstance(value, str) and (value.endswith(".json") or value.startswith(("/", "./", "../"))):
        outcome.config["application_credentials"] = value
    elif value not in ("google_default", "cloud"):
        outcome.unknown.append("token")


def _set_google_payer(outcome: Translation, name: str, value: object) -> None:
    if isinstance(value, str):
        outcome.client["default_headers"] = {"x-goog-user-project": value}
    elif value:
        outcome.unknown.append("requester_pays")


def _set_azure_connection(outcome: Translation, name: str, value: object) -> None:
    """Translates a connection string of Azure: account, key, signature and endpoint."""
    parts = dict(part.split("=", 1) for part in str(value).split(";") if "=" in part)
    outcome.apply(_AZURE_CONNECTION, {key: parts[key] for key in _AZURE_CONNECTION if key in parts})
    suffix = parts.get("EndpointSuffix", _AZURE_SUFFIX)
    if "AccountName" in parts and "BlobEndpoint" not in parts and suffix != _AZURE_SUFFIX:
        scheme = parts.get("DefaultEndpointsProtocol", "https")
        outcome.endpoint("endpoint", f"{scheme}://{parts['AccountName']}.blob.{suffix}")


def _set_azure_host(outcome: Translation, host: str) -> None:
    """Sets account and endpoint by the host in a url, such as `account.dfs.core.usgovcloudapi.net`, if it has one.

    Source: Microsoft, "Use the Azure Data Lake Storage URI", "OneLake access and APIs", "Compare Azure Government and
    global Azure".
    """
    if not host:
        return
    outcome.config.setdefault("account_name", host.partition(".")[0])
    if host.endswith(_ONELAKE) and is_of_azure(f"https://{host}/"):
        outcome.config.setdefault("use_fabric_endpoint", True)
        return
    is_public = "." not in host or host.endswith((f".blob.{_AZURE_SUFFIX}", f".dfs.{_AZURE_SUFFIX}"))
    if not is_public and "endpoint" not in outcome.config:
        outcome.endpoint("endpoint", f"https://{host.replace('.dfs.', '.blob.', 1)}")


def _set_azure_credential(outcome: Translation, name: str, value: object) -> None:
    if not isinstance(value, str):
        outcome.unknown.append("credential")
    else:
        outcome.config["sas_key" if "sig=" in value else "account_key"] = value.removeprefix("?")


def _set_sas(outcome: Translation, name: str, value: object) -> None:
    outcome.config["sas_key"] = str(value).removeprefix("?")


def _set_headers(outcome: Translation, name: str, value: object) -> None:
    if isinstance(value, Mapping):
        outcome.client["default_headers"] = {str(key): str(text) for key, text in value.items()}


# ---------------------------------------------------------------- the register

# The rules of options by name. A rule is the name of obstore's setting, a function that changes settings, a table of
# the options inside of this one, or None if the option has no counterpart.
Table: TypeAlias = Mapping[str, "str | Setter | Table | None"]


def _ignore(*names: str) -> dict[str, Setter]:
    return dict.fromkeys(names, _no_effect)


_OF_EVERY_FAMILY: Table = {
    "pin": _set_pin,
    **_ignore(LOGINS, "default_block_size", "default_cache_type", "default_fill_cache", "use_listings_cache"),
    **_ignore("listings_expiry_time", "max_paths", "max_concurrency", "cache_regions", "asynchronous", "loop"),
    **_ignore("skip_instance_cache", "project", "access", "consistency", "block_size", "cache_timeout", "use_ssl"),
    **_ignore("version_aware", "fixed_upload_size", "local_expiry_check", "encoded", "size_policy"),
}
_CLIENT_KWARGS: Table = {
    "endpoint_url": _endpoint("endpoint"),
    "region_name": "region",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "token",
    "verify": _set_verify,
    **_ignore("use_ssl"),
    **dict.fromkeys(("api_version", "config", "aws_account_id")),
}
# The arguments of botocore's Config. Those that are ignored do not change a GET signed with Signature Version 4.
_CONFIG_KWARGS: Table = {
    "connect_timeout": _set_connect_timeout,
    "region_name": "region",
    "signature_version": _unless("s3v4", "v4"),
    "proxies": _unless({}, ""),
    **dict.fromkeys(("use_fips_endpoint", "use_dualstack_endpoint", "ignore_configured_endpoint_urls"), _set_place),
    "s3": {
        "addressing_style": _set_address_style,
        **dict.fromkeys(("use_accelerate_endpoint", "use_dualstack_endpoint", "use_arn_region"), _set_s3_place),
        "us_east_1_regional_endpoint": _set_s3_place,
        **_ignore("payload_signing_enabled"),
    },
    **_ignore("retries", "max_pool_connections", "read_timeout", "tcp_keepalive", "parameter_validation"),
    **_ignore("request_checksum_calculation", "response_checksum_validation", "disable_request_compression"),
    **_ignore("request_min_compression_size_bytes", "user_agent", "user_agent_extra", "user_agent_appid"),
    **dict.fromkeys(("proxies_config", "client_cert", "inject_host_prefix", "endpoint_discovery_enabled")),
    **dict.fromkeys(("defaults_mode", "account_id_endpoint_mode", "sigv4a_signing_region_set", "connector_args")),
    "http_session_cls": None,
}
_AZURE_CONNECTION: Table = {
    "AccountName": "account_name",
    "AccountKey": "account_key",
    "SharedAccessSignature": _set_sas,
    "BlobEndpoint": _endpoint("endpoint"),
}
_TABLES: dict[str, Table] = {
    "s3": {
        **dict.fromkeys(("key", "username"), "access_key_id"),
        **dict.fromkeys(("secret", "password"), "secret_access_key"),
        "token": "token",
        "anon": _flag("skip_signature"),
        "endpoint_url": _endpoint("endpoint"),
        "requester_pays": _flag("request_payer"),
        "redirects": _set_redirects,
        "profile": _set_profile,
        "client_kwargs": _CLIENT_KWARGS,
        "config_kwargs": _CONFIG_KWARGS,
        **_OF_EVERY_FAMILY,
        **dict.fromkeys(("s3_additional_kwargs", "session")),
    },
    "gs": {
        "token": _set_google_token,
        "endpoint_url": _endpoint("base_url"),
        "requester_pays": _set_google_payer,
        **_OF_EVERY_FAMILY,
        **dict.fromkeys(("check_connection", "default_location", "finalize_on_close", "secure_serialize", "timeout")),
        **dict.fromkeys(("max_mrd_pool_cache_queue_size", "mrd_pool_cache_size", "session_kwargs")),
    },
    "az": {
        **{name: name for name in ("account_name", "account_key", "tenant_id", "client_id", "client_secret")},
        "sas_token": _set_sas,
        "anon": _flag("skip_signature"),
        "connection_string": _set_azure_connection,
        "credential": _set_azure_credential,
        "account_host": lambda outcome, name, value: outcome.endpoint("endpoint", f"https://{value}"),
        **_OF_EVERY_FAMILY,
        **dict.fromkeys(("assume_container_exists", "blocksize", "connection_timeout", "location_mode", "timeout")),
        **dict.fromkeys(("read_timeout", "request_session", "socket_timeout")),
    },
    "http": {
        "headers": _set_headers,
        "client_kwargs": {"headers": _set_headers},
        **_OF_EVERY_FAMILY,
        **dict.fromkeys(("allow_redirects", "auth", "cache_options", "cache_type", "cookies", "get_client", "params")),
        **dict.fromkeys(("proxy", "proxy_auth", "proxy_headers", "same_scheme", "simple_links", "ssl", "timeout")),
        "trust_env": None,
    },
}
_CLIENTS = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "http": "fsspec's HTTP client"}
# The options that users mean by names of other programs, for messages.
_MEANT: dict[str, dict[str, str]] = {
    "s3": {
        **dict.fromkeys(("region", "region_name", "aws_region"), "client_kwargs={'region_name': ...}"),
        **dict.fromkeys(("aws_access_key_id", "access_key_id", "access_key"), "'key'"),
        **dict.fromkeys(("aws_secret_access_key", "secret_access_key", "secret_key"), "'secret'"),
        **dict.fromkeys(("aws_session_token", "session_token"), "'token'"),
        **dict.fromkeys(("endpoint", "aws_endpoint_url", "host"), "'endpoint_url'"),
        **dict.fromkeys(("anonymous", "no_sign_request", "skip_signature"), "'anon'"),
        **dict.fromkeys(("verify", "ca_bundle"), "client_kwargs={'verify': ...}"),
    },
    "gs": dict.fromkeys(("credentials", "key", "keyfile", "service_account"), "'token'"),
    "az": {"account": "'account_name'", "key": "'account_key'", "sas": "'sas_token'"},
}


def check_options(root: str, kind: str, given: Options, variables: Mapping[str, str] = os.environ) -> None:
    """Refuses storage options that the family's client in fsspec does not have, and values that cannot work.

    Args:
        root: name of the root for messages.
        kind: family of the root.
        given: the options, without logins.
        variables: environment, which may name an endpoint.

    Raises:
        ConfigError: an option does not exist (the message names the nearest one, or the usual ones), a key has no
            secret or a secret no key, an endpoint is not a url or has a login, or `pin` or `redirects` have a wrong
            value.
    """
    for name, known in _list_names(kind, given):
        if name not in known:
            what = f"storage_options has {name!r}, which {_CLIENTS[kind]} does not have; {_nearest(name, kind, known)}"
            raise _refusal(root, name, what)
    if given.get("pin") not in (None, "size"):
        only = "only 'size' is possible; without it objects are pinned by their ETags"
        raise _refusal(root, "pin", f"pin={given['pin']!r} in storage_options: {only}")
    if kind == "s3":
        _check_keys(root, given)
        _check_endpoint(root, given, variables)
        hosts = given.get("redirects") or ()
        wrong = redirects.unusable(hosts) if isinstance(hosts, (list, tuple)) else repr(hosts)
        if wrong is not None:
            right = "write for instance ['*.cluster.local', '10.0.0.0/8']"
            what = f"redirects={hosts!r}: {wrong} is not a list of hosts, host or network; {right}"
            raise _refusal(root, "redirects", what)


def _refusal(root: str, option: str, what: str) -> ConfigError:
    return ConfigError(f"{root}: {what}", field="storage_options", option=option)


def _list_names(kind: str, given: Options) -> Iterator[tuple[str, Collection[str]]]:
    """Yields the name of each option and the names that are possible in its place, nested ones with their prefix."""
    for name, value in given.items():
        yield name, _TABLES[kind]
        rule = _TABLES[kind].get(name)
        if kind == "s3" and isinstance(rule, Mapping) and isinstance(value, Mapping):
            inside = [f"{name}.{inner}" for inner in rule]
            yield from ((f"{name}.{inner}", inside) for inner in value)


def _nearest(name: str, kind: str, known: Collection[str]) -> str:
    """Returns the advice for an option that does not exist: the one that is meant, or the usual ones."""
    meant = _MEANT.get(kind, {}).get(name)
    near = [repr(one) for one in difflib.get_close_matches(name, known, 1, 0.6)]
    if meant or near:
        return f"did you mean {meant or near[0]}?"
    usual = (name for name, rule in _TABLES[kind].items() if rule not in (None, _no_effect))
    return f"the usual ones are {', '.join(usual)}"


def _check_keys(root: str, given: Options) -> None:
    """Refuses a key without its secret, or a secret without its key: signing would fail or use other credentials."""
    inner = given.get("client_kwargs")
    flat = {**(inner if isinstance(inner, Mapping) else {}), **given}
    key = next((name for name in ("key", "username", "aws_access_key_id") if flat.get(name)), None)
    secret = next((name for name in ("secret", "password", "aws_secret_access_key") if flat.get(name)), None)
    if (key is None) != (secret is None):
        has, lacks = (key, "secret") if secret is None else (secret, "key")
        what = (
            f"storage_options has {has!r} without its {lacks!r}; give both, or none of them to use the environment, "
            "the profile or the role of the machine"
        )
        raise _refusal(root, lacks, what)


def _check_endpoint(root: str, given: Options, variables: Mapping[str, str]) -> None:
    """Refuses an endpoint, of options or environment, that has a login or is not a url: obstore would panic on it."""
    inner = given.get("client_kwargs")
    by_option = given.get("endpoint_url") or (inner.get("endpoint_url") if isinstance(inner, Mapping) else None)
    by_variable = {name: variables.get(name) for name in ENDPOINT_VARIABLES} if by_option is None else {}
    for name, endpoint in ({"endpoint_url": by_option} | by_variable).items():
        where = f"in {'storage_options' if name == 'endpoint_url' else 'the environment'}"
        text = without_login(f"https://{endpoint}").removeprefix("https://")
        what = ""
        if "@" in str(endpoint or "").partition("://")[2].partition("/")[0]:
            what = f"{name} {where} has a login (user:password@), which S3 does not use; give key and secret"
        elif endpoint and not str(endpoint).startswith(("http://", "https://")):
            what = f"{name}={text!r} {where} has no scheme; write https://{text}, or http://{text} where it has no TLS"
        if what:
            raise _refusal(root, "endpoint_url", what)
