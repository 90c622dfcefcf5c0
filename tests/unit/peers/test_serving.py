"""A real engine that serves peers without a network: when a fetch for peers is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.bring import Fetch
from streamer.engine.engine import Engine
from streamer.peers.protocol import ChunkRequest
from streamer.peers.serving import Serving
from streamer.wire.messages import GetManifest


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine and a folder with one file of one chunk."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/one.bin").write_bytes(bytes(1000))
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=8 << 20)
    async with Engine(EngineConfig(cache=cache, settle_seconds=0.0)) as engine:
        yield engine


async def test_the_first_peer_that_needs_a_chunk_says_when_it_is_due(engine: Engine) -> None:
    """A fetch for several peers is due when the first of them needs the chunk, whichever asked first."""
    url = str(engine.cache.root.parent / "data")
    digest = await engine.manifest(GetManifest(0, [url], "auto"), lambda text, done, total: None)
    dataset = engine.datasets.get(digest, {})
    serving, key, go = Serving(engine, lambda digest, member: None), dataset.key(0), asyncio.Event()
    fetches: list[Fetch] = []

    async def bring_late(fetch: Fetch) -> None:
        fetches.append(fetch)
        await go.wait()
        await engine.sources.store.bring(fetch)

    engine.sources.use_peers(bring_late)
    begun = engine.now()
    for member, due_seconds in (("a", 60.0), ("b", 5.0), ("c", 30.0)):
        assert await serving.serve(ChunkRequest(key, digest, member, due_seconds=due_seconds)) == "coming"
    await asyncio.sleep(0)
    [fetch] = fetches
    assert 5.0 <= fetch.due() - begun < 30.0
    go.set()
    assert fetch.task is not None
    await fetch.task
    assert await serving.serve(ChunkRequest(key, digest, "a", wait=True, due_seconds=1.0)) == "there"
