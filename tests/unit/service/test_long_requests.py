"""Requests of clients that take long: they end with their client, and their errors do not end the engine."""

from __future__ import annotations

import asyncio

import pytest

from streamer.errors import AccessDeniedError, BrokenError
from streamer.service.admission import MAX_LONG_REQUESTS
from streamer.service.long_requests import ClientRequests, SessionProofs
from streamer.wire.messages import Extend, GetManifest, Part, Read

PARTS = (Part("d"),)


class Client:
    """Stands for a client's connection without a socket: it keeps what it is sent."""

    credentials = None

    def __init__(self) -> None:
        self.got: list[object] = []

    def send(self, event: object) -> None:
        self.got.append(event)

    def fail(self, error: Exception, request: int = -1, session: int = -1) -> None:
        self.got.append(error)


class AskedEngine:
    """Stands for an engine whose store answers with an error, or not at all."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.asked = 0

    async def prepare(self, part: object) -> None:
        self.asked += 1
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("error", "expected"),
    [(AccessDeniedError("no"), AccessDeniedError), (ValueError("a bug"), BrokenError), (OSError("disk"), BrokenError)],
)
async def test_an_error_over_a_session_is_that_of_its_client(error, expected):
    """An error over the options of a session goes to its client and does not end the engine's task group."""
    failed = []
    async with asyncio.TaskGroup() as tasks:
        proofs = SessionProofs(AskedEngine(error).prepare, tasks)
        proofs.start(Client(), 1, PARTS, opened=lambda steps: None, failed=failed.append)
    assert [type(one) for one in failed] == [expected]


async def test_an_error_over_what_came_before_the_session_was_open_is_that_of_its_client():
    """An error over messages that came before the session was open goes to its client and does not end the engine."""
    failed = []

    def opened(steps: object) -> None:
        raise IndexError("a bug")

    async def prepare(part: object) -> None: ...

    async with asyncio.TaskGroup() as tasks:
        SessionProofs(prepare, tasks).start(Client(), 1, PARTS, opened=opened, failed=failed.append)
    assert [type(one) for one in failed] == [BrokenError]


async def test_questions_about_sessions_end_with_them():
    """Checks of sessions end with their session or client, and leave no request to the store behind."""
    engine = AskedEngine()
    async with asyncio.TaskGroup() as tasks:
        proofs = SessionProofs(engine.prepare, tasks)
        for _ in range(100):
            client = Client()
            for session in range(3):
                proofs.start(client, session, PARTS, opened=lambda steps: None, failed=lambda error: None)
            proofs.keep(client, Extend(1, 0, b"", b"", b""))
            await asyncio.sleep(0)
            proofs.drop(client, 2)
            proofs.drop(client)
            assert proofs.count(client) == 0
    # The group has ended, so all of them have.
    assert engine.asked == 300


async def test_requests_end_with_their_client(server, monkeypatch):
    """Waiting and reading end with their client; indexing goes on, but at most MAX_LONG_REQUESTS of all clients."""

    async def for_ever(*arguments: object) -> None:
        await asyncio.Event().wait()

    requests = server._long_requests
    monkeypatch.setattr(server._engine, "manifest", for_ever)
    monkeypatch.setattr(server._engine, "read", for_ever)

    async def leave(*asked: object) -> int:
        """Returns how many run when the client has gone."""
        state = ClientRequests()
        for request in asked:
            requests.start(Client(), state, request)
        await asyncio.sleep(0)
        requests.leave(state)
        for _ in range(10):
            await asyncio.sleep(0)
        return len(requests._running)

    waiting = GetManifest(1, ["/data/"], "auto", manifest="/m", build=False, wait_seconds=1e9)
    assert await leave(waiting, Read(2, "d", 0, 0, 10), Read(3, "d", 0, 0, 10)) == 0
    for number in range(3):
        index = GetManifest(number, [f"/data/{number}"], "auto")
        assert await leave(index, waiting) == number + 1
    for number in range(MAX_LONG_REQUESTS + 5):
        assert await leave(GetManifest(1, [f"/more/{number}"], "auto")) <= MAX_LONG_REQUESTS
    assert len(requests._running) == MAX_LONG_REQUESTS
    assert requests._request_bytes > 0
    await requests.finish(0.0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (len(requests._running), requests._request_bytes, requests._left) == (0, 0, {})
