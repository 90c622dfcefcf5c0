"""Files by ftp://, where fsspec has one connection for all calls, read and written through a real server."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from streamer.errors import AccessDeniedError, StoreError
from streamer.store import ObjectStore, open_store
from tests.contract.store_contract import listed, read
from tests.ftp_server import FtpServer, serve_ftp

pytestmark = pytest.mark.process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with six files of 300 KB that differ in every part."""
    found = tmp_path / "served" / "data"
    found.mkdir(parents=True)
    for number in range(6):
        (found / f"{number}.bin").write_bytes(np.random.default_rng(number).bytes(300_000))
    return found


@pytest.fixture
def server(folder: Path) -> Iterator[FtpServer]:
    """Serves the folder."""
    with serve_ftp(folder.parent) as found:
        yield found


@asynccontextmanager
async def opened(server: FtpServer, login: str = "reader:word@") -> AsyncIterator[tuple[ObjectStore, str]]:
    """Opens the store of a server; yields it with the url of the folder."""
    url = f"ftp://{login}127.0.0.1:{server.port}/data/"
    store = open_store(url, {"timeout": 10})
    try:
        yield store, url.replace(login, "")
    finally:
        await store.aclose()


async def test_reads_at_the_same_time_get_their_own_bytes(server: FtpServer, folder: Path) -> None:
    """Reads that are asked for at the same time get the bytes of their own file and offset.

    Commands of several threads were mixed on the one connection.
    """
    async with opened(server) as (store, url):
        found = await listed(store, url)
        assert len(found) == 6
        asked = [(record, start) for start in range(0, 300_000, 50_000) for record in found.values()]
        got = await asyncio.gather(*(read(store, record, start, start + 50_000) for record, start in asked))
    for (record, start), content in zip(asked, got, strict=True):
        expected = (folder / Path(record.url).name).read_bytes()[start : start + 50_000]
        assert content == expected, (record.url, start)
    assert server.logins == 1


async def test_a_read_that_is_cancelled_disturbs_no_other(server: FtpServer, folder: Path) -> None:
    """A read after one that was cancelled, which goes on in its thread, gets its own bytes."""
    async with opened(server) as (store, url):
        found = await listed(store, url)
        for record in found.values():
            waiting = asyncio.create_task(read(store, record, 0, 250_000))
            await asyncio.sleep(0.001)
            waiting.cancel()
            content = await read(store, record, 100, 200_000)
            assert content == (folder / Path(record.url).name).read_bytes()[100:200_000]
            await asyncio.gather(waiting, return_exceptions=True)


async def test_a_broken_connection_is_made_anew(server: FtpServer, folder: Path) -> None:
    """A read whose connection breaks is an error that another try may mend, and the next read connects again.

    The broken connection was kept, so that all later reads failed.
    """
    async with opened(server) as (store, url):
        record = (await listed(store, url))[f"{url}3.bin"]
        server.broken = 1
        with pytest.raises(StoreError, match="request failed"):
            await read(store, record, 0, 200_000)
        assert await read(store, record, 7, 200_000) == (folder / "3.bin").read_bytes()[7:200_000]
    assert server.logins == 2


async def test_a_host_that_is_down_is_an_error_of_the_store(server: FtpServer, folder: Path) -> None:
    """A first read while the host is down is a StoreError, which another try may mend; so are a list and an upload."""
    async with opened(server) as (store, url):
        record = (await listed(store, url))[f"{url}1.bin"]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store = open_store(f"ftp://127.0.0.1:{port}/", {})
    for call in (
        read(store, record, 0, 5),
        listed(store, f"ftp://127.0.0.1:{port}/"),
        store.put(f"ftp://127.0.0.1:{port}/x", b""),
        store.put_file(f"ftp://127.0.0.1:{port}/x", folder / "1.bin"),
    ):
        with pytest.raises(StoreError, match=r"request failed \(ConnectionRefusedError\)") as refused:
            await call
        assert refused.value.details["status"] is None
    await store.aclose()


async def test_a_refused_login_is_said(server: FtpServer) -> None:
    """A login that the server refuses is an AccessDeniedError without the password, at the first use."""
    async with opened(server, "reader:wrong@") as (store, url):
        with pytest.raises(AccessDeniedError, match="check the credentials") as refused:
            await listed(store, url)
    assert "wrong" not in f"{refused.value!r} {refused.value.__cause__!r}"


async def test_the_loop_goes_on_while_a_host_is_connected_to(folder: Path) -> None:
    """The event loop goes on while a host does not answer a new connection, which a thread waits for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = open_store(f"ftp://127.0.0.1:{port}/", {"timeout": 60})
        listing = asyncio.create_task(listed(store, f"ftp://127.0.0.1:{port}/"))
        loop = asyncio.get_running_loop()
        silent.setblocking(False)
        connection, _ = await asyncio.wait_for(loop.sock_accept(silent), 30)
        assert not listing.done()
        connection.close()
        with pytest.raises(StoreError, match="request failed"):
            await listing
        await store.aclose()


@pytest.mark.parametrize("replaces", [True, False], ids=["replaces", "refuses"])
async def test_an_upload_replaces_a_file(folder: Path, replaces: bool) -> None:
    """An upload replaces a file of the name, also where the server refuses to rename to one that exists (IIS, SMB)."""
    new = folder.parent.parent / "new"
    new.write_bytes(b"new" * 100_000)
    with serve_ftp(folder.parent, replaces=replaces) as server:
        async with opened(server) as (store, url):
            record = await store.put_file(f"{url}2.bin", new)
            assert (record.url, record.size) == (f"{url}2.bin", 300_000)
            assert await read(store, record, 0, 9) == b"newnewnew"
            assert (await store.put_file(f"{url}fresh.bin", new)).size == 300_000
    assert (folder / "2.bin").read_bytes() == new.read_bytes() == (folder / "fresh.bin").read_bytes()
    assert sorted(os.listdir(folder)) == [*(f"{number}.bin" for number in range(6)), "fresh.bin"]
