"""A session over several datasets as the server receives it, on a real engine without a socket."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamer.engine.session import EngineSession
from streamer.errors import ConfigError, ProtocolError, StreamerError
from streamer.service.server import Server, _ClientState
from streamer.wire.messages import Event, Extend, GetManifest, OpenSession, Part
from streamer.wire.store_options import StoreOptions

SECRETS = ({"key": "one"}, {"key": "two"})


class Peer:
    """Stands for a client's connection: it keeps the events and errors that it is sent."""

    credentials = None

    def __init__(self) -> None:
        self.sent: list[Event] = []
        self.failures: list[StreamerError] = []

    def send(self, event: Event) -> None:
        self.sent.append(event)

    def fail(self, error: StreamerError, request: int = -1, session: int = -1) -> None:
        self.failures.append(error)

    def close(self) -> None:
        """Does nothing, since there is no socket."""


@pytest.fixture
async def parts(server: Server, tmp_path: Path) -> list[Part]:
    """Two parts of three files each, with options of their own."""
    made = []
    for name, options in zip(("web", "books"), SECRETS, strict=True):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.bin").write_bytes(name.encode() * 1000)
        request = GetManifest(0, [str(tmp_path / name)], "auto", chunk_bytes=1024)
        digest = await server._engine.manifest(request, lambda *step: None)
        made.append(Part(digest, name, StoreOptions.make(options), 2.0, 7))
    return made


def opened(server: Server, peer: Peer, parts: list[Part]) -> EngineSession:
    """Opens a session over the parts as a client does, and returns it."""
    server._clients.setdefault(peer, _ClientState())  # type: ignore[arg-type]
    server.take(peer, OpenSession(1, "job", "mix", "rank 0", parts=parts))  # type: ignore[arg-type]
    return server._clients[peer].sessions[1]  # type: ignore[index]


async def test_each_part_has_its_own_options(server: Server, parts: list[Part]) -> None:
    """Each part of a session has its own options, name, value and open bytes."""
    session = opened(server, Peer(), parts)
    assert tuple(dataset.options for dataset in session.collection.datasets) == SECRETS
    assert [(part.name, part.value, part.open_bytes) for part in session.request.parts] == [
        ("web", 2.0, 7),
        ("books", 2.0, 7),
    ]
    session.close()


async def test_passes_and_values_reach_the_session(server: Server, parts: list[Part]) -> None:
    """A schedule's passes count for each use, its values for each part; passes cut short are a ProtocolError."""
    peer = Peer()
    session = opened(server, peer, parts)
    chunk, steps, passes = np.array([0, 4], "<u4"), np.arange(2, dtype="<i8").tobytes(), np.array([5, 6], "<u4")
    server.take(peer, Extend(1, 0, chunk.tobytes(), steps, steps, True, passes.tobytes(), [1.0, 3.0]))  # type: ignore[arg-type]
    assert session.progress.find_chunks_ahead((0, 3), 5).tolist() == [0]
    assert session.progress.find_chunks_ahead((3, 6), 5).tolist() == []
    assert session.progress.find_chunks_ahead((3, 6), 6).tolist() == [4]
    assert session.parts._next_values == {0: (1.0, 3.0)}
    with pytest.raises(ProtocolError, match="cut short"):
        server.take(peer, Extend(1, 1, chunk.tobytes(), steps, steps, True, b"abc"))  # type: ignore[arg-type]
    session.close()


async def test_options_that_are_none_fail_the_session_only(server: Server, parts: list[Part]) -> None:
    """Options of a part that cannot be read fail its session only, by an error that names the part and not the text."""
    peer = Peer()
    server._clients[peer] = _ClientState()  # type: ignore[index]
    broken = [parts[0], Part(parts[1].dataset, "books", StoreOptions(b"[hunter2"))]
    server.take(peer, OpenSession(1, "job", "mix", "rank 0", parts=broken))  # type: ignore[arg-type]
    (error,) = peer.failures
    assert "member books" in str(error)
    assert "hunter2" not in str(error)


async def test_long_options_are_read_once_or_refused(server: Server, parts: list[Part]) -> None:
    """Equal options of parts are read and counted once; more than 2 MiB of different ones are refused unread."""
    peer = Peer()
    same = StoreOptions.make({"key": "x" * 1500})
    session = opened(server, peer, [Part(parts[0].dataset, str(n), StoreOptions(same.encoded)) for n in range(2000)])
    assert len({id(part.options) for part in session.request.parts}) == 1
    session.close()
    different = [Part(parts[0].dataset, str(n), StoreOptions.make({"key": f"{n}" + "x" * 1500})) for n in range(2000)]
    server.take(peer, OpenSession(2, "job", "mix", "rank 0", parts=different))  # type: ignore[arg-type]
    (error,) = peer.failures
    assert isinstance(error, ConfigError)
    assert "at most 2,097,152 are possible" in str(error)
    assert 2 not in server._clients[peer].sessions  # type: ignore[index]
