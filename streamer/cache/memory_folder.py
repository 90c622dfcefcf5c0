"""Folders in memory where the disk takes nothing: for single chunks, or in place of the cache folder at a start.

The one for chunks has the layout of the cache folder and is one more root for readers. It is created at the start,
empty, so that no other user can make it first; filled when it is needed, removed at the end and at the next start, and
bounded, because it is memory. Its engine holds a lock file in it for life, which the kernel frees with the process,
however that ends: the next start of any engine of this user removes the folders that are not locked.

At the start of an engine whose folder has no chunks there is nothing that could be evicted, and not even the folder or
a manifest can be written: then the whole cache is in memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from streamer.base import linux
from streamer.base.concurrency import in_thread
from streamer.base.system_limits import limit_error
from streamer.cache.chunk_files import ChunkBytes, Published, write_chunk
from streamer.cache.folder import LOCK_NAME, CacheFolder, Permissions, list_chunk_files, open_folder
from streamer.cache.policy.table import charge
from streamer.config import CacheConfig, format_bytes
from streamer.errors import CacheError, StreamerError

logger = logging.getLogger(__name__)

# Full, failing, over quota, turned read-only: refusals that are not our mistakes.
REFUSALS = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS})
# The engine itself lacks something then: neither another folder nor another disk would help.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
MEMORY_FOLDER = Path("/dev/shm")
# At most this many bytes, and at most a quarter of the free memory there.
FALLBACK_BYTES = 512 << 20


def is_refusal(error: OSError) -> bool:
    """Whether the disk refused a chunk in mid-job, for whatever reason: rights, a stale handle, a device that is gone.

    At the start of an engine only `REFUSALS` are: the folder of another user is a wrong setting.
    """
    return not isinstance(error, StreamerError) and error.errno not in SHORTAGES


class RamFallback:
    """The folder in memory. Owned by one `ChunkCache`; `publish` runs on its loop, the rest in threads.

    Attributes:
        path: the folder; None if the machine has no memory folder.
        limit_bytes: most bytes of chunk files.
        chunks: lengths of its files by key.

    Args:
        cache: the cache folder, whose id becomes the name of this folder, so that the next engine finds leftovers.
        group: its group.
        memory: a folder in memory.
    """

    def __init__(self, cache: CacheFolder, group: str | None, memory: Path = MEMORY_FOLDER) -> None:
        self._cache = cache
        self._group = group
        self._memory = memory
        self._name = make_folder_name(cache.root_id)
        self._lock: int | None = None
        self.path: Path | None = None
        self.folder: CacheFolder | None = None
        self.limit_bytes = 0
        with contextlib.suppress(OSError):
            found = os.statvfs(memory)
            self.limit_bytes = min(FALLBACK_BYTES, found.f_bavail * found.f_frsize // 4)
        self.chunks: dict[bytes, int] = {}
        self._opening = threading.Lock()

    def __repr__(self) -> str:
        return f"RamFallback({str(self.path)!r}, {'in use' if self.folder else 'unused'})"

    def begin(self) -> None:
        """Removes what engines that are gone have left, and makes an empty folder that only this user may enter.

        If another user has taken its name, it gets another one.
        """
        remove_leftover_folders(self._memory)
        for name in (self._name, f"{self._name}-{secrets.token_hex(8)}"):
            path = self._memory / name
            with contextlib.suppress(OSError):
                if path.is_symlink() or os.lstat(path).st_uid != os.geteuid():
                    logger.warning("%s belongs to another user, and is not used", path)
                    continue
                shutil.rmtree(path, ignore_errors=True)
            if (lock := make_lock_folder(path)) is not None:
                self.path = path
                self._lock = lock
                return

    @property
    def taken_bytes(self) -> int:
        """Bytes of its chunk files."""
        return sum(map(charge, self.chunks.values()))

    def open(self) -> CacheFolder:
        """Returns the folder; creates it if missing.

        Raises:
            CacheError: the machine has no memory folder.
        """
        with self._opening:  # opening empties it: the second of two threads took the file of the first
            if self.folder is None:
                if self.path is None:
                    raise CacheError(f"{self._memory} takes no folder, and the disk of {self._cache.path} no chunk")
                self.folder = open_folder(self.path, self._group)
        return self.folder

    def chunk_path(self, key: bytes) -> Path | None:
        """Returns the file of a chunk, or None if it is not here."""
        return self.folder.chunk_path(key) if self.folder is not None and key in self.chunks else None

    async def publish(self, chunk: ChunkBytes, length: int, pool: ThreadPoolExecutor, refusal: int | str) -> Published:
        """Publishes a chunk that the disk refused with this error number, or for this reason.

        Raises:
            CacheError: it does not fit here either.
        """
        folder = await in_thread(pool, self.open)
        if self.taken_bytes + charge(length) > self.limit_bytes:
            raise self._full(chunk, length, refusal)
        self.chunks[chunk.key] = length
        try:
            await in_thread(pool, write_chunk, chunk, folder)
        except BaseException as error:
            del self.chunks[chunk.key]
            folder.chunk_path(chunk.key).unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in REFUSALS:  # other programs have filled the memory, too
                raise self._full(chunk, length, refusal) from error
            raise
        return Published(folder.path, length)

    def _full(self, chunk: ChunkBytes, length: int, refusal: int | str) -> CacheError:
        reason = refusal if isinstance(refusal, str) else os.strerror(refusal)
        return CacheError(
            f"chunk {chunk.key.hex()} ({format_bytes(length)}) fits neither on the disk of {self._cache.path} "
            f"({reason}) nor in {self.path}; free space there",
            where=str(self._cache.path),
            **({} if isinstance(refusal, str) else {"errno": refusal}),
        )

    def remove(self) -> None:
        """Removes the folder and its content."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.folder = None


def make_folder_name(text: str) -> str:
    """Returns the name of a folder in memory: of this user, and for this text."""
    return f"{_prefix()}{text}"


def make_lock_folder(path: Path) -> int | None:
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


def remove_leftover_folders(memory: Path = MEMORY_FOLDER) -> None:
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
    name = "at-" + hashlib.blake2b(os.fsencode(os.path.realpath(config.directory)), digest_size=8).hexdigest()
    remove_leftover_folders(memory)
    try:
        _probe_disk(config.directory, config.group)
    except OSError as error:
        if (limit := limit_error(error)) is not None and error.errno not in REFUSALS:
            raise limit from error
        if error.errno not in REFUSALS or (substitute := _make_substitute(memory, make_folder_name(name))) is None:
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


def _probe_disk(directory: Path, group: str | None) -> None:
    """Writes a file to a cache folder that has no chunks; raises the OSError of a disk that refuses it."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if any(list_chunk_files(CacheFolder(directory, "", Permissions.make(group)))):
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


def _make_substitute(memory: Path, name: str) -> Path | None:
    """Makes an empty folder in memory that only this user may enter; returns it, or None if there is no place for it.

    A folder of that name belongs to an engine that runs, as one of a job with a /tmp of its own, or to another user.
    """
    for path in (memory / name, memory / f"{name}-{secrets.token_hex(4)}"):
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700)
            return path
    return None
