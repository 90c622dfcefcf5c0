"""Locks a cache folder for one engine.

The lock is on a file of its own, which only the engine's user may open: who may read the folder may lock the folder,
too. Versions up to 0.2 lock the folder itself. They are kept out, and keep this one out: the folder is locked as well,
unless processes of other users alone hold that lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from streamer.cache.folder import LOCK_NAME, MARKER, is_fresh
from streamer.errors import CacheError

logger = logging.getLogger(__name__)


def take_locks(directory: Path, on_exit: ExitStack) -> list[int] | None:
    """Locks a cache folder until `on_exit` ends; returns the descriptors, or None while another engine has it.

    Raises:
        CacheError: the file cannot be made or is another user's.
    """
    with ExitStack() as undo:
        descriptors: list[int] = []
        # Into a folder that is no cache, and will be refused, nothing is written.
        if (directory / MARKER).exists() or is_fresh(directory):
            descriptors.append(_open_lock(directory))
            undo.callback(os.close, descriptors[0])
            if not _lock(descriptors[0]):
                return None
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptors.append(folder)
        undo.callback(os.close, folder)
        if not _lock(folder):
            if _is_held_by_an_engine(folder):
                return None
            logger.warning(
                "%s is locked by another user, who may read it: that keeps no engine out any more, but older versions "
                "than this one",
                directory,
            )
        on_exit.push(undo.pop_all())
        return descriptors


def _open_lock(directory: Path) -> int:
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
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _is_held_by_an_engine(folder: int) -> bool:
    """Whether a process of this user or of root holds the lock of a folder, or one that cannot be looked at."""
    trusted = (os.geteuid(), 0)
    holders = list(_holders(folder))
    return not holders or any(uid is None or uid in trusted for uid in holders)


def _holders(descriptor: int) -> Iterator[int | None]:
    """Yields the users of the processes that hold locks of a file; None for those of other PID namespaces."""
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
