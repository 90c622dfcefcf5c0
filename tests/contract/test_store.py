"""The contract of every ObjectStore, and what each does with bad input.

S3 is moto's server in a process of its own; moto checks neither signatures nor policies, so refusals are shown by a
small server that answers 403.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import obstore
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
from streamer.store import ObjectStore, open_store
from streamer.store.fsspec_store import FsspecStore
from streamer.store.local_store import LocalStore
from streamer.store.obstore_store import ObstoreStore

# Byte value = offset modulo 251: a misplaced byte names itself.
RAMP = bytes(i % 251 for i in range(3_000_000))
FILES = {
    "train/a/0.bin": RAMP,
    "train/a/1.bin": RAMP[:1000],
    "train/b/shard-007.tar": RAMP[7:2000],
    "train/b/shard-008.tar": RAMP[8:2000],
    "train/empty": b"",
    "training/other": b"x",
    "odd/with space+plus&ünï.bin": RAMP[:100],
}


@pytest.fixture(scope="session", autouse=True)
def warm_runtime() -> None:
    """The threads and descriptors of obstore's runtime live as long as the process."""
    store = obstore.store.MemoryStore()
    asyncio.run(_put(store))


async def _put(store: obstore.store.MemoryStore) -> None:
    await obstore.put_async(store, "warm", b"")


@pytest.fixture(scope="session", autouse=True)
def moto_endpoint() -> Iterator[str]:
    """The url of a moto server; started before the first test, so that it does not count as left over."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield _announced(process)
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _announced(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", line):
            return found[1]
    pytest.fail("moto's server ended before it listened")


@dataclass(frozen=True)
class Kind:
    """A store under test and how to change an object behind its back."""

    store: ObjectStore
    root: str
    replace_object: Callable[[str, bytes], Awaitable[None]]


KINDS = ("local", "memory", "s3fs", "obstore")


@pytest.fixture(params=KINDS)
async def kind(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kind]:
    """Each store, holding FILES."""
    options: dict[str, object] = {}
    if request.param == "local":
        root, client = str(tmp_path), "auto"
    elif request.param == "memory":
        root, client = f"memory://{tmp_path.name}", "auto"
    else:
        endpoint = request.getfixturevalue("moto_endpoint")
        root, options = "s3://contract", _s3_options(endpoint)
        client = "fsspec" if request.param == "s3fs" else "obstore"
        _make_bucket(endpoint, "contract")
    store = open_store(root, options, client=client)  # type: ignore[arg-type]
    for name, content in FILES.items():
        await store.put(f"{root}/{name}", content)
    try:
        yield Kind(store, root, store.put)
    finally:
        await store.aclose()


def _s3_options(endpoint: str) -> dict[str, object]:
    return {"key": "testing", "secret": "testing", "endpoint_url": endpoint}


def _make_bucket(endpoint: str, name: str) -> None:
    from botocore.session import Session

    client = Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    client.create_bucket(Bucket=name)
    client.close()


async def listed(store: ObjectStore, url: str) -> dict[str, ObjectRecord]:
    """All objects of a listing by url."""
    return {record.url: record async for page in store.list(url) for record in page}


async def read(store: ObjectStore, record: ObjectRecord, start: int, stop: int) -> bytes:
    """The bytes of one get."""
    async with aclosing(store.get(record, start, stop)) as pieces:
        return b"".join([bytes(piece) async for piece in pieces])


async def record_of(kind: Kind, name: str) -> ObjectRecord:
    """The record of one object by listing it alone."""
    (record,) = (await listed(kind.store, f"{kind.root}/{name}")).values()
    return record


def names(kind: Kind, found: dict[str, ObjectRecord]) -> list[str]:
    """Keys below the root, in the order listed."""
    return [url.removeprefix(kind.root + "/") for url in found]


async def test_kinds_are_what_they_say(kind: Kind, request: pytest.FixtureRequest) -> None:
    """Each parameter opens the store that it names."""
    expected = {"local": LocalStore, "memory": FsspecStore, "s3fs": FsspecStore, "obstore": ObstoreStore}
    assert type(kind.store) is expected[request.node.callspec.params["kind"]]
    assert isinstance(kind.store, ObjectStore)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 1000), (999_983, 1_000_017), (2_999_999, 3_000_000), (0, 3_000_000)]
)
async def test_get_returns_exactly_the_range(kind: Kind, start: int, stop: int) -> None:
    """A range is half-open and its bytes are those of the object."""
    record = await record_of(kind, "train/a/0.bin")
    assert await read(kind.store, record, start, stop) == RAMP[start:stop]


async def test_many_gets_at_once(kind: Kind) -> None:
    """Concurrent ranges of one object do not mix."""
    record = await record_of(kind, "train/a/0.bin")
    starts = range(0, 2_900_000, 100_003)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(read(kind.store, record, s, s + 70_000)) for s in starts]
    assert [task.result() for task in tasks] == [RAMP[s : s + 70_000] for s in starts]


async def test_list_of_a_prefix(kind: Kind) -> None:
    """A folder lists everything below it, sorted, with size and version, and nothing beside it."""
    found = await listed(kind.store, f"{kind.root}/train/")
    assert names(kind, found) == sorted(name for name in FILES if name.startswith("train/"))
    assert [record.size for record in found.values()] == [len(FILES[name]) for name in names(kind, found)]
    assert all(re.match(r"(etag|stat|generation|version):.+", record.version) for record in found.values())


async def test_list_of_one_object(kind: Kind) -> None:
    """An object's own url lists just that object."""
    assert names(kind, await listed(kind.store, f"{kind.root}/train/a/1.bin")) == ["train/a/1.bin"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("train/b/shard-{007..009}.tar", ["train/b/shard-007.tar", "train/b/shard-008.tar"]),
        ("train/*/*.bin", ["train/a/0.bin", "train/a/1.bin"]),
        ("train/**/*.tar", ["train/b/shard-007.tar", "train/b/shard-008.tar"]),
        ("train/a/[!0].bin", ["train/a/1.bin"]),
        ("train/{a,b}/?.bin", ["train/a/0.bin", "train/a/1.bin"]),
    ],
)
async def test_list_of_a_pattern(kind: Kind, pattern: str, expected: list[str]) -> None:
    """Globs and braces keep what they match."""
    assert names(kind, await listed(kind.store, f"{kind.root}/{pattern}")) == expected


async def test_odd_names_survive(kind: Kind) -> None:
    """A key with spaces, plus, ampersand and umlauts is listed as it is and can be read."""
    found = await listed(kind.store, f"{kind.root}/odd/")
    assert names(kind, found) == ["odd/with space+plus&ünï.bin"]
    (record,) = found.values()
    assert await read(kind.store, record, 10, 90) == RAMP[10:90]


async def test_version_is_stable_and_changes_with_the_object(kind: Kind) -> None:
    """Two listings agree; another content has another version."""
    before = await record_of(kind, "train/a/1.bin")
    assert await record_of(kind, "train/a/1.bin") == before
    await kind.replace_object(before.url, RAMP[1:1001])
    assert (await record_of(kind, "train/a/1.bin")).version != before.version


async def test_changed_object_is_refused(kind: Kind) -> None:
    """A get of an object that was replaced raises ObjectChangedError naming both versions, and no byte."""
    record = await record_of(kind, "train/a/1.bin")
    await kind.replace_object(record.url, RAMP[5:1005])
    with pytest.raises(ObjectChangedError) as caught:
        await read(kind.store, record, 0, 100)
    assert record.version in str(caught.value)


async def test_grown_object_is_refused(kind: Kind) -> None:
    """A get beyond the end of an object that is shorter than the manifest says is a change, not a short read."""
    record = await record_of(kind, "train/a/1.bin")
    with pytest.raises(ObjectChangedError):
        await read(kind.store, replace(record, size=5000, version=_other(record)), 3000, 4000)


def _other(record: ObjectRecord) -> str:
    return record.version[:-1] + ("0" if record.version[-1] != "0" else "1")


async def test_missing_object(kind: Kind) -> None:
    """A get of what is not there is ObjectNotFoundError, which is a FileNotFoundError, and names the url."""
    gone = ObjectRecord(f"{kind.root}/train/none", 10, "etag:x")
    with pytest.raises(ObjectNotFoundError, match="train/none"):
        await read(kind.store, gone, 0, 10)
    with pytest.raises(ObjectNotFoundError, match="train/none"):
        await listed(kind.store, gone.url)


async def test_early_close_leaves_the_store_usable(kind: Kind) -> None:
    """Abandoning a body after its first piece harms nobody."""
    record = await record_of(kind, "train/a/0.bin")
    async with aclosing(kind.store.get(record, 0, len(RAMP))) as pieces:
        await anext(pieces)
    assert await read(kind.store, record, 5, 15) == RAMP[5:15]


async def test_counts_and_close(kind: Kind) -> None:
    """Requests and bytes are counted; closing twice is allowed; a store that was refreshed reads on."""
    record = await record_of(kind, "train/a/1.bin")
    before = kind.store.statistics()
    await read(kind.store, record, 100, 300)
    after = kind.store.statistics()
    assert (after.requests - before.requests, after.received_bytes - before.received_bytes) == (1, 200)
    await kind.store.refresh()
    assert await read(kind.store, record, 1, 3) == RAMP[1:3]
    await kind.store.aclose()
    await kind.store.aclose()


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
async def test_no_such_bucket(moto_endpoint: str, client: str) -> None:
    """Listing and reading a bucket that does not exist name it."""
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
    """A server that answers everything with one S3 error."""

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


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
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
    """Each status has its type; the message names the url and never the credentials."""
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


async def test_retry_after_is_carried() -> None:
    """What the store asks for in Retry-After arrives in the details (obstore hides the header)."""
    async with answering(503, "SlowDown", {"Retry-After": "7"}) as endpoint:
        store = open_store("s3://bucket", _s3_options(endpoint), client="fsspec")
        try:
            with pytest.raises(ThrottledError) as caught:
                await read(store, ObjectRecord("s3://bucket/key", 10, "etag:x"), 0, 10)
        finally:
            await store.aclose()
    assert caught.value.details["retry_after_seconds"] == 7.0


@pytest.mark.parametrize("client", ["obstore", "fsspec"])
async def test_connection_refused(unused_tcp_port: int, client: str) -> None:
    """Nobody listens: a StoreError without status that says to check the endpoint."""
    options = _s3_options(f"http://127.0.0.1:{unused_tcp_port}")
    store = open_store("s3://bucket", options, client=client)  # type: ignore[arg-type]
    try:
        with pytest.raises(StoreError, match="check the endpoint") as caught:
            await read(store, ObjectRecord("s3://bucket/key", 10, "etag:x"), 0, 10)
    finally:
        await store.aclose()
    assert caught.value.details["status"] is None


async def test_http_reads_with_the_version_of_its_head(tmp_path: Path) -> None:
    """A plain web server: an object is found by HEAD, pinned by its ETag and read by ranges."""
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
    """An option that obstore does not know sends the root through fsspec and is named in the log, not its value."""
    options = {"key": "k", "secret": SECRET, "s3_additional_kwargs": {"SSECustomerKey": SECRET}}
    assert isinstance(open_store("s3://bucket", options), FsspecStore)
    assert "s3_additional_kwargs" in caplog.text
    assert SECRET not in caplog.text


def test_unusable_urls() -> None:
    """An empty url, or a bucket that is not there, names the rule."""
    with pytest.raises(ConfigError, match="bucket"):
        open_store("s3:///key")
    with pytest.raises(ConfigError):
        open_store("")
