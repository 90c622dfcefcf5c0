"""The temporary file in which a shard is written; those of killed tasks are removed by the next one."""

from __future__ import annotations

import errno
import fcntl
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from streamer.errors import PackError
from streamer.shards.job import Job
from streamer.store.urls import split

_SUFFIX = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def spooled(folder: Path, number: int) -> Iterator[Path]:
    """An empty file; gone afterwards unless it was moved.

    Args:
        folder: made if missing.
        number: of the shard.

    Raises:
        PackError: the disk is full, or the folder cannot be written.
    """
    path = folder / f"{number:06d}-{secrets.token_hex(4)}{_SUFFIX}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        with path.open("xb") as file:
            # The lock ends with the process, whatever ends it.
            fcntl.flock(file, fcntl.LOCK_EX)
            path.touch()
            yield path
    except OSError as error:
        if error.errno in _FULL:
            raise PackError(
                f"the disk of {folder} is full: each process writes one shard there before it uploads it. Free some "
                "space, name another folder in TMPDIR, or make the shards smaller (shard_bytes)",
                path=str(folder),
            ) from error
        if error.filename == str(path):
            raise PackError(f"{path}: {error.strerror}", path=str(path)) from error
        raise
    finally:
        path.unlink(missing_ok=True)


def spool_folder(job: Job) -> Path:
    """Beside the shards where these are files, so that they need not be copied; else the folder for temporary files."""
    address = split(job.url)
    if address.scheme == "file":
        return Path(address.key) / job.folder
    return Path(tempfile.gettempdir()) / f"streamer-pack-{job.id}"


def _sweep(folder: Path) -> None:
    """Removes the files that no process holds."""
    for path in folder.glob(f"*{_SUFFIX}"):
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
