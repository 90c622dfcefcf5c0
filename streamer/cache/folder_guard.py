"""Locks a cache folder for one engine, and recreates it if another program (`rm`, a cleaner) removes it meanwhile.

`service/lifecycle.py` takes the locks at the start of an engine, and `chunk_cache.py` uses a `FolderGuard`.

The lock is on a file of its own, which only the engine's user may open, because every user who may read the folder may
lock the folder, too. The folder is locked as well, for versions up to 0.2, which only lock that. A lock of the folder
that only processes of other users than root hold is ignored.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from streamer.cache.folder import LOCK_NAME, MARKER, CacheFolder, is_fresh, is_intact, make_again
from streamer.errors import CacheError

logger = logging.getLogger(__name__)


def take_locks(directory: Path, on_exit: ExitStack) -> list[int] | None:
    """Locks a cache folder; returns the descriptors of its locks, or None while another engine has the folder.

    Args:
        directory: the cache folder, which exists.
        on_exit: stack that closes the descriptors, which ends the locks.

    Raises:
        CacheError: the lock file cannot be made, or is another user's.
        OSError: the folder cannot be read.
    """
    with ExitStack() as undo:
        descriptors: list[int] = []
        # Nothing is written into a folder that is no cache: it will be refused.
        if (directory / MARKER).exists() or is_fresh(directory):
            descriptors.append(_open_lock(directory))
            undo.callback(os.close, descriptors[0])
            if not _lock(descriptors[0]):
                return None
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptors.append(folder)
        undo.callback(os.close, folder)
        if not _lock(folder):
            # A lock of this user or root keeps this engine out, and so does that of a process of an unknown user.
            trusted = (os.geteuid(), 0)
            holders = list(_holders(folder))
            if not holders or any(uid is None or uid in trusted for uid in holders):
                return None
            logger.warning(
                "%s is locked by another user, who may read it: that keeps no engine out any more, but older versions "
                "than this one",
                directory,
            )
        on_exit.push(undo.pop_all())
        return descriptors


def _open_lock(directory: Path) -> int:
    """Opens the lock file of a folder, which is made if missing. Raises CacheError if others may open it, too."""
    path = directory / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CacheError(f"cannot lock {path}: {error.strerror}; choose another cache_dir", where=str(path)) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o077:
        os.close(descriptor)
        raise CacheError(
            f"{path} belongs to uid {found.st_uid} and has mode {stat.filemode(found.st_mode)}: it must be a file that "
            "only the engine's user may open; remove it",
            where=str(path),
        )
    return descriptor


def _lock(descriptor: int) -> bool:
    """Locks an open file or folder without waiting; returns False while another process has it locked."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _holders(descriptor: int) -> Iterator[int | None]:
    """Yields the user id of each process that holds a lock of an open file; None if the process cannot be looked at."""
    found = os.fstat(descriptor)
    wanted = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if "->" not in fields and len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == wanted:
            try:
                yield os.stat(f"/proc/{fields[4]}").st_uid
            except OSError:
                yield None


# A folder that is missing again after so short a time is still being removed by the same `rm -r`.
REPEATED_SECONDS = 1.0


class FolderGuard:
    """Watches one opened folder, whose locks `take_locks` took before. One `ChunkCache` has it."""

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        # Holds the locks of a folder that was made again.
        self._locks = ExitStack()
        self._is_foreign = False
        self._restored_at = self._restored_before = float("-inf")
        # The engine locked this one before it opened the folder.
        self._locked_inode = os.stat(folder.path).st_ino

    def __repr__(self) -> str:
        return f"FolderGuard({str(self._folder.path)!r}, {'foreign' if self._is_foreign else 'own'})"

    def restore(self, *, wanted: bool) -> bool:
        """Looks at the folder, and recreates what is missing of it. The chunks that were in it are lost.

        Args:
            wanted: whether to recreate it. If false, a missing part is an error.

        Returns:
            Whether something was missing.

        Raises:
            CacheError: it is missing and not `wanted`, cannot be created, or another engine has its own there.
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
            # The engine's lock is on the old folder, so a second engine could open a new one.
            if os.stat(path).st_ino != self._locked_inode:
                self.close()
                self._locked_inode = os.stat(path).st_ino
                if take_locks(path, self._locks) is None:
                    self._locked_inode = 0
                    raise CacheError(
                        f"the cache folder {path} was removed, and another engine uses the new one; end one of the two",
                        where=str(path),
                    )
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
        """Checks before a write what the last `restore` found; does not look at the disk.

        Raises:
            FileNotFoundError: the folder was missing, or another engine's: `restore` says why.
        """
        if self._is_foreign:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._folder.path))

    @property
    def is_lost(self) -> bool:
        """Whether the folder was missing or another engine's when `restore` last looked, and stayed so."""
        return self._is_foreign

    @property
    def is_repeated(self) -> bool:
        """Whether the folder was last recreated within a second of the time before: one `rm -r` removed it twice."""
        return self._restored_at - self._restored_before < REPEATED_SECONDS

    def close(self) -> None:
        """Releases the locks of a recreated folder; idempotent."""
        self._locks.close()
