"""Roots of stores are resolved once, and describe credentials and address without secrets; servers are on loopback."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest

from streamer.cli.terminal import Terminal
from streamer.config import FetchConfig
from streamer.engine.url_allowlist import Fetchers, UrlAllowlist
from streamer.errors import AccessDeniedError, ConfigError, StoreError
from streamer.store import failures, open_store, options
from streamer.store.addresses import urls
from streamer.store.obstore_clients import map_error
from streamer.store.root import StoreRoot
from streamer.tools import bench_command
from streamer.tools.doctor import reach


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
    """A root describes without secrets its credentials and endpoint, and whether options or variables gave them."""
    root = StoreRoot.resolve(url, options, {})
    said = [root.describe_credentials(variables)[0], root.describe_endpoint(variables)]
    assert credentials in said[0]
    assert endpoint in said[1]
    assert "hush" not in repr([root, *said])


def test_a_refusal_says_with_which_credentials() -> None:
    """A refusal with status 403 says with which credentials the request was made, and keeps type and advice."""
    root = StoreRoot.resolve("s3://b", {"anon": True})
    refusal = root.explain(failures.error_of("s3://b/x", failures.StoreAnswer(403, "AccessDenied")))
    assert isinstance(refusal, AccessDeniedError)
    assert "answered 403 AccessDenied to a request without credentials" in str(refusal)
    assert "; check the credentials" in str(refusal)
    assert refusal.details["code"] == "AccessDenied"


def test_a_missing_connection_says_what_was_tried() -> None:
    """A store that cannot be reached is an error with the address that was tried; a broken connection adds none."""
    root = StoreRoot.resolve("s3://b", {"endpoint_url": "http://nosuch:1"})
    error = root.explain(failures.unreachable("s3://b/x", failures.UNRESOLVED))
    assert isinstance(error, StoreError)
    assert str(error).endswith("tried http://nosuch:1 (endpoint_url in storage_options)")
    broken = failures.unreachable("s3://b/x", "the connection broke")
    assert root.explain(broken) is broken


def test_no_credentials_at_all() -> None:
    """A machine without credentials and without a metadata server gets an AccessDeniedError that says so."""
    text = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1 ms - HTTP error"
    error = map_error("s3://b/x", RuntimeError(text), None)
    assert isinstance(error, AccessDeniedError)
    assert "no credentials were found" in str(error)


@pytest.mark.parametrize(("url", "said"), [("minio://b/x", "did you mean s3://"), ("gc://b/x", "did you mean gs://")])
async def test_an_unknown_scheme_names_the_nearest(url: str, said: str) -> None:
    """A url with an unknown scheme is refused by an error that names the nearest scheme."""
    store = open_store(url)
    with pytest.raises(ConfigError, match=said):
        await store._connect()  # type: ignore[attr-defined]


_LISTING = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
_NO_OBJECTS = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_LISTING), _LISTING)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often urls are split and options translated, in all modules that imported the functions."""
    found: Counter[str] = Counter()

    def count(function: object, name: str) -> None:
        def counted(*arguments: object) -> object:
            found[name] += 1
            return function(*arguments)  # type: ignore[operator]

        for module in [one for name, one in sys.modules.items() if name.startswith("streamer.")]:
            if vars(module).get(name) is function:
                monkeypatch.setattr(module, name, counted)

    count(urls.split, "split")
    count(options.translate, "translate")
    return found


@contextlib.asynccontextmanager
async def serve_nothing(calls: Counter[str]) -> AsyncIterator[str]:
    """Stands for an S3 whose buckets are empty: it answers each GET with an empty listing, and checks no signature."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
            calls["requests"] += 1
            writer.write(_NO_OBJECTS)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@pytest.mark.process
@pytest.mark.parametrize("is_service", [False, True], ids=["engine of a trainer", "service without datasets"])
async def test_a_url_is_split_and_its_options_are_translated_once(
    is_service: bool, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The url of a dataset is split and its options are translated once, before the first request of its engine."""
    given = {"key": "k", "secret": "s"}
    allowlist = UrlAllowlist(refuse_local=is_service)
    async with serve_nothing(calls) as endpoint, Fetchers(FetchConfig(), allowlist) as fetchers:
        if is_service:  # An address of its own machine is the choice of its operator.
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        else:
            given["endpoint_url"] = endpoint
        found = ["s3://bucket/train/", "s3://bucket/val/"]
        assert allowlist.endpoint(found, allowlist.options(found, given)) == ""
        async with fetchers.use(given) as fetcher:
            for url in found:
                assert [record for page in await fetcher.list(url) for record in page] == []
    assert calls == {"requests": 2, "split": 1, "translate": 1}


@pytest.mark.process
async def test_doctor_resolves_a_root_once(calls: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of `streamer doctor` for a url resolve its root once."""
    monkeypatch.setattr(reach, "access_findings", lambda root: [])
    async with serve_nothing(calls) as endpoint:
        root = StoreRoot.resolve("s3://bucket/train/", {"key": "k", "secret": "s", "endpoint_url": endpoint})
        (found,) = await reach.url_findings(root, "s3://bucket/train/")
        assert "nothing is there" in found.fact
        assert await reach.link_findings(root, "s3://bucket/train/") == []
    assert calls == {"requests": 2, "split": 1, "translate": 1}


@pytest.mark.process
def test_bench_resolves_a_root_once(calls: Counter[str]) -> None:
    """`streamer bench` resolves a root once, and each client opens its store from it."""
    parser = argparse.ArgumentParser()
    bench_command.add_arguments(parser)
    given = json.dumps({"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1"})
    bench = bench_command._Bench(parser.parse_args(["s3://bucket/train/", "--storage-options", given]), Terminal())
    assert [bench._open(bench.root, client)[1] for client in ("auto", "obstore")] == ["curl", "obstore"]
    assert calls == {"split": 1, "translate": 1}
