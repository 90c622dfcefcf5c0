"""Where chunks come from: the store, or peers in front of it."""

from __future__ import annotations

from typing import Protocol

from streamer.engine.fetching.fetchers import Fetchers
from streamer.engine.fetching.fetches import Fetch
from streamer.engine.fetching.publisher import Publisher
from streamer.fetch.fetcher import Fetched


class ChunkSource(Protocol):
    """Brings chunks. On the engine's loop."""

    async def bring(self, fetch: Fetch) -> None:
        """Fetches a chunk and publishes it.

        Raises:
            StreamerError: it cannot be had, or the cache not be written.
        """
        ...


class StoreSource:
    """Fetches chunks from their stores.

    Args:
        fetchers: by the credentials of each dataset.
        publisher: takes what was fetched.
    """

    def __init__(self, fetchers: Fetchers, publisher: Publisher) -> None:
        self._fetchers = fetchers
        self._publisher = publisher

    async def bring(self, fetch: Fetch) -> None:
        """See ChunkSource.bring."""
        with await self.fetch(fetch) as fetched:
            await self._publisher.publish(fetch, fetched)

    async def fetch(self, fetch: Fetch) -> Fetched:
        """Returns the bytes of a chunk as its store has them."""
        manifest = fetch.dataset.manifest
        chunk = manifest.chunk(fetch.chunk)
        async with self._fetchers.of_chunk(chunk, fetch.dataset.options) as fetcher:
            return await fetcher.fetch(chunk, due=fetch.due, owner=fetch.owner, shared=manifest.recoded)


class Sources:
    """The source of the moment: peers while the engine shares caches, else the store.

    Args:
        store: also what peers fall back to.
    """

    def __init__(self, store: StoreSource) -> None:
        self.store = store
        self._peers: ChunkSource | None = None

    def __repr__(self) -> str:
        return f"Sources(peers={self._peers!r})"

    def use_peers(self, peers: ChunkSource | None) -> None:
        """Later fetches ask these peers first; None: no longer any."""
        self._peers = peers

    async def bring(self, fetch: Fetch) -> None:
        """See ChunkSource.bring."""
        await (self._peers or self.store).bring(fetch)
