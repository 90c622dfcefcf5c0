"""Urls and options that a client of a service without [[datasets]] may not name."""

from __future__ import annotations

import pytest

from streamer.errors import AccessDeniedError, ConfigError
from streamer.store import open_store
from streamer.store.guard import is_own

S3 = {"key": "k", "secret": "s"}


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("0.0.0.0", True),
        ("::1", True),
        ("::", True),
        ("::ffff:127.0.0.1", True),
        ("169.254.169.254", True),
        ("169.254.170.2", True),
        ("fe80::1%eth0", True),
        ("fd00:ec2::254", True),
        ("168.63.129.16", True),
        ("fd20:ce::254", True),
        ("fd00:42::42", True),
        ("192.0.0.192", True),
        ("localhost", True),
        ("a.localhost", True),
        ("10.0.0.1", False),
        ("fd12::1", False),
        ("52.216.1.1", False),
        ("minio.internal", False),
        ("localhost.example.org", False),
    ],
)
def test_addresses_of_this_machine(host: str, own: bool) -> None:
    """Loopback, link-local and cloud metadata addresses belong to this machine; those of private networks do not."""
    assert is_own(host) is own


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("/etc/passwd", {}, "local file"),
        ("file:///etc/streamer-secret/bucket.json", {}, "local file"),
        ("local:///etc/passwd", {}, "local file"),
        ("http://127.0.0.1:9464/metrics", {}, "127.0.0.1"),
        ("http://[::1]:9464/metrics", {}, "::1"),
        ("http://LOCALHOST/", {}, "LOCALHOST"),
        ("http://169.254.169.254/latest/meta-data/", {}, "169.254.169.254"),
        ("http://user:password@127.0.0.1/a", {}, "127.0.0.1"),
        ("s3://bucket/a", {**S3, "endpoint_url": "http://127.0.0.1:9000"}, "127.0.0.1"),
        ("s3://bucket/a", {**S3, "client_kwargs": {"endpoint_url": "http://localhost:9000"}}, "localhost"),
        ("s3://bucket/a", {**S3, "client_kwargs": {"verify": False}}, "fsspec"),
        ("gs://bucket/a", {"endpoint_url": "http://storage.example.org"}, "libcurl does not"),
        ("gs://bucket/a", {"token": "/etc/streamer-secret/key.json"}, "a file"),
        ("az://container/a", {"account_name": "account", "account_host": "store.example.org"}, "libcurl does not"),
        ("ftp://127.0.0.1/a", {}, "fsspec"),
        ("memory://a", {}, "fsspec"),
        ("simplecache::file://x/etc/passwd", {}, "fsspec"),
        ("zip://a::file:///etc/passwd", {}, "fsspec"),
    ],
)
def test_clients_cannot_name_the_machine(url: str, options: dict[str, object], why: str) -> None:
    """No url or option of a client can name the service's machine; the error shows [[datasets]] and no password."""
    with pytest.raises(AccessDeniedError, match=r"\[\[datasets\]\]") as refused:
        open_store(url, options, refuse_local=True)
    assert why in str(refused.value)
    assert "password@" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/a", S3),
        ("s3://bucket/a", {**S3, "endpoint_url": "http://minio.internal:9000"}),
        ("s3://bucket/a", {**S3, "endpoint_url": "http://10.0.0.7:9000"}),
        ("https://example.org/a", {}),
        ("https://user:password@example.org/a", {}),
        ("gs://bucket/a", {"token": "anon"}),
        ("az://container/a", {"account_name": "account", "anon": True}),
    ],
)
def test_other_stores_are_opened(url: str, options: dict[str, object]) -> None:
    """A client of a service without [[datasets]] may name buckets and servers on other machines."""
    store = open_store(url, options, refuse_local=True)
    assert isinstance(store, type(open_store(url, options)))


def test_a_login_that_ends_a_host_is_refused() -> None:
    """A url whose login contains a backslash is refused, because libraries disagree on whether it ends the host."""
    with pytest.raises(ConfigError, match="a sign that ends a host's name"):
        open_store(r"http://127.0.0.1\@example.org/a", {}, refuse_local=True)


def test_an_endpoint_that_the_operator_names_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint in the service's environment may be on this machine, because its operator has chosen it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    assert type(open_store("s3://bucket/a", S3, refuse_local=True)).__name__ == "CurlStore"


def test_what_obstore_reads_is_refused_where_the_client_names_its_address() -> None:
    """A client's web server is refused for obstore, because obstore cannot be asked before it connects."""
    assert open_store("s3://bucket/a", S3, client="obstore", refuse_local=True) is not None
    with pytest.raises(AccessDeniedError, match="libcurl does not read it"):
        open_store("https://example.org/a", {}, client="obstore", refuse_local=True)
