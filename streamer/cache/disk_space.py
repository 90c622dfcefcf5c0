"""The bytes of a cache folder: its limit, its chunk files, and the bytes reserved for writes."""

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

# Markers, 20 folders of a block each, an empty catalog (48 KiB) and its log (at most 256 KiB, see `catalog`).
FIXED_BYTES = 512 << 10
# The default limit: this share of the free space and of what the cache already holds.
DEFAULT_SHARE = 0.8
# Set aside for files that are being sent to peers.
SEND_SHARE = 1 / 32
MAX_SEND_BYTES = 512 << 20
# The default floor of free space: this share of the filesystem, what ext4 keeps for root; less where the default limit
# leaves less.
DEFAULT_FLOOR_SHARE = 0.05

# Inodes left to manifests, logs of indexing and other programs: a fiftieth, within these bounds.
MIN_FREE_INODES = 16
MAX_FREE_INODES = 1024


class DiskSpace:
    """Owned by one `ChunkCache`; `reserve` runs on its loop, the rest may run in its threads.

    Attributes:
        charged_bytes: bytes of chunk files, reserved ones included, as `table.charge` counts them.
        files: number of chunk files.
        whole_limit_bytes: limit of the whole folder; if none was set, a share of the most that was ever free.
        overhead_bytes: bytes of manifests, catalog and folders, as of the last `measure`.
        refused: whether the disk has refused a write since the last `measure`, or is read-only.
        was_refused: whether it has refused one since the start.
        is_set: whether a user chose the limit.
        is_given_up: whether no more is written to it: it cannot be read.
        serves_peers: whether deleted files may still be open because they are being sent.
        disk_bytes, free_bytes: size and free space of the filesystem, as of the last `measure`.
        leftover_bytes: bytes among the charged ones of files that could not be removed.
        unwritten_bytes: bytes among the charged ones of files that are not written yet: the disk counts them as free.
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
        """The limit that is never exceeded: the whole limit minus manifests, catalog and the bytes set aside."""
        return min(self.max_bytes, max(0, self.whole_limit_bytes - self.overhead_bytes - self.send_bytes))

    @property
    def max_bytes(self) -> int:
        """Bytes that chunks in use may take, however full the disk is; those that it has no space for go to memory."""
        return max(0, self.max_whole_bytes - self.overhead_bytes - self.send_bytes)

    @property
    def max_whole_bytes(self) -> int:
        """The limit that was set, or else a share of the whole disk, however full it was at the start.

        `reserve` grants up to this, so no limit of the policy may be above it.
        """
        return self.whole_limit_bytes if self.is_set else int(DEFAULT_SHARE * self.disk_bytes)

    @property
    def send_bytes(self) -> int:
        """Bytes set aside for files that are being sent to peers: a deleted one occupies its bytes until it is sent."""
        return min(int(SEND_SHARE * self.whole_limit_bytes), MAX_SEND_BYTES) if self.serves_peers else 0

    def limits(self, memory_bytes: int, memory_limit_bytes: int) -> CacheLimits:
        """Returns the present limits of chunk files.

        These are the hard limit, or, if less, the bytes in use plus those free above the floor (as of the last
        `measure`). While the disk refuses writes, the limit is the bytes of the present chunks.
        """
        room = (self.charged_bytes if self.refused else self._disk_limit) - self.leftover_bytes
        max_bytes = self.max_bytes
        return CacheLimits(
            max(0, min(self.hard_limit_bytes, room + memory_bytes)),
            max(0, min(max_bytes, room + memory_limit_bytes)),
            max_bytes,
        )

    def refuse(self) -> bool:
        """Notes that the disk took no write or no unlink; returns whether it is the first time."""
        first = not self.was_refused
        self.refused = True
        self.was_refused = True
        return first

    def resize(self, limit_bytes: int) -> None:
        """Sets another limit for the whole folder; call `measure` afterwards."""
        self.whole_limit_bytes = limit_bytes
        self.is_set = True

    def measure(self) -> None:
        """Measures manifests and free space."""
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
        """Returns the most bytes that files of the present mean length may take if some inodes are to stay free."""
        if not found.f_files:  # the filesystem creates inodes as they are needed
            return self._most_present
        spare = found.f_favail - max(MIN_FREE_INODES, min(MAX_FREE_INODES, found.f_files // 50))
        if not self.files:
            return self._most_present if spare > 0 else 0
        return self.charged_bytes * (self.files + spare) // self.files

    async def reserve(self, length: int) -> None:
        """Reserves the bytes of a file of this length; waits for running unlinks if necessary.

        Raises:
            CacheFullError: the limit would be exceeded.
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
        """Releases the bytes of files of these lengths: they were unlinked, or not written."""
        self.charged_bytes -= sum(map(charge, lengths))
        self.files -= len(lengths)

    @contextmanager
    def unwritten(self, length: int) -> Iterator[None]:
        """Marks reserved bytes as not yet written: the disk still counts them as free."""
        wanted = charge(length)
        self.unwritten_bytes += wanted
        try:
            yield
        finally:
            self.unwritten_bytes -= wanted

    def unlink_begins(self, end: asyncio.Event) -> None:
        """Notes a running unlink, which releases its bytes before it sets this event: `reserve` may wait for it."""
        self._unlinks.add(end)

    def unlink_ends(self, end: asyncio.Event) -> None:
        """Ends the wait, whether or not the unlink succeeded."""
        self._unlinks.discard(end)
