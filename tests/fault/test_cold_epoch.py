"""What a cold epoch asks a store for: each range once, however many ranks and jobs of the machine want it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from streamer.config import CacheConfig, EngineConfig, FetchConfig
from streamer.engine import url_allowlist
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.store.base import Get, Take
from streamer.store.local_store import LocalStore
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule
from tests.tars import tar_of

CHUNK_BYTES = 64 << 10
BATCHES = 30


class Counted(LocalStore):
    """Stands for a store: local files, whose reads end in another order than asked; counts ranges and sent bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[tuple[str, int, int]] = Counter()
        self.sent_bytes = 0
        self._random = np.random.default_rng(7)

    async def get(self, asked: Get, take: Take) -> None:
        self.asked[asked.target.url, asked.start, asked.stop] += 1
        for _ in range(int(self._random.integers(0, 20))):
            await asyncio.sleep(0)

        def counted(piece: bytes | memoryview) -> None:
            self.sent_bytes += len(piece)
            take(piece)

        await super().get(asked, counted)


class Rank:
    """Stands for a rank: reads chunks in an order of its own, a batch at a time, and closes its session."""

    def __init__(self, engine: Engine, digest: str, job: str, seed: int) -> None:
        self.errors: list[Exception] = []
        self._news = asyncio.Event()
        request = OpenSession(0, job=job, dataset=digest, consumer=f"{job} {seed}")
        self.session: EngineSession = engine.open_session(request, lambda *news: self._news.set(), self._failed)
        count = self.session.collection.datasets[0].manifest.chunks
        chunks = np.random.default_rng(seed).permutation(count).astype(np.uint32)
        first = np.sort(np.arange(count, dtype=np.int64) * BATCHES // count)
        self.session.extend(EpochSchedule(0, chunks, first, np.minimum(first + 2, BATCHES - 1)), True)

    def _failed(self, error: Exception) -> None:
        self.errors.append(error)
        self._news.set()

    async def train(self) -> None:
        for step in range(BATCHES):
            self.session.advance(step, step + 4)
            while self.session.progress.last_ready_step() < step and not self.errors:
                self._news.clear()
                await self._news.wait()
        self.session.close()


@pytest.fixture
def store(monkeypatch) -> Counted:
    made = Counted()
    monkeypatch.setattr(url_allowlist, "open_root", lambda *_, **__: made)
    return made


def make_files(folder: Path) -> int:
    """160 files of 1 to 40 KB, several to a chunk; returns their bytes."""
    random, total = np.random.default_rng(5), 0
    for number in range(160):
        content = random.bytes(int(random.integers(1_000, 40_000)))
        (folder / f"class{number % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"class{number % 3}" / f"{number:03}.bin").write_bytes(content)
        total += len(content)
    return total


def make_tars(folder: Path) -> int:
    """4 tars of 60 samples, several chunks to a tar; returns their bytes."""
    random = np.random.default_rng(6)
    folder.mkdir(parents=True)
    for number in range(4):
        samples = ((f"{sample:03}.bin", random.bytes(int(random.integers(1_000, 30_000)))) for sample in range(60))
        (folder / f"{number}.tar").write_bytes(tar_of(samples))
    return sum(path.stat().st_size for path in folder.iterdir())


def engine_of(cache: Path, *, hedge: bool) -> Engine:
    fetch = FetchConfig(window_start=8, hedge=hedge)
    cached = CacheConfig(directory=cache, limit_bytes=64 << 20)
    return Engine(EngineConfig(cache=cached, fetch=fetch, grace_seconds=None, settle_seconds=0.0))


@pytest.mark.parametrize("hedge", [False, True], ids=["no hedging", "hedging"])
@pytest.mark.parametrize("make", [make_files, make_tars])
async def test_no_range_is_asked_for_twice(store, tmp_path, make, hedge):
    """A cold epoch of three ranks in two jobs asks the store for each range once, and for no byte twice.

    With hedging every further request was counted as a duplicate.
    """
    total, cache = make(tmp_path / "data"), tmp_path / "cache"
    request = GetManifest(0, [f"{tmp_path / 'data'}/"], "auto", chunk_bytes=CHUNK_BYTES)
    async with engine_of(cache, hedge=hedge) as engine:
        digest = await engine.manifest(request, lambda *step: None)
    for left in cache.rglob("*.chunk"):  # the index of tars has read them all
        left.unlink()
    async with engine_of(cache, hedge=hedge) as engine:
        assert await engine.manifest(request, lambda *step: None) == digest
        before = engine.fetchers.statistics()
        store.asked.clear()
        store.sent_bytes = 0
        ranks = [Rank(engine, digest, job, seed) for seed, job in enumerate(("one", "one", "two"))]
        await asyncio.gather(*(rank.train() for rank in ranks))
        after = engine.fetchers.statistics()
    assert not [error for rank in ranks for error in rank.errors]
    hedges = int(after["hedges"]) - int(before["hedges"])
    # A duplicate may be overtaken before it is sent.
    assert sum(store.asked.values()) - len(store.asked) <= hedges
    assert sum(stop - start for _, start, stop in store.asked) <= total
    if not hedge:
        assert set(store.asked.values()) == {1}
        assert 0.97 * total <= store.sent_bytes <= 1.01 * total
