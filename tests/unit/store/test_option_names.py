"""Storage options that do not exist, and options that cannot be used alone."""

from __future__ import annotations

from collections.abc import Mapping

import fsspec
import pytest

from streamer.errors import ConfigError
from streamer.store import open_store
from streamer.store.addresses.urls import split
from streamer.store.options import check_options


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        (
            "s3://b",
            {"endpoint_ur": "https://h"},
            "'endpoint_ur', which s3fs does not have; did you mean 'endpoint_url'?",
        ),
        ("s3://b", {"region": "eu-west-1"}, "did you mean client_kwargs={'region_name': ...}?"),
        ("s3://b", {"aws_access_key_id": "K"}, "did you mean 'key'?"),
        ("s3://b", {"client_kwargs": {"regoin_name": "x"}}, "did you mean 'client_kwargs.region_name'?"),
        ("s3://b", {"config_kwargs": {"conect_timeout": 5}}, "did you mean 'config_kwargs.connect_timeout'?"),
        ("s3://b", {"zzz": 1}, "the usual ones are key, username, secret"),
        ("gcs://b", {"tokn": "anon"}, "'tokn', which gcsfs does not have; did you mean 'token'?"),
        ("az://c", {"acount_name": "a"}, "'acount_name', which adlfs does not have; did you mean 'account_name'?"),
        ("https://h", {"header": {}}, "did you mean 'headers'?"),
    ],
)
def test_a_misspelt_option_is_named_with_the_nearest(url: str, options: Mapping[str, object], said: str) -> None:
    """A misspelt storage option is refused when the store is opened, by an error that names the nearest option."""
    with pytest.raises(ConfigError) as caught:
        open_store(url, options)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{url}: ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "K"}, "'key' without its 'secret'"),
        ({"secret": "hush"}, "'secret' without its 'key'"),
        ({"client_kwargs": {"aws_access_key_id": "K"}}, "'aws_access_key_id' without its 'secret'"),
        (
            {"endpoint_url": "minio:9000"},
            "endpoint_url='minio:9000' in storage_options has no scheme; write https://minio",
        ),
    ],
)
def test_what_cannot_be_used_alone(options: Mapping[str, object], said: str) -> None:
    """A key without its secret and an endpoint without a scheme are refused, and no secret is shown."""
    with pytest.raises(ConfigError) as caught:
        open_store("s3://b", options)
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_an_endpoint_of_the_environment_has_a_scheme_too() -> None:
    """An endpoint in the environment without a scheme is refused at once.

    It was waited for as a store that is down: 60 s, and "the request failed" (2026-11-23).
    """
    variables = {"AWS_ENDPOINT_URL": "minio:9000"}
    with pytest.raises(ConfigError, match="AWS_ENDPOINT_URL='minio:9000' in the environment has no scheme"):
        check_options("s3://b", "s3", {}, variables)
    check_options("s3://b", "s3", {"endpoint_url": "http://minio:9000"}, variables)
    check_options("gs://b", "gs", {}, variables)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b", {"key": "K", "secret": "S", "use_ssl": True, "default_block_size": 5, "session": None}),
        ("s3://b", {"key": "K", "client_kwargs": {"aws_secret_access_key": "S", "region_name": "x"}}),
        ("s3://b", {"config_kwargs": {"s3": {"addressing_style": "path"}, "retries": {}}}),
        ("gs://b", {"token": "anon", "project": "p", "timeout": 3}),
        ("az://c", {"account_name": "a", "blocksize": 1}),
        ("https://h", {"client_kwargs": {"headers": {}}, "timeout": 3}),
    ],
)
def test_what_fsspec_takes_is_not_refused(url: str, options: Mapping[str, object]) -> None:
    """Options that fsspec's filesystem takes are accepted, even if streamer has no counterpart."""
    check_options(url, str(split(url).family), options)
    with pytest.raises(ConfigError, match="'zzz'"):
        check_options(url, str(split(url).family), {**options, "zzz": 1})


def test_options_of_other_stores_are_passed_on() -> None:
    """Options of a store that streamer does not know are passed on, since only its library can check them."""
    store = open_store("sftp://h", {"whatever": 1})
    assert store._options == {"whatever": 1}


async def test_options_that_a_filesystem_of_fsspec_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that a filesystem of fsspec does not take is refused with its name and without its value."""

    class Strict:
        """Stands for a filesystem of fsspec that takes no options."""

        async_impl = False

        @staticmethod
        def _get_kwargs_from_urls(url: str) -> dict[str, object]:
            return {}

        def __init__(self, *, skip_instance_cache: bool, use_listings_cache: bool) -> None:
            raise AssertionError

    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: Strict)
    store = open_store("strict://h", {"wrong": "hush"})
    with pytest.raises(ConfigError, match=r"Strict of fsspec does not take .* \['wrong'\].* 'wrong'") as caught:
        await store._connect()  # type: ignore[attr-defined]
    assert "hush" not in str(caught.value)
