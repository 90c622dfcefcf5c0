"""Transfers of libcurl on an event loop, with a real server of HTTP on loopback."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

import pycurl
import pytest

from streamer.errors import ClosedError
from streamer.store.curl import multi as curl_multi
from streamer.store.curl.multi import Multi
from tests.serving import serving

BODY = bytes(range(256)) * 400
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


@dataclass
class Server:
    """Stands for a web server: it answers each request with BODY, or is silent, and does not look at the path."""

    answers: bool = True
    port: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    heard: int = 0
    expected: int = 1

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers the requests of one connection."""
        self.writers.append(writer)
        while True:
            await reader.readuntil(b"\r\n\r\n")
            self.heard += 1
            if self.heard >= self.expected:
                self.asked.set()
            if self.answers:
                writer.write(ANSWER)


@asynccontextmanager
async def server_of_answers() -> AsyncIterator[Server]:
    """Serves answers on a port of its own."""
    told = Server()
    async with serving(told.serve) as told.port:
        yield told


@pytest.fixture
async def multi() -> AsyncIterator[Multi]:
    """A Multi for ten connections, closed after the test."""
    made = Multi(10)
    yield made
    await made.close()


def easy(port: int) -> tuple[pycurl.Curl, list[bytes]]:
    """Returns a request and the list that gets the pieces of its body."""
    handle, pieces = pycurl.Curl(), list[bytes]()
    handle.setopt(pycurl.URL, f"http://127.0.0.1:{port}/")
    handle.setopt(pycurl.NOPROXY, "*")
    handle.setopt(pycurl.WRITEFUNCTION, pieces.append)
    return handle, pieces


async def unanswered(multi: Multi, server: Server) -> asyncio.Future[None]:
    """Returns a transfer whose request the server has received and does not answer."""
    server.answers = False
    task = asyncio.ensure_future(multi.perform(easy(server.port)[0]))
    await server.asked.wait()
    return task


@pytest.mark.process
async def test_many_at_once(multi: Multi) -> None:
    """Transfers that run at the same time each get their whole body, and their connections serve the next requests."""
    async with server_of_answers() as server:
        for _ in range(2):
            handles = [easy(server.port) for _ in range(5)]
            await asyncio.gather(*(multi.perform(handle) for handle, _ in handles))
            assert all(b"".join(pieces) == BODY for _, pieces in handles)
        assert len(server.writers) == 5
        await multi.close()


@pytest.mark.process
async def test_the_loop_has_its_turn(multi: Multi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes at many sockets are received in several turns of the loop, so that other tasks run between them."""
    monkeypatch.setattr(curl_multi, "_TURN_SECONDS", 0.0)
    async with server_of_answers() as server:
        handles = [easy(server.port) for _ in range(12)]
        server.answers, server.expected = False, len(handles)
        tasks = [asyncio.ensure_future(multi.perform(handle)) for handle, _ in handles]
        await server.asked.wait()
        for writer in server.writers:
            writer.write(ANSWER)
        served = [0]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            served.append(sum(bool(pieces) for _, pieces in handles))
        assert all(b"".join(pieces) == BODY for _, pieces in handles)
        assert max(now - then for then, now in pairwise(served)) <= curl_multi._EVENTS
        await multi.close()


@pytest.mark.process
async def test_idle_connection_that_the_server_closes(multi: Multi) -> None:
    """An idle connection that the server closes is not polled any more, and the next request opens another one."""
    async with server_of_answers() as server:
        await multi.perform(easy(server.port)[0])
        server.writers[0].close()
        await server.writers[0].wait_closed()
        for _ in range(3):  # turns of the loop: one sees it
            await asyncio.sleep(0)
        assert select.select([multi._epoll], [], [], 0)[0] == []
        handle, pieces = easy(server.port)
        await multi.perform(handle)
        assert b"".join(pieces) == BODY
        assert len(server.writers) == 2
        await multi.close()


@pytest.mark.process
async def test_cancelled(multi: Multi) -> None:
    """A transfer that is cancelled leaves nothing behind."""
    async with server_of_answers() as server:
        task = await unanswered(multi, server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert repr(multi) == "Multi(0 pending)"
        await multi.close()


@pytest.mark.process
async def test_closed(multi: Multi) -> None:
    """Closing the transfers ends those under way with a ClosedError; closing them again does nothing."""
    async with server_of_answers() as server:
        task = await unanswered(multi, server)
        await multi.close()
        await multi.close()
        with pytest.raises(ClosedError, match="while a request was in flight"):
            await task
        assert multi.closed


@pytest.mark.process
async def test_failed(multi: Multi) -> None:
    """A transfer that cannot connect raises libcurl's error."""
    async with server_of_answers() as server:
        port = server.port
    with pytest.raises(pycurl.error) as caught:
        await multi.perform(easy(port)[0])
    assert caught.value.args[0] == pycurl.E_COULDNT_CONNECT
