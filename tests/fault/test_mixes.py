"""Mixes: one session of a real engine over two stores (fakes), each with credentials and faults of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from streamer.config import CacheConfig, DatasetConfig, EngineConfig, FetchConfig
from streamer.engine import url_allowlist
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.errors import AccessDeniedError, StreamerError, ThrottledError
from streamer.store.base import Get, Take
from streamer.store.local_store import LocalStore
from streamer.wire.messages import GetManifest, OpenSession, Part
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import StoreOptions

CHUNK_BYTES = 64 << 10
CHUNKS = 24
KEYS = {"web": {"key": "one"}, "books": {"key": "two"}}


class Bucket(LocalStore):
    """Stands for a store with credentials: local files that are read with their folder's key alone.

    `refuses` says which requests are answered with "slow down"; no request is signed, and nothing is sent over sockets.
    """

    def __init__(self, options: Mapping[str, object], refuses: Callable[[str], bool]) -> None:
        super().__init__()
        self._key = options.get("key")
        self._refuses = refuses

    async def get(self, asked: Get, take: Take) -> None:
        url = asked.target.url
        name = Path(url).parts[-3]
        if KEYS[name]["key"] != self._key:
            raise AccessDeniedError(f"{url}: the store refuses the credentials", url=url, status=403)
        if self._refuses(name):
            raise ThrottledError(f"{url}: 503 SlowDown", url=url)
        await super().get(asked, take)


class World:
    """Two folders of files, engines that read them, and the name of the folder that refuses requests now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refusing = ""
        random = np.random.default_rng(5)
        for name in KEYS:
            (folder / name / "a").mkdir(parents=True)
            for number in range(CHUNKS):
                (folder / name / "a" / f"{number:03}.bin").write_bytes(random.bytes(CHUNK_BYTES))

    def engine(self, *served: str) -> Engine:
        fetch = FetchConfig(
            window_start=8, hedge=False, backoff_start_seconds=0.001, backoff_max_seconds=0.02, outage_seconds=60.0
        )
        datasets = tuple(DatasetConfig(url=f"{self.folder}/{name}/", storage_options=KEYS[name]) for name in served)
        cache = CacheConfig(directory=self.folder / "cache", limit_bytes=64 << 20, free_floor_bytes=0)
        return Engine(EngineConfig(cache=cache, fetch=fetch, datasets=datasets, settle_seconds=0.0))

    async def digest(self, engine: Engine, name: str) -> str:
        request = GetManifest(
            0, [f"{self.folder}/{name}/"], "auto", StoreOptions.make(KEYS[name]), chunk_bytes=CHUNK_BYTES
        )
        return await engine.manifest(request, lambda *step: None)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setattr(
        url_allowlist, "open_root", lambda root, **_: Bucket(root.options, lambda name: name == made.refusing)
    )
    return made


class Reader:
    """Stands for a rank on a mix: takes chunks of both members in turn from the engine, one a step; reads no bytes."""

    def __init__(self, engine: Engine, parts: list[Part]) -> None:
        self.errors: list[StreamerError] = []
        self.news = asyncio.Event()
        request = OpenSession(0, job="job", dataset="mix", consumer="rank 0", parts=tuple(parts))
        self.session: EngineSession = engine.open_session(request, lambda *news: self.news.set(), self._failed)
        steps = np.arange(2 * CHUNKS)
        chunks = (np.arange(2 * CHUNKS) // 2 + CHUNKS * (np.arange(2 * CHUNKS) % 2)).astype(np.uint32)
        self.session.extend(EpochSchedule(0, chunks, steps, steps, np.zeros(2 * CHUNKS, np.uint32)), True)

    def _failed(self, error: StreamerError) -> None:
        self.errors.append(error)
        self.news.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        while not reached() and not self.errors:
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 60)

    async def read(self) -> None:
        for step in range(2 * CHUNKS):
            self.session.advance(step, step)
            await self.until(lambda step=step: self.session.progress.last_ready_step() >= step)  # type: ignore[misc]


async def parts_of(world: World, engine: Engine) -> list[Part]:
    return [Part(await world.digest(engine, name), name, StoreOptions.make(KEYS[name])) for name in KEYS]


async def test_each_member_is_read_with_its_own_credentials(world: World) -> None:
    """A mix of two stores reads each member with its own credentials, by a fetcher of its own."""
    async with world.engine() as engine:
        reader = Reader(engine, await parts_of(world, engine))
        await reader.read()
        assert not reader.errors
        assert len(engine.fetchers) == 2
        assert [count.needs for count in reader.session.parts.counts] == [CHUNKS, CHUNKS]


async def test_the_wrong_credentials_of_one_member_name_it(world: World) -> None:
    """Wrong credentials of one member of a mix give the store's refusal with the member's name."""
    async with world.engine() as engine:
        web, books = await parts_of(world, engine)
        reader = Reader(engine, [web, Part(books.dataset, "books", StoreOptions.make(KEYS["web"]))])
        await reader.read()
        (error,) = reader.errors
        assert isinstance(error, AccessDeniedError)
        assert str(error).startswith("member books: ")


async def test_an_engine_with_credentials_uses_its_own(world: World) -> None:
    """An engine that has credentials of its own uses them and not those that a client sends."""
    async with world.engine() as engine:
        parts = await parts_of(world, engine)
    async with world.engine(*KEYS) as engine:
        reader = Reader(engine, [Part(part.dataset, part.name, StoreOptions.make({"key": "wrong"})) for part in parts])
        await reader.read()
        assert not reader.errors


async def test_an_engine_that_serves_one_of_them_refuses_the_mix(world: World) -> None:
    """An engine without credentials for a member of a mix refuses the session at once, by the member's name."""
    async with world.engine() as engine:
        parts = await parts_of(world, engine)
    async with world.engine("web") as engine:
        with pytest.raises(AccessDeniedError, match=r"^member books: "):
            Reader(engine, parts)


async def test_chunks_of_the_other_member_arrive_while_one_refuses(world: World) -> None:
    """While the store of one member refuses, all chunks of the other arrive, and reading goes on without an error."""
    async with world.engine() as engine:
        parts = await parts_of(world, engine)
        world.refusing = "web"
        reader = Reader(engine, parts)
        reader.session.advance(0, 0)
        books = range(CHUNKS, 2 * CHUNKS)
        progress = reader.session.progress
        while not all(progress.is_local(chunk) for chunk in books):  # noqa: ASYNC110 nothing announces look-ahead
            await asyncio.sleep(0.002)
        assert progress.last_ready_step() == -1
        assert not any(progress.is_local(chunk) for chunk in range(CHUNKS))
        world.refusing = ""
        await reader.read()
        assert not reader.errors
