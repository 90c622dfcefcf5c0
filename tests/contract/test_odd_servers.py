"""Stores and web servers whose answers are allowed and unusual, on a server that the tests control."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

from streamer.errors import AccessDeniedError, ObjectNotFoundError, StoreError
from streamer.fetch.retry import retryable
from streamer.store import open_store
from streamer.store.obstore_clients import map_error
from tests.contract.store_contract import listed, read
from tests.contract.telling_server import RAMP, Asked, TellingServer, telling

_FORBIDDEN = b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
async def server(warm_runtime: None) -> AsyncIterator[TellingServer]:
    """A server that answers as the test says."""
    async with telling() as server:
        yield server


async def _answer(asked: Asked, writer: asyncio.StreamWriter, *lines: str) -> None:
    """Answers as a correct server does, with these further header lines."""
    head, blank, body = asked.good().partition(b"\r\n\r\n")
    writer.write(b"\r\n".join([head, *(line.encode() for line in lines)]) + blank + body)


@pytest.mark.parametrize("client", ["curl", "obstore", "fsspec"])
async def test_braces_without_the_right_to_list(server: TellingServer, client: str) -> None:
    """Objects that braces name are requested one by one where listing is forbidden; globs are denied there."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "list-type" in asked.path:
            writer.write(_FORBIDDEN)
        elif "missing" in asked.path:
            writer.write(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(asked.good().replace(b"\r\n", b"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n", 1))

    server.script = script
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{server.port}"}
    store = open_store("s3://bucket", options, client=client)  # type: ignore[arg-type]
    try:
        found = await listed(store, "s3://bucket/f/part-{00..39}.tar")
        assert {record.size for record in found.values()} == {len(RAMP)}
        assert list(found) == [f"s3://bucket/f/part-{number:02d}.tar" for number in range(40)]
        # s3fs looks for a missing object in a listing; Amazon answers 403 as well where it may not be listed.
        with pytest.raises((ObjectNotFoundError, AccessDeniedError), match="missing"):
            await listed(store, "s3://bucket/f/{a,missing}.tar")
        for url in ("s3://bucket/f/", "s3://bucket/f/*.tar", "s3://bucket/f/{a,b}*.tar"):
            with pytest.raises(AccessDeniedError):
                await listed(store, url)
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    "date",
    [
        "Thursday, 01-Jan-26 00:00:00 GMT",
        "Thu Jan  1 00:00:00 2026",
        "2026-01-01T00:00:00Z",
        "Fri, 01 Jan 2026",
        "",
        "x",
    ],
)
async def test_dates_of_other_forms(server: TellingServer, date: str) -> None:
    """A Last-Modified of any form, or an unreadable one, is accepted beside an ETag (RFC 9110 5.6.7 has three)."""
    server.script = lambda asked, writer: _answer(asked, writer, f"Last-Modified: {date}")
    root = f"http://127.0.0.1:{server.port}"
    store = open_store(root, {})
    try:
        (record,) = (await listed(store, f"{root}/o")).values()
        assert (record.size, record.version) == (len(RAMP), "etag:x")
        assert await read(store, record, 1000, 2000) == RAMP[1000:2000]
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("date", "is_dated"),
    [
        ("Thu, 01 Jan 2026 00:00:00 GMT", True),
        ("Thursday, 01-Jan-26 00:00:00 GMT", True),
        ("Thu Jan  1 00:00:00 2026", True),
        ("2026-01-01T00:00:00Z", True),
        ("x", False),
    ],
)
async def test_a_date_without_an_etag(
    server: TellingServer, caplog: pytest.LogCaptureFixture, date: str, is_dated: bool
) -> None:
    """Without an ETag each form of a date gives one version; without a date, unseen changes are warned about."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(re.sub(rb"ETag: [^\r]*", f"Last-Modified: {date}".encode(), asked.good(), count=1))

    server.script = script
    root = f"http://127.0.0.1:{server.port}"
    store = open_store(root, {})
    try:
        found = await listed(store, f"{root}/{{a,b}}")
        moment = 1767225600_000_000_000 if is_dated else 0
        assert {record.version for record in found.values()} == {f"stat:{len(RAMP)}:{moment}"}
        assert await read(store, found[f"{root}/a"], 7, 19) == RAMP[7:19]
        assert len([line for line in caplog.messages if "equal size" in line]) == (not is_dated)
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("name", "is_read"), [("a.json", False), ("a.tar", False), ("a.tar.gz", True), ("a.TGZ", True)]
)
async def test_a_web_server_that_sends_files_compressed(server: TellingServer, name: str, is_read: bool) -> None:
    """A file that a web server sends compressed is refused, unless the file itself is a compressed one."""
    server.script = lambda asked, writer: _answer(asked, writer, "Content-Encoding: gzip")
    root = f"http://127.0.0.1:{server.port}"
    store = open_store(root, {})
    try:
        if is_read:
            assert len(await listed(store, f"{root}/{name}")) == 1
            return
        with pytest.raises(StoreError, match="Content-Encoding: gzip") as caught:
            await listed(store, f"{root}/{name}")
        assert not retryable(caught.value)
    finally:
        await store.aclose()


def test_google_unpacks_what_is_stored_so() -> None:
    """An object that Google decompresses on the way is a final error that says so, and was waited for as an outage."""
    error = RuntimeError("Generic GCS error: Content-Length Header missing from response")
    found = map_error("gs://b/a.txt", error, None)
    assert "Content-Encoding: gzip" in str(found)
    assert not retryable(found)
    assert retryable(map_error("https://h/a.txt", error, None))


async def test_a_host_with_an_ipv6_address() -> None:
    """A web server at an IPv6 address is listed by braces and read, since its square brackets are no glob."""
    try:
        async with telling(host="::1") as server:
            root = f"http://[::1]:{server.port}"
            store = open_store(root, {})
            try:
                found = await listed(store, f"{root}/part-{{0..3}}.tar")
                assert list(found) == [f"{root}/part-{number}.tar" for number in range(4)]
                assert await read(store, found[f"{root}/part-2.tar"], 5, 9) == RAMP[5:9]
            finally:
                await store.aclose()
    except OSError:
        pytest.skip("this machine has no ::1")


@pytest.fixture
def socks() -> Iterator[tuple[int, list[str]]]:
    """Stands for a SOCKS proxy that resolves names, as `ssh -D`: its port, and the hosts that it was asked for."""
    hosts: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)

    def pump(one: socket.socket, other: socket.socket) -> None:
        try:
            while piece := one.recv(65536):
                other.sendall(piece)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def serve(client: socket.socket) -> None:
        with client:
            client.recv(client.recv(2)[1])
            client.sendall(b"\5\0")
            assert client.recv(4)[3] == 3, "a name"
            hosts.append(client.recv(client.recv(1)[0]).decode())
            (port,) = struct.unpack(">H", client.recv(2))
            with socket.create_connection(("127.0.0.1", port)) as there:
                client.sendall(b"\5\0\0\1" + bytes(6))
                back = threading.Thread(target=pump, args=(there, client))
                back.start()
                pump(client, there)
                # A close alone does not wake the other thread.
                end(there)
                back.join()

    def end(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        serving = {}
        try:
            while True:
                client = listener.accept()[0]
                serving[client] = threading.Thread(target=serve, args=(client,))
                serving[client].start()
        except OSError:
            # Clients keep their connections for a next request.
            for client, thread in serving.items():
                end(client)
                thread.join()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1], hosts
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()


async def test_a_web_server_behind_a_socks_proxy(
    server: TellingServer, socks: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web server behind a SOCKS proxy is asked for its heads and ranges through the proxy."""
    port, hosts = socks
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALL_PROXY", f"socks5h://127.0.0.1:{port}")
    root = f"http://store.internal:{server.port}"
    store = open_store(root, {})
    try:
        (record,) = (await listed(store, f"{root}/o")).values()
        assert await read(store, record, 7, 19) == RAMP[7:19]
    finally:
        await store.aclose()
    assert set(hosts) == {"store.internal"}
