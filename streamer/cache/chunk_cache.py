"""The cache folder in use: publishes, finds and unlinks chunk files, and never takes more than its limit.

The policy decides what stays and what is evicted; this module carries it out and keeps the limit.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.catalog import Catalog
from streamer.cache.catalog_row import CatalogChanges, CatalogRow
from streamer.cache.disk_space import DiskSpace
from streamer.cache.file_jobs import KeyLocks, advise, in_thread, unlink_all
from streamer.cache.folder import Folder, chunk_files, open_folder, open_layer
from streamer.cache.policy.table import charge
from streamer.cache.ram_fallback import REFUSALS, RamFallback
from streamer.cache.reconcile import DatasetFiles, reconcile
from streamer.cache.statistics import CacheStatistics, Counters
from streamer.cache.verify import verify_file
from streamer.cache.writer import Buffer, ChunkBytes, Published, write_chunk
from streamer.config import CacheConfig, format_bytes
from streamer.errors import CacheError, ClosedError, IntegrityError
from streamer.formats.chunkfile import file_bytes

logger = logging.getLogger(__name__)

FILE_THREADS = 2


class ChunkCache:
    """Owner of one cache folder; lives on one loop, inside its `async with`. File work runs in its own threads.

    Args:
        config: where, how much, which layers.

    Attributes:
        root: the folder.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.root = config.directory
        self._layers: list[Folder] = []
        self._below: dict[bytes, int] = {}
        self._chunks: dict[bytes, int] = {}
        self._in_memory: dict[bytes, int] = {}
        self._found: list[DatasetFiles] = []
        self._key_locks = KeyLocks()
        self._seen: set[str] = set()
        self._changes = CatalogChanges({}, set(), set())
        self._count = Counters()
        self._open = False

    def __repr__(self) -> str:
        state = f"{len(self._chunks)} chunks, {self._space!r}" if self._open else "closed"
        return f"ChunkCache({str(self.root)!r}, {state})"

    # --- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._files = ThreadPoolExecutor(FILE_THREADS, "streamer-cache")
        self._catalog_thread = ThreadPoolExecutor(1, "streamer-catalog")
        try:
            await in_thread(self._catalog_thread, self._start)
        except BaseException:
            self._stop_threads()
            raise
        self._open = True
        self._dirty = asyncio.Event()
        self._dirty.set()  # the changes found at the start are written
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._tasks.create_task(self._keep_catalog(), name="cache catalog")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        self._dirty.set()
        try:
            await self._tasks.__aexit__(None, None, None)
            await in_thread(self._catalog_thread, self._stop)
        finally:
            self._stop_threads()

    def _start(self) -> None:
        self._folder = open_folder(self.config.directory, self.config.group)
        self._catalog = Catalog(self._folder.path / "catalog")
        found = reconcile(self._folder, self._catalog)
        self._count.dropped_at_start = found.dropped
        self._changes = CatalogChanges(found.added, found.removed, set(), found.forgotten)
        self._chunks = {key: row.file_bytes for key, row in found.rows.items()}
        self._found = list(found.by_dataset())
        self._fallback = RamFallback(self._folder.root_id)
        self._fallback.remove()
        for path in self.config.layers:
            self._layers.append(open_layer(path))
            for key, _ in chunk_files(self._layers[-1]):
                self._below.setdefault(key, len(self._layers) - 1)
        charged = sum(map(charge, self._chunks.values()))
        config = self.config
        self._space = DiskSpace(self._folder.path, config.limit_bytes, config.free_floor_bytes, charged)

    async def resize(self, limit_bytes: int) -> None:
        """Another limit for the whole folder. `limit_bytes` follows: tell the policy and evict its victims."""
        self._space.resize(limit_bytes)
        await self.measure()

    async def measure(self) -> None:
        """Measures manifests and free space. `limit_bytes` follows; tell the policy."""
        await in_thread(self._files, self._space.measure)

    def _stop(self) -> None:
        self._catalog.close()
        self._fallback.remove()

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(f"the cache {self.root} is closed")

    def _stop_threads(self) -> None:
        self._files.shutdown()
        self._catalog_thread.shutdown()

    # --- contents ------------------------------------------------------------------------------------------

    @property
    def limit_bytes(self) -> int:
        """The limit of chunk files, as `table.charge` counts them.

        The whole limit less manifests and catalog, or what is there and what is free above the floor (as of the last
        `measure`) if that is less. While the disk refuses writes: its present chunks and the memory fallback.
        """
        return self._space.limit_bytes(self._fallback.limit_bytes)

    @property
    def space(self) -> DiskSpace:
        """The bytes of the folder: its limit, what is taken of it, and by what."""
        return self._space

    @property
    def roots(self) -> tuple[Path, ...]:
        """Every folder that may hold a chunk, in the order for readers: the cache, memory, the layers.

        The one in memory does not exist before the disk refuses a write.
        """
        return (self._folder.path, self._fallback.path, *(layer.path for layer in self._layers))

    @property
    def root_id(self) -> str:
        """The folder's id; a reader that mounted it elsewhere compares it."""
        return self._folder.root_id

    def catalog(self) -> list[DatasetFiles]:
        """The chunks found at the start: (dataset id, keys, lengths of the files), least recently used first."""
        return self._found

    def keys(self) -> list[bytes]:
        """Chunks of the writable folder now."""
        return list(self._chunks)

    def length(self, key: bytes) -> int:
        """Length of a chunk's file in the writable folder; 0 when it is not there."""
        return self._chunks.get(key, 0)

    def layer_keys(self) -> list[bytes]:
        """Chunks of the read-only layers."""
        return list(self._below)

    def contains(self, key: bytes) -> bool:
        """True: readable now, here or in a layer."""
        return key in self._chunks or key in self._in_memory or key in self._below

    def path(self, key: bytes) -> Path | None:
        """The file of a chunk; None: it is not in the cache."""
        own = self._own_path(key)
        if own is None and key in self._below:
            return self._layers[self._below[key]].chunk_path(key)
        return own

    def _own_path(self, key: bytes) -> Path | None:
        if key in self._chunks:
            return self._folder.chunk_path(key)
        memory = self._fallback.folder if key in self._in_memory else None
        return None if memory is None else memory.chunk_path(key)

    def free_bytes(self) -> int:
        """Free space of the filesystem, as this user may take it."""
        return self._space.free_bytes()

    def statistics(self) -> CacheStatistics:
        """Counts now and since the start."""
        return CacheStatistics(
            limit_bytes=self.limit_bytes,
            charged_bytes=self._space.charged_bytes,
            chunks=len(self._chunks),
            layer_chunks=len(self._below),
            fallback_chunks=len(self._in_memory),
            **msgspec.structs.asdict(self._count),
        )

    # --- publish and evict -----------------------------------------------------------------------------------

    async def publish(
        self,
        key: bytes,
        parts: Sequence[Buffer],
        sample_offsets: NDArray[np.int64],
        *,
        codec: int = 0,
        dataset: str = "",
    ) -> Published:
        """Makes a chunk readable: checksums, one file, one rename. Its bytes are reserved before anything is written.

        Safe to cancel: the thread that writes is waited for, so `parts` may be reused afterwards.

        Args:
            key: 16 bytes.
            parts: the chunk's bytes in order.
            sample_offsets: (samples + 1,) chunk-local boundaries, from 0 to the length of the parts.
            codec: how the bytes are stored (`Codec`).
            dataset: the manifest's digest, for the catalog.

        Returns:
            Where it is: in the cache folder, or in memory when the disk refused it (full, failing). Then
            `limit_bytes` is lower: tell the policy and evict its victims.

        Raises:
            CacheFullError: no room within the limit; evict, then try again.
            CacheError: the disk refused it and memory did not take it either; evict, then try again.
        """
        self._check_open()
        chunk = ChunkBytes(key, parts, sample_offsets, codec)
        length = file_bytes(chunk.local_bytes, len(sample_offsets) - 1)
        async with self._key_locks.hold([key]):
            if key not in self._chunks:
                await self._space.reserve(length)
                if dataset not in self._seen:
                    self.use(dataset)
                return await self._publish(chunk, length, dataset)
            return Published(self._folder.path, self._chunks[key])

    async def _publish(self, chunk: ChunkBytes, length: int, dataset: str) -> Published:
        try:
            await in_thread(self._files, write_chunk, chunk, self._folder)
        except BaseException as error:
            self._folder.chunk_path(chunk.key).unlink(missing_ok=True)  # a cancel may come after the rename
            self._space.release(length)
            if isinstance(error, OSError) and error.errno in REFUSALS:
                return await self._publish_in_memory(chunk, length, error)
            raise
        self._chunks[chunk.key] = length
        self._changes.removed.discard(chunk.key)
        self._changes.added[chunk.key] = CatalogRow(length, dataset)
        self._dirty.set()
        self._count.published_chunks += 1
        self._count.written_bytes += length
        return Published(self._folder.path, length)

    async def _publish_in_memory(self, chunk: ChunkBytes, length: int, error: OSError) -> Published:
        if not self._count.refused_writes:
            logger.warning(
                "the cache folder %s refuses writes (%s): chunks pass through memory while it does",
                self._folder.path,
                error.strerror,
            )
        self._count.refused_writes += 1
        self._space.refused = True
        folder = await in_thread(self._files, self._fallback.open, self.config.group)
        if sum(map(charge, self._in_memory.values())) + charge(length) > self._fallback.limit_bytes:
            raise CacheError(
                f"chunk {chunk.key.hex()} ({format_bytes(length)}) fits neither on the disk of {self._folder.path}"
                f" ({error.strerror}) nor in {self._fallback.path}; free space there",
                where=str(self._folder.path),
                errno=error.errno,
            ) from error
        self._in_memory[chunk.key] = length
        try:
            await in_thread(self._files, write_chunk, chunk, folder)
        except BaseException:
            del self._in_memory[chunk.key]
            folder.chunk_path(chunk.key).unlink(missing_ok=True)
            raise
        return Published(folder.path, length)

    async def evict(self, keys: Iterable[bytes]) -> None:
        """Unlinks chunks in one thread job; unknown keys are ignored. `path` does not find them from the first moment.

        Raises:
            CacheError: a file could not be unlinked; its bytes stay counted.
        """
        self._check_open()
        wanted = list(keys)
        failed: dict[bytes, OSError] = {}
        async with self._key_locks.hold(wanted) as released:
            paths = {key: path for key in wanted if (path := self._own_path(key)) is not None}
            lengths = {key: self._chunks.pop(key) for key in paths if key in self._chunks}
            for key in paths:
                self._in_memory.pop(key, None)
            self._space.unlink_begins(released)
            try:
                await in_thread(self._files, unlink_all, paths, failed)
            finally:
                self._space.unlink_ends(released)
                self._unlinked({key: length for key, length in lengths.items() if key not in failed})
        if failed:
            raise CacheError(
                f"cannot unlink {len(failed)} chunk files in {self._folder.path}: {next(iter(failed.values()))}",
                where=str(self._folder.path),
            )

    def _unlinked(self, lengths: dict[bytes, int]) -> None:
        self._space.release(*lengths.values())
        self._count.unlinked_chunks += len(lengths)
        for key in lengths:
            self._changes.added.pop(key, None)
        self._changes.removed.update(lengths)
        self._dirty.set()

    def use(self, dataset: str) -> None:
        """Marks the dataset as used now: after a restart, least recently used datasets are evicted first."""
        self._seen.add(dataset)
        self._changes.forgotten.discard(dataset)
        self._changes.used.add(dataset)
        self._dirty.set()

    def forget(self, dataset: str) -> None:
        """Forgets when the dataset was last used; its chunks stay until they are evicted."""
        self._seen.discard(dataset)
        self._changes.used.discard(dataset)
        self._changes.forgotten.add(dataset)
        self._dirty.set()

    # --- integrity -------------------------------------------------------------------------------------------

    async def verify(self, key: bytes) -> bool:
        """Reads the whole chunk and compares it with its checksums.

        Returns:
            False: it is corrupt, or missing (counted; `evict` it and fetch it again).
        """
        path = self.path(key)
        if path is None:
            return False
        try:
            await in_thread(self._files, verify_file, path, key)
        except (IntegrityError, OSError) as error:
            if self.path(key) == path:  # not evicted meanwhile
                self._count.damaged_chunks += 1
                logger.warning("a chunk in the cache is corrupt: %s", error)
            return False
        return True

    # --- the page cache --------------------------------------------------------------------------------------

    async def readahead(self, key: bytes) -> None:
        """Asks the kernel to read a chunk's pages; harmless when it is not in the cache."""
        await self._advise(key, os.POSIX_FADV_WILLNEED)

    async def drop(self, key: bytes) -> None:
        """Tells the kernel that a chunk's pages are not needed soon; harmless when it is not in the cache."""
        await self._advise(key, os.POSIX_FADV_DONTNEED)

    async def _advise(self, key: bytes, advice: int) -> None:
        if (path := self.path(key)) is not None:
            await in_thread(self._files, advise, path, advice)

    # --- threads ---------------------------------------------------------------------------------------------

    async def _keep_catalog(self) -> None:
        """Writes rows as they come, many in one transaction while the one before is under way."""
        while self._open or self._changes:
            await self._dirty.wait()
            self._dirty.clear()
            changes, self._changes = self._changes, CatalogChanges({}, set(), set())
            if not changes:
                continue
            try:
                rows = (changes.added, changes.removed, changes.used, changes.forgotten)
                await in_thread(self._catalog_thread, self._catalog.write, *rows)
            except CacheError as error:
                self._count.catalog_failures += 1
                logger.warning("%s; the next start rebuilds it from the files", error)
