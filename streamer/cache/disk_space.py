"""Counts the bytes of a cache folder: its chunk files, what is reserved for writes, and the limit for both.

`chunk_cache.py` reserves and releases bytes here. `tools/planning/simulate.py` uses the constants.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamer.cache.folder import measure_usage
from streamer.cache.policy.answers import CacheLimits
from streamer.cache.policy.table import charge
from streamer.config import CacheConfig, format_bytes
from streamer.errors import CacheFullError

# Bytes of markers, 20 folders of a block each, an empty catalog (48 KiB) and its log (256 KiB, `catalog_database.py`).
FIXED_BYTES = 512 << 10
# The default limit is this share of the free space and what the cache already holds.
DEFAULT_SHARE = 0.8
# This share of the limit, but at most so many bytes, is set aside for files that are being sent to peers.
SEND_SHARE = 1 / 32
MAX_SEND_BYTES = 512 << 20
# The default floor of free space is this share of the filesystem, which ext4 keeps for root, too. It is less where the
# default limit leaves less.
DEFAULT_FLOOR_SHARE = 0.05

# A fiftieth of all inodes, within these bounds, is left to manifests, logs of indexing and other programs.
MIN_FREE_INODES = 16
MAX_FREE_INODES = 1024


class DiskSpace:
    """Counts the bytes of one cache folder, and limits them.

    One `ChunkCache` has it. `reserve` runs on its loop, and `measure` in one of its threads. `is_given_up` and
    `leftover_bytes` are set by that cache, and `serves_peers` by `peers/`.

    Args:
        path: the cache folder.
        config: limit and floor of free space.
        charged_bytes: bytes of the chunk files that are there, as `table.charge` counts them.
        files: number of these files.

    Raises:
        OSError: as `measure`, which is called when the object is made.

    Attributes:
        charged_bytes: bytes of chunk files, reserved ones included, as `table.charge` counts them.
        files: number of chunk files, reserved ones included.
        whole_limit_bytes: limit of the whole folder. If the user set none, it is a share of the most that the cache
            and the free space together ever had.
        overhead_bytes: bytes of manifests, catalog and folders, as of the last `measure`.
        refused: whether the disk has refused a write since the last `measure`, is read-only, or is given up.
        was_refused: whether the disk has refused a write since the start.
        is_set: whether the user chose the limit.
        is_given_up: whether no more is written to the disk, because its files cannot be read.
        serves_peers: whether removed files may still be open because they are being sent to peers.
        disk_bytes, free_bytes: size and free space of the filesystem, as of the last `measure`.
        leftover_bytes: those of the charged bytes whose files should have been removed and could not be.
        unwritten_bytes: those of the charged bytes that are not written yet, so that the disk counts them as free.
    """

    def __init__(self, path: Path, config: CacheConfig, charged_bytes: int, files: int = 0) -> None:
        self.charged_bytes = charged_bytes
        self.files = files
        self.refused = False
        self.was_refused = False
        self.is_given_up = False
        self.leftover_bytes = self.unwritten_bytes = 0
        self.serves_peers = False
        self._path = path
        self._floor_bytes = config.free_floor_bytes
        self._floor_share = config.free_floor_share
        self._unlinks: set[asyncio.Event] = set()
        self.overhead_bytes = FIXED_BYTES
        self._disk_limit = self.disk_bytes = self.free_bytes = self._most_present = 0
        self.is_set = config.limit_bytes is not None
        self.whole_limit_bytes = config.limit_bytes or 0
        self.measure()

    def __repr__(self) -> str:
        return f"DiskSpace({format_bytes(self.charged_bytes)} of {format_bytes(self.hard_limit_bytes)})"

    @property
    def hard_limit_bytes(self) -> int:
        """Limit of chunk files: the whole limit minus manifests, catalog and bytes set aside, at most `max_bytes`."""
        return min(self.max_bytes, max(0, self.whole_limit_bytes - self.overhead_bytes - self.send_bytes))

    @property
    def max_bytes(self) -> int:
        """Limit of chunk files in use, however full the disk is; chunks for which it has no space go to memory."""
        return max(0, self.max_whole_bytes - self.overhead_bytes - self.send_bytes)

    @property
    def max_whole_bytes(self) -> int:
        """Limit of the whole folder that is never exceeded: the limit that was set, or else a share of the whole disk.

        `reserve` grants bytes up to this limit, so no limit of the policy may be above it.
        """
        return self.whole_limit_bytes if self.is_set else int(DEFAULT_SHARE * self.disk_bytes)

    @property
    def send_bytes(self) -> int:
        """Bytes set aside for files that are being sent to peers: a removed one occupies its bytes until it is sent."""
        return min(int(SEND_SHARE * self.whole_limit_bytes), MAX_SEND_BYTES) if self.serves_peers else 0

    def limits(self, memory_bytes: int, memory_limit_bytes: int) -> CacheLimits:
        """Returns the present limits of chunk files, in the folder and in memory together.

        The first is `hard_limit_bytes`, or less if the disk is full: the bytes in use and those that are free above the
        floor (as of the last `measure`). While the disk refuses writes, it is the bytes in use.

        Args:
            memory_bytes: bytes of the chunks that are in memory.
            memory_limit_bytes: maximum number of bytes of chunks that may be in memory.
        """
        room = (self.charged_bytes if self.refused else self._disk_limit) - self.leftover_bytes
        max_bytes = self.max_bytes
        return CacheLimits(
            max(0, min(self.hard_limit_bytes, room + memory_bytes)),
            max(0, min(max_bytes, room + memory_limit_bytes)),
            max_bytes,
        )

    def refuse(self) -> bool:
        """Notes that the disk refused a write or an unlink; returns whether that is the first time since the start."""
        first = not self.was_refused
        self.refused = True
        self.was_refused = True
        return first

    def resize(self, limit_bytes: int) -> None:
        """Sets another limit for the whole folder; call `measure` afterwards."""
        self.whole_limit_bytes = limit_bytes
        self.is_set = True

    def measure(self) -> None:
        """Measures manifests and free space, from which the limits follow; `refused` becomes false on a healthy disk.

        Raises:
            OSError: the folder is missing, or cannot be read.
        """
        self.overhead_bytes = FIXED_BYTES + measure_usage(self._path / "manifests")
        found = os.statvfs(self._path)
        self.disk_bytes = found.f_blocks * found.f_frsize
        self.free_bytes = found.f_bavail * found.f_frsize
        # Never more than the disk: files are written, and removed, while they are counted.
        present = min(self.charged_bytes - self.unwritten_bytes + self.free_bytes, self.disk_bytes)
        self._most_present = max(self._most_present, present)
        floor = max(self._floor_bytes or 0, int((self._floor_share or 0.0) * self.disk_bytes))
        if self._floor_bytes is None and self._floor_share is None:
            floor = int(min(DEFAULT_FLOOR_SHARE * self.disk_bytes, (1 - DEFAULT_SHARE) * self._most_present))
        self._disk_limit = max(0, min(present - floor, self._inode_limit(found)))
        if not self.is_set:
            self.whole_limit_bytes = int(DEFAULT_SHARE * self._most_present)
        self.refused = self.is_given_up or bool(found.f_flag & os.ST_RDONLY)

    def _inode_limit(self, found: os.statvfs_result) -> int:
        """Returns how many bytes files of the present mean size may take at most if some inodes are to stay free."""
        if not found.f_files:  # the filesystem creates inodes as they are needed
            return self._most_present
        spare = found.f_favail - max(MIN_FREE_INODES, min(MAX_FREE_INODES, found.f_files // 50))
        if not self.files:
            return self._most_present if spare > 0 else 0
        return self.charged_bytes * (self.files + spare) // self.files

    async def reserve(self, length: int) -> None:
        """Reserves the bytes of a file of this length (bytes); waits for running unlinks if necessary.

        Raises:
            CacheFullError: `max_bytes` would be exceeded, and no unlink is running.
        """
        wanted = charge(length)
        while self._unlinks and self.charged_bytes + wanted > self.max_bytes:
            await next(iter(self._unlinks)).wait()
        if self.charged_bytes + wanted > self.max_bytes:
            raise CacheFullError(
                f"no room for a chunk of {format_bytes(length)}: {format_bytes(self.charged_bytes)} of"
                f" {format_bytes(self.max_bytes)} are taken in {self._path}",
                limit_bytes=self.max_bytes,
                taken_bytes=self.charged_bytes,
                wanted_bytes=wanted,
            )
        self.charged_bytes += wanted
        self.files += 1

    def release(self, *lengths: int) -> None:
        """Releases the bytes of files of these lengths (bytes), which were unlinked, or not written after all."""
        self.charged_bytes -= sum(map(charge, lengths))
        self.files -= len(lengths)

    @contextmanager
    def unwritten(self, length: int) -> Iterator[None]:
        """Counts the reserved bytes of a file of this length as not yet written, inside a `with`."""
        wanted = charge(length)
        self.unwritten_bytes += wanted
        try:
            yield
        finally:
            self.unwritten_bytes -= wanted

    def unlink_begins(self, end: asyncio.Event) -> None:
        """Notes a running unlink, which releases its bytes and then sets the event `end`; `reserve` may wait for it."""
        self._unlinks.add(end)

    def unlink_ends(self, end: asyncio.Event) -> None:
        """Forgets an unlink, whether or not it succeeded: `reserve` does not wait for it any more."""
        self._unlinks.discard(end)
