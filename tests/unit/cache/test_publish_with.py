"""Chunks that another writer than the cache writes: reserved before, in the catalog after, removed on failure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.policy.table import charge
from streamer.config import CacheConfig
from streamer.errors import CacheFullError

KEY = bytes(range(16))
CONTENT = ChunkBytes(KEY, [bytes(5000)], np.array([0, 5000]))
LENGTH = 5000 + 64 + 4


def opened(folder: Path, limit_bytes: int = 4 << 20) -> ChunkCache:
    return ChunkCache(CacheConfig(directory=folder, limit_bytes=limit_bytes))


async def test_the_bytes_are_reserved_while_it_writes(tmp_path: Path) -> None:
    """A chunk's bytes are charged as unwritten while its writer runs, since the disk still counts them as free."""
    seen = []
    async with opened(tmp_path) as cache:

        async def write() -> None:
            seen.append((cache.space.charged_bytes, cache.space.unwritten_bytes, cache.contains(KEY)))
            write_chunk(CONTENT, cache.folder)

        await cache.publish_with(write, KEY, LENGTH, "digest")
        assert seen == [(charge(LENGTH), charge(LENGTH), False)]
        assert (cache.space.unwritten_bytes, cache.length(KEY)) == (0, LENGTH)
        assert await cache.verify(KEY)
    async with opened(tmp_path) as again:
        assert [(dataset, keys.tolist()) for dataset, keys, _ in again.found] == [("digest", [KEY])] or again.keys()


async def test_nothing_is_left_of_one_that_fails(tmp_path: Path) -> None:
    """A failed writer leaves no charge and no file, even if it failed after its rename."""
    async with opened(tmp_path) as cache:

        async def write() -> None:
            write_chunk(CONTENT, cache.folder)
            raise OSError("killed")

        with pytest.raises(OSError, match="killed"):
            await cache.publish_with(write, KEY, LENGTH, "digest")
        assert not cache.folder.chunk_path(KEY).exists()
        assert (cache.space.charged_bytes, cache.space.unwritten_bytes, cache.contains(KEY)) == (0, 0, False)


async def test_a_chunk_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    """`publish_with` neither runs the writer nor reserves bytes for a chunk that is cached."""
    async with opened(tmp_path) as cache:
        await cache.publish(KEY, CONTENT.parts, CONTENT.sample_offsets)
        taken = cache.space.charged_bytes

        async def write() -> None:
            raise AssertionError("it is there")

        await cache.publish_with(write, KEY, LENGTH, "digest")
        assert cache.space.charged_bytes == taken


async def test_a_chunk_without_room_is_not_begun(tmp_path: Path) -> None:
    """`publish_with` raises CacheFullError before the writer runs where the chunk does not fit the limit."""
    async with opened(tmp_path, limit_bytes=600_000) as cache:

        async def write() -> None:
            raise AssertionError("no room")

        with pytest.raises(CacheFullError):
            await cache.publish_with(write, KEY, 10_000_000, "digest")
        assert (cache.space.charged_bytes, cache.space.unwritten_bytes) == (0, 0)
