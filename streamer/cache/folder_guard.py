"""Recreates a cache folder that another program (`rm`, a cleaner of old files) removes while an engine uses it."""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack

from streamer.cache.folder import Folder, is_intact, make_again
from streamer.cache.folder_lock import take_locks
from streamer.errors import CacheError

# `rm -r` also removes a folder that is recreated meanwhile, a few times.
REPEATED_SECONDS = 1.0


class FolderGuard:
    """Watches one opened folder. Owned by one `ChunkCache`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        # Of a folder that was made again.
        self._locks = ExitStack()
        self._is_foreign = False
        self._restored_at = self._restored_before = float("-inf")
        # The engine locked this one before it opened the folder.
        self._locked_inode = os.stat(folder.path).st_ino

    def __repr__(self) -> str:
        return f"FolderGuard({str(self._folder.path)!r}, {'foreign' if self._is_foreign else 'own'})"

    def restore(self, *, wanted: bool) -> bool:
        """Recreates the folder if it or a part of it is missing; its content is lost.

        Args:
            wanted: if false, a missing folder is an error.

        Returns:
            Whether something was missing.

        Raises:
            CacheError: it cannot be created, or another engine has its own there.
        """
        self._is_foreign = False
        if is_intact(self._folder):
            return False
        path = self._folder.path
        self._is_foreign = True
        if not wanted:
            raise CacheError(f"the cache folder {path} was removed after its last use", where=str(path))
        try:
            make_again(self._folder)
            self._lock_again()
        except CacheError:
            raise
        except OSError as error:
            raise CacheError(
                f"the cache folder {path} was removed while it was in use and cannot be made again: {error.strerror} "
                f"({error.filename}); make it possible, or choose another cache_dir",
                where=str(path),
                errno=error.errno,
            ) from error
        self._is_foreign = False
        self._restored_before, self._restored_at = self._restored_at, time.monotonic()
        return True

    def check(self) -> None:
        """Checks the folder before a write.

        Raises:
            FileNotFoundError: the folder is no longer this engine's: `restore` it, or find out why.
        """
        if self._is_foreign:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._folder.path))

    @property
    def is_repeated(self) -> bool:
        """Whether the program that removed the folder was still at work when it was recreated."""
        return self._restored_at - self._restored_before < REPEATED_SECONDS

    def close(self) -> None:
        """Releases the lock of a recreated folder; idempotent."""
        self._locks.close()

    def _lock_again(self) -> None:
        """Locks the new folder: the engine's lock is on the old one, so a second engine could open this one."""
        path = self._folder.path
        if os.stat(path).st_ino == self._locked_inode:  # only its content is gone
            return
        self.close()
        self._locked_inode = os.stat(path).st_ino
        if take_locks(path, self._locks) is None:
            self._locked_inode = 0
            raise CacheError(
                f"the cache folder {path} was removed, and another engine uses the new one; end one of the two",
                where=str(path),
            )
