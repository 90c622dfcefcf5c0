"""Brings chunks to the cache: fetches them from the store or from peers, recodes blocked ones, and publishes them.

`in_flight.py` runs each `Fetch` by `Sources.bring`. While engines share their caches, `peers/source.py` is asked before
the store, and uses `Publisher` and `StoreSource` of this module. `peers/serving.py` makes fetches for other engines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy.answers import CacheLimits
from streamer.engine.datasets import Dataset
from streamer.engine.processes.messages import OpenDataset
from streamer.engine.processes.pool import FetchPool, WantedChunk
from streamer.engine.processes.process import LocalError, SharedBytes
from streamer.engine.session import EngineSession
from streamer.engine.url_allowlist import Fetchers
from streamer.errors import CacheError, CacheFullError
from streamer.fetch.fetcher import Fetched
from streamer.formats import chunkfile
from streamer.manifest.model import Chunk
from streamer.recode.messages import RecodeJob
from streamer.recode.pool import RecoderPool

logger = logging.getLogger(__name__)

# Called with the key of a chunk that is about to be published, and the bytes of its file, which may not be as planned.
OnResize = Callable[[bytes, int], object]


class Waiter(msgspec.Struct):
    """A session that waits for a fetch, the session's number for the chunk, and its first step that needs the chunk."""

    session: EngineSession
    chunk: int
    step: int

    def shares_options(self, fetch: Fetch) -> bool:
        """Whether the fetch reads with the storage options of the session, since it reads the session's own dataset."""
        part, _ = self.session.collection.locate(self.chunk)
        return self.session.collection.datasets[part] is fetch.dataset


class Fetch(msgspec.Struct):
    """One chunk on its way between store and SSD.

    Attributes:
        key: key of the chunk.
        dataset: the dataset with whose storage options it is read.
        chunk: number of the chunk in the dataset.
        waiters: sessions that wait for it.
        task: the task that runs the fetch. None means that it is not started.
        peer_due: time at which the first peer that waits for it needs it, in seconds on the loop's clock.
        limits: limits of the cache if publishing changed them, which the policy must be told. Otherwise None.
    """

    key: bytes
    dataset: Dataset
    chunk: int
    waiters: list[Waiter] = msgspec.field(default_factory=list)
    task: asyncio.Task[None] | None = None
    peer_due: float = math.inf
    limits: CacheLimits | None = None

    def owner(self) -> str:
        """Returns the `owner` (job) of the session that needs it first, or "" if only peers wait for it."""
        first = min(self.waiters, key=lambda waiter: waiter.session.due_at(waiter.step), default=None)
        return "" if first is None else first.session.owner

    def due(self) -> float:
        """Returns when the first session or peer that waits for it needs it, in seconds on the loop's clock.

        It is infinity if none waits.
        """
        return min(self.peer_due, *(waiter.session.due_at(waiter.step) for waiter in self.waiters), math.inf)


class Publisher:
    """Publishes chunks, after the files that were evicted for them are removed. The engine has one, on its loop.

    Args:
        cache: the cache, which takes the chunks.
        recoders: make records of the chunks of blocked formats.
        tasks: group of the tasks that remove files.
        on_resize: called with key and length in bytes of a chunk's file whose length may not be as planned.
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
        """Removes the files of evicted chunks in the background; no chunk is written before they are gone."""
        victims = list(keys)
        if victims:
            task = self._tasks.create_task(self._evict(victims))
            self._unlinking.add(task)
            task.add_done_callback(self._unlinking.discard)

    def writes_to_disk(self, fetch: Fetch) -> bool:
        """Whether the chunk will be written to the disk, not to memory, because the disk takes and keeps it."""
        return not self._cache.space.refused and self._cache.trusts_disk_with(fetch.key)

    async def wait_for_unlinks(self) -> None:
        """Waits until the files that were to be removed are gone."""
        while self._unlinking:
            await asyncio.wait(set(self._unlinking))

    async def publish(self, fetch: Fetch, fetched: Fetched | SharedBytes) -> None:
        """Publishes the bytes of a chunk as its store has them, after recoding them if the format needs it.

        Raises:
            StreamerError: the chunk cannot be recoded, or the cache cannot be written.
            OSError: the engine lacks descriptors or memory.
        """
        manifest = fetch.dataset.manifest
        chunk = manifest.chunk(fetch.chunk)
        if not manifest.recoded:
            await self._write(fetch, chunk, fetched.parts, manifest.sample_offsets(fetch.chunk))
            return
        job = RecodeJob.make(manifest, chunk)
        async with self._recoders.recode(job, chunk, fetched.content, due=fetch.due) as recoded:
            self._on_resize(fetch.key, chunkfile.file_bytes(len(recoded.content), recoded.table.entries))
            await self._write(fetch, chunk, [recoded.content], recoded.table.starts)

    async def publish_with(self, fetch: Fetch, write: Callable[[], Awaitable[object]]) -> None:
        """Publishes a chunk whose file another process writes, as `ChunkCache.publish_with`."""
        await self.wait_for_unlinks()
        length = int(fetch.dataset.file_bytes[fetch.chunk])
        digest = fetch.dataset.manifest.digest
        await self._cache.publish_with(write, fetch.key, length, digest)

    async def publish_samples(self, fetch: Fetch, content: memoryview, offsets: NDArray[np.int64]) -> None:
        """Publishes the content of a peer's chunk file, which needs no recoding.

        Args:
            fetch: the chunk.
            content: entries of the file as they are stored.
            offsets: where entries begin in the content, and where the last one ends, (entries + 1,).

        Raises:
            CacheError, ConfigError, OSError: the cache cannot be written, as `ChunkCache.publish`.
        """
        chunk = fetch.dataset.manifest.chunk(fetch.chunk)
        if fetch.dataset.manifest.recoded:
            self._on_resize(fetch.key, chunkfile.file_bytes(len(content), len(offsets) - 1))
        await self._write(fetch, chunk, [content], offsets)

    async def _write(self, fetch: Fetch, chunk: Chunk, parts: list[memoryview], offsets: NDArray[np.int64]) -> None:
        """Writes a chunk's bytes to the cache, after evicted files are gone; sets `fetch.limits` if limits changed."""
        await self.wait_for_unlinks()
        before = self._cache.limits
        digest = fetch.dataset.manifest.digest
        try:
            await self._cache.publish(fetch.key, parts, offsets, codec=chunk.codec, dataset=digest)
        finally:
            # A disk that refuses writes lowers the limits.
            if self._cache.limits != before:
                fetch.limits = self._cache.limits

    async def _evict(self, keys: list[bytes]) -> None:
        try:
            await self._cache.evict(keys)
        except CacheError as error:
            logger.info("%s; their bytes stay counted", error)


# Fetches a chunk and publishes it; raises a StreamerError if the chunk cannot be had, or the cache cannot be written,
# and an OSError if the engine lacks descriptors or memory.
Bring = Callable[[Fetch], Awaitable[None]]


class StoreSource:
    """Fetches chunks from their stores: by fetch processes if there are some, otherwise on the engine's loop.

    Args:
        fetchers: the engine's own fetchers.
        pool: the fetch processes.
        publisher: publishes what is fetched.
    """

    def __init__(self, fetchers: Fetchers, pool: FetchPool, publisher: Publisher) -> None:
        self._fetchers = fetchers
        self._pool = pool
        self._publisher = publisher
        # Messages that name datasets to fetch processes. Each lives as long as its dataset is in use.
        self._described: weakref.WeakKeyDictionary[Dataset, OpenDataset] = weakref.WeakKeyDictionary()

    async def bring(self, fetch: Fetch) -> None:
        """Fetches a chunk and publishes it; see `Bring`."""
        if self._pool.ready and not fetch.dataset.manifest.recoded and self._publisher.writes_to_disk(fetch):
            wanted = self._describe_chunk(fetch)
            # If something is wrong on this machine, the loop tries by itself: it makes a removed folder again, or
            # writes to memory.
            with contextlib.suppress(LocalError, CacheFullError):
                await self._publisher.publish_with(fetch, lambda: self._pool.publish(wanted))
                return
        with contextlib.closing(await self.fetch(fetch)) as fetched:
            await self._publisher.publish(fetch, fetched)

    async def fetch(self, fetch: Fetch) -> Fetched | SharedBytes:
        """Returns the bytes of a chunk as its store has them; the caller closes them.

        Raises:
            StreamerError: they cannot be had.
        """
        if self._pool.ready:
            with contextlib.suppress(LocalError):
                return await self._pool.fetch(self._describe_chunk(fetch))
        manifest = fetch.dataset.manifest
        chunk = manifest.chunk(fetch.chunk)
        async with self._fetchers.use_for_chunk(chunk, fetch.dataset.options) as fetcher:
            return await fetcher.fetch(chunk, due=fetch.due, owner=fetch.owner, shared=manifest.recoded)

    def _describe_chunk(self, fetch: Fetch) -> WantedChunk:
        """Returns a chunk as the pool of fetch processes is asked for it.

        Raises:
            AccessDeniedError: an object of the chunk is not served with the options of the dataset.
        """
        dataset = fetch.dataset
        allowlist = self._fetchers.allowlist
        if allowlist.restricted:
            allowlist.check_chunk(dataset.manifest.chunk(fetch.chunk), dataset.options)
        # A process is told of a dataset again if this object is another one, so a new one is made for new options.
        known = self._described.get(dataset)
        if known is None or known.options is not dataset.options:
            known = OpenDataset(dataset.name, str(dataset.manifest.path), dataset.options)
            self._described[dataset] = known
        return WantedChunk(
            dataset=known,
            chunk=fetch.chunk,
            requests=dataset.requests,
            due=fetch.due,
            owner=fetch.owner,
        )


class Sources:
    """Brings chunks from peers first while the engine shares caches, otherwise from the store.

    Args:
        store: brings chunks from the store.
    """

    def __init__(self, store: StoreSource) -> None:
        self.store = store
        self._by_peers: Bring | None = None

    def __repr__(self) -> str:
        return f"Sources(peers={self._by_peers is not None})"

    def use_peers(self, bring: Bring | None) -> None:
        """Sets the function that brings later chunks, which asks peers before the store. None means the store alone."""
        self._by_peers = bring

    async def bring(self, fetch: Fetch) -> None:
        """Fetches a chunk, from peers if there are any, and publishes it; see `Bring`. Checks its key before."""
        fetch.dataset.check_key(fetch.chunk)
        await (self._by_peers or self.store.bring)(fetch)
