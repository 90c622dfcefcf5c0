"""The temporary file in which a shard is written; the next task of any job removes those of killed tasks."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from streamer.errors import PackError
from streamer.shards.job import Job
from streamer.store.addresses.urls import split

# It is not `.part`: receipts that the local store is writing are beside these files, and are not locked.
_SUFFIX = ".spool"
_PREFIX = "streamer-pack-"
# A running pack makes a file in its folder for each shard, or holds one.
_IDLE_SECONDS = 86_400.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def open_spool(folder: Path, number: int) -> Iterator[Path]:
    """Creates an empty file for a shard in a folder, which is created if missing; removes it unless it was moved.

    Raises:
        PackError: the disk is full, or the folder cannot be written.
    """
    try:
        if folder.name.startswith(_PREFIX):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_own(folder, 0o077):
                raise PackError(
                    f"{folder} is not private to user {os.geteuid()}: shards on their way to the store are not written "
                    "there; name another folder in TMPDIR",
                    path=str(folder),
                )
        else:  # of the destination: its readers may read the shards
            folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with _create_with_lock(folder, number) as file:
            path = Path(file.name)
            try:
                yield path
            finally:
                path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno in _FULL:
            raise PackError(
                f"the disk of {folder} is full: each process writes one shard there before it uploads it. Free some "
                "space, name another folder in TMPDIR, or make the shards smaller (shard_bytes)",
                path=str(folder),
            ) from error
        if str(error.filename).endswith(_SUFFIX):
            raise PackError(f"{error.filename}: {error.strerror}", path=str(error.filename)) from error
        raise


def _create_with_lock(folder: Path, number: int) -> IO[bytes]:
    """Creates a file with a lock that ends with the process, however that ends."""
    while True:
        path = folder / f"{number:06d}-{secrets.token_hex(4)}{_SUFFIX}"
        file = path.open("xb")
        if folder.name.startswith(_PREFIX):
            os.fchmod(file.fileno(), 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return file
        # Another task removed it before it was locked, and others may be about to: its name is not used again.
        file.close()


def spool_folder(job: Job) -> Path:
    """Returns the folder in which the shards of a job are written; makes one if the shards are not local files.

    That is the folder of the receipts if they are local files, so that shards need no copy, otherwise a private folder
    for temporary files.
    """
    address = split(job.url)
    if address.scheme == "file":
        return Path(address.key) / job.folder
    # Another user cannot have taken the name of a new folder before. The tasks of a job on one machine share it,
    # so that each removes what killed ones have left: the first of this user's folders that is private.
    parent = Path(tempfile.gettempdir())
    for folder in sorted(parent.glob(f"{_PREFIX}{job.id}-*")):
        if _is_own(folder, 0o077):
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{job.id}-"))


def _is_own(folder: Path, others: int) -> bool:
    """Whether a folder is this user's and no link, and other users have none of the rights `others`."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & others


def sweep_other_jobs() -> None:
    """Removes the temporary files of killed packs of other jobs, which may never run again."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not _is_own(folder, 0o022):  # another user's, in a folder that everyone may write to
            continue
        _sweep(folder)
        with suppress(OSError):
            idle = time.time() - folder.stat().st_mtime > _IDLE_SECONDS
            if idle and not any(folder.glob(f"*{_SUFFIX}")):
                shutil.rmtree(folder)


def _sweep(folder: Path) -> None:
    """Removes the files of this user that no process has locked; waits for nothing."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(descriptor)
