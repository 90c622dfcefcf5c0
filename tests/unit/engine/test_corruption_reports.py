"""Reports of corrupt chunks: whether the reader or the engine's own look decides.
The reports are the real ones; cache, engine and session are fakes with the few attributes that reports use."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from streamer.engine.corruption_reports import (
    MAX_COPIES,
    MAX_UNFOUNDED,
    MAX_UNFOUNDED_IN_ALL,
    REPLACED_SECONDS,
    VERIFIED_SECONDS,
    WARNING_SECONDS,
    CorruptionReports,
)
from streamer.errors import IntegrityError, ManifestError
from streamer.wire.messages import UNREADABLE

CHUNKS = 100


class Cache:
    """Stands for the chunk cache: it knows which chunks are wrong and counts its looks; it has no files."""

    root = "/cache"

    def __init__(self) -> None:
        self.wrong: set[bytes] = set()
        self.in_memory: set[bytes] = set()
        self.read: list[bytes] = []
        self.good: list[bytes] = []

    def note_good_read(self, key: bytes) -> None:
        self.good.append(key)

    def length(self, key: bytes) -> int:
        return 10

    def distrust(self, key: bytes) -> None:
        self.in_memory.add(key)

    def trusts_disk_with(self, key: bytes) -> bool:
        return key not in self.in_memory

    async def verify(self, key: bytes) -> bool:
        self.read.append(key)
        await asyncio.sleep(0)
        return key not in self.wrong


class Engine:
    """Stands for an engine: it notes dropped chunks and wakes; its clock moves only when it is set."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.dropped: list[bytes] = []
        self.time, self.kicks = 100.0, 0

    def now(self) -> float:
        return self.time

    def forget(self, key: bytes) -> bool:
        self.dropped.append(key)
        return True

    def wake(self) -> None:
        self.kicks += 1


class Session:
    """Stands for a session, with its dataset, progress and request in one; it schedules and reads nothing."""

    consumer = "rank 0"

    def get_file_length(self, chunk: int) -> int:
        return 10

    def __init__(self, engine: Engine, name: str = "1 rank 0") -> None:
        self.name = name
        self.collection = self.progress = self.request = self
        self.reported: dict[int, int] = {}
        self.want = 3
        self.unfounded: Counter[int] = Counter()
        self.failed: IntegrityError | None = None
        self.judged_rejects = 0
        self.lost_chunks: list[int] = []
        self.held = set(range(CHUNKS))
        self.file_bytes = [10] * CHUNKS
        self.is_open = True

    def key(self, chunk: int) -> bytes:
        if chunk >= CHUNKS:
            raise ManifestError(f"no chunk {chunk}")
        return bytes([chunk]) * 16

    def label(self, chunk: int) -> str:
        return f"chunk {chunk}"

    def holds(self, chunk: int) -> bool:
        return chunk in self.held

    def mark_absent(self, chunk: int, *, broken: bool) -> None:
        self.lost_chunks.append(chunk)

    def acknowledge(self, rejects: int) -> None:
        self.judged_rejects += rejects

    def fail(self, error: IntegrityError) -> None:
        self.failed = error


@pytest.fixture
async def parts():
    """Makes a fake engine, a fake session of it, and the reports that serve both."""
    engine = Engine()
    async with asyncio.TaskGroup() as tasks:
        yield engine, Session(engine), CorruptionReports(engine.cache, engine.forget, engine.wake, engine.now, tasks)


async def checked(rejects: CorruptionReports) -> None:
    """Waits until all reports so far are checked."""
    if rejects._check_task is not None:
        await asyncio.wait([rejects._check_task])


async def test_a_burst_about_one_chunk_is_one_look(parts):
    """Reports of one chunk by eight workers, also during its look, cost one look and one count; all are answered."""
    engine, session, rejects = parts
    for _ in range(4):
        rejects.report(session, 5, "crc")
    await asyncio.sleep(0)
    for _ in range(4):
        rejects.report(session, 5, "crc")
    await checked(rejects)
    assert (session.judged_rejects, engine.dropped, session.lost_chunks) == (8, [], [])
    assert (len(engine.cache.read), rejects.unfounded) == (1, 1)


async def test_late_reports_about_a_copy_that_was_replaced_do_not_count(parts):
    """Late reports of a replaced copy make the next copy be verified once, and do not drop it."""
    engine, session, rejects = parts
    engine.cache.wrong.add(session.key(5))
    rejects.report(session, 5, "crc")
    await checked(rejects)
    engine.cache.wrong.clear()
    for _ in range(4):
        rejects.report(session, 5, "crc")
        await checked(rejects)
    assert (len(engine.cache.read), session.unfounded[5], engine.dropped) == (2, 1, [session.key(5)])


async def test_what_was_found_right_is_not_read_again_at_once(parts):
    """A chunk that was found right is neither verified nor counted again for a pause, however often it is reported."""
    engine, session, rejects = parts
    for _ in range(3):
        rejects.report(session, 5, "crc")
        await checked(rejects)
    assert (len(engine.cache.read), session.unfounded[5]) == (1, 1)
    engine.time += VERIFIED_SECONDS
    rejects.report(session, 5, "crc")
    await checked(rejects)
    assert (len(engine.cache.read), session.unfounded[5]) == (2, 2)


async def test_a_chunk_that_only_its_reader_cannot_read_gets_a_copy_in_memory(parts):
    """A chunk that only its reader cannot read, as of a sector that fails by turns, is fetched again into memory."""
    engine, session, rejects = parts
    rejects.report(session, 5, f"{UNREADABLE}Input/output error")
    await checked(rejects)
    assert (session.failed, engine.dropped, session.lost_chunks) == (None, [session.key(5)], [5])
    assert engine.cache.in_memory == {session.key(5)}


async def test_a_reader_that_cannot_read_the_copy_in_memory_fails(parts):
    """A reader that cannot read the copy in memory fails: its mount or memory is at fault, not the disk."""
    engine, session, rejects = parts
    for _ in range(MAX_UNFOUNDED + 1):
        assert session.failed is None
        rejects.report(session, 5, f"{UNREADABLE}Input/output error")
        await checked(rejects)
        engine.time += REPLACED_SECONDS
    assert "does this process see that very folder" in str(session.failed)
    assert engine.dropped == [session.key(5)]


async def test_who_is_wrong_about_many_chunks_fails_as_well(parts):
    """A session with unfounded reports of many chunks fails, also when each chunk is reported once."""
    _, session, rejects = parts
    for chunk in range(MAX_UNFOUNDED_IN_ALL + 1):
        assert session.failed is None
        rejects.report(session, chunk, "crc")
        await checked(rejects)
    assert isinstance(session.failed, IntegrityError)
    assert max(session.unfounded.values()) <= MAX_UNFOUNDED


async def test_a_disk_that_lies_is_named(parts):
    """A session fails with the number of copies when every fresh copy of a chunk is wrong."""
    engine, session, rejects = parts
    engine.cache.wrong.add(session.key(7))
    for _ in range(MAX_COPIES + 1):
        assert session.failed is None
        rejects.report(session, 7, "crc")
        await checked(rejects)
    assert "wrong after 3 fresh copies" in str(session.failed)
    assert engine.dropped == [session.key(7)] * (MAX_COPIES + 1)


async def test_a_chunk_that_is_read_well_in_between_is_never_an_error(parts):
    """A good read of a chunk resets its count, so one that is overwritten once an epoch never fails its session."""
    engine, session, rejects = parts
    for _ in range(10 * MAX_COPIES):
        engine.cache.wrong.add(session.key(7))
        rejects.report(session, 7, "crc")
        await checked(rejects)
        assert session.reported == {7: 3}
        engine.cache.wrong.clear()
        rejects.note_good_read(session, 7)
        assert session.reported == {}
    assert (session.failed, rejects.dropped) == (None, 10 * MAX_COPIES)
    assert engine.cache.good == [session.key(7)] * 10 * MAX_COPIES


async def test_unfounded_reports_do_not_add_up_over_the_epochs(parts):
    """A good read of a chunk resets its unfounded reports, so rare flips in memory do not add up over epochs."""
    engine, session, rejects = parts
    for number in range(2 * MAX_UNFOUNDED_IN_ALL):
        chunk = number % 4
        rejects.report(session, chunk, "crc")
        await checked(rejects)
        engine.time += VERIFIED_SECONDS
        rejects.note_good_read(session, chunk)
    assert (session.failed, rejects.unfounded, session.unfounded.total()) == (None, 2 * MAX_UNFOUNDED_IN_ALL, 0)


async def test_a_session_that_reads_the_rest_of_a_chunk_says_nothing_of_it(parts):
    """Only the session that reported a chunk counts it; another that shares the chunk does not."""
    engine, session, rejects = parts
    other = Session(engine, "2 rank 1")
    engine.cache.wrong.add(session.key(7))
    rejects.report(session, 7, "crc")
    await checked(rejects)
    assert (session.reported, other.reported) == ({7: 3}, {})


async def test_what_a_session_does_not_hold_is_answered_without_a_look(parts):
    """Reports of chunks that a session does not hold are answered without a look, and unknown chunks are errors."""
    engine, session, rejects = parts
    session.held.clear()
    for chunk in range(50):
        rejects.report(session, chunk, "crc")
    assert (session.judged_rejects, engine.cache.read, rejects._waiting) == (50, [], {})
    with pytest.raises(ManifestError, match="no chunk"):
        rejects.report(session, CHUNKS, "crc")


async def test_a_session_that_has_left_receives_nothing(parts):
    """Reports of a session that has closed are dropped, and those of the next one are checked."""
    engine, session, rejects = parts
    rejects.report(session, 5, "crc")
    session.is_open = False
    other = Session(engine, "2 rank 1")
    rejects.report(other, 6, "crc")
    await checked(rejects)
    assert (session.judged_rejects, other.judged_rejects, engine.cache.read) == (0, 1, [session.key(6)])


async def test_many_wrong_chunks_are_one_warning(parts):
    """Wrong chunks are one warning a minute; the others are counted."""
    engine, session, _ = parts
    warnings: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        rejects = CorruptionReports(engine.cache, engine.forget, engine.wake, engine.now, tasks, warn=warnings.append)
        engine.cache.wrong = {session.key(chunk) for chunk in range(40)}
        for chunk in range(40):
            rejects.report(session, chunk, "crc")
        await checked(rejects)
        assert rejects.dropped == 40
        assert len(warnings) == 1
        assert "is wrong or cannot be read, and is fetched again" in warnings[0]
        engine.time += WARNING_SECONDS
        rejects.drop_chunk(session.key(50))
        assert len(warnings) == 2
