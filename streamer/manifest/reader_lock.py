"""Readers of a manifest in a shared folder hold a lock on it; it is removed only while it is not locked.

The lock is on the folder itself: the kernel releases it when the process ends, however it ends, and it holds in every
container that sees the folder. The engine keeps no record of readers, so a restart loses none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from streamer.errors import ManifestError
from streamer.manifest.table import Manifest

Opened = TypeVar("Opened")

_PREFIX = ".removed-"


def open_held(path: Path) -> Manifest:
    """Opens a manifest that stays on the disk while the result exists. Holds one descriptor.

    Raises:
        ManifestError: see Manifest.open; also if it was just removed.
    """
    return hold_folder(path, Manifest.open)


def hold_folder(path: Path, open_folder: Callable[[Path], Opened]) -> Opened:
    """Opens a folder that stays on the disk while the result exists. Holds one descriptor.

    Raises:
        ManifestError: see `open_folder`; also if it was just removed.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ManifestError(f"no manifest at {path}: {error.strerror}", path=str(path)) from error
    try:
        # On a mount without locks, only the sessions of the engine protect a manifest.
        with contextlib.suppress(OSError):
            # Waits at most for a remover, which holds it for a moment; the check below finds what that removed.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        opened = open_folder(path)
    except BaseException:
        os.close(descriptor)
        raise
    # It is not done at exit: the kernel does it then, and threads may still read.
    weakref.finalize(opened, os.close, descriptor).atexit = False
    return opened


def remove_unread(path: Path) -> bool:
    """Removes a manifest folder unless a process holds it; returns whether it is gone.

    The folder is renamed first: a reader finds all of it or nothing, and `sweep_leftovers` finds the remains of a kill.

    Raises:
        OSError: it cannot be removed.
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
        nameless = path.with_name(f"{_PREFIX}{secrets.token_hex(8)}")
        os.rename(path, nameless)
        shutil.rmtree(nameless)
        return True
    finally:
        os.close(descriptor)


def sweep_leftovers(root: Path) -> int:
    """Removes the folders that killed removers have left below `root`; returns their number."""
    leftovers = list(root.glob(f"{_PREFIX}*"))
    for leftover in leftovers:
        shutil.rmtree(leftover, ignore_errors=True)
    return len(leftovers)
