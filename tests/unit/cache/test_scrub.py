"""The background tasks of a real cache: the scrub finds damage by itself, the watch follows the free space."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.chunk_files import ChunkBytes
from streamer.cache.policy.answers import CacheLimits
from streamer.config import CacheConfig
from streamer.engine.maintenance import scrub, watch_free_space

MakeChunk = Callable[..., ChunkBytes]
FAST = 1 << 40


async def test_the_scrub_leaves_the_loop_alone_when_all_is_held(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """The scrub pauses after a pass in which every chunk was held by readers (2026-11-20: it kept the loop busy)."""
    asked: list[bytes] = []
    async with ChunkCache(config) as cache:
        chunk = make_chunk(0)
        await cache.publish(chunk.key, chunk.parts, chunk.sample_offsets)

        def skip(key: bytes) -> bool:
            asked.append(key)
            return True

        task = asyncio.create_task(scrub(cache, asked.append, skip, FAST))
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asked == [chunk.key]


async def test_the_scrub_reports_a_damaged_chunk(config: CacheConfig, make_chunk: MakeChunk) -> None:
    """The scrub reports damaged chunks again in each pass, and neither sound ones nor those it is told to skip."""
    found: asyncio.Queue[bytes] = asyncio.Queue()
    async with ChunkCache(config) as cache:
        chunks = [make_chunk(number) for number in range(3)]
        for chunk in chunks:
            await cache.publish(chunk.key, chunk.parts, chunk.sample_offsets)
        for chunk in chunks[:2]:
            path = cache.path(chunk.key)
            assert path is not None
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        skipped = chunks[0].key
        task = asyncio.create_task(scrub(cache, found.put_nowait, lambda key: key == skipped, FAST, 0.0))
        keys = {await found.get() for _ in range(3)}
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert keys == {chunks[1].key}


async def test_the_watch_tells_a_lower_limit_and_a_higher_one(
    config: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch reports a lower limit when the disk fills and a higher one when space is free again."""
    real = os.statvfs(config.directory.parent)

    class Full:
        f_blocks, f_frsize, f_bavail, f_flag, f_files = real.f_blocks, real.f_frsize, 0, 0, 0

    limits: asyncio.Queue[CacheLimits] = asyncio.Queue()
    async with ChunkCache(replace(config, free_floor_bytes=8192)) as cache:
        whole = cache.limit_bytes
        task = asyncio.create_task(watch_free_space(cache, limits.put_nowait, 0.001))
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", lambda path: Full)
            assert (await limits.get()).limit_bytes == 0
        assert (await limits.get()).limit_bytes == whole
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
