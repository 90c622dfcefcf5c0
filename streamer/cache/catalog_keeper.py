"""Keeps the catalog up to date: writes rows as they come, many in one transaction, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from streamer.base.threads import in_thread
from streamer.cache.catalog import Catalog
from streamer.cache.catalog_row import CatalogChanges, CatalogRow
from streamer.cache.statistics import Counters
from streamer.errors import CacheError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class CatalogKeeper:
    """Owned by one `ChunkCache`; lives on its loop."""

    def __init__(self, count: Counters) -> None:
        self._count = count
        self._thread = ThreadPoolExecutor(1, "streamer-catalog")
        self._catalog: Catalog | None = None
        self._changes = CatalogChanges({}, set(), set())
        self._seen: set[str] = set()
        self._dirty = asyncio.Event()
        self._is_open = True
        self._is_lost = False

    def __repr__(self) -> str:
        return f"CatalogKeeper({self._catalog!r})"

    async def in_its_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread of the catalog's connection."""
        return await in_thread(self._thread, work)

    def begin(self, catalog: Catalog, changes: CatalogChanges) -> None:
        """Takes over an opened catalog, with the changes that were found at the start."""
        self._catalog = catalog
        self._changes = changes
        self._dirty.set()

    def added(self, key: bytes, row: CatalogRow) -> None:
        """Records a chunk that was published."""
        if row.dataset not in self._seen:
            self.use(row.dataset)
        self._changes.removed.discard(key)
        self._changes.added[key] = row
        self._dirty.set()

    def removed(self, keys: Iterable[bytes]) -> None:
        """Records chunks that are gone."""
        for key in keys:
            self._changes.added.pop(key, None)
            self._changes.removed.add(key)
        self._dirty.set()

    def use(self, dataset: str) -> None:
        """Marks the dataset as used now."""
        self._seen.add(dataset)
        self._changes.forgotten.discard(dataset)
        self._changes.used.add(dataset)
        self._dirty.set()

    def forget(self, dataset: str) -> None:
        """Forgets when the dataset was last used."""
        self._seen.discard(dataset)
        self._changes.used.discard(dataset)
        self._changes.forgotten.add(dataset)
        self._dirty.set()

    def lost(self) -> None:
        """Starts new files after the catalog's were removed; the next start of the engine then looks at the chunks."""
        self._is_lost = True

    async def run(self) -> None:
        """Writes rows until `stop` is called and nothing is left."""
        while self._is_open or self._changes:
            await self._dirty.wait()
            self._dirty.clear()
            changes, self._changes = self._changes, CatalogChanges({}, set(), set())
            if changes:
                await self._write(changes)

    def stop(self) -> None:
        """Lets `run` end after it has written the last rows."""
        self._is_open = False
        self._dirty.set()

    def end_thread(self) -> None:
        """Ends the thread; idempotent."""
        self._thread.shutdown()

    async def _write(self, changes: CatalogChanges) -> None:
        assert self._catalog is not None, "begun"
        try:
            if self._is_lost:
                self._is_lost = False
                await in_thread(self._thread, self._catalog.reopen)
            await in_thread(self._thread, self._catalog.write, *msgspec.structs.astuple(changes))
        except CacheError as error:
            self._count.catalog_failures += 1
            logger.warning("%s; the next start rebuilds it from the files", error)
