"""What fsspec's filesystems do differently from each other, on fakes of the ones that do it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from streamer.errors import ConfigError
from streamer.store import open_store
from streamer.store.fsspec_store import FileCalls, FsspecStore
from tests.contract.store_contract import listed, read


class Session:
    """Counts how often it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class AzureLike(AsyncFileSystem):
    """As adlfs 2026.8: `find` of one object gives its bare name, and the session is called `service_client`."""

    cachable = False

    def __init__(self) -> None:
        super().__init__(asynchronous=True)
        self.service_client = Session()

    async def _find(self, path: str, **_options: object) -> list[str]:
        return [path]

    async def _info(self, path: str, **_options: object) -> dict[str, object]:
        return {"name": path, "size": 7, "etag": "0x8D"}


async def test_bare_names_of_a_listing_are_described() -> None:
    """A filesystem that ignores `detail` for one object costs one request more, and no ValueError."""
    found = await FileCalls(AzureLike()).find("container/key")
    assert found == {"container/key": {"name": "container/key", "size": 7, "etag": "0x8D"}}


async def test_the_session_of_azure_is_closed() -> None:
    """Closing the calls closes the session that the filesystem opened."""
    files = AzureLike()
    await FileCalls(files).aclose()
    assert files.service_client.closed == 1


class HostedFileSystem(AbstractFileSystem):
    """As fsspec's sftp, ftp, smb and webhdfs: the host is an argument, names are paths without it."""

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
    """sftp://host/path needs no option that repeats the host, and what is listed there is read there."""
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
    """Their own schemes have no filesystem of fsspec: the message has the endpoint."""
    store = open_store(f"{scheme}://bucket/x", {})
    with pytest.raises(ConfigError, match=r"speaks S3: write s3://bucket/\.\.\. with endpoint_url='https://"):
        await listed(store, f"{scheme}://bucket/x/")


def test_a_change_that_cannot_be_seen_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Of a filesystem that tells sizes and nothing else; not of one that tells times."""
    told, silent = (FsspecStore("memory://", "memory", {}) for _ in range(2))
    assert told._record("/a", {"size": 5, "created": 1.0}).version == "stat:5:1000000000"
    assert not caplog.messages
    assert [silent._record(name, {"size": 5}).version for name in ("/a", "/b")] == ["stat:5:0"] * 2
    (message,) = caplog.messages
    assert "a change of equal size is not seen" in message
