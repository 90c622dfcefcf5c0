"""The bytes of a cache folder: its limit, its chunk files, and what is reserved before a write."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from streamer.cache.folder import used_bytes
from streamer.cache.policy.table import charge
from streamer.config import format_bytes
from streamer.errors import CacheFullError

# Markers, 20 folders of a block each, an empty catalog (48 KiB) and its log (at most 256 KiB, see `catalog`).
FIXED_BYTES = 512 << 10
# The default limit: this share of the free space and of what the cache holds already.
DEFAULT_SHARE = 0.8
# For what is being sent to peers.
SEND_SHARE = 1 / 32
MOST_SEND_BYTES = 512 << 20
# The free-space floor is at most this share of the filesystem.
FLOOR_SHARE = 0.02


class DiskSpace:
    """Owned by one `ChunkCache`; `reserve` lives on its loop, the rest may run in its threads.

    Args:
        path: the folder.
        limit_bytes: of the whole folder; None: a share of the free space.
        floor_bytes: free space that is left to other programs.
        charged_bytes: bytes of its chunk files at the start.

    Attributes:
        charged_bytes: what chunk files take, reserved bytes included, as `table.charge` counts them.
        whole_limit_bytes: of the whole folder.
        overhead_bytes: what manifests, catalog and folders take of it, as of the last `measure`.
        refused: the disk has refused a write since the last `measure`, or is read-only.
        was_refused: it has, since the start.
        serves_peers: deleted files may still be open, because they are being sent.
        leftover_bytes: of the charged bytes, those of files that could not be removed.
    """

    def __init__(self, path: Path, limit_bytes: int | None, floor_bytes: int, charged_bytes: int) -> None:
        self.charged_bytes = charged_bytes
        self.refused = False
        self.was_refused = False
        self.leftover_bytes = 0
        self.serves_peers = False
        self._path = path
        self._floor_bytes = floor_bytes
        self._unlinks: set[asyncio.Event] = set()
        self.overhead_bytes = FIXED_BYTES
        self._disk_limit = 0
        self.whole_limit_bytes = limit_bytes or 0
        if limit_bytes is None:
            self.whole_limit_bytes = int(DEFAULT_SHARE * (self.free_bytes() + charged_bytes))
        self.measure()

    def __repr__(self) -> str:
        return f"DiskSpace({format_bytes(self.charged_bytes)} of {format_bytes(self.hard_limit_bytes)})"

    @property
    def hard_limit_bytes(self) -> int:
        """The limit that is never exceeded: the whole limit less manifests, catalog and what is set aside."""
        return max(0, self.whole_limit_bytes - self.overhead_bytes - self.send_bytes)

    @property
    def send_bytes(self) -> int:
        """What is set aside for files that are being sent to peers: deleted ones take their bytes until then."""
        return min(int(SEND_SHARE * self.whole_limit_bytes), MOST_SEND_BYTES) if self.serves_peers else 0

    def limit_bytes(self, memory_bytes: int) -> int:
        """The present limit of chunk files.

        The hard limit, or what is there and what is free above the floor (as of the last `measure`) if that is less.
        While the disk refuses writes: its present chunks and the memory fallback.
        """
        disk_limit = self.charged_bytes + memory_bytes if self.refused else self._disk_limit
        disk_limit -= self.leftover_bytes
        return max(0, min(self.hard_limit_bytes, disk_limit))

    def resize(self, limit_bytes: int) -> None:
        """Another limit for the whole folder; `measure` it then."""
        self.whole_limit_bytes = limit_bytes

    def measure(self) -> None:
        """Measures manifests and free space."""
        self.overhead_bytes = FIXED_BYTES + used_bytes(self._path / "manifests")
        found = os.statvfs(self._path)
        # On a small filesystem (a tmpfs as RAM tier) a floor of 1 GiB would leave nothing.
        floor = min(self._floor_bytes, int(FLOOR_SHARE * found.f_blocks * found.f_frsize))
        self._disk_limit = max(0, self.charged_bytes + found.f_bavail * found.f_frsize - floor)
        self.refused = bool(found.f_flag & os.ST_RDONLY)

    def free_bytes(self) -> int:
        """Free space of the filesystem, as this user may take it."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    async def reserve(self, length: int) -> None:
        """Reserves the bytes of a file of this length; waits for running unlinks if it must.

        Raises:
            CacheFullError: there is no room.
        """
        wanted = charge(length)
        while self._unlinks and self.charged_bytes + wanted > self.hard_limit_bytes:
            await next(iter(self._unlinks)).wait()
        if self.charged_bytes + wanted > self.hard_limit_bytes:
            raise CacheFullError(
                f"no room for a chunk of {format_bytes(length)}: {format_bytes(self.charged_bytes)} of"
                f" {format_bytes(self.hard_limit_bytes)} are taken in {self._path}",
                limit_bytes=self.hard_limit_bytes,
                taken_bytes=self.charged_bytes,
                wanted_bytes=wanted,
            )
        self.charged_bytes += wanted

    def release(self, *lengths: int) -> None:
        """Files of these lengths are unlinked, or were not written."""
        self.charged_bytes -= sum(map(charge, lengths))

    def unlink_begins(self, end: asyncio.Event) -> None:
        """Bytes are released before this event is set: `reserve` may wait for it."""
        self._unlinks.add(end)

    def unlink_ends(self, end: asyncio.Event) -> None:
        """Ends the wait, whether or not the unlink succeeded."""
        self._unlinks.discard(end)
