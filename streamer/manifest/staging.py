"""Writes folders and files that appear as a whole or not at all, and removes what a killed writer has left.

Used by all that writes manifests, and files beside them: `indexing/publish.py`, `manifest/`, the engine's store of
manifests, and tables of annotations.

A writer works in `<root>/.building-<token>/`, holds a lock on `.building-<token>.lock` as long as it works, and renames
the folder at the end. The kernel releases the lock when the process ends, so a folder whose lock is free is a leftover,
whatever pid or host created it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from streamer.base import linux
from streamer.errors import ManifestError, StreamerError
from streamer.manifest.beside import CACHE_MARKER
from streamer.manifest.validation import open_and_verify

_PREFIX = ".building-"
_LOCK = ".lock"
# Errors of a rename to a name that a folder with content, or a link, has.
_TAKEN = frozenset([errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR])


@contextlib.contextmanager
def workplace(root: Path) -> Iterator[Path]:
    """Creates a temporary folder in `root` for one writer; removes it at the end unless `settle` has renamed it.

    Creates `root` if it is missing, and removes leftovers of killed writers first.

    Raises:
        ManifestError: the folder cannot be made, or an OSError that is not streamer's was raised inside.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        sweep(root)
        with _lock_new_name(root) as place:
            place.mkdir()
            try:
                yield place
            finally:
                shutil.rmtree(place, ignore_errors=True)
    except StreamerError:  # some are OSErrors, such as those of a store that is read inside
        raise
    except OSError as error:
        raise ManifestError(
            f"cannot write a manifest below {root}: {error.strerror or error}", path=str(root)
        ) from error


def settle(
    place: Path, target: Path, *, durable: bool = True, check: Callable[[Path], object] = open_and_verify
) -> Path:
    """Gives a finished folder its name; an intact one of that name stays, a broken one is replaced.

    Args:
        place: the finished folder.
        target: its final path, which is also returned.
        durable: whether the disk must have everything before the folder gets its name.
        check: raises a ManifestError for a folder that has the name but not the right content.

    Raises:
        OSError: the folder cannot be renamed, or the disk cannot be written. Errors of `check` other than ManifestError
            are passed on.
    """
    _let_group_read(place, target.parent)
    if durable:
        sync_all(place)
    try:
        os.rename(place, target)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        # The digest says that the content is the same.
        with contextlib.suppress(ManifestError):
            check(target)
            if durable:
                sync_all(target)
            return target
        # The broken folder gets the name of the place, which `workplace` removes. No reader finds the name without a
        # folder: another writer may have replaced the broken one by now.
        linux.exchange(place, target)
    if durable:
        sync(target.parent)
    return target


def settle_file(source: Path, target: Path) -> None:
    """Gives a finished file its name when the disk has it; replaces a file of that name. Raises OSError."""
    _let_group_read(source, target.parent)
    sync(source)
    os.replace(source, target)
    sync(target.parent)


def _let_group_read(made: Path, root: Path) -> None:
    """Lets all read a folder and its files, or a file, in a cache folder that a group may read, whatever the umask is.

    The mode of `root` keeps all others out.
    """
    if os.stat(root).st_mode & 0o050 == 0o050 and (root.parent / CACHE_MARKER).exists():
        for path in (made, *made.iterdir()) if made.is_dir() else (made,):
            path.chmod(0o755 if path.is_dir() else 0o644)


def sweep(root: Path) -> list[Path]:
    """Removes what killed writers have left in `root`, as far as it can be removed; returns the paths found."""
    removed = []
    for lock in sorted(root.glob(f"{_PREFIX}*{_LOCK}")):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for leftover in sorted(root.glob(f"{lock.name.removesuffix(_LOCK)}*")):
                if leftover != lock:
                    shutil.rmtree(leftover, ignore_errors=True)
                    removed.append(leftover)
            lock.unlink()
            removed.append(lock)
    return removed


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Lets one process of this machine work inside, while others wait at the entry; the lock file stays.

    Args:
        path: the lock file. It is created if it is missing, as its folder is.

    Raises:
        OSError: the lock file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _lock_new_name(root: Path) -> Iterator[Path]:
    """Locks the lock file of a new folder in `root` while the context is open; gives the path of the folder."""
    while True:
        place = root / f"{_PREFIX}{secrets.token_hex(8)}"
        path = place.with_name(place.name + _LOCK)
        with path.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # A sweeper may have removed the file between its creation and the lock. The next try has another name: a
            # second sweeper that has opened the removed file would take a folder of this name for a leftover, also
            # after `settle` has renamed it.
            if not path.exists():
                continue
            try:
                yield place
                return
            finally:
                path.unlink(missing_ok=True)


def sync_all(folder: Path) -> None:
    """Waits until a folder and the files in it are on the disk; raises OSError."""
    for path in (*folder.iterdir(), folder):
        sync(path)


def sync(path: Path) -> None:
    """Waits until the content of a file, or the names in a folder, are on the disk; raises OSError."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
