"""A cache folder in memory, for an engine that starts where the disk of its cache folder takes nothing.

Once an engine runs, chunks that the disk refuses pass through `ram_fallback`. At the start of one whose folder has no
chunks there is nothing that could be evicted, and not even the folder or a manifest can be written.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from streamer.base import linux
from streamer.base.system_limits import limit_error
from streamer.cache.folder import LOCK_NAME, Folder, Permissions, chunk_files
from streamer.cache.ram_fallback import FALLBACK_BYTES, MEMORY_FOLDER, REFUSALS, folder_name, remove_unlocked
from streamer.config import CacheConfig, format_bytes

# A new folder, its catalog, and the manifest of a small dataset.
_PROBE_BYTES = 1 << 20
# Folders, markers, the catalog, a manifest and some chunks.
_INODES = 100


def find_cache(config: CacheConfig, memory: Path = MEMORY_FOLDER) -> tuple[CacheConfig, str]:
    """Returns the configuration of a cache that can be written to, and a sentence where it is not the given one.

    Args:
        config: the configured cache.
        memory: a folder in memory.

    Raises:
        ConfigError: files of this process may not be longer than `ulimit -f` allows.
    """
    remove_unlocked(memory)
    try:
        _probe(config.directory, config.group)
    except OSError as error:
        if (limit := limit_error(error)) is not None and error.errno not in REFUSALS:
            raise limit from error
        if (
            error.errno not in REFUSALS
            or (substitute := _make(memory, folder_name(_name_of(config.directory)))) is None
        ):
            return config, ""
        found = os.statvfs(memory)
        room = min(FALLBACK_BYTES, found.f_bavail * found.f_frsize // 4)
        limit_bytes = min(room, config.limit_bytes or room)
        text = (
            f"the cache folder {config.directory} refuses writes ({error.strerror}): the cache is in memory "
            f"({substitute}, at most {format_bytes(limit_bytes)}) until this engine ends; free space there, or choose "
            "another cache_dir"
        )
        return replace(config, directory=substitute, limit_bytes=limit_bytes), text
    return config, ""


def remove_substitute(directory: Path) -> None:
    """Removes a folder in memory at the end of its engine."""
    shutil.rmtree(directory, ignore_errors=True)


def _name_of(directory: Path) -> str:
    return "at-" + hashlib.blake2b(os.fsencode(os.path.realpath(directory)), digest_size=8).hexdigest()


def _probe(directory: Path, group: str | None) -> None:
    """Writes a file to a cache folder that has no chunks; raises the OSError of a disk that refuses it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if any(chunk_files(Folder(directory, "", Permissions.of(group)))):
        return
    found = os.statvfs(directory)
    if found.f_files and found.f_favail < _INODES:
        raise OSError(errno.ENOSPC, "No inodes left")
    # Begins like the marker: a kill leaves a folder that is taken for an empty one.
    path = directory / f"{LOCK_NAME}.{secrets.token_hex(4)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        linux.allocate(descriptor, _PROBE_BYTES)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _make(memory: Path, name: str) -> Path | None:
    """Makes an empty folder in memory that only this user may enter; returns it, or None if there is no place for it.

    A folder of that name belongs to an engine that runs, as one of a job with a /tmp of its own, or to another user.
    """
    for path in (memory / name, memory / f"{name}-{secrets.token_hex(4)}"):
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700)
            return path
    return None
