"""Makes the temporary file in which a shard is written before its upload, and removes those of killed tasks.

`task.py`, `pack.py` and `annotations.py` write to such files. `settle.py` removes those of other jobs.
"""

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

from streamer.base.temporary import is_own
from streamer.errors import PackError
from streamer.shards.job import Job
from streamer.store.addresses.urls import split

# The suffix differs from the `.part` of the local store, whose unfinished receipts lie beside these files: they are not
# locked, and must not be removed.
_SUFFIX = ".spool"
_PREFIX = "streamer-pack-"
# A folder without such a file, unchanged for so long, is removed: a running pack makes one for each shard.
_IDLE_SECONDS = 86_400.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def open_spool(folder: Path, number: int) -> Iterator[Path]:
    """Creates an empty file for a shard and yields its path; removes the file at the end if it is still there.

    The folder is created if missing. Files that killed processes have left in it are removed.

    Args:
        folder: folder of the file, from `spool_folder`.
        number: number of the shard.

    Raises:
        PackError: the private folder is not this user's alone, the file cannot be created, or the disk is full, now or
            while the code inside runs.
        OSError: the folder cannot be created.
    """
    try:
        if folder.name.startswith(_PREFIX):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not is_own(folder, 0o077):
                raise PackError(
                    f"{folder} is not private to user {os.geteuid()}: shards on their way to the store are not written "
                    "there; name another folder in TMPDIR",
                    path=str(folder),
                )
        else:  # the folder is at the destination, whose readers may read the shards
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
    """Creates a file of a new name and locks it; the lock ends with the process, also if that is killed."""
    while True:
        path = folder / f"{number:06d}-{secrets.token_hex(4)}{_SUFFIX}"
        file = path.open("xb")
        if folder.name.startswith(_PREFIX):
            os.fchmod(file.fileno(), 0o600)
        fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():
            return file
        # Another task removed the file before it was locked. The next try has another name, since further tasks may be
        # about to remove this one.
        file.close()


def spool_folder(job: Job) -> Path:
    """Returns the folder in which the shards of a job are written.

    For a local destination it is the folder of the receipts, from where shards are moved and not copied. For other
    destinations it is a private temporary folder, which is made if this machine has none of the job.

    Raises:
        ConfigError: the destination has a scheme without a bucket or host.
        OSError: the folder cannot be made.
    """
    address = split(job.url)
    if address.scheme == "file":
        return Path(address.key) / job.folder
    # The tasks of a job on one machine share the first private folder of this user, so that each task removes what
    # killed ones have left. A new folder gets a random name, which another user cannot have taken before.
    parent = Path(tempfile.gettempdir())
    for folder in sorted(parent.glob(f"{_PREFIX}{job.id}-*")):
        if is_own(folder, 0o077):
            return folder
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{job.id}-"))


def sweep_other_jobs() -> None:
    """Removes what killed packs of this user have left below TMPDIR, of any job, since a job may never run again.

    Files at local destinations stay until a pack writes there.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if not is_own(folder, 0o022):  # another user's, in a folder that everyone may write to
            continue
        _sweep(folder)
        with suppress(OSError):
            idle = time.time() - folder.stat().st_mtime > _IDLE_SECONDS
            if idle and not any(folder.glob(f"*{_SUFFIX}")):
                shutil.rmtree(folder)


def _sweep(folder: Path) -> None:
    """Removes files of shards in a folder that are this user's and that no process has locked; waits for nothing."""
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
