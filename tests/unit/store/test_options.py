"""fsspec's storage options in obstore's words."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from streamer.store.options import family, translate
from streamer.store.urls import split


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
    """What both know is mapped; what tunes fsspec's own buffers has no effect."""
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
    """Nothing is dropped in silence."""
    assert translate(split(url), options).unknown == [unknown]


def test_plain_http_only_where_it_says_so() -> None:
    """An https endpoint does not allow plain http."""
    assert translate(split("s3://b"), {"endpoint_url": "http://h"}).client["allow_http"] is True
    assert translate(split("s3://b"), {"endpoint_url": "https://h"}).client["allow_http"] is False


def test_ca_file_profile_and_headers() -> None:
    """A private CA, a named profile, Google's billing project and headers of HTTP."""
    found = translate(split("s3://b"), {"profile": "p", "client_kwargs": {"verify": "/ca.pem"}})
    assert (found.profile, found.ca_file) == ("p", "/ca.pem")
    found = translate(split("gs://b"), {"requester_pays": "project-1"})
    assert found.client["default_headers"] == {"x-goog-user-project": "project-1"}
    found = translate(split("https://h"), {"headers": {"A": "b"}})
    assert found.client["default_headers"] == {"A": "b"}


def test_service_account_as_a_mapping() -> None:
    """gcsfs takes the parsed JSON of a key; obstore its text."""
    key = {"type": "service_account", "private_key": "x"}
    found = translate(split("gs://b"), {"token": key})
    assert json.loads(str(found.config["service_account_key"])) == key


def test_secrets_are_not_in_the_repr() -> None:
    """Names are shown, values are not."""
    assert "hush" not in repr(translate(split("s3://b"), {"key": "hush", "secret": "hush"}))


def test_families() -> None:
    """Which schemes obstore serves."""
    assert [family(scheme) for scheme in ("s3", "gcs", "abfss", "https", "memory")] == ["s3", "gs", "az", "http", None]
