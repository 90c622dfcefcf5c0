"""Publishes fetched chunks: recodes them where the format needs it, and writes them to the cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from streamer.cache.chunk_cache import ChunkCache
from streamer.engine.fetching.fetches import Fetch
from streamer.engine.processes.process import SharedBytes
from streamer.errors import CacheError
from streamer.fetch.fetcher import Fetched
from streamer.formats import chunkfile
from streamer.manifest.model import Chunk
from streamer.recode.messages import RecodeJob
from streamer.recode.pool import RecoderPool

logger = logging.getLogger(__name__)

# The key of a chunk that is about to be published, and the length of its file, which is not the planned one.
OnResize = Callable[[bytes, int], object]


class Publisher:
    """Publishes chunks, and removes the files that are evicted for them first. Owned by the engine, on its loop.

    Args:
        cache: takes the chunks.
        recoders: for the chunks of blocked formats.
        tasks: runs the removals.
        on_resize: called with key and length where the file of a chunk has another length than planned.
    """

    def __init__(self, cache: ChunkCache, recoders: RecoderPool, tasks: asyncio.TaskGroup, on_resize: OnResize) -> None:
        self._cache = cache
        self._recoders = recoders
        self._tasks = tasks
        self._on_resize = on_resize
        self._unlinking: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Publisher(unlinking={len(self._unlinking)})"

    def unlink(self, keys: Iterable[bytes]) -> None:
        """Removes files in the background; nothing is written before they are gone."""
        victims = list(keys)
        if victims:
            task = self._tasks.create_task(self._evict(victims))
            self._unlinking.add(task)
            task.add_done_callback(self._unlinking.discard)

    def writes_to_disk(self, fetch: Fetch) -> bool:
        """Whether the chunk goes to the disk, and does not pass through memory."""
        return not self._cache.space.refused and self._cache.trusts_disk_with(fetch.key)

    async def wait_for_unlinks(self) -> None:
        """Waits until the files that were to be removed are gone."""
        while self._unlinking:
            await asyncio.wait(set(self._unlinking))

    async def publish(self, fetch: Fetch, fetched: Fetched | SharedBytes) -> None:
        """Publishes what the store sent, recoded where the format needs it."""
        manifest = fetch.dataset.manifest
        chunk = manifest.chunk(fetch.chunk)
        if manifest.recoded:
            await self._recode(fetch, chunk, fetched)
        else:
            await self._write(fetch, chunk, fetched.parts, manifest.sample_offsets(fetch.chunk))

    async def publish_with(self, fetch: Fetch, write: Callable[[], Awaitable[object]]) -> None:
        """Publishes a chunk whose file another process writes; `write` returns when the file is there."""
        await self.wait_for_unlinks()
        length = int(fetch.dataset.file_bytes[fetch.chunk])
        digest = fetch.dataset.manifest.digest
        await self._cache.publish_with(write, fetch.key, length, digest)

    async def publish_samples(self, fetch: Fetch, content: memoryview, offsets: NDArray[np.int64]) -> None:
        """Publishes the content of a peer's chunk file: its entries as they are stored, and their boundaries."""
        chunk = fetch.dataset.manifest.chunk(fetch.chunk)
        if fetch.dataset.manifest.recoded:
            self._on_resize(fetch.key, chunkfile.file_bytes(len(content), len(offsets) - 1))
        await self._write(fetch, chunk, [content], offsets)

    async def _recode(self, fetch: Fetch, chunk: Chunk, fetched: Fetched | SharedBytes) -> None:
        job = RecodeJob.make(fetch.dataset.manifest, chunk)
        async with self._recoders.recode(job, chunk, fetched.content, due=fetch.due) as recoded:
            self._on_resize(fetch.key, chunkfile.file_bytes(len(recoded.content), recoded.table.entries))
            await self._write(fetch, chunk, [recoded.content], recoded.table.starts)

    async def _write(self, fetch: Fetch, chunk: Chunk, parts: list[memoryview], offsets: NDArray[np.int64]) -> None:
        await self.wait_for_unlinks()
        before = self._cache.limits
        digest = fetch.dataset.manifest.digest
        try:
            await self._cache.publish(fetch.key, parts, offsets, codec=chunk.codec, dataset=digest)
        finally:
            # A disk that refuses writes lowers the limit.
            if self._cache.limits != before:
                fetch.limits = self._cache.limits

    async def _evict(self, keys: list[bytes]) -> None:
        try:
            await self._cache.evict(keys)
        except CacheError as error:
            logger.info("%s; their bytes stay counted", error)
