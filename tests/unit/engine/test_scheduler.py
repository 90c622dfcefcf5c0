"""The scheduler of a real engine that reads local files: which sessions progress when the cache is full."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.bring import Fetch
from streamer.engine.engine import Engine
from streamer.engine.scheduler import MAX_REFUSALS
from streamer.engine.session import EngineSession
from streamer.engine.statistics import engine_statistics
from streamer.errors import CacheError, StreamerError
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

LIMIT = (512 << 10) + 1_800_000


@pytest.fixture
async def engine(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Runs an engine over 60 files of up to 100 KB, whose cache holds `param` bytes, by default about 12 chunks."""
    random = np.random.default_rng(5)
    for number in range(60):
        path = tmp_path / "data" / f"class{number % 3}" / f"{number:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(30_000, 100_000))))
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=getattr(request, "param", LIMIT))
    async with Engine(EngineConfig(cache=cache, settle_seconds=0.0)) as engine:
        yield engine


async def manifest_of(engine: Engine) -> Manifest:
    url = str(engine.cache.root.parent / "data")
    digest = await engine.manifest(GetManifest(0, [url], "auto"), lambda text, done, total: None)
    return Manifest.open(engine.cache.root / "manifests" / digest)


class Consumer:
    """A real session and the events it received."""

    def __init__(self, engine: Engine, manifest: Manifest, name: str, job: str = "job") -> None:
        self.news = asyncio.Event()
        self.errors: list[StreamerError] = []
        request = OpenSession(0, job=job, dataset=manifest.digest, consumer=name)
        self.session: EngineSession = engine.open_session(request, self._on_ready, self.errors.append)

    def _on_ready(self, through: int, rejects: int) -> None:
        self.news.set()

    def one_chunk_a_step(self, epoch: int, first_step: int, chunks: list[int]) -> None:
        steps = np.arange(first_step, first_step + len(chunks))
        self.session.extend(EpochSchedule(epoch, np.array(chunks, np.uint32), steps, steps), True)

    async def ready(self, step: int) -> None:
        while self.session.progress.last_ready_step() < step:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)


async def test_all_that_is_over_is_given_back_before_anybody_asks(engine: Engine) -> None:
    """Chunks that one reader has done with are released before another one asks, which is not refused for them."""
    manifest = await manifest_of(engine)
    greedy, late = (Consumer(engine, manifest, f"rank {rank}") for rank in range(2))
    greedy.one_chunk_a_step(0, 0, list(range(manifest.chunks)))
    greedy.session.advance(0, manifest.chunks - 1)
    await greedy.ready(3)
    while len(engine.in_flight):  # the last one may bring no news
        await engine.in_flight.finish(60)
    filled = greedy.session.progress.last_ready_step()
    assert filled < manifest.chunks - 2
    late.one_chunk_a_step(0, 0, [manifest.chunks - 1])
    greedy.session.advance(filled + 1, manifest.chunks - 1)
    late.session.advance(0, 0)
    await late.ready(0)
    assert not late.errors + greedy.errors


async def test_nobody_holds_back_for_a_session_that_has_failed(engine: Engine) -> None:
    """A failed session no longer counts as asking, so others may take more than they were planned with."""
    manifest = await manifest_of(engine)
    greedy, late = Consumer(engine, manifest, "rank 0"), Consumer(engine, manifest, "rank 0", job="other")
    greedy.one_chunk_a_step(0, 0, list(range(manifest.chunks)))
    greedy.session.advance(0, manifest.chunks - 1)
    await greedy.ready(3)
    late.one_chunk_a_step(0, 0, list(range(manifest.chunks)))
    late.session.advance(0, manifest.chunks - 1)
    await asyncio.sleep(0)
    engine.wake()
    await asyncio.sleep(0)
    assert late.session.progress.has_requests()
    assert engine.scheduler._asking == {"job", "other"}
    late.session.fail(StreamerError("lost"))
    engine.wake()
    await asyncio.sleep(0)
    assert engine.scheduler._asking == {"job"}


@pytest.mark.parametrize("engine", [4 * LIMIT], indirect=True)
async def test_who_waits_has_the_first_turn_then_who_has_least(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a turn the sessions that wait are scheduled first, then those with the least of what was planned for them."""
    manifest = await manifest_of(engine)
    # In the order in which they are opened, which is not that of the turn.
    rich, poor, waiting = (Consumer(engine, manifest, name, job=name) for name in ("rich", "poor", "waiting"))
    rich.one_chunk_a_step(0, 0, [0, 1, 2, 3])
    poor.one_chunk_a_step(0, 0, [4])
    await asyncio.sleep(0)
    while len(engine.in_flight):
        await engine.in_flight.finish(60)
    waiting.one_chunk_a_step(0, 0, [5, 6, 7])
    waiting.session.advance(0, 0)
    await asyncio.sleep(0)  # its chunks are in flight now
    assert [one.session.waits for one in (rich, poor, waiting)] == [False, False, True]
    assert rich.session.fill > waiting.session.fill > poor.session.fill
    turns: list[str] = []
    monkeypatch.setattr(engine.scheduler, "_schedule", lambda session: turns.append(session.request.consumer))
    engine.scheduler._schedule_all()
    assert turns == ["waiting", "poor", "rich"]


async def test_a_chunk_that_is_there_by_an_earlier_use_counts_as_a_hit(engine: Engine) -> None:
    """A chunk that an earlier epoch still has open is a hit for the next epoch's use; needs count every use."""
    manifest = await manifest_of(engine)
    reader = Consumer(engine, manifest, "rank 0")
    for epoch in range(3):
        reader.one_chunk_a_step(epoch, 2 * epoch, [epoch % 2, 1 - epoch % 2])
    for step in range(6):
        reader.session.advance(step, step)
        await reader.ready(step)
    counts = engine_statistics(engine)
    assert (counts["needs"], counts["hits"]) == (6, 4)
    assert [vars_of(count) for count in reader.session.counts.values()] == [(2, 0), (2, 2), (2, 2)]


async def test_descriptors_that_are_used_up_for_a_moment_end_no_session(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short lack of descriptors or memory is retried; one that lasts is a CacheError that names RLIMIT_NOFILE.
    (The reader got "the engine failed over chunk 0: OSError(24, ...)".)"""
    manifest = await manifest_of(engine)
    reader = Consumer(engine, manifest, "rank 0")
    bring, failures = engine.sources.bring, [errno.EMFILE, errno.ENOMEM]

    async def lack(fetch: Fetch) -> None:
        if failures:
            raise OSError(failures.pop(), "lacks something")
        await bring(fetch)

    monkeypatch.setattr(engine.sources, "bring", lack)
    reader.one_chunk_a_step(0, 0, [0, 1])
    reader.session.advance(0, 0)
    await reader.ready(0)
    assert (reader.errors, failures) == ([], [])
    monkeypatch.setattr("streamer.engine.scheduler.REFUSED_SECONDS", 0.001)
    failures += [errno.EMFILE] * 100
    reader.one_chunk_a_step(1, 2, [5])
    reader.session.advance(2, 2)
    async with asyncio.timeout(60):
        while not reader.errors:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert isinstance(reader.errors[0], CacheError)
    assert "may have no more: raise RLIMIT_NOFILE" in str(reader.errors[0])


def vars_of(count: object) -> tuple[int, int]:
    return count.needs, count.hits  # type: ignore[attr-defined]


async def test_refusals_of_an_earlier_reader_do_not_count(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that the cache refused until one reader got the error is tried for the next reader as often again.

    The next job got the error at the first refusal. (What the cache lacks here is a descriptor.)
    """
    monkeypatch.setattr("streamer.engine.scheduler.REFUSED_SECONDS", 0.001)
    manifest = await manifest_of(engine)
    bring, tries = engine.sources.bring, []
    most = MAX_REFUSALS + 1

    async def lack(fetch: Fetch) -> None:
        tries.append(fetch.chunk)
        if len(tries) <= most + MAX_REFUSALS:
            raise OSError(errno.EMFILE, "lacks something")
        await bring(fetch)

    monkeypatch.setattr(engine.sources, "bring", lack)
    first = Consumer(engine, manifest, "rank 0")
    first.one_chunk_a_step(0, 0, [5])
    first.session.advance(0, 0)
    async with asyncio.timeout(60):
        while not first.errors:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(tries) == most
    second = Consumer(engine, manifest, "rank 0", job="next")
    second.one_chunk_a_step(0, 0, [5])
    second.session.advance(0, 0)
    await second.ready(0)
    assert second.errors == []
    assert len(tries) == most + MAX_REFUSALS + 1
    assert second.session.count_refusal(5) == 1
