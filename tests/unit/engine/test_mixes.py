"""One session over several datasets, in a real engine in this loop that reads local files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from streamer.config import CacheConfig, DatasetConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.engine.statistics import engine_statistics
from streamer.errors import AccessDeniedError, ManifestError, ProtocolError, StreamerError
from streamer.wire.messages import GetManifest, OpenSession, Part
from streamer.wire.schedule import EpochSchedule

CHUNK_BYTES = 40_000
FILES = {"web": 40, "books": 12, "math": 4}
MiB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Makes three datasets of files of one chunk each."""
    random = np.random.default_rng(5)
    for name, count in FILES.items():
        (tmp_path / name / "a").mkdir(parents=True)
        for number in range(count):
            (tmp_path / name / "a" / f"{number:03}.bin").write_bytes(random.bytes(CHUNK_BYTES))
    return tmp_path


def engine_of(folder: Path, limit_bytes: int = 64 * MiB, datasets: Sequence[DatasetConfig] = ()) -> Engine:
    cache = CacheConfig(directory=folder / "cache", limit_bytes=limit_bytes, free_floor_bytes=0)
    return Engine(EngineConfig(cache=cache, datasets=tuple(datasets), settle_seconds=0.0))


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[Engine]:
    """Runs an engine with an empty cache folder beside the datasets."""
    async with engine_of(folder) as engine:
        yield engine


async def digest_of(engine: Engine, name: str) -> str:
    url = str(engine.cache.root.parent / name)
    return await engine.manifest(GetManifest(0, [url], "auto", chunk_bytes=CHUNK_BYTES), lambda text, done, total: None)


class Consumer:
    """A real session over parts, one chunk a step, with the events it received."""

    def __init__(self, engine: Engine, parts: Sequence[Part], name: str = "rank 0") -> None:
        self.news = asyncio.Event()
        self.errors: list[StreamerError] = []
        self._steps = 0
        request = OpenSession(0, job="job", dataset="mix", consumer=name, parts=tuple(parts))
        self.session: EngineSession = engine.open_session(request, lambda *news: self.news.set(), self._failed)

    def _failed(self, error: StreamerError) -> None:
        self.errors.append(error)
        self.news.set()

    def number(self, part: int, chunk: int) -> int:
        return self.session.collection.starts[part] + chunk

    def extend(self, epoch: int, uses: Sequence[tuple[int, int, int]], values: tuple[float, ...] = ()) -> None:
        """Schedules uses, which are (part, its chunk, its pass), one a step."""
        steps = np.arange(self._steps, self._steps + len(uses))
        self._steps += len(uses)
        chunks = np.array([self.number(part, chunk) for part, chunk, _ in uses], np.uint32)
        passes = np.array([number for *_, number in uses], np.uint32)
        self.session.extend(EpochSchedule(epoch, chunks, steps, steps, passes, values), True)

    async def read(self, stop: int) -> None:
        """Reads all steps below `stop`, two at a time."""
        for step in range(self.session.progress.done, stop):
            self.session.advance(step, min(step + 1, stop - 1))
            await self.ready(step)
        self.session.advance(stop, stop - 1)

    async def ready(self, step: int) -> None:
        while self.session.progress.last_ready_step() < step and not self.errors:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)


def interleaved(*passes: tuple[int, int, int], seed: int = 1) -> list[tuple[int, int, int]]:
    """Returns uses of (part, chunks, passes from 0 on), spread evenly over the epoch."""
    random = np.random.default_rng(seed)
    uses = [
        ((place + 0.5) / (count * times), part, int(chunk), number)
        for part, count, times in passes
        for number in range(times)
        for place, chunk in enumerate(random.permutation(count), start=number * count)
    ]
    return [(part, chunk, number) for _, part, chunk, number in sorted(uses)]


async def parts_of(engine: Engine, *names: str, **values: float) -> list[Part]:
    return [Part(await digest_of(engine, name), name, value=values.get(name, 1.0)) for name in names]


def rows(engine: Engine) -> dict[str, dict[str, object]]:
    return {str(row["member"]): row for row in engine_statistics(engine)["members"]}  # type: ignore[index, union-attr]


async def test_each_part_is_fetched_once_and_counted(engine: Engine) -> None:
    """Each chunk of a mix is fetched once: of three passes of a small part beside a large one two are hits."""
    reader = Consumer(engine, await parts_of(engine, "web", "books", books=3.0))
    reader.extend(0, interleaved((0, FILES["web"], 1), (1, FILES["books"], 3)))
    await reader.read(FILES["web"] + 3 * FILES["books"])
    assert not reader.errors
    found = rows(engine)
    assert [(found[name]["needs"], found[name]["hits"]) for name in ("web", "books")] == [(40, 0), (36, 24)]
    assert found["books"]["needed_bytes"] == 3 * (found["books"]["needed_bytes"] - found["books"]["hit_bytes"])
    assert reader.session.parts.running_pass == [0, 2]
    values = engine_statistics(engine)
    assert (values["needs"], values["hits"]) == (76, 24)
    assert [row["sessions"] for row in values["datasets"]] == [1, 1]


async def test_two_parts_of_one_dataset_share_its_files(engine: Engine) -> None:
    """Two parts of one dataset, as two selections, have numbers of their own and share one file and one fetch."""
    digest = await digest_of(engine, "math")
    reader = Consumer(engine, [Part(digest, "plain"), Part(digest, "augmented")])
    reader.extend(0, [(part, chunk, 0) for chunk in range(4) for part in (0, 1)])
    await reader.read(8)
    found = rows(engine)
    assert [(found[name]["needs"], found[name]["hits"]) for name in ("plain", "augmented")] == [(4, 0), (4, 4)]
    assert engine_statistics(engine)["written_bytes"] == reader.session.collection.datasets[0].total_bytes


async def test_an_evicted_chunk_is_lost_by_all_its_numbers(engine: Engine) -> None:
    """An evicted chunk is lost under all its numbers, and is asked for again under each."""
    digest = await digest_of(engine, "math")
    reader = Consumer(engine, [Part(digest, "plain"), Part(digest, "augmented")])
    reader.extend(0, [(0, 2, 0), (1, 2, 0)])
    reader.session.advance(0, -1)
    key = reader.session.collection.key(2)
    await asyncio.sleep(0)
    await engine.in_flight.finish(60)
    await asyncio.sleep(0)
    assert all(reader.session.progress.is_local(reader.number(part, 2)) for part in (0, 1))
    assert engine._forget(key)
    engine.scheduler.ask_again_for((key,))
    assert not any(reader.session.progress.is_local(reader.number(part, 2)) for part in (0, 1))
    await reader.read(2)
    assert not reader.errors


async def test_most_passes_are_kept_first(folder: Path) -> None:
    """The part with the most passes is kept: all its uses but those of its first pass are hits."""
    limit = (FILES["books"] + 12) * 50_000 + (512 << 10)
    async with engine_of(folder, limit) as engine:
        reader = Consumer(engine, await parts_of(engine, "web", "books", books=3.0))
        uses = FILES["web"] + 3 * FILES["books"]
        for epoch in range(3):
            shifted = [
                (part, chunk, number + epoch * (3 if part else 1))
                for part, chunk, number in interleaved((0, FILES["web"], 1), (1, FILES["books"], 3), seed=epoch)
            ]
            reader.extend(epoch, shifted)
            await reader.read((epoch + 1) * uses)
        assert not reader.errors
        books = rows(engine)["books"]
        assert books["hits"] == 8 * FILES["books"]
        assert books["hit_bound"] == 1.0
        assert 0 < float(str(rows(engine)["web"]["hit_bound"])) < 0.5


async def test_a_pass_goes_on_in_the_next_epoch(engine: Engine) -> None:
    """A pass that continues in the next epoch schedules its remaining chunks as soon as they are known."""
    reader = Consumer(engine, await parts_of(engine, "math", "books", math=0.5, books=0.5))
    reader.extend(0, [(0, 0, 0), (1, 0, 0), (0, 1, 0)])
    await reader.read(1)
    reader.extend(1, [(0, 2, 0), (1, 1, 0), (0, 3, 0), (0, 0, 1)])
    scheduled = [engine.policy._sessions[name].scheduled for name in reader.session.parts.names]
    assert np.flatnonzero(scheduled[0]).tolist() == [1, 2, 3]
    await reader.read(7)
    assert reader.session.parts.running_pass == [1, 0]
    assert [vars_of(count) for count in reader.session.counts.values()] == [(3, 0), (4, 1)]


async def test_values_change_with_the_epoch_that_says_so(engine: Engine) -> None:
    """The values of an epoch's schedule count from its first step on, not when they are sent."""
    reader = Consumer(engine, await parts_of(engine, "web", "books", web=1.0, books=4.0))
    reader.extend(0, [(0, 0, 0), (1, 0, 0)])
    reader.extend(1, [(0, 1, 0), (1, 1, 0)], values=(2.0, 1.0))
    groups = {group.name: group for group in engine.policy._table.groups}
    web, books = (groups[part.dataset] for part in reader.session.request.parts)
    await reader.read(2)
    assert (web.value, books.value) == (0.25, 1.0)
    await reader.read(3)
    assert (web.value, books.value) == (1.0, 0.5)


async def test_a_schedule_without_passes_is_one_pass_an_epoch(engine: Engine) -> None:
    """A schedule without passes is one pass an epoch of each part."""
    reader = Consumer(engine, await parts_of(engine, "math", "books"))
    for epoch in range(2):
        chunks, steps = np.array([0, reader.number(1, 3)], np.uint32), np.arange(2) + 2 * epoch
        reader.session.extend(EpochSchedule(epoch, chunks, steps, steps), True)
    await reader.read(2)
    assert reader.session.parts.running_pass == [0, 0]
    await reader.read(4)
    assert reader.session.parts.running_pass == [1, 1]
    assert [vars_of(count) for count in reader.session.counts.values()] == [(2, 0), (2, 2)]


async def test_ranks_share_the_columns_of_a_mix(engine: Engine) -> None:
    """Ranks with the same mix share its columns, which take eight bytes a chunk."""
    parts = await parts_of(engine, "web", "books")
    first, second = (Consumer(engine, parts, f"rank {rank}").session for rank in range(2))
    assert first.collection is second.collection


async def test_a_member_that_is_not_here_is_named(engine: Engine) -> None:
    """A mix with a member whose manifest is missing is refused with the member's name, and opens no session."""
    web, _ = await parts_of(engine, "web", "books")
    with pytest.raises(ManifestError, match=r"^member books: no manifest") as missing:
        Consumer(engine, [web, Part("0" * 32, "books")])
    assert missing.value.details["member"] == "books"
    assert not engine.sessions


async def test_a_member_that_is_not_served_is_named(folder: Path) -> None:
    """A service refuses a mix with a member that is not among its datasets, and names the member."""
    async with engine_of(folder) as engine:
        parts = await parts_of(engine, "web", "books")
    async with engine_of(folder, datasets=[DatasetConfig(url=str(folder / "web"))]) as engine:
        with pytest.raises(AccessDeniedError, match=r"^member books: .*not among the datasets") as denied:
            Consumer(engine, parts)
        assert denied.value.details["member"] == "books"
        reader = Consumer(engine, parts[:1])
        reader.extend(0, [(0, 0, 0)])
        await reader.read(1)


async def test_a_lost_object_names_its_member(engine: Engine, folder: Path) -> None:
    """The error of a lost object names the member of the mix."""
    reader = Consumer(engine, await parts_of(engine, "web", "books"))
    for path in (folder / "books" / "a").iterdir():
        path.unlink()
    reader.extend(0, [(0, 0, 0), (1, 0, 0)])
    await reader.read(2)
    assert str(reader.errors[0]).startswith("member books: ")


async def test_a_mix_that_does_not_fit_says_what_helps(folder: Path) -> None:
    """A mix that does not fit the cache opens none of its sessions, and the error says that fewer lanes help."""
    async with engine_of(folder, limit_bytes=(512 << 10) + 3 * 50_000) as engine:
        reader = Consumer(engine, await parts_of(engine, "web", "books"))
        reader.extend(0, [(0, 0, 0), (1, 0, 0)])
        assert "lanes" in str(reader.errors[0])
        assert engine.policy.statistics().sessions == 0


@pytest.mark.parametrize(
    ("passes", "values", "said"),
    [
        (np.zeros(1, np.uint32), (), "schedule columns of 2 chunks and 1 passes"),
        (np.zeros(2, np.uint32), (1.0,), "1 values for 2 parts"),
    ],
    ids=["passes", "values"],
)
async def test_columns_that_do_not_fit_are_refused(
    engine: Engine, passes: np.ndarray, values: tuple[float], said: str
) -> None:
    """A schedule needs a pass for each use and a value for each part; other lengths raise ProtocolError."""
    reader = Consumer(engine, await parts_of(engine, "web", "books"))
    columns = np.zeros(2, np.uint32), np.arange(2), np.arange(2)
    with pytest.raises(ProtocolError, match=said):
        reader.session.extend(EpochSchedule(0, *columns, passes, values), True)


def vars_of(count: object) -> tuple[int, int]:
    return count.needs, count.hits  # type: ignore[attr-defined]
