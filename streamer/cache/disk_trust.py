"""Decides which chunks may still be written to the disk of the cache, from the files that were wrong or unreadable.

`chunk_cache.py` asks it. A chunk of which several copies in succession were wrong is kept in memory from then on. After
a copy that was read well the count begins again: a program that overwrites files now and then costs a fetch each time,
and no memory. A disk of which no file can be read is given up: all chunks pass through memory until the engine ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from streamer.base.concurrency import in_thread
from streamer.base.system_limits import is_shortage
from streamer.cache.chunk_files import verify_file
from streamer.cache.folder import CacheFolder
from streamer.errors import IntegrityError

# A chunk is not written to the disk any more after so many wrong copies of which none was read well in between.
MAX_DISK_COPIES = 2
# Number of files that could not be read, none read well in between, after which other files are looked at: one bad
# sector is no bad disk.
SUSPECT_FILES = 4
# How many other files are looked at then; the disk is given up when none of them can be read.
PROBED_FILES = 4


class DiskTrust:
    """Remembers which files were wrong, and which chunks are kept in memory therefore.

    One `ChunkCache` has it, and calls it on its loop.

    Args:
        folder: the cache folder.
        pool: threads that read files.
        warn: called with a sentence for the cache's users, when the first chunk is distrusted.

    Attributes:
        is_given_up: whether nothing is read from the disk or written to it any more.
        distrusted: keys of the chunks that are kept in memory.
    """

    def __init__(self, folder: CacheFolder, pool: ThreadPoolExecutor, warn: Callable[[str], None]) -> None:
        self.is_given_up = False
        self.distrusted: set[bytes] = set()
        self._folder = folder
        self._pool = pool
        self._warn = warn
        self._damaged: Counter[bytes] = Counter()
        self._failed: set[bytes] = set()

    def __repr__(self) -> str:
        return f"DiskTrust(distrusted={len(self.distrusted)}, given_up={self.is_given_up})"

    def covers(self, key: bytes) -> bool:
        """Whether the chunk may be written to the disk."""
        return not self.is_given_up and key not in self.distrusted

    def distrust(self, key: bytes) -> None:
        """Marks a chunk whose next copies are to be kept in memory; warns at the first such chunk."""
        if not self.distrusted:
            self._warn(
                f"the disk of the cache folder {self._folder.path} failed to keep chunk {key.hex()} several times: "
                "this chunk, and others that fail like it, are kept in memory; check the disk"
            )
        self.distrusted.add(key)

    def note_good_read(self, key: bytes) -> None:
        """Records that a copy of the chunk was read well: earlier copies that were wrong do not count any more."""
        self._damaged.pop(key, None)

    async def examine(self, key: bytes, present: Collection[bytes]) -> IntegrityError | OSError | None:
        """Reads a chunk's whole file in the cache folder, and compares it with its checksums.

        Counts a wrong or unreadable copy, after the second of which the chunk is distrusted. A file that is missing, or
        that was not opened for lack of descriptors, does not count. After several unreadable files it reads some
        others, and sets `is_given_up` if none of them can be read.

        Args:
            key: key of the chunk.
            present: keys of the chunks that are in the folder.

        Returns:
            What is wrong with the file, or None if it is right.
        """
        failure = await read_whole(self._folder.chunk_path(key), key, self._pool)
        unreadable = _is_unreadable(failure)
        if isinstance(failure, OSError) and not unreadable:
            return failure
        if failure is not None:
            self._damaged[key] += 1
            if self._damaged[key] >= MAX_DISK_COPIES:
                self.distrust(key)
        if not unreadable:
            self._failed.clear()
            return failure
        self._failed.add(key)
        if len(self._failed) >= SUSPECT_FILES and not self.is_given_up:
            others = [other for other in present if other not in self._failed]
            for other in others[:: max(1, len(others) // PROBED_FILES)][:PROBED_FILES]:
                if not _is_unreadable(await read_whole(self._folder.chunk_path(other), other, self._pool)):
                    self._failed.clear()
                    break
            else:
                self.is_given_up = True
        return failure


async def read_whole(path: Path, key: bytes, pool: ThreadPoolExecutor) -> IntegrityError | OSError | None:
    """Compares a chunk's file with its checksums, in a thread; returns what is wrong, or None if it is right."""
    try:
        await in_thread(pool, verify_file, path, key)
    except (IntegrityError, OSError) as error:
        return error
    return None


def _is_unreadable(failure: IntegrityError | OSError | None) -> bool:
    """Whether a failure says that the disk did not give the bytes of a file that it has.

    A missing file was evicted or removed meanwhile. A lack of descriptors says nothing of the disk either.
    """
    return isinstance(failure, OSError) and not isinstance(failure, FileNotFoundError) and not is_shortage(failure)
