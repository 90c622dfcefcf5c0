"""The contract of every ObjectStore, and what each does with bad input.

S3 is moto's server in a process of its own; moto checks neither signatures nor policies, so refusals are shown by a
small server that answers 403.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType

import pytest
from aiohttp import web

from streamer.errors import (
    AccessDeniedError,
    ConfigError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
)
from streamer.manifest.model import ObjectRecord
from streamer.store import Client, ObjectStore, open_store
from streamer.store.curl.store import CurlStore
from streamer.store.fsspec_store import FsspecStore
from streamer.store.local_store import LocalStore
from streamer.store.obstore_store import ObstoreStore
from tests.contract.store_contract import FILES, RAMP, REPLACED, Kind, StoreContract, listed, read

pytestmark = pytest.mark.usefixtures("warm_runtime", "moto_endpoint")

KINDS = ("local", "memory", "s3fs", "obstore", "curl")


@pytest.fixture(params=KINDS)
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kind]:
    """Each kind of store, holding FILES."""
    options: dict[str, object] = {}
    missing = FILES
    if request.param == "local":
        root, client = str(tmp_path), "auto"
    elif request.param == "memory":
        root, client = f"memory://{tmp_path.name}", "auto"
    else:
        root, options = "s3://contract", _s3_options(request.getfixturevalue("moto_bucket"))
        missing = {REPLACED: FILES[REPLACED]}
        client = "fsspec" if request.param == "s3fs" else request.param
    store = open_store(root, options, client=client)  # type: ignore[arg-type]
    for name, content in missing.items():
        await store.put(f"{root}/{name}", content)
    try:
        yield Kind(store, root, store.put)
    finally:
        await store.aclose()


@pytest.fixture(scope="module")
def moto_bucket(moto_endpoint: str) -> str:
    """The url of a moto server that has the bucket `contract`, with FILES in it."""
    _make_bucket(moto_endpoint, "contract", FILES)
    return moto_endpoint


def _s3_options(endpoint: str) -> dict[str, object]:
    """Returns the storage options of the moto server."""
    return {"key": "testing", "secret": "testing", "endpoint_url": endpoint}


def _make_bucket(endpoint: str, name: str, files: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Makes a bucket with these files by botocore."""
    from botocore.session import Session

    client = Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    client.create_bucket(Bucket=name)
    for key, content in files.items():
        client.put_object(Bucket=name, Key=key, Body=content)
    client.close()


async def test_kinds_are_what_they_say(kind: Kind, request: pytest.FixtureRequest) -> None:
    """Each url and client of the contract opens the class of store that it names."""
    expected = {
        "local": LocalStore,
        "memory": FsspecStore,
        "s3fs": FsspecStore,
        "obstore": ObstoreStore,
        "curl": CurlStore,
    }
    assert type(kind.store) is expected[request.node.callspec.params["kind"]]
    assert isinstance(kind.store, ObjectStore)


class TestContract(StoreContract):
    """The contract for the stores that need no cloud."""


@pytest.mark.parametrize("client", ["obstore", "curl", "fsspec"])
async def test_no_such_bucket(moto_endpoint: str, client: str) -> None:
    """Listing and reading a bucket that does not exist are errors that name it."""
    store = open_store("s3://nobody-has-this/", _s3_options(moto_endpoint), client=client)  # type: ignore[arg-type]
    try:
        with pytest.raises(ObjectNotFoundError, match="nobody-has-this"):
            await listed(store, "s3://nobody-has-this/train/")
        with pytest.raises(ObjectNotFoundError, match="nobody-has-this"):
            await read(store, ObjectRecord("s3://nobody-has-this/x", 1, "etag:x"), 0, 1)
    finally:
        await store.aclose()


@asynccontextmanager
async def answering(status: int, code: str, headers: dict[str, str] | None = None) -> AsyncIterator[str]:
    """Stands for a store that answers every request with one S3 error."""

    async def answer(request: web.Request) -> web.Response:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>m</Message></Error>'
        return web.Response(status=status, text=body, content_type="application/xml", headers=headers)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


SECRET = "wJalrXUtnFEMI-do-not-show"


@pytest.mark.parametrize("client", ["obstore", "curl", "fsspec"])
@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (403, "InvalidAccessKeyId", AccessDeniedError),
        (403, "SignatureDoesNotMatch", AccessDeniedError),
        (400, "ExpiredToken", AccessDeniedError),
        (404, "NoSuchKey", ObjectNotFoundError),
        (412, "PreconditionFailed", ObjectChangedError),
        (503, "SlowDown", ThrottledError),
        (429, "TooManyRequests", ThrottledError),
        (500, "InternalError", StoreError),
    ],
)
async def test_answers_become_our_errors(client: str, status: int, code: str, error: type[StoreError]) -> None:
    """Each status of a store has its type of error; the message names the url and never the credentials."""
    async with answering(status, code) as endpoint:
        options = {"key": "AKIAEXAMPLE", "secret": SECRET, "endpoint_url": endpoint}
        store = open_store("s3://bucket", options, client=client)  # type: ignore[arg-type]
        try:
            with pytest.raises(error) as caught:
                await read(store, ObjectRecord("s3://bucket/key", 10, "etag:x"), 0, 10)
        finally:
            await store.aclose()
    assert type(caught.value) is error
    assert "s3://bucket/key" in str(caught.value)
    assert SECRET not in repr(caught.value.details) + str(caught.value) + repr(store) + str(caught.value.__cause__)


@pytest.mark.parametrize("client", ["curl", "fsspec"])
async def test_retry_after_is_carried(client: str) -> None:
    """The seconds of Retry-After are in the details of the error (obstore hides the header)."""
    async with answering(503, "SlowDown", {"Retry-After": "7"}) as endpoint:
        store = open_store("s3://bucket", _s3_options(endpoint), client=client)  # type: ignore[arg-type]
        try:
            with pytest.raises(ThrottledError) as caught:
                await read(store, ObjectRecord("s3://bucket/key", 10, "etag:x"), 0, 10)
        finally:
            await store.aclose()
    assert caught.value.details["retry_after_seconds"] == 7.0


@asynccontextmanager
async def listening(headers: list[Mapping[str, str]]) -> AsyncIterator[str]:
    """Stands for a store that has no objects: it keeps the headers of each request and answers 404."""

    async def answer(request: web.Request) -> web.Response:
        headers.append(request.headers)
        return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>", content_type="application/xml")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("root", "client", "options", "header"),
    [
        ("s3://bucket", "obstore", {"requester_pays": True}, ("x-amz-request-payer", "requester")),
        ("s3://bucket", "curl", {"requester_pays": True}, ("x-amz-request-payer", "requester")),
        ("s3://bucket", "fsspec", {"requester_pays": True}, ("x-amz-request-payer", "requester")),
        ("gs://bucket", "obstore", {"requester_pays": "project-1"}, ("x-goog-user-project", "project-1")),
    ],
)
async def test_requester_pays(root: str, client: str, options: dict[str, object], header: tuple[str, str]) -> None:
    """Every ranged read of a requester-pays bucket has the header that says who pays for it."""
    seen: list[Mapping[str, str]] = []
    credentials: dict[str, object] = {"token": "anon"} if root.startswith("gs") else {"key": "k", "secret": "s"}
    async with listening(seen) as endpoint:
        store = open_store(root, {**credentials, **options, "endpoint_url": endpoint}, client=client)  # type: ignore[arg-type]
        try:
            with pytest.raises(ObjectNotFoundError):
                await read(store, ObjectRecord(f"{root}/key", 10, "etag:x"), 0, 10)
        finally:
            await store.aclose()
    assert [headers.get(header[0]) for headers in seen] == [header[1]]
    assert seen[0].get("If-Match") == '"x"'


@pytest.mark.parametrize("client", ["obstore", "curl", "fsspec"])
async def test_connection_refused(unused_tcp_port: int, client: str) -> None:
    """An endpoint where no process listens is a StoreError without status that says to check the endpoint."""
    options = _s3_options(f"http://127.0.0.1:{unused_tcp_port}")
    store = open_store("s3://bucket", options, client=client)  # type: ignore[arg-type]
    try:
        with pytest.raises(StoreError, match="check the endpoint") as caught:
            await read(store, ObjectRecord("s3://bucket/key", 10, "etag:x"), 0, 10)
    finally:
        await store.aclose()
    assert caught.value.details["status"] is None


async def test_http_reads_with_the_version_of_its_head(tmp_path: Path) -> None:
    """An object of a plain web server is found by HEAD, pinned by its ETag and read by ranges."""
    content = RAMP[:900_000]
    (tmp_path / "a file.bin").write_bytes(content)
    application = web.Application()
    application.router.add_static("/data", tmp_path)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/data/a%20file.bin"
    store = open_store(url)
    try:
        (record,) = (await listed(store, url)).values()
        assert (record.url, record.size) == (url, 900_000)
        assert await read(store, record, 100, 800_000) == content[100:800_000]
        (tmp_path / "a file.bin").write_bytes(content[::-1])
        os.utime(tmp_path / "a file.bin", (1, 1))
        with pytest.raises(ObjectChangedError):
            await read(store, record, 0, 10)
    finally:
        await store.aclose()
        await runner.cleanup()


def test_unmapped_options_take_fsspec(caplog: pytest.LogCaptureFixture) -> None:
    """An option that obstore does not know sends the root through fsspec and is named in the log, without its value."""
    options = {"key": "k", "secret": SECRET, "s3_additional_kwargs": {"SSECustomerKey": SECRET}}
    assert isinstance(open_store("s3://bucket", options), FsspecStore)
    assert "s3_additional_kwargs" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("client", ["curl", "obstore"])
def test_a_named_client_drops_no_option(client: Client) -> None:
    """An option that the named client does not know is an error that names the option and not its value."""
    options = {"s3_additional_kwargs": {"SSECustomerKey": SECRET}}
    with pytest.raises(ConfigError, match="s3_additional_kwargs") as refused:
        open_store("s3://bucket", options, client=client)
    assert SECRET not in str(refused.value)


def test_an_unknown_client_is_refused() -> None:
    """An unknown client is refused by an error that names the choices."""
    with pytest.raises(ConfigError, match="client='wget' is not one of auto, curl, obstore, fsspec"):
        open_store("s3://bucket", client="wget")  # type: ignore[arg-type]


@pytest.mark.parametrize(("client", "kind"), [("auto", ObstoreStore), ("obstore", ObstoreStore)])
def test_elsewhere_than_on_linux_obstore_reads(
    client: Client, kind: type[ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without epoll, which libcurl needs, obstore reads, and a configuration that names libcurl is an error."""
    monkeypatch.setattr("streamer.store.sys.platform", "darwin")
    assert type(open_store("s3://bucket", {}, client=client)) is kind
    with pytest.raises(ConfigError, match="Linux"):
        open_store("s3://bucket", {}, client="curl")


def test_unusable_urls() -> None:
    """An empty url and an S3 url without a bucket are refused."""
    with pytest.raises(ConfigError, match="bucket"):
        open_store("s3:///key")
    with pytest.raises(ConfigError, match="an empty url names no object"):
        open_store("")
