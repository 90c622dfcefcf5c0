"""The folders of engines in memory, and the removal of those whose engine is gone.

Each has a lock file that its engine holds for life: the kernel frees it with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

from streamer.cache.folder import LOCK_NAME

MEMORY_FOLDER = Path("/dev/shm")


def folder_name(text: str) -> str:
    """Returns the name of a folder in memory: of this user, and for this text."""
    return f"{_prefix()}{text}"


def make_locked(path: Path) -> int | None:
    """Makes an empty folder that only this user may enter; returns the descriptor of its lock, or None if it cannot.

    A folder of the same name that an engine of this user has left is removed.
    """
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700)
        return _lock(path, os.O_CREAT)
    return None


def _lock(path: Path, flags: int = 0) -> int:
    """Locks a folder; raises OSError where another process has it, or has removed it meanwhile."""
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.stat(path / LOCK_NAME)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove_unlocked(memory: Path = MEMORY_FOLDER) -> None:
    """Removes the folders of engines of this user that have ended without removing theirs.

    Those of earlier versions have no lock, and stay.
    """
    with contextlib.suppress(OSError):
        for path in memory.glob(f"{_prefix()}*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid != os.geteuid():
                    continue
                descriptor = _lock(path)
                try:
                    shutil.rmtree(path)
                finally:
                    os.close(descriptor)


def _prefix() -> str:
    return f"streamer-{os.geteuid()}-"
