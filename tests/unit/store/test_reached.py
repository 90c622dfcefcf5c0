"""What messages say about the way to a store: which credentials, which address, never a secret."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from streamer.errors import AccessDeniedError, ConfigError, StoreError
from streamer.store import failures, open_store
from streamer.store.addresses.urls import split
from streamer.store.obstore_errors import mapped
from streamer.store.options import translate
from streamer.store.reached import reached


@pytest.mark.parametrize(
    ("url", "options", "variables", "credentials", "endpoint"),
    [
        ("s3://b", {"anon": True}, {}, "without credentials", "AWS, because neither"),
        ("s3://b", {"key": "K", "secret": "hush"}, {}, "credentials in storage_options", "AWS, because"),
        ("s3://b", {"profile": "p"}, {}, "the profile 'p'", "AWS"),
        ("s3://b", {}, {"AWS_ACCESS_KEY_ID": "K"}, "the environment (AWS_ACCESS_KEY_ID)", "AWS"),
        ("s3://b", {}, {"AWS_ENDPOINT_URL": "http://h:1"}, "default profile or role", "http://h:1 (AWS_ENDPOINT_URL"),
        ("s3://b", {"endpoint_url": "http://h:1"}, {}, "role", "http://h:1 (endpoint_url in storage_options)"),
        ("gs://b", {"token": "anon"}, {}, "without credentials", "Google, because"),
        ("az://c", {"account_name": "a", "sas_token": "sig=hush"}, {}, "in storage_options", "Azure"),
        ("https://h:1/x", {}, {}, "headers in storage_options", "https://h:1"),
    ],
)
def test_the_way_to_a_store(
    url: str, options: Mapping[str, object], variables: Mapping[str, str], credentials: str, endpoint: str
) -> None:
    """From the options and the environment."""
    way = reached(split(url), translate(split(url), options), variables)
    assert credentials in way.credentials
    assert endpoint in way.endpoint
    assert "hush" not in repr(way)


def test_a_refusal_says_with_which_credentials() -> None:
    """401 and 403 keep their advice; the type and the details stay."""
    way = reached(split("s3://b"), translate(split("s3://b"), {"anon": True}), {})
    refusal = way.explain(failures.error_of("s3://b/x", failures.Answer(403, "AccessDenied")))
    assert isinstance(refusal, AccessDeniedError)
    assert "answered 403 AccessDenied to a request without credentials" in str(refusal)
    assert "; check the credentials" in str(refusal)
    assert refusal.details["code"] == "AccessDenied"


def test_a_missing_connection_says_what_was_tried() -> None:
    """A host name that does not exist, a port that refuses; not a connection that broke later."""
    way = reached(split("s3://b"), translate(split("s3://b"), {"endpoint_url": "http://nosuch:1"}), {})
    error = way.explain(failures.unreachable("s3://b/x", failures.UNRESOLVED))
    assert isinstance(error, StoreError)
    assert str(error).endswith("tried http://nosuch:1 (endpoint_url in storage_options)")
    broken = failures.unreachable("s3://b/x", "the connection broke")
    assert way.explain(broken) is broken


def test_no_credentials_at_all() -> None:
    """The refusal, or the silence, of the server for roles is none of the store."""
    text = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1 ms - HTTP error"
    error = mapped("s3://b/x", RuntimeError(text), None)
    assert isinstance(error, AccessDeniedError)
    assert "no credentials were found" in str(error)


@pytest.mark.parametrize(("url", "said"), [("minio://b/x", "did you mean s3://"), ("gc://b/x", "did you mean gs://")])
def test_an_unknown_scheme_names_the_nearest(url: str, said: str) -> None:
    """As other programs call it, or by its letters."""
    store = open_store(url)
    with pytest.raises(ConfigError, match=said):
        store._connected()  # type: ignore[attr-defined]
