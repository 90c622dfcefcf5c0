"""Who is believed about a chunk: the reader, or the engine that looks itself."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from streamer.engine.rejects import MAX_REJECTS, MAX_UNFOUNDED, MAX_UNFOUNDED_IN_ALL, PROVED_SECONDS, Rejects
from streamer.errors import IntegrityError, ManifestError

CHUNKS = 100


class Cache:
    root = "/cache"

    def __init__(self) -> None:
        self.wrong: set[bytes] = set()
        self.read: list[bytes] = []

    def length(self, key: bytes) -> int:
        return 10

    async def verify(self, key: bytes) -> bool:
        self.read.append(key)
        await asyncio.sleep(0)
        return key not in self.wrong


class Engine:
    """What the judge asks of an engine; its clock stands still until told."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.dropped: list[bytes] = []
        self.time, self.kicks = 100.0, 0

    def now(self) -> float:
        return self.time

    def forget(self, key: bytes) -> bool:
        self.dropped.append(key)
        return True

    def kick(self) -> None:
        self.kicks += 1


class Session:
    """What the judge asks of a session: its dataset, its track, its request, all in one."""

    consumer = "rank 0"
    file_bytes = np.full(CHUNKS, 10)

    def __init__(self, engine: Engine, name: str = "1 rank 0") -> None:
        self.name = name
        self.dataset = self.track = self.request = self
        self.unfounded: Counter[int] = Counter()
        self.failed: IntegrityError | None = None
        self.judged_rejects = 0
        self.lost_chunks: list[int] = []
        self.held = set(range(CHUNKS))
        self.is_open = True

    def key(self, chunk: int) -> bytes:
        if chunk >= CHUNKS:
            raise ManifestError(f"no chunk {chunk}")
        return bytes([chunk]) * 16

    def holds(self, chunk: int) -> bool:
        return chunk in self.held

    def lost(self, chunk: int, *, broken: bool) -> None:
        self.lost_chunks.append(chunk)

    def judged(self, rejects: int) -> None:
        self.judged_rejects += rejects

    def fail(self, error: IntegrityError) -> None:
        self.failed = error


@pytest.fixture
async def judge():
    engine = Engine()
    async with asyncio.TaskGroup() as tasks:
        yield engine, Session(engine), Rejects(engine.cache, engine.forget, engine.kick, engine.now, tasks)


async def judged(rejects: Rejects) -> None:
    """All that was heard so far."""
    if rejects._judge_task is not None:
        await asyncio.wait([rejects._judge_task])


async def test_a_burst_about_one_chunk_is_one_look(judge):
    """Eight workers report it at once, or while it is being read: read once, counted once, all of them answered."""
    engine, session, rejects = judge
    for _ in range(4):
        rejects.hear(session, 5, "crc")
    await asyncio.sleep(0)
    for _ in range(4):
        rejects.hear(session, 5, "crc")
    await judged(rejects)
    assert (session.judged_rejects, engine.dropped, session.lost_chunks) == (8, [], [])
    assert (len(engine.cache.read), rejects.unfounded) == (1, 1)


async def test_what_was_found_right_is_not_read_again_at_once(judge):
    """Whoever repeats it costs nothing and is not counted; after the pause both."""
    engine, session, rejects = judge
    for _ in range(3):
        rejects.hear(session, 5, "crc")
        await judged(rejects)
    assert (len(engine.cache.read), session.unfounded[5]) == (1, 1)
    engine.time += PROVED_SECONDS
    rejects.hear(session, 5, "crc")
    await judged(rejects)
    assert (len(engine.cache.read), session.unfounded[5]) == (2, 2)


async def test_who_is_wrong_about_many_chunks_fails_as_well(judge):
    """Not only about one chunk."""
    _, session, rejects = judge
    for chunk in range(MAX_UNFOUNDED_IN_ALL + 1):
        assert session.failed is None
        rejects.hear(session, chunk, "crc")
        await judged(rejects)
    assert isinstance(session.failed, IntegrityError)
    assert max(session.unfounded.values()) <= MAX_UNFOUNDED


async def test_a_disk_that_lies_is_named(judge):
    """Every fresh copy is wrong, too."""
    engine, session, rejects = judge
    engine.cache.wrong.add(session.key(7))
    for _ in range(MAX_REJECTS + 1):
        assert session.failed is None
        rejects.hear(session, 7, "crc")
        await judged(rejects)
    assert "wrong on disk after 3 fresh copies" in str(session.failed)
    assert engine.dropped == [session.key(7)] * (MAX_REJECTS + 1)


async def test_what_a_session_does_not_hold_is_answered_without_a_look(judge):
    """It has read on; nothing is queued, so a flood of such rejects holds no memory."""
    engine, session, rejects = judge
    session.held.clear()
    for chunk in range(50):
        rejects.hear(session, chunk, "crc")
    assert (session.judged_rejects, engine.cache.read, rejects._waiting) == (50, [], {})
    with pytest.raises(ManifestError):
        rejects.hear(session, CHUNKS, "crc")


async def test_a_session_that_has_left_hears_nothing(judge):
    """Its rejects are dropped; the next one's are judged."""
    engine, session, rejects = judge
    rejects.hear(session, 5, "crc")
    session.is_open = False
    other = Session(engine, "2 rank 1")
    rejects.hear(other, 6, "crc")
    await judged(rejects)
    assert (session.judged_rejects, other.judged_rejects, engine.cache.read) == (0, 1, [session.key(6)])
