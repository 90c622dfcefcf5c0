"""Chunks in flight: one fetch per chunk key, however many sessions wait for it; recoded where the format needs it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy.answers import Limits
from streamer.engine.datasets import Dataset
from streamer.engine.fetchers import Fetchers
from streamer.engine.session import EngineSession
from streamer.errors import BrokenError, CacheError, StreamerError
from streamer.fetch.fetcher import Fetched
from streamer.formats import chunkfile
from streamer.manifest.model import Chunk
from streamer.recode.messages import Job
from streamer.recode.pool import RecoderPool

logger = logging.getLogger(__name__)


class Waiter(msgspec.Struct):
    """A session that waits for a fetch, and the step at which it needs the chunk."""

    session: EngineSession
    chunk: int
    step: int


class Fetch(msgspec.Struct):
    """One chunk between store and SSD.

    Attributes:
        chunk: its number in the dataset.
        peer_due: when the first peer that waits for it needs it, on the loop's clock.
        limits: the cache's new ones, where publishing changed them.
    """

    key: bytes
    dataset: Dataset
    chunk: int
    waiters: list[Waiter] = msgspec.field(default_factory=list)
    task: asyncio.Task[None] | None = None
    peer_due: float = math.inf
    limits: Limits | None = None

    def owner(self) -> str:
        """The job that needs it first; "" without waiters."""
        first = min(self.waiters, key=lambda waiter: waiter.session.due_at(waiter.step), default=None)
        return "" if first is None else first.session.owner

    def due(self) -> float:
        """When the first session or peer that waits for it needs it, on the loop's clock; infinity without them."""
        return min(self.peer_due, *(waiter.session.due_at(waiter.step) for waiter in self.waiters), math.inf)


class FetchListener(Protocol):
    """Is told of fetches."""

    def fetch_finished(self, fetch: Fetch, error: StreamerError | None) -> None:
        """A fetch is over, with the error if it failed."""
        ...

    def chunk_resized(self, key: bytes, file_bytes: int) -> None:
        """The file of a chunk that is about to be published has another length than planned."""
        ...


class InFlight:
    """Fetches, recodes and publishes. Owned by the engine, on its loop.

    Args:
        cache: takes the chunks.
        fetchers: by the credentials of each dataset.
        recoders: for the chunks of blocked formats.
        tasks: runs the fetches.
        listener: the scheduler.

    Attributes:
        bring: brings the chunk of a fetch; from the store, unless peers take this over.
    """

    def __init__(
        self,
        cache: ChunkCache,
        fetchers: Fetchers,
        recoders: RecoderPool,
        tasks: asyncio.TaskGroup,
        listener: FetchListener,
    ) -> None:
        self._cache = cache
        self._fetchers = fetchers
        self._recoders = recoders
        self._tasks = tasks
        self._listener = listener
        self._fetches: dict[bytes, Fetch] = {}
        self._unlinking: set[asyncio.Task[None]] = set()
        self.bring: Callable[[Fetch], Awaitable[None]] = self.bring_from_store

    def __len__(self) -> int:
        return len(self._fetches)

    def start(self, key: bytes, waiter: Waiter, victims: Iterable[bytes] = ()) -> None:
        """Starts the fetch of a chunk; the files of `victims` are removed before it is published."""
        self.unlink(victims)
        part, chunk = waiter.session.collection.locate(waiter.chunk)
        self._begin(Fetch(key, waiter.session.collection.datasets[part], chunk, [waiter]))

    def start_for_peer(self, fetch: Fetch, victims: Iterable[bytes] = ()) -> None:
        """As `start`, for a chunk that no session of this engine waits for."""
        self.unlink(victims)
        self._begin(fetch)

    def find(self, key: bytes) -> Fetch | None:
        """The running fetch of a chunk."""
        return self._fetches.get(key)

    def _begin(self, fetch: Fetch) -> None:
        self._fetches[fetch.key] = fetch
        fetch.task = self._tasks.create_task(self._run(fetch), name=f"fetch {fetch.key.hex()}")

    def join(self, key: bytes, waiter: Waiter) -> bool:
        """Adds a waiter to a running fetch; False: there is none."""
        fetch = self._fetches.get(key)
        if fetch is not None:
            fetch.waiters.append(waiter)
        return fetch is not None

    def leave(self, session: EngineSession) -> None:
        """The session is closed; its fetches continue for other sessions and for the cache."""
        for fetch in self._fetches.values():
            fetch.waiters = [waiter for waiter in fetch.waiters if waiter.session is not session]

    def datasets(self) -> list[Dataset]:
        """The datasets that chunks are being fetched of."""
        return [fetch.dataset for fetch in self._fetches.values()]

    def unlink(self, keys: Iterable[bytes]) -> None:
        """Removes files in the background; nothing is written before they are gone."""
        victims = list(keys)
        if victims:
            task = self._tasks.create_task(self._evict(victims))
            self._unlinking.add(task)
            task.add_done_callback(self._unlinking.discard)

    async def finish(self, seconds: float) -> int:
        """Waits at most `seconds` for the running fetches; returns how many are left."""
        tasks = [fetch.task for fetch in self._fetches.values() if fetch.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return len(self._fetches)

    def cancel(self) -> None:
        """Cancels all fetches."""
        for fetch in self._fetches.values():
            if fetch.task is not None:
                fetch.task.cancel()

    async def _run(self, fetch: Fetch) -> None:
        error: StreamerError | None = None
        try:
            await self.bring(fetch)
        except StreamerError as failure:
            error = failure
        except Exception as failure:
            logger.exception("fetch of chunk %s failed", fetch.key.hex())
            error = BrokenError(f"the engine failed over chunk {fetch.chunk}: {failure!r}; see its log")
        finally:
            del self._fetches[fetch.key]
        self._listener.fetch_finished(fetch, error)

    async def bring_from_store(self, fetch: Fetch) -> None:
        """Fetches a chunk from its store and publishes it."""
        with await self.from_store(fetch) as fetched:
            await self.take(fetch, fetched)

    async def from_store(self, fetch: Fetch) -> Fetched:
        """The bytes of a chunk as its store has them."""
        manifest = fetch.dataset.manifest
        chunk = manifest.chunk(fetch.chunk)
        async with self._fetchers.of_chunk(chunk, fetch.dataset.options) as fetcher:
            return await fetcher.fetch(chunk, due=fetch.due, owner=fetch.owner, shared=manifest.recoded)

    async def take(self, fetch: Fetch, fetched: Fetched) -> None:
        """Publishes what its store sent, recoded where the format needs it."""
        manifest = fetch.dataset.manifest
        chunk = manifest.chunk(fetch.chunk)
        if manifest.recoded:
            await self._recode(fetch, chunk, fetched)
        else:
            await self._publish(fetch, chunk, fetched.parts, manifest.sample_offsets(fetch.chunk))

    async def take_ready(self, fetch: Fetch, content: memoryview, offsets: NDArray[np.int64]) -> None:
        """Publishes what a chunk file of a peer contained: samples as they are stored, and their boundaries."""
        chunk = fetch.dataset.manifest.chunk(fetch.chunk)
        if fetch.dataset.manifest.recoded:
            self._listener.chunk_resized(fetch.key, chunkfile.file_bytes(len(content), chunk.samples + 1))
        await self._publish(fetch, chunk, [content], offsets)

    async def _recode(self, fetch: Fetch, chunk: Chunk, fetched: Fetched) -> None:
        job = Job.of(fetch.dataset.manifest, chunk)
        async with self._recoders.recode(job, chunk, fetched.content, due=fetch.due) as recoded:
            self._listener.chunk_resized(fetch.key, chunkfile.file_bytes(len(recoded.content), chunk.samples + 1))
            await self._publish(fetch, chunk, [recoded.content], recoded.offsets)

    async def _publish(self, fetch: Fetch, chunk: Chunk, parts: list[memoryview], offsets: NDArray[np.int64]) -> None:
        await self._evictions_done()
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

    async def _evictions_done(self) -> None:
        while self._unlinking:
            await asyncio.wait(set(self._unlinking))
