"""What the kernel is told of chunks, so that the page cache serves the trainer.

What fits into memory needs no advice: its pages stay. More than that does: chunks that come up are read ahead, and
chunks that were used are dropped, for they are not needed before the next epoch.
"""

from __future__ import annotations

import asyncio
import os

from streamer.cache.chunk_cache import ChunkCache

# Advice begins where the chunks on the disk take more than this share of the memory.
MEMORY_SHARE = 0.5


class Pages:
    """Advises about single chunks, in the background. On the engine's loop.

    Args:
        cache: whose files.
        tasks: where advice runs.
    """

    def __init__(self, cache: ChunkCache, tasks: asyncio.TaskGroup) -> None:
        self._cache = cache
        self._tasks = tasks
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def advises(self) -> bool:
        """Whether there is more on the disk than the page cache can hold."""
        return self._cache.charged_bytes > MEMORY_SHARE * self._memory_bytes

    def due(self, key: bytes) -> None:
        """A chunk that lies on the disk will be read soon."""
        if self.advises:
            self._tasks.create_task(self._cache.readahead(key))

    def used(self, key: bytes) -> None:
        """A chunk was read to its end."""
        if self.advises:
            self._tasks.create_task(self._cache.drop(key))
