"""Reads and writes the catalog, the persistent index of the cache: one row per chunk in diskcache (SQLite).

`chunk_cache.py` keeps it up to date, `reconcile.py` compares it with the files at the start, and `maintenance.py` reads
it. Where catalog and files differ, the files are right. The catalog is read in one query at start, written in batches
off the loop, and made anew when anything in it is not what we write ourselves. Nothing in it is ever unpickled:
diskcache by itself runs `pickle.load` on a row that says so (CVE-2025-69872), so a planted row would run code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from streamer.base.concurrency import in_thread
from streamer.cache.catalog_row import CatalogChanges, CatalogRow, ForeignRowError
from streamer.cache.folder import remove_contents
from streamer.cache.policy.table import KEY_BYTES
from streamer.errors import CacheError

if TYPE_CHECKING:
    import diskcache

logger = logging.getLogger(__name__)

# Rows whose key begins so have the time of a dataset's last use.
_USED = "used:"
# diskcache's name of the file.
_DATABASE = "cache.db"


class CacheCounters(msgspec.Struct):
    """Counts since the start of the engine.

    Attributes:
        published_chunks: number of chunks that were written to the cache folder.
        written_bytes: length of their files together.
        damaged_chunks: number of chunks that were found corrupt, unreadable or missing.
        refused_writes: number of chunks that the disk refused.
        catalog_failures: number of times that the catalog could not be written.
    """

    published_chunks: int = 0
    written_bytes: int = 0
    damaged_chunks: int = 0
    refused_writes: int = 0
    catalog_failures: int = 0


class CacheStatistics(CacheCounters, kw_only=True):
    """Files and bytes of the cache now, and counts since the start.

    Attributes:
        limit_bytes: limit of chunk files now.
        charged_bytes: bytes of chunk files in the folder, reserved ones included (`table.charge`).
        chunks: number of chunks in the cache folder.
        fallback_chunks: number of chunks in memory, because the disk refused them.
    """

    limit_bytes: int
    charged_bytes: int
    chunks: int
    fallback_chunks: int


class CatalogContents(msgspec.Struct):
    """All rows: chunks by key, and the time of each dataset's last use (seconds since 1970) by its digest."""

    chunks: dict[bytes, CatalogRow]
    used: dict[str, float]


class Catalog:
    """Opens, reads and writes the catalog in one folder. All calls come from one thread, as SQLite demands.

    Args:
        directory: folder of the catalog.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cache: diskcache.Cache | None = None
        self._closed = True

    def __repr__(self) -> str:
        return f"Catalog({str(self._directory)!r}, {'closed' if self._closed else 'open'})"

    def open(self) -> CatalogContents:
        """Opens the catalog and reads every row in one query; replaces a damaged or foreign one by an empty one.

        A missing catalog is created by the first `write`, so that a first start does not wait for it. One that cannot
        be read counts as empty: the chunk files say what there is.
        """
        self._closed = False
        if not self._exists():
            return CatalogContents({}, {})
        try:
            from streamer.cache.catalog_database import FOREIGN_ERRORS, open_database
        except ImportError as error:
            logger.warning(
                "%s; each start reads the chunk files instead", _describe_lack_of_sqlite(self._directory, error)
            )
            return CatalogContents({}, {})
        try:
            self._cache = open_database(self._directory)
            return self._read()
        except (*FOREIGN_ERRORS, OSError) as error:
            logger.warning("catalog %s is made anew from the chunk files: %s", self._directory, error)
        self.reopen()
        self._empty()
        return CatalogContents({}, {})

    def peek(self) -> dict[bytes, CatalogRow]:
        """Reads the rows of chunks without changing anything; returns {} if there are none or they cannot be read."""
        if not self._exists():
            return {}
        try:
            from streamer.cache.catalog_database import FOREIGN_ERRORS
        except ImportError as error:
            logger.warning("%s", _describe_lack_of_sqlite(self._directory, error))
            return {}
        try:
            return self._read().chunks
        except (*FOREIGN_ERRORS, OSError) as error:
            logger.warning("catalog %s is not readable: %s", self._directory, error)
            return {}

    def _exists(self) -> bool:
        try:
            return (self._directory / _DATABASE).exists()
        except OSError as error:
            logger.warning("catalog %s is not readable: %s", self._directory, error)
            return False

    def _read(self) -> CatalogContents:
        """Reads all rows. Raises OSError, or an error of `FOREIGN_ERRORS` (`catalog_database.py`) for a foreign row."""
        from streamer.cache.catalog_database import read_rows

        contents = CatalogContents({}, {})
        for key, value in read_rows(self._directory):
            if isinstance(key, bytes) and isinstance(value, bytes) and len(key) == KEY_BYTES:
                contents.chunks[key] = CatalogRow.decode(value)
            elif isinstance(key, str) and isinstance(value, str) and key.startswith(_USED):
                contents.used[key.removeprefix(_USED)] = float(value)
            else:
                raise ForeignRowError(f"the catalog holds a row {key!r} that is not ours")
        return contents

    def write(
        self,
        added: Mapping[bytes, CatalogRow],
        removed: Iterable[bytes] = (),
        used: Iterable[str] = (),
        forgotten: Iterable[str] = (),
    ) -> None:
        """Changes rows in one transaction; creates the catalog if it is missing.

        Args:
            added: rows of chunks by key, which replace those of the same key.
            removed: keys of chunks whose rows are removed.
            used: digests of datasets that are used now.
            forgotten: digests of datasets whose last use is removed.

        Raises:
            CacheError: the catalog is closed, the disk refuses the write, or this Python has no SQLite. The chunk files
                are unharmed, and the next start compares them.
        """
        if self._closed:
            raise CacheError(f"the catalog {self._directory} is closed")
        try:
            from streamer.cache.catalog_database import FOREIGN_ERRORS, open_database
        except ImportError as error:
            raise CacheError(_describe_lack_of_sqlite(self._directory, error)) from error
        try:
            if self._cache is None:  # `not self._cache` would be true for an empty catalog, and cost a query
                try:
                    self._cache = open_database(self._directory)
                except FOREIGN_ERRORS:
                    # Removes one that a full disk left unfinished, so that the next write makes a new one.
                    self._empty()
                    raise
            cache = self._cache
            with cache.transact():
                for key in removed:
                    cache.delete(key)
                for key, row in added.items():
                    cache.set(key, row.encode())
                for dataset in forgotten:
                    cache.delete(_USED + dataset)
                for dataset in used:
                    cache.set(_USED + dataset, f"{time.time():.3f}")
        except (*FOREIGN_ERRORS, OSError) as error:  # OSError: the folder was removed
            raise CacheError(f"cannot write the catalog in {self._directory}: {error}") from error

    def _empty(self) -> None:
        """Removes the files but not the folder: `FolderGuard` would take a missing one for the work of a cleaner."""
        with contextlib.suppress(OSError):
            remove_contents(self._directory)

    def reopen(self) -> None:
        """Closes the connection, whose files may have been removed; the next `write` opens a new one."""
        cache, self._cache = self._cache, None
        if cache is None:
            return
        from streamer.cache.catalog_database import DATABASE_ERRORS

        try:
            cache.close()
        except (*DATABASE_ERRORS, OSError) as error:
            logger.warning("closing the catalog %s: %s", self._directory, error)

    def close(self) -> None:
        """Closes the connection; idempotent."""
        self._closed = True
        self.reopen()


def _describe_lack_of_sqlite(directory: Path, error: ImportError) -> str:
    return f"the catalog {directory} is not used, because this Python has no sqlite3 ({error})"


T = TypeVar("T")


class CatalogKeeper:
    """Collects changes of the catalog and writes them in batches, in a thread of its own.

    One `ChunkCache` has it. Its methods are called on the loop. They do not wait, but for the coroutines and
    `end_thread`.

    Args:
        count: counters of the cache; `catalog_failures` is counted here.
    """

    def __init__(self, count: CacheCounters) -> None:
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

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Runs `work` in the thread of the catalog's connection; returns its result or raises its error."""
        return await in_thread(self._thread, work)

    def begin(self, catalog: Catalog, changes: CatalogChanges) -> None:
        """Takes over an opened catalog, and the changes that it needs since the start; call it before `run`."""
        self._catalog = catalog
        self._changes = changes
        self._dirty.set()

    def add_row(self, key: bytes, row: CatalogRow) -> None:
        """Records a chunk that was published, and at the first one of a dataset that the dataset is used now."""
        if row.dataset not in self._seen:
            self.use(row.dataset)
        self._changes.removed.discard(key)
        self._changes.added[key] = row
        self._dirty.set()

    def remove_rows(self, keys: Iterable[bytes]) -> None:
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

    def start_anew(self) -> None:
        """Lets the next write create the catalog again, whose files were removed.

        It then lacks the rows of before; the next start of the engine reads the headers of those chunks instead.
        """
        self._is_lost = True

    async def run(self) -> None:
        """Writes changes as they come, until `stop` is called and nothing is left; counts and logs a failed write."""
        while self._is_open or self._changes:
            await self._dirty.wait()
            self._dirty.clear()
            changes, self._changes = self._changes, CatalogChanges({}, set(), set())
            if changes:
                assert self._catalog is not None, "begun"
                try:
                    if self._is_lost:
                        self._is_lost = False
                        await in_thread(self._thread, self._catalog.reopen)
                    await in_thread(self._thread, self._catalog.write, *msgspec.structs.astuple(changes))
                except CacheError as error:
                    self._count.catalog_failures += 1
                    logger.warning("%s; the next start rebuilds it from the files", error)

    def stop(self) -> None:
        """Lets `run` end after it has written the last rows."""
        self._is_open = False
        self._dirty.set()

    def end_thread(self) -> None:
        """Waits until the thread has done its work, and ends it; idempotent."""
        self._thread.shutdown()
