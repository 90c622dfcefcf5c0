"""Advises the kernel about pages of chunks.

A cache that fits into memory needs no advice: its pages stay. In a larger one, chunks that are needed soon are read
ahead, and the pages of used chunks are dropped, because they are not needed before the next epoch.
"""

from __future__ import annotations

import asyncio
import os

from streamer.cache.chunk_cache import ChunkCache

# Advice begins where the chunks on the disk take more than this share of the memory.
MEMORY_SHARE = 0.5


class PageCache:
    """Advises about single chunks, in the background. On the engine's loop."""

    def __init__(self, cache: ChunkCache, tasks: asyncio.TaskGroup) -> None:
        self._cache = cache
        self._tasks = tasks
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def advises(self) -> bool:
        """Whether there is more on the disk than the page cache can hold."""
        return self._cache.space.charged_bytes > MEMORY_SHARE * self._memory_bytes

    def will_need(self, key: bytes) -> None:
        """Advises that a chunk on the disk will be read soon."""
        if self.advises:
            self._tasks.create_task(self._cache.advise(key, "WILLNEED"))

    def dont_need(self, key: bytes) -> None:
        """Advises that a chunk was read completely."""
        if self.advises:
            self._tasks.create_task(self._cache.advise(key, "DONTNEED"))
