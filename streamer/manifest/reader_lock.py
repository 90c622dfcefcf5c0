"""Holds a manifest's folder while it is read, and removes such a folder only while no process holds it.

Trainers and their workers hold manifests (`loader/members/member.py`, `batches/samples/`) and tables of annotations;
the engine's store of manifests and `manifest/kept.py` remove those that no process holds.

A reader's lock is on the folder itself: the kernel releases it when the process ends, however it ends, and it holds in
every container that sees the folder. The engine keeps no record of readers, so that its restart loses none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from streamer.base.system_limits import limit_error
from streamer.errors import ManifestError
from streamer.manifest.table import Manifest

Opened = TypeVar("Opened")

_PREFIX = ".removed-"
# Some file systems in user space give a folder another number at each look. After so many tries it is taken as it is.
_MAX_TRIES = 8


def open_held(path: Path) -> Manifest:
    """Opens a manifest, whose folder stays on the disk while the result exists; holds one descriptor.

    Raises:
        ManifestError, ConfigError: see `Manifest.open`, also if the folder was just removed.
    """
    return hold_folder(path, Manifest.open)


def hold_folder(path: Path, open_folder: Callable[[Path], Opened]) -> Opened:
    """Opens a folder, which stays on the disk while the result exists wherever the file system has locks.

    The result holds one descriptor.

    Args:
        path: the folder.
        open_folder: opens it. The result can have weak references. Its errors are passed on.

    Raises:
        ManifestError: there is no such folder, or it was just removed.
        ConfigError: this process may open no more files.
    """
    descriptor = _open_with_lock(path)
    try:
        opened = open_folder(path)
    except BaseException:
        os.close(descriptor)
        raise
    # The descriptor is not closed at exit: the kernel closes it then, and threads may still read.
    weakref.finalize(opened, os.close, descriptor).atexit = False
    return opened


@contextlib.contextmanager
def keep_folder(path: Path) -> Iterator[None]:
    """Lets no remover take a folder while the context is open.

    Raises:
        ManifestError: there is no such folder, or it was just removed.
        ConfigError: this process may open no more files.
    """
    descriptor = _open_with_lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _open_with_lock(path: Path) -> int:
    """Opens a folder and locks it for a reader; returns the descriptor.

    A folder may be removed and written again before it is locked: the lock would protect one that no path leads to.
    """
    for tries in range(1, _MAX_TRIES + 1):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise limit_error(error) or ManifestError(
                f"no manifest at {path}: {error.strerror}", path=str(path)
            ) from error
        try:
            # On a mount without locks, only the sessions of the engine protect a manifest.
            with contextlib.suppress(OSError):
                # A remover holds the lock for a moment.
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            if tries == _MAX_TRIES or _is_at(path, descriptor):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path leads to the folder that is open as `descriptor`."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def remove_unread(path: Path) -> bool:
    """Removes a folder unless a process holds it; returns whether it is gone, as it also is if it never existed.

    The folder is renamed first: a reader finds all of it or nothing, and `sweep_leftovers` finds what is left if the
    remover is killed.

    Raises:
        OSError: the folder cannot be locked, renamed or removed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        # Another remover was faster, and the folder may have been written again: that one is not locked.
        if not _is_at(path, descriptor):
            return not path.exists()
        nameless = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}")
        os.rename(path, nameless)
        shutil.rmtree(nameless)
        return True
    finally:
        os.close(descriptor)


def sweep_leftovers(root: Path) -> int:
    """Removes the renamed folders in `root`, and returns how many were there. Call it while no other remover works."""
    leftovers = list(root.glob(f"{_PREFIX}*"))
    for leftover in leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    return len(leftovers)
