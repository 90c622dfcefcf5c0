"""Fetch processes that are killed, stopped or poisoned, and an engine that is killed; the processes are real."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
from msgspec import structs

from streamer.base.cgroup import usable_cores
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.bring import Fetch
from streamer.engine.engine import Engine
from streamer.engine.processes import policy, pool
from streamer.engine.processes.pool import FetchPool, Reading
from streamer.engine.processes.process import FetchProcess, SharedBytes
from streamer.engine.session import EngineSession
from streamer.engine.statistics import engine_statistics
from streamer.errors import BrokenError, ConfigError, ObjectNotFoundError, StreamerError
from streamer.formats.chunkfile import HEADER_BYTES
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

FILES, FILE_BYTES = 120, 60_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of one class, each full of one byte."""
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        (tmp_path / "data" / f"{number:03}.bin").write_bytes(bytes([number]) * FILE_BYTES)
    return tmp_path / "data"


class Reader:
    """Stands for a rank: reads the chunks of an engine in order, and compares their bytes with the files."""

    def __init__(self, engine: Engine, digest: str, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._news = asyncio.Event()
        self._through, self._done, self._error = -1, 0, None
        request = OpenSession(0, job="job", dataset=digest, consumer="rank 0")
        self._session: EngineSession = engine.open_session(request, self._on_ready, self._on_error)
        self.manifest = self._session.collection.datasets[0].manifest

    def _on_ready(self, through: int, rejects: int) -> None:
        self._through = through
        self._news.set()

    def _on_error(self, error: StreamerError) -> None:
        self._error = error
        self._news.set()

    async def epoch(self, epoch: int) -> None:
        """One epoch: a chunk a step."""
        chunks, base = self.manifest.chunks, epoch * self.manifest.chunks
        steps = np.arange(base, base + chunks, dtype=np.int64)
        self._session.extend(EpochSchedule(epoch, np.arange(chunks, dtype=np.uint32), steps, steps), True)
        for step in range(base, base + chunks):
            self._session.advance(self._done, step)
            while self._through < step:
                await asyncio.wait_for(self._news.wait(), 60)
                self._news.clear()
                if self._error is not None:
                    raise self._error
            self._compare(step - base)
            self._done = step + 1
        self._session.advance(self._done, base + chunks - 1)

    def _compare(self, chunk: int) -> None:
        path = self._engine.cache.path(self.manifest.chunk_keys[chunk].tobytes())
        assert path is not None
        first = int(self.manifest.chunk_first[chunk])
        names = [self.manifest.name(first + i).object_key for i in range(int(self.manifest.chunk_samples[chunk]))]
        wanted = b"".join((self._folder / name).read_bytes() for name in names)
        assert path.read_bytes()[HEADER_BYTES : HEADER_BYTES + len(wanted)] == wanted


async def until(reached: Callable[[], bool], seconds: float = 60.0) -> None:
    """Waits until a condition without an event holds."""
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def reading(
    folder: Path,
    processes: int,
    cache_bytes: int = 4_000_000,
    *,
    processes_by_load: bool = False,
    chunk_bytes: int = 300_000,
    all_start: bool = True,
) -> AsyncIterator[tuple[Engine, Reader]]:
    """An engine whose fetch processes are ready, with a cache of half of the data."""
    cache = CacheConfig(directory=folder.parent / "cache", limit_bytes=cache_bytes)
    config = EngineConfig(cache=cache, settle_seconds=0.0, fetch_processes=None if processes_by_load else processes)
    async with Engine(config) as engine:
        await until(lambda: not all_start or len(engine.fetch_pool.pids) == processes)
        request = GetManifest(0, [str(folder)], "auto", chunk_bytes=chunk_bytes)
        digest = await engine.manifest(request, lambda text, done, total: None)
        yield engine, Reader(engine, digest, folder)
        await until(lambda: not len(engine.in_flight))
        assert list((folder.parent / "cache" / "tmp").iterdir()) == []
        assert engine.cache.space.unwritten_bytes == 0
        assert engine.cache.space.charged_bytes <= cache_bytes


async def test_processes_fetch_and_publish_all_chunks(folder: Path) -> None:
    """Fetch processes fetch and publish all chunks, each byte once, and the engine's own fetchers fetch none."""
    async with reading(folder, 2, cache_bytes=64_000_000) as (engine, reader):
        before = engine.fetchers.statistics()["received_bytes"]
        await reader.epoch(0)
        await reader.epoch(1)
        assert engine.fetchers.statistics()["received_bytes"] == before
        assert engine_statistics(engine)["store_bytes"] == FILES * FILE_BYTES
        assert engine.fetch_pool.crashes == 0


@pytest.mark.slow
async def test_killed_processes_cost_no_sample(folder: Path) -> None:
    """A fetch process of two that is killed again and again is replaced, and every byte is right."""
    async with reading(folder, 2) as (engine, reader):
        reads = asyncio.create_task(_epochs(reader, 30))
        killed = set()  # on a busy machine one may be chosen again before its end is noticed
        while not reads.done():
            await asyncio.sleep(random.uniform(0.0, 0.1))
            if len(pids := engine.fetch_pool.pids) == 2:
                killed.add(pid := random.choice(pids))
                os.kill(pid, signal.SIGKILL)
        await reads
        assert len(killed) > 2
        await until(lambda: engine.fetch_pool.crashes >= len(killed) - 1)


async def _epochs(reader: Reader, count: int) -> None:
    for epoch in range(count):
        await reader.epoch(epoch)
        await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_stopped_process_is_replaced(folder: Path) -> None:
    """A fetch process that has chunks and does not answer is killed, and another fetches them."""
    async with reading(folder, 1) as (engine, reader):
        (pid,) = engine.fetch_pool.pids
        os.kill(pid, signal.SIGSTOP)
        await reader.epoch(0)
        assert engine.fetch_pool.crashes == 1
        await until(lambda: engine.fetch_pool.pids not in ([], [pid]))


@pytest.mark.slow
async def test_what_a_killed_process_was_writing_is_removed(folder: Path) -> None:
    """Unfinished files of a killed fetch process are removed by the pid in their names; those of others stay."""
    async with reading(folder, 2) as (engine, _):
        pid, other = engine.fetch_pool.pids
        theirs, ours = (engine.cache.root / "tmp" / f"{'0' * 32}.{number}.1234" for number in (other, pid))
        theirs.touch()
        ours.touch()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not ours.exists())
        assert theirs.exists()
        theirs.unlink()


async def test_what_is_wrong_on_this_machine_the_loop_deals_with(folder: Path) -> None:
    """Folders of the cache that are removed under a fetch process are made again, and every byte is right."""
    async with reading(folder, 1, cache_bytes=64_000_000) as (engine, reader):
        for name in ("chunks", "manifests"):
            shutil.rmtree(engine.cache.root / name)
        await reader.epoch(0)
        assert engine.fetch_pool.crashes == 0


async def test_a_fetch_that_is_cancelled_gives_its_memory_back(folder: Path) -> None:
    """A fetch that is cancelled before, during or after its work gives back the memory that it reserved,
    as that of a store which was slower than a peer.
    """
    async with reading(folder, 1) as (engine, reader):
        dataset = engine.datasets.all()[0]
        fetch = Fetch(dataset.key(0), dataset, 0)
        for milliseconds in range(20):
            task = asyncio.create_task(engine.sources.store.fetch(fetch))
            await asyncio.sleep(milliseconds / 1000)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).close()
        with contextlib.closing(await engine.sources.store.fetch(fetch)) as fetched:
            assert isinstance(fetched, SharedBytes)
            names = [reader.manifest.name(i).object_key for i in range(int(reader.manifest.chunk_samples[0]))]
            assert bytes(fetched.parts[0]) == b"".join((folder / name).read_bytes() for name in names)
        await until(lambda: engine.fetch_pool.statistics()["reserved_bytes"] == 0)
        assert engine.fetch_pool.crashes == 0


async def test_memory_that_is_given_back_late_is_no_longer_reserved(folder: Path) -> None:
    """Memory that is given back seconds after a fetch is no longer reported as reserved,
    as that of a chunk which a recoder holds: the process reports once more.
    """
    async with reading(folder, 1, cache_bytes=64_000_000, chunk_bytes=2_000_000) as (engine, _):
        dataset = engine.datasets.all()[0]
        with contextlib.closing(await engine.sources.store.fetch(Fetch(dataset.key(0), dataset, 0))):
            await asyncio.sleep(2.5)
            assert engine.fetch_pool.statistics()["reserved_bytes"] > 1_000_000
        await until(lambda: engine.fetch_pool.statistics()["reserved_bytes"] == 0, 5)


async def test_a_missing_object_is_the_error_of_its_store(folder: Path) -> None:
    """An object that a fetch process finds missing raises the store's typed error with the object's url."""
    async with reading(folder, 1) as (engine, reader):
        victim = folder / reader.manifest.name(0).object_key
        victim.unlink()
        with pytest.raises(ObjectNotFoundError, match=victim.name) as caught:
            await reader.epoch(0)
        assert str(victim) in str(caught.value.details["url"])
        assert engine.fetch_pool.crashes == 0


@pytest.mark.slow
async def test_processes_come_and_go_by_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch process starts while requests wait, is given chunks, and ends after its time without work."""
    monkeypatch.setattr(pool, "count_max_processes", lambda cores: 1)
    monkeypatch.setattr(pool, "idle_core_seconds", lambda now: 2 * now)
    for name, value in (("BUSY_SHARE", 0.0), ("BUSY_SECONDS", 0.0), ("IDLE_SECONDS", 1.0)):
        monkeypatch.setattr(policy, name, value)
    reading_of, begun, ended = FetchPool._read_counters, asyncio.Event(), asyncio.Event()

    def busy(pool: FetchPool) -> Reading:
        # Between two looks all chunks of such small files can arrive.
        return structs.replace(reading_of(pool), waiting=True, fetching=begun.is_set() and not ended.is_set())

    monkeypatch.setattr(FetchPool, "_read_counters", busy)
    async with reading(folder, 0, processes_by_load=True) as (engine, reader):
        reads = asyncio.create_task(_epochs(reader, 40))
        reads.add_done_callback(lambda _: ended.set())
        begun.set()
        await until(lambda: len(engine.fetch_pool.pids) == 1)
        await until(lambda: engine.fetch_pool.statistics()["requests"] > 0)
        await reads
        await until(lambda: not engine.fetch_pool.pids)
        assert engine.fetch_pool.crashes == 0
        assert engine.fetchers.memory.gate.limit > 1 << 20


def poisoned(chunk: int | None, number: signal.Signals) -> type[FetchProcess]:
    """Processes that end by this signal when they get this chunk; without one at each chunk."""

    class Poisoned(FetchProcess):
        async def bring(self, asked, dataset, weight):  # type: ignore[no-untyped-def]
            if chunk in (asked.chunk, None) and self.pid is not None:
                os.kill(self.pid, number)
            return await super().bring(asked, dataset, weight)

    return Poisoned


@pytest.mark.slow
async def test_a_chunk_that_crashes_each_process_is_an_error_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk over which two processes crashed that had no other is an error; all other chunks are read."""
    monkeypatch.setattr(pool, "FetchProcess", poisoned(7, signal.SIGSEGV))
    async with reading(folder, 2, cache_bytes=64_000_000) as (engine, reader):
        with pytest.raises(BrokenError, match=r"chunk 7 .* 2 fetch processes crashed that had no other .*SIGSEGV"):
            await reader.epoch(0)
        await until(lambda: not len(engine.in_flight))
        local = [engine.cache.contains(key.tobytes()) for key in reader.manifest.chunk_keys]
        assert [chunk for chunk, found in enumerate(local) if not found] == [7]


@pytest.mark.slow
async def test_the_loop_fetches_what_processes_are_killed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A chunk over which fetch processes are killed is fetched by the engine itself, and one line says so.
    Another program ends the processes, the kernel that lacks memory for instance.
    """
    monkeypatch.setattr(pool, "FetchProcess", poisoned(7, signal.SIGKILL))
    async with reading(folder, 2, cache_bytes=64_000_000) as (_, reader):
        await reader.epoch(0)
    assert len([record for record in caplog.records if "the engine fetches by itself" in record.message]) == 1


@pytest.mark.slow
async def test_processes_that_each_end_over_another_chunk_end_no_job(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Fetch processes that end over each chunk cost no chunk: the engine fetches by itself, and one line says so."""
    monkeypatch.setattr(pool, "FetchProcess", poisoned(None, signal.SIGKILL))
    async with reading(folder, 2, cache_bytes=64_000_000) as (engine, reader):
        await reader.epoch(0)
        assert engine.fetch_pool.crashes > 2
    assert len([record for record in caplog.records if "the engine fetches by itself" in record.message]) == 1


@pytest.mark.parametrize("how", ["ends", "raises", "refused"])
async def test_processes_that_do_not_start_end_no_job(folder: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """An engine whose fetch processes cannot start fetches all chunks by itself,
    as under a limit of processes or files, in a frozen program, or where its Python was removed.
    """

    class Stillborn(FetchProcess):
        async def run(self, on_ready):  # type: ignore[no-untyped-def]
            if how == "raises":
                raise BlockingIOError("Resource temporarily unavailable")
            if how == "refused":
                raise ConfigError("there is no Python that can be started", field="executable")
            return "ended by code 1"

    monkeypatch.setattr(pool, "FetchProcess", Stillborn)
    async with reading(folder, 2, cache_bytes=64_000_000, all_start=False) as (engine, reader):
        await reader.epoch(0)
        assert engine.fetch_pool.crashes > 0
        assert engine_statistics(engine)["store_bytes"] == FILES * FILE_BYTES


@pytest.mark.slow
async def test_one_process_measures_a_limit_after_the_others_have_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a store refuses requests, one process measures the rate anew once the others have no chunk left."""
    refuses, every, paced = False, list[FetchProcess](), list[FetchProcess]()

    class Recorded(FetchProcess):
        def __init__(self, setup, on_notice):  # type: ignore[no-untyped-def]
            super().__init__(setup, on_notice)
            every.append(self)

        def pace_anew(self) -> None:
            paced.append(self)
            super().pace_anew()

    class Refused(policy.Refusals):
        def look(self, requests: int, throttled: int, limited: bool, by_chance: bool, now: float) -> bool:
            return super().look(100, 100 * refuses, refuses, False, now)

    monkeypatch.setattr(pool, "FetchProcess", Recorded)
    monkeypatch.setattr(pool, "Refusals", Refused)
    async with reading(folder, 2) as (engine, reader):
        one, other = every
        assert other.pid is not None
        os.kill(other.pid, signal.SIGSTOP)
        reads = asyncio.create_task(reader.epoch(0))
        await until(lambda: other.load > 0)
        refuses = True
        await asyncio.sleep(3 * pool.LOOK_SECONDS)
        assert paced == []
        os.kill(other.pid, signal.SIGCONT)
        await until(lambda: bool(paced))
        await reads
        assert paced == [one]
        assert engine.fetch_pool.crashes == 0


ENGINE = """
import asyncio, sys
from pathlib import Path
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine

async def main():
    cache = CacheConfig(directory=Path(sys.argv[1]), limit_bytes=10_000_000)
    async with Engine(EngineConfig(cache=cache, fetch_processes=2)) as engine:
        while len(engine.fetch_pool.pids) < 2:
            await asyncio.sleep(0.01)
        print(*engine.fetch_pool.pids, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_processes_end_with_an_engine_that_is_killed(tmp_path: Path) -> None:
    """Fetch processes end within 6 s after their engine is killed, also one that is stopped."""
    command = [sys.executable, "-c", ENGINE, str(tmp_path / "cache")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in engine.stdout.readline().split()]
        assert len(processes) == 2
        processes[0].suspend()
        engine.kill()
    deadline = time.monotonic() + 6
    while any(_lives(process) for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.02)


ENGINE_BY_LOAD = """
import asyncio, os, sys
from pathlib import Path

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[2])])

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.statistics import engine_statistics

async def main():
    cache = CacheConfig(directory=Path(sys.argv[1]), limit_bytes=10_000_000)
    async with Engine(EngineConfig(cache=cache)) as engine:
        found = engine_statistics(engine)
        print(found["fetch_processes"], found["most_fetch_processes"])

asyncio.run(main())
"""


@pytest.mark.parametrize(("cores", "most"), [(1, 0), (2, 0), (4, 1), (8, 2)])
def test_an_engine_may_have_a_process_for_four_cores_that_it_is_allowed(tmp_path: Path, cores: int, most: int) -> None:
    """An engine may have one fetch process for each four cores that the kernel allows it, and starts with none."""
    if usable_cores() < cores:
        pytest.skip(f"needs {cores} cores")
    command = [sys.executable, "-c", ENGINE_BY_LOAD, str(tmp_path / "cache"), str(cores)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == ["0", str(most)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_credentials_are_in_no_argument_and_no_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch process shows no credentials in its arguments or environment, since it learns them through the socket."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret-of-the-engine")
    async with reading(folder, 1) as (engine, reader):
        await reader.epoch(0)
        process = psutil.Process(engine.fetch_pool.pids[0])
        shown = [*process.cmdline(), *process.environ(), *process.environ().values()]
        assert not any("the-secret-of-the-engine" in text for text in shown)
