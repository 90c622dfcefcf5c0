"""Differences between filesystems of fsspec, on fakes of those that have them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from streamer.errors import ConfigError
from streamer.store import open_store
from streamer.store.fsspec_calls import FileCalls
from streamer.store.fsspec_store import FsspecStore
from tests.contract.store_contract import listed, read


class Session:
    """Stands for the session of a filesystem: it counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class AzureLike(AsyncFileSystem):
    """Stands for adlfs 2026.8: `find` of one object gives its bare name, and the session is called `service_client`.

    It has one object and connects to nothing.
    """

    cachable = False

    def __init__(self) -> None:
        super().__init__(asynchronous=True)
        self.service_client = Session()

    async def _find(self, path: str, **_options: object) -> list[str]:
        return [path]

    async def _info(self, path: str, **_options: object) -> dict[str, object]:
        return {"name": path, "size": 7, "etag": "0x8D"}


async def test_bare_names_of_a_listing_are_described() -> None:
    """An object whose filesystem lists a bare name instead of its details is described by one more request."""
    found = await FileCalls(AzureLike()).find("container/key")
    assert found == {"container/key": {"name": "container/key", "size": 7, "etag": "0x8D"}}


async def test_the_session_of_azure_is_closed() -> None:
    """Closing the calls closes the session that the filesystem opened."""
    files = AzureLike()
    await FileCalls(files).aclose()
    assert files.service_client.closed == 1


class BusyFileSystem(AbstractFileSystem):
    """Stands for a filesystem with one connection, which answers when the test says so; it counts calls at a time."""

    protocol = "busy"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.running: list[int] = []
        self._inside = 0

    def info(self, path: str, **_: object) -> dict[str, object]:
        self._inside += 1
        self.running.append(self._inside)
        assert self.answers.wait(60)
        self._inside -= 1
        return {"name": path}


async def test_calls_that_wait_for_their_turn_take_no_thread() -> None:
    """Calls of a filesystem with one connection run one at a time, and leave the loop's threads free meanwhile."""
    files = BusyFileSystem()
    calls = FileCalls(files)
    waiting = [asyncio.create_task(calls.describe(str(number))) for number in range(64)]
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(asyncio.to_thread(int, "7"), 10) == 7
    finally:
        files.answers.set()
    found = await asyncio.gather(*waiting)
    assert [entry["name"] for entry in found] == [str(number) for number in range(64)]
    assert files.running == [1] * 64


class HostedFileSystem(AbstractFileSystem):
    """Stands for fsspec's sftp, ftp, smb and webhdfs: the host is an argument, and names are paths without it.

    It has two files and connects to nothing.
    """

    protocol = "hosted"
    files = {"/data/a": b"first", "/data/b": b"second"}

    def __init__(self, host: str, username: str = "", **_: object) -> None:
        super().__init__()
        assert (host, username) == ("server.test", "reader")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return urlsplit(path).path if "://" in path else path

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {"host": urlsplit(path).hostname, "username": urlsplit(path).username}

    def info(self, path: str, **_: object) -> dict[str, Any]:
        return {"name": path, "size": len(self.files[self._strip_protocol(path)]), "type": "file", "mtime": 1.0}

    def find(self, path: str, **_: object) -> dict[str, Any]:
        return {name: self.info(name) for name in self.files if name.startswith(self._strip_protocol(path))}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        return self.files[self._strip_protocol(path)][start:end]


async def test_a_host_in_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host and user in a url such as sftp://user@host/path reach the filesystem without an option."""
    fsspec.register_implementation("hosted", HostedFileSystem, clobber=True)
    store = open_store("hosted://reader@server.test/data/", {})
    try:
        found = await listed(store, "hosted://reader@server.test/data/")
        assert sorted(found) == [f"hosted://reader@server.test/data/{name}" for name in "ab"]
        record = found["hosted://reader@server.test/data/b"]
        assert await read(store, record, 1, 6) == b"econd"
    finally:
        await store.aclose()


@pytest.mark.parametrize("scheme", ["cos", "obs", "bos", "b2", "tos"])
async def test_stores_that_speak_s3(scheme: str) -> None:
    """The url of a store that speaks S3 under its own scheme is refused with the s3 url and endpoint to write."""
    store = open_store(f"{scheme}://bucket/x", {})
    with pytest.raises(ConfigError, match=r"speaks S3: write s3://bucket/\.\.\. with endpoint_url='https://"):
        await listed(store, f"{scheme}://bucket/x/")


def test_a_change_that_cannot_be_seen_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """A filesystem that gives sizes and no times is warned about once, because a change of equal size is not seen."""
    told, silent = (FsspecStore("memory://", "memory", {}) for _ in range(2))
    assert told._record("/a", {"size": 5, "created": 1.0}, is_of_host=False).version == "stat:5:1000000000"
    assert not caplog.messages
    assert [silent._record(name, {"size": 5}, is_of_host=False).version for name in ("/a", "/b")] == ["stat:5:0"] * 2
    (message,) = caplog.messages
    assert "a change of equal size is not seen" in message
