"""A small folder in memory for chunks that the disk refuses, so that training continues.

Same layout as the cache folder, one more root for the readers. Made when it is first needed, removed at the end and at
the next start; bounded, because it is memory.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from streamer.cache.folder import Folder, open_folder

# Full, failing, over quota, turned read-only: refusals that are no fault of ours.
REFUSALS = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS})
MEMORY_FOLDER = Path("/dev/shm")
# At most this, and at most a quarter of what is free there.
FALLBACK_BYTES = 512 << 20


class RamFallback:
    """The folder in memory. Owned by one `ChunkCache`; its methods run in threads.

    Attributes:
        path: where it is, or would be.
        limit_bytes: how much it may take; 0 before it is open.

    Args:
        root_id: the cache folder's: the name of the folder here, so that the next engine finds leftovers.
        memory: a folder in memory.
    """

    def __init__(self, root_id: str, memory: Path = MEMORY_FOLDER) -> None:
        self.path = memory / f"streamer-{os.geteuid()}-{root_id}"
        self.folder: Folder | None = None
        self.limit_bytes = 0

    def __repr__(self) -> str:
        return f"RamFallback({str(self.path)!r}, {'in use' if self.folder else 'unused'})"

    def open(self, group: str | None) -> Folder:
        """The folder, made when missing.

        Raises:
            CacheError: there is no memory folder.
        """
        if self.folder is None:
            self.folder = open_folder(self.path, group)
            found = os.statvfs(self.path)
            self.limit_bytes = min(FALLBACK_BYTES, found.f_bavail * found.f_frsize // 4)
        return self.folder

    def remove(self) -> None:
        """Removes the folder and what is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.folder = None
        self.limit_bytes = 0
