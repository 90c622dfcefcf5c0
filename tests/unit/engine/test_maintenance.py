"""A service that lives for months: what a real engine knows and keeps is bounded by what is in use."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from streamer.config import CacheConfig, EngineConfig
from streamer.engine import datasets
from streamer.engine.engine import Engine
from streamer.engine.maintenance import remove_idle_once, repeat_after_errors
from streamer.engine.manifests.manifest_store import QUIET_SECONDS
from streamer.engine.session import EngineSession
from streamer.engine.statistics import engine_statistics
from streamer.errors import ManifestError
from streamer.manifest.reader_lock import open_held
from streamer.wire.messages import GetManifest, OpenSession, Part
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import StoreOptions

OBJECTS = 30


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """Runs an engine whose limit holds everything; only the tests remove what is idle."""
    for number in range(OBJECTS):
        write(tmp_path, number, 0)
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=64 << 20)
    async with Engine(EngineConfig(cache=cache, settle_seconds=0.0)) as engine:
        yield engine


def write(root: Path, number: int, version: int) -> None:
    path = root / "data" / "a" / f"{number:03}.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes([version % 256]) * (20_000 + version))


async def manifest_of(engine: Engine, **options: object) -> str:
    request = GetManifest(
        0, [str(engine.cache.root.parent / "data")], "auto", StoreOptions.make(options), chunk_bytes=40_000
    )
    return await engine.manifest(request, lambda text, done, total: None)


async def test_a_session_over_many_chunks_is_prepared(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a dataset with many chunks are sorted in a thread, after which its session opens at once."""
    monkeypatch.setattr(datasets, "_FEW_CHUNKS", 3)
    digest = await manifest_of(engine)
    part = Part(digest)
    assert not engine.preparation.is_done(part)
    await engine.preparation.prepare(part)
    assert engine.preparation.is_done(part)
    consumer = Consumer(engine, digest)
    await consumer.read_all()
    consumer.session.close()
    # A digest of nothing is an error of the session, as before.
    assert engine.preparation.is_done(Part("0" * 32))


class Consumer:
    """A real session that reads all of a dataset once."""

    def __init__(self, engine: Engine, digest: str, **options: object) -> None:
        self._ready = asyncio.Event()
        request = OpenSession(0, job="job", dataset=digest, consumer="rank 0", options=StoreOptions.make(options))
        self.session: EngineSession = engine.open_session(request, lambda *news: self._ready.set(), print)

    async def read_all(self) -> None:
        chunks = self.session.collection.datasets[0].manifest.chunks
        steps = np.arange(chunks)
        self.session.extend(EpochSchedule(0, steps.astype(np.uint32), steps, steps), True)
        self.session.advance(0, chunks - 1)
        while self.session.progress.last_ready_step() < chunks - 1:
            self._ready.clear()
            await asyncio.wait_for(self._ready.wait(), 20)
        self.session.advance(chunks, chunks)


async def an_hour_later(engine: Engine) -> None:
    """Dates every manifest before the quiet time, and removes what is idle twice."""
    for _ in range(2):
        for folder in (engine.cache.root / "manifests").iterdir():
            used = folder.stat().st_mtime - 2 * QUIET_SECONDS
            os.utime(folder, (used, used))
        await remove_idle_once(engine)


def sizes(engine: Engine) -> dict[str, int]:
    """Counts everything that once grew for ever."""
    manifests = engine.cache.root / "manifests"
    return {
        "fetchers": len(engine.fetchers),
        "datasets": len(engine.datasets),
        "groups": sum(group.name not in ("", "-") for group in engine.policy._table.groups),
        "manifests": len(engine.manifests.store.digests()),
        "sources": len(list((manifests / "sources").iterdir())),
        "answers": len(engine.manifests._found),
    }


async def test_a_dataset_that_is_refreshed_for_ever(engine: Engine) -> None:
    """25 versions of a dataset with new credentials leave as much behind as one, and their common chunks hit."""
    engine.connect("job")
    for version in range(1, 26):
        write(engine.cache.root.parent, version, version)
        digest = await manifest_of(engine, token=version)
        consumer = Consumer(engine, digest, token=version)
        await consumer.read_all()
        consumer.session.close()
        await an_hour_later(engine)
        assert sizes(engine) == dict.fromkeys(sizes(engine), 1) | {"fetchers": 0, "datasets": 0}
    assert len(engine.policy._table.groups) <= 3
    counts = engine_statistics(engine)
    assert counts["hits"] > 0.8 * counts["needs"]
    assert counts["store_requests"] >= 25, "also those of fetchers that are closed"


async def test_what_a_session_has_stays(engine: Engine) -> None:
    """Manifest, fetcher and chunks of an open session stay; once it has closed, all but the chunks are removed."""
    old = Consumer(engine, await manifest_of(engine, token=1), token=1)
    await old.read_all()
    write(engine.cache.root.parent, 3, 7)
    await manifest_of(engine, token=2)
    await an_hour_later(engine)
    assert (engine.cache.root / "manifests" / old.session.request.dataset).is_dir()
    assert (len(engine.datasets), len(engine.fetchers)) == (1, 1)
    old.session.close()
    await an_hour_later(engine)
    assert not (engine.cache.root / "manifests" / old.session.request.dataset).exists()
    assert (len(engine.datasets), len(engine.fetchers)) == (0, 0)
    assert len(engine.cache.keys()) > 0
    with pytest.raises(ManifestError, match="ask for it by url"):
        Consumer(engine, old.session.request.dataset)


async def test_what_a_later_session_needs_is_there(engine: Engine) -> None:
    """A manifest that is not superseded stays on the disk, so that the same listing is not indexed again."""
    digest = await manifest_of(engine)
    consumer = Consumer(engine, digest)
    await consumer.read_all()
    consumer.session.close()
    await an_hour_later(engine)
    assert (len(engine.datasets), len(engine.manifests.store.digests())) == (0, 1)
    again = Consumer(engine, digest)
    await again.read_all()
    assert engine_statistics(engine)["needs"] == 2 * engine_statistics(engine)["hits"]


async def test_manifests_count_in_the_limit(engine: Engine) -> None:
    """Manifests lower the limit of chunks, and a removed one raises it at once."""
    await manifest_of(engine)
    await an_hour_later(engine)
    whole = engine.policy.limit_bytes
    for version in (1, 2):
        write(engine.cache.root.parent, 3, version)
        await manifest_of(engine)
        assert engine.policy.limit_bytes < whole
        await an_hour_later(engine)
        assert engine.policy.limit_bytes == whole == engine.cache.limit_bytes


async def test_an_old_version_gives_its_share_of_the_room_up(engine: Engine) -> None:
    """An old version loses its quota while its job goes on with a newer one."""
    engine.connect("job")
    for version in (0, 1):
        write(engine.cache.root.parent, 3, version)
        consumer = Consumer(engine, await manifest_of(engine))
        await consumer.read_all()
        if version == 0:
            consumer.session.close()
    live = [group for group in engine.policy._table.groups if group.jobs]
    assert len(live) == 2
    await an_hour_later(engine)
    (last,) = [group for group in engine.policy._table.groups if group.jobs]
    assert last.name == consumer.session.request.dataset


async def test_a_session_uses_the_manifest_that_was_found_for_it(engine: Engine) -> None:
    """A session uses the manifest that was just found for it without opening it again; an unused one is dropped."""
    digest = await manifest_of(engine)
    root = engine.cache.root / "manifests" / digest / "root.json"
    hidden = root.with_suffix(".hidden")
    assert await manifest_of(engine) == digest
    await remove_idle_once(engine)
    root.rename(hidden)
    with pytest.raises(ManifestError, match="no manifest at"):
        Consumer(engine, digest)
    hidden.rename(root)
    assert await manifest_of(engine) == digest
    root.rename(hidden)
    Consumer(engine, digest)


async def test_nothing_is_removed_while_somebody_asks(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest is not removed while a request whose answer it may be is under way."""
    digest = await manifest_of(engine)
    asked, answer = asyncio.Event(), asyncio.Event()
    find = engine.manifests._find

    async def slowly(*question: object, **options: object) -> str:
        asked.set()
        await answer.wait()
        return await find(*question, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.manifests, "_find", slowly)
    (engine.cache.root / "manifests" / "sources").rename(engine.cache.root / "lost")  # as if superseded
    async with asyncio.TaskGroup() as group:
        task = group.create_task(manifest_of(engine))
        await asked.wait()
        await an_hour_later(engine)
        assert engine.manifests.store.digests() == {digest}
        answer.set()
    assert task.result() == digest
    await an_hour_later(engine)
    assert engine.manifests.store.digests() == {digest}, "named again"


async def test_a_reader_of_a_superseded_manifest_goes_on(engine: Engine) -> None:
    """A superseded manifest stays while a reader holds its lock, as a trainer between two epochs does."""
    digest = await manifest_of(engine)
    held = open_held(engine.cache.root / "manifests" / digest)
    write(engine.cache.root.parent, 3, 1)
    await manifest_of(engine)
    await an_hour_later(engine)
    consumer = Consumer(engine, held.digest)
    consumer.session.close()
    del held
    await an_hour_later(engine)
    assert len(engine.manifests.store.digests()) == 1


async def test_the_next_engine_removes_what_the_last_one_left(tmp_path: Path) -> None:
    """A restarted engine removes superseded manifests of the last one by what is on the disk, and keeps the chunks."""
    config = EngineConfig(cache=CacheConfig(directory=tmp_path / "cache", limit_bytes=64 << 20), settle_seconds=0.0)
    for version in range(5):
        for number in range(OBJECTS if version == 0 else 1):
            write(tmp_path, number, version)
        async with Engine(config) as engine:
            consumer = Consumer(engine, await manifest_of(engine))
            await consumer.read_all()
    async with Engine(config) as engine:
        await an_hour_later(engine)
        assert sizes(engine) == {
            "fetchers": 0, "datasets": 0, "groups": 1, "manifests": 1, "sources": 1, "answers": 0,
        }  # fmt: skip
        assert len(engine.cache.keys()) > 1


async def test_used_up_descriptors_end_no_maintenance(caplog: pytest.LogCaptureFixture) -> None:
    """Maintenance starts again after an error of the system such as used-up descriptors; other errors end it."""
    errors = [OSError(errno.EMFILE, "Too many open files"), OSError(errno.ENFILE, "of the system"), None]

    async def work() -> None:
        if (error := errors.pop(0)) is not None:
            raise error

    await repeat_after_errors("free space", work, 0.0)
    assert errors == []
    assert caplog.text.count("free space") == 2

    async def broken() -> None:
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        await repeat_after_errors("free space", broken, 0.0)


async def test_a_chunk_that_cannot_be_opened_is_not_taken_for_corrupt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that cannot be opened for lack of descriptors is not corrupt, and free space stays as measured."""
    digest = await manifest_of(engine)
    await Consumer(engine, digest).read_all()
    key = next(iter(engine.cache.keys()))

    def used_up(*arguments: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("streamer.cache.disk_trust.verify_file", used_up)
    assert await engine.cache.verify(key)
    monkeypatch.setattr(engine.cache.space, "measure", used_up)
    await engine.cache.measure()


async def test_one_job_hides_no_other_in_the_statistics(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics of too many sessions list the first ones of every job, and count those left out."""
    monkeypatch.setattr("streamer.engine.statistics._SHOWN_SESSIONS", 10)
    digest = await manifest_of(engine)
    for number in range(30):
        request = OpenSession(0, job="many", dataset=digest, consumer=f"rank {number}")
        engine.open_session(request, lambda *news: None, print)
    engine.open_session(OpenSession(0, job="one", dataset=digest, consumer="rank 0"), lambda *news: None, print)
    found = engine_statistics(engine)
    assert found["sessions_left_out"] == 21
    assert Counter(session["job"] for session in found["sessions"]) == {"many": 9, "one": 1}
