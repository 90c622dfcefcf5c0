"""Publishes, finds, checks and unlinks the chunk files of the cache folder, and never exceeds its limit.

The engine has one `ChunkCache`, in which `recode/recoded_chunks.py` publishes, too. It does what `CachePolicy` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base import linux
from streamer.base.concurrency import in_thread
from streamer.base.system_limits import is_shortage
from streamer.cache.catalog import CacheCounters, CacheStatistics, Catalog, CatalogKeeper
from streamer.cache.catalog_row import CatalogChanges, CatalogRow
from streamer.cache.chunk_files import Buffer, ChunkBytes, KeyLocks, Published, advise, unlink_all, write_chunk
from streamer.cache.disk_space import DiskSpace
from streamer.cache.disk_trust import DiskTrust, read_whole
from streamer.cache.folder import Layers, open_folder
from streamer.cache.folder_guard import FolderGuard
from streamer.cache.memory_folder import RamFallback, is_refusal
from streamer.cache.policy.answers import CacheLimits
from streamer.cache.policy.table import charge
from streamer.cache.reconcile import DatasetFiles, reconcile
from streamer.config import CacheConfig
from streamer.errors import CacheError, CacheFullError, ClosedError
from streamer.formats.chunkfile import file_bytes

logger = logging.getLogger(__name__)

Write = Callable[[], Awaitable[object]]

FILE_THREADS = 2
# How often a write is tried while the folder is removed and made again: a cleaner at work may remove it twice.
MAX_RESTORES = 4


class ChunkCache:
    """Owns one cache folder. It is used on one loop, inside its `async with`, and works on files in threads of its own.

    Entering it raises as `open_folder`, `reconcile`, `Layers` and `DiskSpace` do. The engine sets the three callables.

    Attributes:
        config, root: the configuration, and the path of the folder in it.
        folder, space: the opened folder and its bytes, both set by entering.
        layers: the read-only folders below it.
        found: the chunks that were there at the start, by dataset, the least recently used first.
        on_lost: called with the keys of lost chunks: the folder was removed and made again, or the disk is given up.
        on_warning: called with a sentence for the cache's users, which is logged as well.
        is_used: returns whether there are readers.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.on_lost: Callable[[list[bytes]], None] = lambda news: None
        self.on_warning: Callable[[str], None] = lambda news: None
        self.is_used: Callable[[], bool] = lambda: True
        self.root = config.directory
        self.layers = Layers()
        self._chunks: dict[bytes, int] = {}
        # Lengths of evicted files that could not be removed, and occupy bytes of the disk.
        self._leftovers: dict[bytes, int] = {}
        self.found: list[DatasetFiles] = []
        self._key_locks = KeyLocks()
        self._count = CacheCounters()
        self._open = False

    def __repr__(self) -> str:
        state = f"{len(self._chunks)} chunks, {self.space!r}" if self._open else "closed"
        return f"ChunkCache({str(self.root)!r}, {state})"

    async def __aenter__(self) -> Self:
        self._files = ThreadPoolExecutor(FILE_THREADS, "streamer-cache")
        self._keeper = CatalogKeeper(self._count)
        try:
            changes = await self._keeper.run_in_thread(self._start)
        except BaseException:
            self._stop_threads()
            raise
        self._open = True
        self._keeper.begin(self._catalog, changes)
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        self._tasks.create_task(self._keeper.run(), name="cache catalog")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._open = False
        self._keeper.stop()
        try:
            await self._tasks.__aexit__(None, None, None)
            await self._keeper.run_in_thread(self._stop)
        finally:
            self._stop_threads()

    def _start(self) -> CatalogChanges:
        """Opens folder, catalog, memory folder and layers (in a thread); returns the changes that the catalog lacks."""
        self.folder = open_folder(self.config.directory, self.config.group)
        self._guard = FolderGuard(self.folder)
        self._trust = DiskTrust(self.folder, self._files, self._warn)
        self._catalog = Catalog(self.folder.path / "catalog")
        found = reconcile(self.folder, self._catalog)
        self._chunks = {key: row.file_bytes for key, row in found.rows.items()}
        self.found = list(found.group_by_dataset())
        self._fallback = RamFallback(self.folder, self.config.group)
        self._fallback.begin()
        self.layers = Layers(self.config.layers)
        charged = sum(map(charge, self._chunks.values()))
        self.space = DiskSpace(self.folder.path, self.config, charged, len(self._chunks))
        return CatalogChanges(found.added, found.removed, set(), found.forgotten)

    async def resize(self, limit_bytes: int) -> None:
        """Sets another limit for the whole folder. Afterwards the caller passes `limits` to the policy."""
        self.space.resize(limit_bytes)
        await self.measure()

    async def measure(self) -> None:
        """Measures manifests and free space, for `limits`; restores the folder, and retries failed unlinks."""
        self.restore()
        try:
            await in_thread(self._files, self.space.measure)
        except FileNotFoundError:
            return  # it is being removed
        except OSError as error:
            if not is_shortage(error):
                self._record_refusal(str(error))
        if self._leftovers and not self.space.refused:
            # A leftover whose chunk was fetched again was replaced by a new file.
            before = self._leftovers
            failed: dict[bytes, OSError] = {}
            paths = {key: self.folder.chunk_path(key) for key in before if key not in self._chunks}
            await in_thread(self._files, unlink_all, paths, failed)
            self._keep_leftovers({key: n for key, n in self._leftovers.items() if key in failed or key not in before})
            self.space.release(*(length for key, length in before.items() if key not in failed))

    def _keep_leftovers(self, lengths: dict[bytes, int]) -> None:
        self._leftovers = lengths
        self.space.leftover_bytes = sum(map(charge, lengths.values()))

    def restore(self, *, asked: bool = False) -> CacheError | None:
        """Makes the folder again if another program has removed it; returns why it is missing, or None if it is there.

        Without readers the folder stays away, unless it is `asked` for: a script may remove it after its job.
        """
        try:
            if not self._guard.restore(wanted=asked or self.is_used()):
                return None
        except CacheError as error:
            logger.debug("%s", error)
            return error
        lost = {key: length for key, length in self._chunks.items() if not self.folder.chunk_path(key).exists()}
        for key in lost:
            del self._chunks[key]
        self._release(lost)
        self._keeper.start_anew()
        text = (
            f"the cache folder {self.root} was removed by another program (a cleaner of temporary files?); it is "
            f"made again, and {len(lost)} chunks are fetched again when they are needed"
        )
        log = logger.info if self._guard.is_repeated else self._warn
        log(text)
        self.on_lost(list(lost))
        return None

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        self.on_warning(text)

    def _stop(self) -> None:
        self._catalog.close()
        self._fallback.remove()
        self._guard.close()

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError(f"the cache {self.root} is closed")

    def _stop_threads(self) -> None:
        self._files.shutdown()
        self._keeper.end_thread()

    @property
    def limit_bytes(self) -> int:
        """The limit of chunk files, as `table.charge` counts them; see `limits`."""
        return self.limits.limit_bytes

    @property
    def limits(self) -> CacheLimits:
        """Limits for the policy (bytes): below the user's while other programs fill the disk, or it refuses writes."""
        return self.space.limits(self._fallback.taken_bytes, self._fallback.limit_bytes)

    @property
    def roots(self) -> tuple[Path, ...]:
        """Every folder that may have a chunk, in the order in which readers look: cache, memory if any, layers."""
        memory = () if self._fallback.path is None else (self._fallback.path,)
        return (self.folder.path, *memory, *self.layers.roots)

    def keys(self) -> list[bytes]:
        """Returns the keys of the chunks that are in the cache folder now, without memory and layers."""
        return list(self._chunks)

    def length(self, key: bytes) -> int:
        """Returns the length of a chunk's file in the cache folder, in bytes; 0 if it is not there."""
        return self._chunks.get(key, 0)

    def contains(self, key: bytes) -> bool:
        """Whether the chunk is readable now, from the cache folder, memory or a layer."""
        return key in self._chunks or key in self._fallback.chunks or key in self.layers

    def path(self, key: bytes) -> Path | None:
        """Returns the file of a chunk, or None if no folder of `roots` has it."""
        return self._own_path(key) or self.layers.path(key)

    def _own_path(self, key: bytes) -> Path | None:
        if key in self._chunks:
            return self.folder.chunk_path(key)
        return self._fallback.chunk_path(key)

    def statistics(self) -> CacheStatistics:
        """Returns sizes now, and counts since the start."""
        return CacheStatistics(
            limit_bytes=self.limit_bytes,
            charged_bytes=self.space.charged_bytes,
            chunks=len(self._chunks),
            fallback_chunks=len(self._fallback.chunks),
            **msgspec.structs.asdict(self._count),
        )

    async def publish(
        self,
        key: bytes,
        parts: Sequence[Buffer],
        sample_offsets: NDArray[np.int64],
        *,
        codec: int = 0,
        dataset: str = "",
    ) -> Published:
        """Writes a chunk's file, for which it first reserves the bytes, and makes the chunk readable.

        Args:
            key: 16 bytes.
            parts: the chunk's bytes in order. They are not read any more after this has ended, or was cancelled.
            sample_offsets: where samples begin in the chunk, (samples + 1,), from 0 to the length of the parts.
            codec: number that says how the bytes are stored (`Codec`).
            dataset: digest of the manifest, for the catalog.

        Returns:
            Where the chunk is. It is in memory if the disk refused it: then the caller gives the policy new `limits`.

        Raises:
            CacheFullError: it does not fit within the limit. The caller evicts, then tries again.
            CacheError: neither the disk nor memory took it. The caller evicts, then tries again.
            ClosedError, ConfigError, OSError: the cache is closed, `ulimit -f` is too small, or this process lacks
                descriptors or memory.
        """
        self._check_open()
        chunk = ChunkBytes(key, parts, sample_offsets, codec)
        length = file_bytes(chunk.local_bytes, len(sample_offsets) - 1)
        async with self._key_locks.hold([key]):
            if key in self._chunks:
                return Published(self.folder.path, self._chunks[key])
            if not self._trust.covers(key):
                try:
                    return await self._fallback.publish(chunk, length, self._files, errno.EIO)
                except (CacheError, OSError):
                    # There is no room in memory: the disk gets it, unless the disk is given up.
                    if self._trust.is_given_up:
                        raise
            try:
                await self.space.reserve(length)
                with self.space.unwritten(length):
                    return await self._publish(key, length, dataset, self._write(chunk))
            except CacheFullError:
                if self.space.is_set and not self._leftovers:
                    raise
                return await self._publish_in_memory(chunk, length, "evicted files could not be removed")
            except CacheError as error:
                if not (self._guard.is_lost and self.is_used()):
                    raise
                code = error.details.get("errno")
                reason = "another engine uses it now"
                if isinstance(code, int):
                    reason = f"it cannot be made again: {os.strerror(code)}"
                return await self._publish_in_memory(chunk, length, reason)
            except OSError as error:
                if not is_refusal(error):
                    raise
                return await self._publish_in_memory(chunk, length, error.errno or errno.EIO)

    async def publish_with(self, write: Write, key: bytes, length: int, dataset: str) -> None:
        """Makes a chunk readable whose file `write` writes, for which it first reserves the bytes. Never uses memory.

        Args:
            write: called unless the folder has the chunk. It returns when another process has written the file.
            key: 16 bytes.
            length: length of the file to come, in bytes.
            dataset: digest of the manifest, for the catalog.

        Raises:
            CacheFullError: there is no room within the limit. The caller evicts, then tries again.
            Exception: what `write` raises, or ClosedError if the cache is closed. There is no file then.
        """
        self._check_open()
        async with self._key_locks.hold([key]):
            if key not in self._chunks:
                await self.space.reserve(length)
                with self.space.unwritten(length):
                    await self._publish(key, length, dataset, write())

    async def _publish(self, key: bytes, length: int, dataset: str, write: Awaitable[object]) -> Published:
        """Awaits the write of a chunk's file and counts it; if that fails, removes the file and releases its bytes."""
        try:
            await write
        except BaseException:
            # A cancellation may come after the rename. If a part of the folder is missing, it is restored later.
            with contextlib.suppress(OSError):
                self.folder.chunk_path(key).unlink()
            self.space.release(length)
            raise
        self._chunks[key] = length
        self._keeper.add_row(key, CatalogRow(length, dataset))
        self._count.published_chunks += 1
        self._count.written_bytes += length
        return Published(self.folder.path, length)

    async def _write(self, chunk: ChunkBytes) -> None:
        """Writes a chunk's file; makes the folder again if it was removed, or raises CacheError if it cannot."""
        for _ in range(MAX_RESTORES):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._guard.check()
                await in_thread(self._files, write_chunk, chunk, self.folder)
                return
            if (error := self.restore()) is not None:
                raise error
        raise CacheError(
            f"the cache folder {self.folder.path} is removed again and again while chunks are written to it",
            where=str(self.folder.path),
        )

    async def _publish_in_memory(self, chunk: ChunkBytes, length: int, refusal: int | str) -> Published:
        self._record_refusal(refusal if isinstance(refusal, str) else os.strerror(refusal))
        self._count.refused_writes += 1
        return await self._fallback.publish(chunk, length, self._files, refusal)

    def _record_refusal(self, reason: str) -> None:
        """Notes that the disk refused a write or an unlink, which lowers `limits`; warns at the first time."""
        if self.space.refuse():
            self._warn(f"the cache folder {self.root} refuses writes ({reason}): chunks pass through memory meanwhile")

    async def evict(self, keys: Iterable[bytes]) -> None:
        """Unlinks the files of chunks, in the folder or memory, which `path` does not find any more from here on.

        Ignores unknown keys. Raises ClosedError, or CacheError if a file could not be unlinked: its bytes stay counted.
        """
        self._check_open()
        failed: dict[bytes, OSError] = {}
        async with self._key_locks.hold(wanted := list(keys)) as released:
            paths = {key: path for key in wanted if (path := self._own_path(key)) is not None}
            lengths = {key: self._chunks.pop(key) for key in paths if key in self._chunks}
            for key in paths:
                self._fallback.chunks.pop(key, None)
            self.space.unlink_begins(released)
            try:
                await in_thread(self._files, unlink_all, paths, failed)
            finally:
                self.space.unlink_ends(released)
                self._release({key: length for key, length in lengths.items() if key not in failed})
        if failed:
            self._keep_leftovers(self._leftovers | {key: lengths[key] for key in failed if key in lengths})
            reason = next(iter(failed.values()))
            self._record_refusal(reason.strerror or str(reason))
            raise CacheError(
                f"cannot unlink {len(failed)} chunk files in {self.folder.path}: {reason}", where=str(self.folder.path)
            )

    def _release(self, lengths: dict[bytes, int]) -> None:
        self.space.release(*lengths.values())
        self._keeper.remove_rows(lengths)

    def use(self, dataset: str) -> None:
        """Notes in the catalog that the dataset is used now: after a restart the longest unused are evicted first."""
        self._keeper.use(dataset)

    def forget(self, dataset: str) -> None:
        """Removes from the catalog when the dataset was last used; its chunks stay until they are evicted."""
        self._keeper.forget(dataset)

    def distrust(self, key: bytes) -> None:
        """Lets `publish` put the next copy of a chunk into memory, because readers cannot read it from the disk."""
        self._trust.distrust(key)

    def note_good_read(self, key: bytes) -> None:
        """Records that readers have read a chunk well that had been wrong before."""
        self._trust.note_good_read(key)

    def trusts_disk_with(self, key: bytes) -> bool:
        """Whether the chunk may be written to the cache folder: it is not distrusted, and the disk is not given up."""
        return self._trust.covers(key)

    async def verify(self, key: bytes) -> bool:
        """Reads the whole chunk and compares it with its checksums.

        Returns:
            False if it is corrupt, unreadable or missing: `evict` it and fetch it again. True also if no file can be
            opened for the moment. A disk that fails too often is given up, and `on_lost` is called.
        """
        if (path := self.path(key)) is None:
            return False
        if key in self._chunks:
            failure = await self._trust.examine(key, self._chunks)
            if self._trust.is_given_up and not self.space.is_given_up:
                self._give_up_disk(failure)
        else:
            failure = await read_whole(path, key, self._files)
        if isinstance(failure, OSError) and is_shortage(failure):
            return True
        if isinstance(failure, FileNotFoundError):
            self.restore()
        if failure is not None and self.path(key) == path:  # neither evicted meanwhile, nor removed with the folder
            self._count.damaged_chunks += 1
            logger.info("a chunk in the cache is corrupt: %s", failure)
        return failure is None

    def _give_up_disk(self, failure: object) -> None:
        """Uses the disk no more until this engine ends: forgets its chunks, warns, and calls `on_lost`."""
        self.space.is_given_up = self.space.refused = True
        lost, self._chunks = self._chunks, {}
        self._release(lost)
        self._warn(
            f"the disk of the cache folder {self.root} cannot be read ({failure}): all chunks pass through memory "
            f"until this engine ends, {len(lost)} are fetched again; check the disk, or choose another cache_dir"
        )
        self.on_lost(list(lost))

    async def advise(self, key: bytes, advice: linux.Advice) -> None:
        """Advises the kernel about the pages of a chunk's file; does nothing if no folder has the chunk."""
        if (path := self.path(key)) is not None:
            await in_thread(self._files, advise, path, advice)
