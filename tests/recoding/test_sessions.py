"""Sessions over blocked datasets in a real engine: what is recoded when, at what cost, and what errors do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from streamer.cache import maintenance
from streamer.cache.policy.table import charge
from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.engine.statistics import engine_statistics
from streamer.errors import CacheFullError, IntegrityError, RecodeError, StreamerError
from streamer.formats import chunkfile
from streamer.manifest.table import Manifest
from streamer.wire.messages import OpenSession
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import NO_OPTIONS
from tests.recoding.conftest import indexed

pytestmark = pytest.mark.process


def numbered(objects: int, samples: int, length: int = 400) -> list[list[list[bytes]]]:
    """Returns objects of one block each; a sample begins with its number."""
    return [
        [[b"%d " % (number * samples + each) + b"x" * (length + each) for each in range(samples)]]
        for number in range(objects)
    ]


def read(engine: Engine, manifest: Manifest, chunk: int) -> list[bytes]:
    """Returns the samples of a chunk, as workers read them."""
    key, samples = manifest.chunk_keys[chunk].tobytes(), int(manifest.chunk_samples[chunk])
    reader = ChunkReader(engine.cache.roots)
    edges = reader.records(key, samples).bounds.tolist()
    wanted = [WantedSample(number, edges[number], edges[number + 1]) for number in range(samples)]
    targets = [(one, [memoryview(bytearray(one.stop - one.start))]) for one in wanted]
    reader.read_records(key, samples, targets)
    return [bytes(content[4:]) for _, [content] in targets]


class Rank:
    """Stands for a rank: a session that needs every chunk once in an epoch, one a step, and reads its samples."""

    def __init__(self, engine: Engine, manifest: Manifest, name: str = "rank 0") -> None:
        self._engine, self._manifest = engine, manifest
        self._changed = asyncio.Event()
        self.error: StreamerError | None = None
        self._step = 0
        request = OpenSession(0, job="job", dataset=manifest.digest, consumer=name)
        self.session: EngineSession = engine.open_session(request, lambda *_: self._changed.set(), self._fail)

    def _fail(self, error: StreamerError) -> None:
        self.error = error
        self._changed.set()

    async def epoch(self, number: int, chunks: list[int] | None = None) -> list[bytes]:
        """Returns the samples of an epoch."""
        order = list(range(self._manifest.chunks)) if chunks is None else chunks
        steps = np.arange(self._step, self._step + len(order))
        self.session.extend(EpochSchedule(number, np.array(order, np.uint32), steps, steps), True)
        found: list[bytes] = []
        for step, chunk in zip(steps.tolist(), order, strict=True):
            self.session.advance(step, step)
            while self.session.progress.last_ready_step() < step:
                if self.error is not None:
                    raise self.error
                self._changed.clear()
                await asyncio.wait_for(self._changed.wait(), 60)
            found += await asyncio.to_thread(read, self._engine, self._manifest, chunk)
        self._step += len(order)
        self.session.advance(self._step, self._step - 1)
        return found


def opened(root: Path, limit_bytes: int = 50_000_000, layers: tuple[Path, ...] = ()) -> Engine:
    cache = CacheConfig(directory=root, limit_bytes=limit_bytes, layers=layers)
    return Engine(EngineConfig(cache=cache, settle_seconds=0.0))


def counted(samples: list[bytes]) -> list[int]:
    return sorted(int(sample.split()[0]) for sample in samples)


async def test_chunks_come_from_fetch_processes_through_shared_memory(
    write: Callable[..., Path], tmp_path: Path
) -> None:
    """Fetch processes hand blocked chunks to recoders through shared memory, and the engine fetches none itself.

    Long chunks are in the buffer that they were fetched into, short ones in a copy.
    """
    objects = [*numbered(4, 3, length=500_000), *numbered(4, 20)]
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=50_000_000)
    async with Engine(EngineConfig(cache=cache, settle_seconds=0.0, fetch_processes=2)) as engine:
        while len(engine.fetch_pool.pids) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        manifest = await indexed(engine, write(*objects), chunk_bytes=1024)
        before = engine.fetchers.statistics()["received_bytes"]
        found = await Rank(engine, manifest).epoch(0)
        assert sorted(found) == sorted(sample for one in objects for block in one for sample in block)
        assert engine.fetchers.statistics()["received_bytes"] == before
        assert (engine.fetch_pool.crashes, engine_statistics(engine)["recode_failures"]) == (0, 0)
        assert all(process.load == 0 for process in engine.fetch_pool._processes)


@pytest.mark.parametrize("ranks", [1, 2])
async def test_each_chunk_is_recoded_once(
    engine: Engine, write: Callable[..., Path], tmp_path: Path, ranks: int
) -> None:
    """Each chunk is recoded once by the first epoch, although a recoder is killed; a second epoch fetches no byte."""
    objects = numbered(12, 20)
    objects[5][0].append(b"240 ")
    objects[7][0].append(f"!kill {tmp_path}/killed".encode())
    manifest = await indexed(engine, write(*objects), chunk_bytes=1024)
    assert manifest.chunks == 12
    readers = [Rank(engine, manifest, f"rank {rank}") for rank in range(ranks)]
    for found in await asyncio.gather(*(rank.epoch(0) for rank in readers)):
        assert counted([sample for sample in found if not sample.startswith(b"!")]) == list(range(241))
    cold = engine_statistics(engine)
    assert (cold["recoded_chunks"], cold["recode_failures"]) == (12, 1)
    assert cold["store_bytes"] == sum(manifest.chunk(chunk).fetch_bytes for chunk in range(12))
    for rank in readers:
        assert len(await rank.epoch(1)) == 242
    warm = engine_statistics(engine)
    assert (warm["recoded_chunks"], warm["store_bytes"]) == (12, cold["store_bytes"])
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


async def test_a_chunk_that_cannot_be_recoded(engine: Engine, write: Callable[..., Path], tmp_path: Path) -> None:
    """A chunk that cannot be recoded is an error, with the object, for each session that needs it, and for no other."""
    objects = numbered(3, 5)
    objects[1][0].append(b"!kill")
    manifest = await indexed(engine, write(*objects), chunk_bytes=1024)
    for name in ("rank 0", "rank 1"):
        with pytest.raises(RecodeError, match=r"001\.blocks \[0, \d+\): its recoder ended: killed by SIGKILL"):
            await Rank(engine, manifest, name).epoch(0, [0, 1, 2])
    assert counted(await Rank(engine, manifest, "rank 2").epoch(0, [0, 2])) == [*range(5), *range(10, 15)]
    assert list((tmp_path / "cache" / "tmp").iterdir()) == []


class Watch(threading.Thread):
    """A thread that measures the most that the chunk files of a folder take."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="watch")
        self.peak_bytes = 0
        self._folder, self._end = folder, threading.Event()

    def run(self) -> None:
        ended = False
        while not ended:
            ended = self._end.wait(0.005)
            self.peak_bytes = max(self.peak_bytes, self._taken())

    def _taken(self) -> int:
        """Returns the bytes of files that were there together when the last of them had been looked at."""
        sizes: dict[Path, int] = {}
        for path in [*(self._folder / "chunks").glob("*/*"), *(self._folder / "tmp").glob("*")]:
            try:
                sizes[path] = path.stat().st_blocks * 512
            except FileNotFoundError:
                continue
        return sum(size for path, size in sizes.items() if path.exists())

    def stop(self) -> None:
        self._end.set()
        self.join()


def accounted(engine: Engine) -> int:
    """Returns the bytes of the files that the policy knows of."""
    state = engine.policy.statistics()
    return state.kept_bytes + state.transit_bytes


async def test_sizes_that_are_understated(write: Callable[..., Path], tmp_path: Path) -> None:
    """The cache's limit holds although the index understates records 50 times, and the policy learns the real sizes.

    The epochs are complete.
    """
    limit = 2_500_000
    async with opened(tmp_path / "cache", limit) as engine:
        manifest = await indexed(engine, write(*numbered(40, 100, 1000)), chunk_bytes=1024, understated=50)
        assert int(manifest.chunk_local_bytes.sum()) < limit / 10
        watch = Watch(tmp_path / "cache")
        watch.start()
        try:
            rank = Rank(engine, manifest)
            for epoch in range(2):
                order = np.random.default_rng(epoch).permutation(40).tolist()
                assert counted(await rank.epoch(epoch, order)) == list(range(4000))
        finally:
            watch.stop()
        assert 1_000_000 < watch.peak_bytes <= engine.cache.limit_bytes
        async with asyncio.timeout(10):
            while accounted(engine) != engine.cache.space.charged_bytes:  # noqa: ASYNC110 the last files are being removed
                await asyncio.sleep(0.01)
        assert engine.policy.statistics().kept_bytes <= engine.cache.limit_bytes


async def test_a_chunk_that_is_larger_than_the_cache(write: Callable[..., Path], tmp_path: Path) -> None:
    """A chunk that is larger than the cache raises a CacheFullError that names the limit, and does not hang."""
    async with opened(tmp_path / "cache", 1_600_000) as engine:
        manifest = await indexed(engine, write(*numbered(2, 2000, 1000)), chunk_bytes=1024, understated=50)
        with pytest.raises(CacheFullError, match=r"cache limit of|MB"):
            await Rank(engine, manifest).epoch(0)


async def test_records_that_are_much_longer_than_planned(engine: Engine, write: Callable[..., Path]) -> None:
    """Records more than four times and 64 MiB longer than planned raise a RecodeError with both numbers."""
    manifest = await indexed(engine, write(*numbered(1, 80, 1_000_000)), understated=50)
    with pytest.raises(RecodeError, match=r"records take 80\.0 MB and more, 1\.6 MB were planned"):
        await Rank(engine, manifest).epoch(0)


@pytest.mark.parametrize(
    "place", ["key", "length", "first record", "last record", "first start", "last start", "first sum", "last sum"]
)
async def test_flipped_bits(engine: Engine, write: Callable[..., Path], place: str) -> None:
    """A flipped bit in a chunk file is found by the first read that uses it, and the chunk is fetched again."""
    manifest = await indexed(engine, write(*numbered(2, 10)), chunk_bytes=1024)
    rank = Rank(engine, manifest)
    before = await rank.epoch(0)
    key = manifest.chunk_keys[1].tobytes()
    path = engine.cache.path(key)
    assert path is not None
    local = chunkfile.ChunkHeader.decode(path.read_bytes()[:64], "").local_bytes
    table, sums = 64 + local - 40, 64 + local
    offset = {
        "key": 16,
        "length": 32,
        "first record": 64 + 6,
        "last record": table - 1,
        "first start": table,
        "last start": sums - 1,
        "first sum": sums,
        "last sum": sums + 43,
    }[place]
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(IntegrityError):
        read(engine, manifest, 1)
    rank.session.extend(EpochSchedule(1, np.array([1], np.uint32), np.array([2]), np.array([2])), True)
    rank.session.advance(2, 2)
    rank.session.reject(1, "a flipped bit")
    while engine.recoders.count.recoded_chunks < 3 or engine.cache.path(key) is None:
        await asyncio.wait_for(rank._changed.wait(), 60)
        rank._changed.clear()
    assert read(engine, manifest, 1) == before[10:]


async def test_the_next_engine_finds_the_chunks(write: Callable[..., Path], tmp_path: Path) -> None:
    """The next engine finds recoded chunks with their real sizes, with its catalog and without, and recodes none.

    A copy of the chunks serves as a layer.
    """
    root, layer = tmp_path / "cache", tmp_path / "layer"
    async with opened(root) as engine:
        manifest = await indexed(engine, write(*numbered(6, 50)), chunk_bytes=1024, understated=10)
        await Rank(engine, manifest).epoch(0)
        files = sum(charge(path.stat().st_size) for path in root.glob("chunks/*/*"))
    assert maintenance.check(root).damaged == {}
    assert maintenance.export(root, layer) == 6
    for forget_catalog in (False, True):
        if forget_catalog:
            for path in (root / "catalog").iterdir():
                path.unlink()
        async with opened(root) as engine:
            assert engine.policy.statistics().kept_bytes == files
            assert len(await Rank(engine, manifest).epoch(0)) == 300
            assert engine.recoders.count.recoded_chunks == 0
            assert engine.policy.statistics().kept_bytes == files
    async with opened(tmp_path / "other", layers=(layer,)) as engine:
        await indexed(engine, tmp_path / "data", chunk_bytes=1024, understated=10)
        assert len(await Rank(engine, manifest).epoch(0)) == 300
        assert engine.recoders.count.recoded_chunks == 0


async def test_looking_at_samples(engine: Engine, write: Callable[..., Path]) -> None:
    """Looking at single samples of a blocked dataset fetches the bytes of a chunk once, and none of a local chunk."""
    manifest = await indexed(engine, write(*numbered(2, 10)), chunk_bytes=1024)
    for _ in range(3):
        edges = np.frombuffer(await engine.read(manifest.digest, NO_OPTIONS, 0, None), "<u4").tolist()
        assert (await engine.read(manifest.digest, NO_OPTIONS, 0, (edges[3], edges[4])))[4:].startswith(b"3 x")
    assert engine_statistics(engine)["store_bytes"] == manifest.chunk(0).fetch_bytes
    await Rank(engine, manifest).epoch(0)
    fetched = engine_statistics(engine)["store_bytes"]
    edges = np.frombuffer(await engine.read(manifest.digest, NO_OPTIONS, 1, None), "<u4").tolist()
    assert (await engine.read(manifest.digest, NO_OPTIONS, 1, (edges[0], edges[1])))[4:].startswith(b"10 x")
    assert engine_statistics(engine)["store_bytes"] == fetched
    with pytest.raises(StreamerError, match="of a chunk of"):
        await engine.read(manifest.digest, NO_OPTIONS, 1, (0, 10**9))
