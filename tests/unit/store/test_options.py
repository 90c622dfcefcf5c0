"""Storage options of fsspec translated to those of obstore."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from streamer.store.addresses.urls import split
from streamer.store.options import translate


@pytest.mark.parametrize(
    ("url", "options", "config"),
    [
        (
            "s3://b",
            {"key": "K", "secret": "S", "token": "T"},
            {"access_key_id": "K", "secret_access_key": "S", "token": "T"},
        ),
        ("s3://b", {"anon": True}, {"skip_signature": True}),
        ("s3://b", {"anon": False, "key": None}, {}),
        ("s3://b", {"requester_pays": True}, {"request_payer": True}),
        ("s3://b", {"endpoint_url": "https://h/"}, {"endpoint": "https://h"}),
        (
            "s3://b",
            {"client_kwargs": {"endpoint_url": "http://h:1", "region_name": "eu-west-1"}},
            {"endpoint": "http://h:1", "region": "eu-west-1"},
        ),
        (
            "s3://b",
            {"config_kwargs": {"s3": {"addressing_style": "virtual"}, "max_pool_connections": 5}},
            {"virtual_hosted_style_request": True},
        ),
        ("gs://b", {"token": "anon"}, {"skip_signature": True}),
        ("gs://b", {"token": "/k.json"}, {"application_credentials": "/k.json"}),
        ("gcs://b", {"endpoint_url": "http://h"}, {"base_url": "http://h"}),
        (
            "az://c",
            {"account_name": "a", "account_key": "k"},
            {"account_name": "a", "account_key": "k"},
        ),
        ("abfs://c", {"account_name": "a", "sas_token": "?sig=x"}, {"account_name": "a", "sas_key": "sig=x"}),
        (
            "az://c",
            {"connection_string": "AccountName=a;AccountKey=k==;BlobEndpoint=http://h/a"},
            {"account_name": "a", "account_key": "k==", "endpoint": "http://h/a"},
        ),
        ("https://h", {}, {}),
    ],
)
def test_translation(url: str, options: Mapping[str, object], config: Mapping[str, object]) -> None:
    """Options that fsspec and obstore both know are translated; those that tune fsspec's own buffers have no effect."""
    found = translate(split(url), {**options, "default_block_size": 5, "use_listings_cache": False})
    assert found.config == config
    assert found.unknown == []


@pytest.mark.parametrize(
    ("url", "options", "unknown"),
    [
        ("s3://b", {"s3_additional_kwargs": {"x": 1}}, "s3_additional_kwargs"),
        ("s3://b", {"client_kwargs": {"api_version": "x"}}, "client_kwargs.api_version"),
        ("s3://b", {"client_kwargs": {"verify": False}}, "verify"),
        ("s3://b", {"session": object()}, "session"),
        ("gs://b", {"token": object()}, "token"),
        ("gs://b", {"requester_pays": True}, "requester_pays"),
        ("az://c", {"credential": object()}, "credential"),
        ("https://h", {"auth": ("u", "p")}, "auth"),
    ],
)
def test_what_has_no_counterpart_is_named(url: str, options: Mapping[str, object], unknown: str) -> None:
    """An option of fsspec without a counterpart in obstore is named as unknown and not dropped."""
    assert translate(split(url), options).unknown == [unknown]


@pytest.mark.parametrize(
    "given",
    [
        {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"},
        {"signature_version": "s3v4", "user_agent_extra": "job", "proxies": None},
        {"s3": {"payload_signing_enabled": False}},
    ],
)
def test_what_changes_no_read_has_no_effect(given: Mapping[str, object]) -> None:
    """Options of botocore that change no read have no effect: users of R2, MinIO and Ceph set them for writes."""
    assert translate(split("s3://b"), {"config_kwargs": given}).unknown == []


_GOVERNMENT = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k;EndpointSuffix=core.usgovcloudapi.net"


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        ("az://c/x", {"connection_string": _GOVERNMENT}, "https://a.blob.core.usgovcloudapi.net"),
        ("abfs://c@a.dfs.core.usgovcloudapi.net/x", {}, "https://a.blob.core.usgovcloudapi.net"),
        ("abfss://c@a.dfs.core.chinacloudapi.cn/x", {"sas_token": "s"}, "https://a.blob.core.chinacloudapi.cn"),
        ("abfs://c@a.z12.blob.storage.azure.net/x", {}, "https://a.z12.blob.storage.azure.net"),
        ("abfs://c@a.dfs.core.chinacloudapi.cn/x", {"account_host": "proxy.test"}, "https://proxy.test"),
        ("abfs://c@a.dfs.core.windows.net/x", {}, None),
        ("abfs://c@a/x", {}, None),
        ("az://c/x", {"connection_string": _GOVERNMENT.replace("usgovcloudapi.net", "windows.net")}, None),
    ],
)
def test_clouds_of_azure(url: str, options: Mapping[str, object], expected: str | None) -> None:
    """An account of another Azure cloud keeps that cloud's endpoint; in the public one the name may be another's."""
    found = translate(split(url), options)
    assert found.config.get("endpoint") == expected
    assert found.config["account_name"] == "a"


def test_onelake() -> None:
    """A url of OneLake, Microsoft Fabric's lake, selects the Fabric endpoint with its account."""
    found = translate(split("abfss://workspace@onelake.dfs.fabric.microsoft.com/lake.Lakehouse/Files/x"), {})
    assert (found.config["account_name"], found.config["use_fabric_endpoint"]) == ("onelake", True)


def test_express_buckets_are_read_by_s3fs() -> None:
    """A bucket of S3 Express One Zone is left to s3fs, which asks for the keys of a session."""
    assert translate(split("s3://b--usw2-az1--x-s3/x"), {}).unknown == ["S3 Express One Zone"]


@pytest.mark.parametrize("token", ["/run/secrets/google", "./key", "key.json"])
def test_a_file_of_google_needs_no_suffix(token: str) -> None:
    """A token of Google that is a path is a file of credentials without a suffix, as mounted secrets have none."""
    assert translate(split("gs://b"), {"token": token}).config == {"application_credentials": token}


def test_plain_http_only_where_it_says_so() -> None:
    """Plain HTTP is allowed only for an endpoint whose url says http."""
    assert translate(split("s3://b"), {"endpoint_url": "http://h"}).client["allow_http"] is True
    assert translate(split("s3://b"), {"endpoint_url": "https://h"}).client["allow_http"] is False


def test_ca_file_profile_and_headers() -> None:
    """A file of certificates, a profile, Google's billing project and headers of HTTP are translated."""
    found = translate(split("s3://b"), {"profile": "p", "client_kwargs": {"verify": "/ca.pem"}})
    assert (found.profile, found.ca_file) == ("p", "/ca.pem")
    found = translate(split("gs://b"), {"requester_pays": "project-1"})
    assert found.client["default_headers"] == {"x-goog-user-project": "project-1"}
    found = translate(split("https://h"), {"headers": {"A": "b"}})
    assert found.client["default_headers"] == {"A": "b"}


def test_service_account_as_a_mapping() -> None:
    """The key of a service account may be a mapping, as gcsfs takes it; obstore gets its JSON."""
    key = {"type": "service_account", "private_key": "x"}
    found = translate(split("gs://b"), {"token": key})
    assert json.loads(str(found.config["service_account_key"])) == key


def test_secrets_are_not_in_the_repr() -> None:
    """The repr of translated options does not show their values."""
    assert "hush" not in repr(translate(split("s3://b"), {"key": "hush", "secret": "hush"}))


def test_families() -> None:
    """The family of a url is the cloud whose client of obstore reads it, or None."""
    urls = ("s3://b", "gcs://b", "abfss://c@a.dfs.core.windows.net", "https://h", "memory://x")
    assert [split(url).family for url in urls] == ["s3", "gs", "az", "http", None]
