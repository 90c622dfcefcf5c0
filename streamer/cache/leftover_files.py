"""Chunk files that were evicted but could not be removed: they are useless, but occupy bytes of the disk."""

from __future__ import annotations

from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor

from streamer.cache.disk_space import DiskSpace
from streamer.cache.file_jobs import unlink_all
from streamer.cache.folder import Folder
from streamer.cache.policy.table import charge
from streamer.threads import in_thread


class LeftoverFiles:
    """Owned by one `ChunkCache`; lives on its loop.

    Args:
        folder: the cache folder.
        space: the account of the bytes that they occupy.
    """

    def __init__(self, folder: Folder, space: DiskSpace) -> None:
        self._folder = folder
        self._space = space
        self._lengths: dict[bytes, int] = {}

    def __repr__(self) -> str:
        return f"LeftoverFiles({len(self._lengths)})"

    def __bool__(self) -> bool:
        return bool(self._lengths)

    def add(self, lengths: dict[bytes, int]) -> None:
        """Adds files of these lengths, which could not be removed."""
        self._lengths |= lengths
        self._count()

    async def remove(self, pool: ThreadPoolExecutor, live: Container[bytes]) -> dict[bytes, int]:
        """Tries again; returns the lengths of those that are gone. A `live` one was replaced by a new file."""
        before, failed = self._lengths, dict[bytes, OSError]()
        paths = {key: self._folder.chunk_path(key) for key in before if key not in live}
        await in_thread(pool, unlink_all, paths, failed)
        self._lengths = {key: before[key] for key in failed}
        self._count()
        return {key: length for key, length in before.items() if key not in failed}

    def _count(self) -> None:
        self._space.leftover_bytes = sum(map(charge, self._lengths.values()))
