"""Which storage options exist. Pure. A misspelt one is an error that names the nearest, before a request is made."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping

from streamer.errors import ConfigError
from streamer.store import options, redirects
from streamer.store.urls import Address, shown

# Options of fsspec's filesystems that our stores do not have: the root is read through fsspec then.
_OF_FSSPEC: dict[str, tuple[str, ...]] = {
    "s3": ("s3_additional_kwargs", "session"),
    "gs": (
        *("check_connection", "default_location", "finalize_on_close", "max_mrd_pool_cache_queue_size"),
        *("mrd_pool_cache_size", "secure_serialize", "session_kwargs", "timeout"),
    ),
    "az": (
        *("assume_container_exists", "blocksize", "connection_timeout", "location_mode", "read_timeout"),
        *("request_session", "socket_timeout", "timeout"),
    ),
    "http": (
        *("allow_redirects", "auth", "cache_options", "cache_type", "cookies", "get_client", "params", "proxy"),
        *("proxy_auth", "proxy_headers", "same_scheme", "simple_links", "ssl", "timeout", "trust_env"),
    ),
}
_CLIENTS = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "http": "fsspec's HTTP client"}
# Options of s3fs: the arguments of botocore's client, and of its Config.
_NESTED: dict[str, tuple[str, ...]] = {
    "client_kwargs": (
        *("endpoint_url", "region_name", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "verify"),
        *("use_ssl", "api_version", "config", "aws_account_id"),
    ),
    "config_kwargs": (
        *("connect_timeout", "read_timeout", "retries", "max_pool_connections", "tcp_keepalive", "s3", "proxies"),
        *("proxies_config", "signature_version", "user_agent", "user_agent_extra", "user_agent_appid", "region_name"),
        *("parameter_validation", "client_cert", "inject_host_prefix", "endpoint_discovery_enabled", "defaults_mode"),
        *("use_dualstack_endpoint", "use_fips_endpoint", "ignore_configured_endpoint_urls", "account_id_endpoint_mode"),
        *("request_min_compression_size_bytes", "disable_request_compression", "sigv4a_signing_region_set"),
        *("request_checksum_calculation", "response_checksum_validation", "connector_args", "http_session_cls"),
    ),
}
# Other programs' names of options.
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


def check(address: Address, given: options.Options, variables: Mapping[str, str] = os.environ) -> None:
    """Refuses options that no client of this store has, and half of a pair of keys; messages contain no values.

    Raises:
        ConfigError: names the option and the nearest one that exists, the missing half, or an endpoint that is not a
            url.
    """
    kind = options.family(address.scheme)
    if kind is None:
        return
    for name, known in _named(kind, given):
        if name not in known:
            raise ConfigError(
                f"{shown(address.root)}: storage_options has {name!r}, which {_CLIENTS[kind]} does not have; "
                f"{_nearest(name, kind, known)}",
                field="storage_options",
                option=name,
            )
    if given.get("pin") not in (None, "size"):
        raise ConfigError(
            f"{shown(address.root)}: pin={given['pin']!r} in storage_options: only 'size' is possible; without it "
            "objects are pinned by their ETags",
            field="storage_options",
            option="pin",
        )
    if kind == "s3":
        _check_keys(address, given)
        _check_endpoint(address, given, variables)
        _check_redirects(address, given.get("redirects") or ())


def _named(kind: str, given: options.Options) -> Iterator[tuple[str, Collection[str]]]:
    """Each option and the names that are possible in its place; those in nested mappings with their prefix."""
    known = (*options.names(kind), *sorted(options.WITHOUT_EFFECT), *_OF_FSSPEC[kind])
    for name, value in given.items():
        yield name, known
        if kind == "s3" and name in _NESTED and isinstance(value, Mapping):
            inside = [f"{name}.{inner}" for inner in _NESTED[name]]
            yield from ((f"{name}.{inner}", inside) for inner in value)


def _nearest(name: str, kind: str, known: Collection[str]) -> str:
    meant = _MEANT.get(kind, {}).get(name)
    near = [repr(one) for one in difflib.get_close_matches(name, known, 1, 0.6)]
    if meant or near:
        return f"did you mean {meant or near[0]}?"
    return f"the usual ones are {', '.join(options.names(kind))}"


def _check_keys(address: Address, given: options.Options) -> None:
    """Refuses a key without its secret, or a secret without its key: signing would fail or use other credentials."""
    inner = given.get("client_kwargs")
    flat = {**(inner if isinstance(inner, Mapping) else {}), **given}
    key = next((name for name in ("key", "username", "aws_access_key_id") if flat.get(name)), None)
    secret = next((name for name in ("secret", "password", "aws_secret_access_key") if flat.get(name)), None)
    if (key is None) != (secret is None):
        has, lacks = (key, "secret") if secret is None else (secret, "key")
        raise ConfigError(
            f"{address.root}: storage_options has {has!r} without its {lacks!r}; give both, or none of them to use the "
            "environment, the profile or the role of the machine",
            field="storage_options",
            option=lacks,
        )


def _check_redirects(address: Address, hosts: object) -> None:
    wrong = repr(hosts) if not isinstance(hosts, (list, tuple)) else redirects.unusable(hosts)
    if wrong is not None:
        raise ConfigError(
            f"{address.root}: redirects={hosts!r}: {wrong} is not a list of hosts, host or network; write for instance "
            "['*.cluster.local', '10.0.0.0/8']",
            field="storage_options",
            option="redirects",
        )


def _check_endpoint(address: Address, given: options.Options, variables: Mapping[str, str]) -> None:
    """Refuses an endpoint that is not a url. With one from the environment obstore panics as if the store were down."""
    inner = given.get("client_kwargs")
    by_option = given.get("endpoint_url") or (inner.get("endpoint_url") if isinstance(inner, Mapping) else None)
    by_variable = {name: variables.get(name) for name in options.ENDPOINT_VARIABLES} if by_option is None else {}
    for name, endpoint in ({"endpoint_url": by_option} | by_variable).items():
        if endpoint and not str(endpoint).startswith(("http://", "https://")):
            place = "storage_options" if name == "endpoint_url" else "the environment"
            raise ConfigError(
                f"{address.root}: {name}={str(endpoint)!r} in {place} has no scheme; write https://{endpoint}, or "
                f"http://{endpoint} where it has no TLS",
                field="storage_options",
                option="endpoint_url",
            )
