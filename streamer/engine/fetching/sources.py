"""The sources of chunks: the store, or peers in front of it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Awaitable, Callable

from streamer.engine.datasets import Dataset
from streamer.engine.fetching.fetches import Fetch
from streamer.engine.fetching.publisher import Publisher
from streamer.engine.processes.messages import OpenDataset
from streamer.engine.processes.pool import FetchPool, WantedChunk
from streamer.engine.processes.process import LocalError, SharedBytes
from streamer.engine.url_allowlist import Fetchers
from streamer.errors import CacheFullError
from streamer.fetch.fetcher import Fetched

# Fetches a chunk and publishes it; raises a StreamerError where the chunk cannot be had, or the cache not be written.
Bring = Callable[[Fetch], Awaitable[None]]


class StoreSource:
    """Fetches chunks from their stores: by fetch processes where there are some, else on the engine's loop."""

    def __init__(self, fetchers: Fetchers, pool: FetchPool, publisher: Publisher) -> None:
        self._fetchers = fetchers
        self._pool = pool
        self._publisher = publisher
        # As long as the dataset is in use.
        self._described: weakref.WeakKeyDictionary[Dataset, OpenDataset] = weakref.WeakKeyDictionary()

    async def bring(self, fetch: Fetch) -> None:
        """See `Bring`."""
        if self._pool.ready and not fetch.dataset.manifest.recoded and self._publisher.writes_to_disk(fetch):
            wanted = self._describe_chunk(fetch)
            # What is wrong on this machine the loop tries itself: it makes a removed folder again, or writes to memory.
            with contextlib.suppress(LocalError, CacheFullError):
                await self._publisher.publish_with(fetch, lambda: self._pool.publish(wanted))
                return
        with contextlib.closing(await self.fetch(fetch)) as fetched:
            await self._publisher.publish(fetch, fetched)

    async def fetch(self, fetch: Fetch) -> Fetched | SharedBytes:
        """Returns the bytes of a chunk as its store has them."""
        if self._pool.ready:
            with contextlib.suppress(LocalError):
                return await self._pool.fetch(self._describe_chunk(fetch))
        manifest = fetch.dataset.manifest
        chunk = manifest.chunk(fetch.chunk)
        async with self._fetchers.get_for_chunk(chunk, fetch.dataset.options) as fetcher:
            return await fetcher.fetch(chunk, due=fetch.due, owner=fetch.owner, shared=manifest.recoded)

    def _describe_chunk(self, fetch: Fetch) -> WantedChunk:
        """Describes a chunk for a fetch process.

        Raises:
            AccessDeniedError: an object of the chunk is not served with the options of the dataset.
        """
        dataset = fetch.dataset
        allowlist = self._fetchers.allowlist
        if allowlist.restricted:
            allowlist.check_chunk(dataset.manifest.chunk(fetch.chunk), dataset.options)
        return WantedChunk(self._describe_dataset(dataset), fetch.chunk, dataset.requests, fetch.due, fetch.owner)

    def _describe_dataset(self, dataset: Dataset) -> OpenDataset:
        """Returns the dataset as processes know it: another object where its options have changed."""
        known = self._described.get(dataset)
        if known is None or known.options is not dataset.options:
            known = OpenDataset(dataset.name, str(dataset.manifest.path), dataset.options)
            self._described[dataset] = known
        return known


class Sources:
    """The source of the moment: peers while the engine shares caches, else the store."""

    def __init__(self, store: StoreSource) -> None:
        self.store = store
        self._by_peers: Bring | None = None

    def __repr__(self) -> str:
        return f"Sources(peers={self._by_peers is not None})"

    def use_peers(self, bring: Bring | None) -> None:
        """Sets how later fetches ask peers before the store; with None they do not."""
        self._by_peers = bring

    async def bring(self, fetch: Fetch) -> None:
        """See `Bring`."""
        fetch.dataset.check_key(fetch.chunk)
        await (self._by_peers or self.store.bring)(fetch)
