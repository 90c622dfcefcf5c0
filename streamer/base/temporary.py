"""Makes temporary folders of runs, and removes those of killed runs by their locks.

Packs and checks of shards (`shards/`, `cli/shards/pack_command.py`) and the command `streamer index`
(`cli/index_command.py`) work in such folders. `shards/spool.py` uses `is_own` for folders of its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "streamer-run-"


@contextmanager
def open_temporary_folder(name: str) -> Iterator[Path]:
    """Makes a private temporary folder for one run, and removes it at the end; removes those of killed runs first.

    The run holds a lock on the folder, so that a later run knows whether the process was killed. Where the file system
    locks no folders (NFS), the folder stays after a kill.

    Args:
        name: part of the folder's name that says what runs, "pack".

    Raises:
        OSError: the folder cannot be made or opened.
    """
    _remove_leftovers()
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-"))
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # another run removed the folder before it was opened
        with suppress(OSError):  # another run cannot lock it there either, and leaves it
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if folder.exists():
            break
        os.close(descriptor)  # another run removed the folder before it was locked
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def is_own(folder: Path, others: int) -> bool:
    """Returns whether a folder is this user's and no link, and other users have none of the rights `others`."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


def _remove_leftovers() -> None:
    """Removes the temporary folders of this user's runs that hold no lock any more; waits for nothing."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not is_own(folder, 0o077):
            continue
        with suppress(OSError):  # its run goes on, or it is gone
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)
