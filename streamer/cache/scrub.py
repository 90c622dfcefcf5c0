"""Background work on a cache folder: scrubbing its chunks, and watching the free space.

Both are coroutines that run until they are cancelled; the engine starts them in its own task group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy.answers import Limits

# 8 TB in eleven days, 4 % of what a SATA SSD reads.
SCRUB_BYTES_PER_SECOND = 8 << 20
# Between two passes.
SCRUB_PAUSE_SECONDS = 60.0
# The kernel has no event for free space. In 2 s other programs write 2 GB at 1 GB/s, hence the default floor.
FREE_SPACE_SECONDS = 2.0


async def scrub(
    cache: ChunkCache,
    on_damaged: Callable[[bytes], None],
    skip: Callable[[bytes], bool] = lambda key: False,
    bytes_per_second: int = SCRUB_BYTES_PER_SECOND,
    pause_seconds: float = SCRUB_PAUSE_SECONDS,
) -> None:
    """Reads every chunk periodically, slowly, and compares it with its checksums.

    Args:
        cache: an open cache.
        on_damaged: called with the key of a corrupt chunk; it must forget and evict the chunk.
        skip: returns the chunks not to read now, such as open ones: their readers check them, and their pages stay.
        bytes_per_second: rate of reading.
        pause_seconds: pause between two passes.
    """
    while True:
        resident = cache.keys()
        for key in resident:
            if skip(key) or not cache.contains(key):
                continue
            length = cache.length(key)
            if not await cache.verify(key):
                on_damaged(key)
            await cache.advise(key, "DONTNEED")
            await asyncio.sleep(length / bytes_per_second)
        # Also if every chunk was skipped: otherwise an engine whose chunks are all in use would do nothing else.
        await asyncio.sleep(pause_seconds)


async def watch_free_space(
    cache: ChunkCache, on_limit: Callable[[Limits], None], every_seconds: float = FREE_SPACE_SECONDS
) -> None:
    """Lowers the limit while other programs fill the disk, and raises it again when they free it.

    Args:
        cache: an open cache.
        on_limit: called with changed `cache.limits`; it must tell the policy and evict its victims.
        every_seconds: interval between two looks.
    """
    known = cache.limits
    while True:
        await asyncio.sleep(every_seconds)
        await cache.measure()
        if cache.limits != known:
            known = cache.limits
            on_limit(known)
