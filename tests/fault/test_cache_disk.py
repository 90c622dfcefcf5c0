"""A real engine on a disk that is full, read-only, small, or memory: right bytes all the time, or a clear refusal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.cache.disk_space import MIN_FREE_INODES
from streamer.cache.folder import measure_usage, open_folder
from streamer.cache.memory_folder import find_cache, remove_substitute
from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.maintenance import watch_free_space
from streamer.engine.statistics import engine_statistics
from streamer.errors import CacheError, ConfigError, StreamerError
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule
from tests.disks import remount_read_only, small_disk, take_the_rest
from tests.tars import tar_of

MiB = 1 << 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """250 files of 20 to 60 KB, 10 MB, about 40 chunks."""
    root, random = tmp_path_factory.mktemp("data"), np.random.default_rng(2)
    for number in range(250):
        path = root / f"class{number % 3}" / f"{number:03}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(20_000, 60_000))))
    return root


class Training:
    """One reader of a dataset, chunk by chunk, that compares every byte with its source."""

    def __init__(self, engine: Engine, manifest: Manifest, data: Path) -> None:
        self._engine, self._manifest, self._data = engine, manifest, data
        self._news = asyncio.Event()
        self._errors: list[StreamerError] = []
        request = OpenSession(0, job="job", dataset=manifest.digest, consumer="rank 0")
        self._session = engine.open_session(request, lambda through, rejects: self._news.set(), self._fail)
        self._epochs = 0

    def _fail(self, error: StreamerError) -> None:
        self._errors.append(error)
        self._news.set()

    async def epoch(self, at_chunk: Callable[[int], None] = lambda chunk: None) -> None:
        """Every chunk once; `at_chunk` is called before each."""
        count = self._manifest.chunks
        steps = np.arange(count) + self._epochs * count
        self._session.extend(EpochSchedule(self._epochs, np.arange(count, dtype=np.uint32), steps, steps), True)
        self._epochs += 1
        for chunk, step in enumerate(steps.tolist()):
            at_chunk(chunk)
            self._session.advance(step, min(step + 3, int(steps[-1])))
            await self._ready(step)
            assert self._samples(chunk) == self._sources(chunk)
        self._session.advance(int(steps[-1]) + 1, int(steps[-1]))

    async def _ready(self, step: int) -> None:
        while self._session.progress.last_ready_step() < step:
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 60)
            if self._errors:
                raise self._errors[0]

    def _samples(self, chunk: int) -> list[bytes]:
        manifest, offsets = self._manifest, self._manifest.sample_offsets(chunk)
        wanted = [WantedSample(i, int(offsets[i]), int(offsets[i + 1])) for i in range(len(offsets) - 1)]
        reader, size = ChunkReader(self._engine.cache.roots), int(manifest.chunk_local_bytes[chunk])
        found = reader.read(manifest.chunk_keys[chunk].tobytes(), size, len(wanted), wanted)
        return [bytes(view) for view in found]

    def _sources(self, chunk: int) -> list[bytes]:
        first, count = int(self._manifest.chunk_first[chunk]), int(self._manifest.chunk_samples[chunk])
        names = [self._manifest.name(first + sample).object_key for sample in range(count)]
        return [(self._data / name).read_bytes() for name in names]


@contextlib.asynccontextmanager
async def training(
    directory: Path, limit_bytes: int | None, data: Path, lookahead_bytes: int = 512 * MiB
) -> AsyncIterator[tuple[Engine, Training]]:
    cache = CacheConfig(directory=directory, limit_bytes=limit_bytes)
    config = EngineConfig(cache=cache, settle_seconds=0.0, lookahead_bytes=lookahead_bytes)
    async with Engine(config) as engine:
        request = GetManifest(0, [str(data)], "auto")
        digest = await engine.manifest(request, lambda text, done, total: None)
        manifest = Manifest.open(engine.cache.root / "manifests" / digest)
        yield engine, Training(engine, manifest, data)


async def test_a_disk_that_others_fill_costs_no_sample(tmp_path: Path, data: Path) -> None:
    """On a cache disk that others fill to the last byte, chunks pass through memory and every sample is right."""
    with small_disk(tmp_path / "disk", "64m") as disk:

        def fill(chunk: int) -> None:
            if chunk == 10:
                take_the_rest(disk)

        async with training(disk / "cache", 1 << 30, data) as (engine, reader):
            await reader.epoch(fill)
            await reader.epoch()
            assert engine_statistics(engine)["refused_writes"] > 0
            assert engine_statistics(engine)["errors"] == 0
            memory = engine.cache.roots[1]
            assert memory.exists()
        assert not memory.exists()


@contextlib.asynccontextmanager
async def watched(engine: Engine) -> AsyncIterator[None]:
    """Measures the disk a hundred times as often as in operation, so that seconds are minutes."""
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(watch_free_space(engine.cache, engine.apply_limits, 0.02))
        yield
        watch.cancel()


@pytest.mark.parametrize("limit", [pytest.param(1 << 30, marks=pytest.mark.slow), None])
async def test_a_disk_that_stays_full_costs_no_sample(tmp_path: Path, data: Path, limit: int | None) -> None:
    """A cache disk on which others take all free space for many measurements causes no error and no wrong byte."""
    with small_disk(tmp_path / "disk", "64m") as disk:
        async with training(disk / "cache", limit, data) as (engine, reader), watched(engine):
            await reader.epoch(lambda chunk: take_the_rest(disk) if chunk >= 10 else None)
            for _ in range(3):
                await reader.epoch(lambda chunk: take_the_rest(disk))
            counts = engine_statistics(engine)
            assert counts["refused_writes"] > 0
            assert counts["errors"] == 0


@pytest.mark.parametrize("limit", [pytest.param(1 << 30, marks=pytest.mark.slow), None])
async def test_an_engine_may_start_on_a_full_disk(tmp_path: Path, data: Path, limit: int | None) -> None:
    """An engine that starts on a full disk passes chunks through memory, and uses the disk once others have left it.
    The engine replaces another one: the manifest is there, and nothing else fits.
    """
    with small_disk(tmp_path / "disk", "64m") as disk:
        async with training(disk / "cache", limit, data):
            pass
        take_the_rest(disk)
        # Little enough that memory does not take all data.
        async with training(disk / "cache", limit, data, MiB) as (engine, reader), watched(engine):
            await reader.epoch(lambda chunk: take_the_rest(disk))
            assert engine_statistics(engine)["errors"] == 0
            refused = engine_statistics(engine)["refused_writes"]
            assert refused > 0
            (disk / "others").unlink()
            await engine.cache.measure()
            engine.apply_limits(engine.cache.limits)
            await reader.epoch()
            counts = engine_statistics(engine)
            assert (counts["refused_writes"], counts["errors"]) == (refused, 0)
            assert len(engine.cache.keys()) > 20


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 tars: as many chunks, and as many logs of an index."""
    root = tmp_path_factory.mktemp("tars")
    for number in range(150):
        (root / f"{number:03}.tar").write_bytes(tar_of([(f"{number:03}.bin", bytes(20_000))]))
    return root


async def test_an_index_makes_room_for_its_manifest(tmp_path: Path, tars: Path) -> None:
    """An index whose chunks and logs took all inodes removes some of them for its manifest,
    at the first start and after an engine has died in that state.
    """
    with small_disk(tmp_path / "disk", "64m,nr_inodes=140") as disk:
        async with training(disk / "cache", 1 << 30, tars) as (engine, _):
            assert 0 < len(engine.cache.keys()) < 100
        shutil.rmtree(disk / "cache" / "manifests")
        (disk / "cache" / "manifests").mkdir()
        take_inodes(disk)
        async with training(disk / "cache", 1 << 30, tars) as (engine, _):
            assert engine_statistics(engine)["errors"] == 0


async def test_free_inodes_are_a_limit(tmp_path: Path, data: Path) -> None:
    """A cache on a disk with fewer inodes than chunks leaves some to other programs, and every byte is right."""
    with small_disk(tmp_path / "disk", "64m,nr_inodes=72") as disk:
        async with training(disk / "cache", 1 << 30, data, MiB) as (engine, reader), watched(engine):
            await reader.epoch()
            await engine.cache.measure()
            engine.apply_limits(engine.cache.limits)
            refused = engine_statistics(engine)["refused_writes"]
            await reader.epoch()
            await reader.epoch()
            counts = engine_statistics(engine)
            assert (counts["errors"], counts["refused_writes"]) == (0, refused)
            assert len(engine.cache.keys()) > 10
            assert os.statvfs(disk).f_favail >= MIN_FREE_INODES // 2


def take_inodes(disk: Path) -> None:
    """Other programs take every inode."""
    with contextlib.suppress(OSError):
        for number in range(1000):
            (disk / f"empty{number}").touch()


def test_a_full_disk_is_named_where_nothing_can_be_made(tmp_path: Path) -> None:
    """A new cache folder on a full disk is refused with an error that says the disk is full, without "(None)".
    A folder that was never used needs some kB.
    """
    with small_disk(tmp_path / "disk", "64k") as disk:
        take_the_rest(disk)
        with pytest.raises(CacheError, match=r"No space left on device.*free space") as caught:
            open_folder(disk / "cache")
        assert "None" not in str(caught.value)


def test_a_read_only_disk_is_refused_at_the_start(tmp_path: Path) -> None:
    """A cache folder on a read-only disk is refused at the start with the reason and the advice to choose another."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        open_folder(disk / "cache")
        remount_read_only(disk)
        with pytest.raises(CacheError, match=r"Read-only file system.*choose another cache_dir"):
            open_folder(disk / "cache")


async def test_a_cache_in_memory_is_the_ram_tier(data: Path) -> None:
    """A cache folder on /dev/shm serves the second epoch from memory alone, and refuses no write."""
    folder = Path("/dev/shm") / f"streamer-test-{uuid.uuid4().hex}"
    try:
        async with training(folder, 32 * MiB, data) as (engine, reader):
            await reader.epoch()
            cold = engine_statistics(engine)
            await reader.epoch()
            warm = engine_statistics(engine)
        assert warm["store_bytes"] == cold["store_bytes"] > 0
        assert warm["refused_writes"] == 0
    finally:
        shutil.rmtree(folder)


async def test_a_smaller_limit_at_the_start_shrinks_the_folder(tmp_path: Path, data: Path) -> None:
    """An engine that starts with a smaller limit shrinks the folder to it before any session, and uses what is left."""
    async with training(tmp_path / "cache", 32 * MiB, data) as (engine, reader):
        await reader.epoch()
        before = measure_usage(tmp_path / "cache")
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=6 * MiB)
    async with Engine(EngineConfig(cache=cache)):
        pass
    left = len(list((tmp_path / "cache" / "chunks").glob("*/*.chunk")))
    assert before > 10 * MiB
    assert measure_usage(tmp_path / "cache") <= 6 * MiB
    async with training(tmp_path / "cache", 6 * MiB, data) as (engine, reader):
        await reader.epoch()
        counts = engine_statistics(engine)
    assert left > 10
    assert counts["hits"] >= left // 2


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder of /dev/shm of this test."""
    path = Path("/dev/shm") / f"streamer-test-{uuid.uuid4().hex}"
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


@pytest.mark.parametrize("how", ["full", "no inodes", "few inodes", "read-only"])
async def test_a_new_folder_on_a_disk_that_takes_nothing(tmp_path: Path, data: Path, how: str) -> None:
    """A cache folder on a disk that takes no file is replaced by one in memory, with a line that says why.
    The job ended over the first file of the folder; in mid-job the same disk costs no sample.
    """
    size = {"full": "64k", "no inodes": "50m,nr_inodes=2", "few inodes": "50m,nr_inodes=20"}.get(how, "50m")
    with small_disk(tmp_path / "disk", size) as disk, memory_folder() as memory:
        if how == "full":
            take_the_rest(disk)
        if how == "read-only":
            remount_read_only(disk)
        cache, text = find_cache(CacheConfig(directory=disk / "cache"), memory)
        assert cache.directory.parent == memory
        assert text.startswith(f"the cache folder {disk / 'cache'} refuses writes (")
        assert 0 < (cache.limit_bytes or 0) <= 512 << 20
        async with training(cache.directory, cache.limit_bytes, data) as (_, reader):
            await reader.epoch()
        assert find_cache(CacheConfig(directory=disk / "cache", limit_bytes=MiB), memory)[0].limit_bytes == MiB
        remove_substitute(cache.directory)


def test_a_disk_with_room_is_used(tmp_path: Path) -> None:
    """A cache folder is used as configured where a probe of the disk succeeds or the folder has chunks to evict.
    No file is left of the probe.
    """
    with memory_folder() as memory:
        config = CacheConfig(directory=tmp_path / "cache")
        assert find_cache(config, memory) == (config, "")
        assert list((tmp_path / "cache").iterdir()) == []
        with small_disk(tmp_path / "disk", "1m") as disk:
            folder = open_folder(disk / "cache")
            folder.chunk_path(bytes(16)).touch()
            take_the_rest(disk)
            config = CacheConfig(directory=disk / "cache")
            assert find_cache(config, memory) == (config, "")
        assert list(memory.iterdir()) == []


def test_a_limit_of_files_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on the size of files raises ConfigError that names `ulimit -f`, and no file is left."""

    def refuse(_descriptor: int, _count: int) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr("streamer.cache.memory_folder.linux.allocate", refuse)
    with pytest.raises(ConfigError, match=r"ulimit -f"):
        find_cache(CacheConfig(directory=tmp_path), tmp_path)
    assert list(tmp_path.iterdir()) == []
