"""Makes folders in memory for chunks that the disk refuses, and for the whole cache if the disk refuses it at a start.

`RamFallback` is for single chunks, and `chunk_cache.py` has it. Its folder has the layout of the cache folder, and
readers look for chunks there, too. It is created empty at the start of the engine, so that no other user can make it
first. Its bytes are limited, because it is memory. It is removed at the end of the engine. The engine holds a lock file
in it for life, which the kernel frees with the process, however that ends. The next start of any engine of this user
removes the folders that are not locked.

`find_cache` is for the whole cache, and `service/lifecycle.py` calls it at the start of an engine. Where the disk is
full and the cache folder has no chunks, nothing could be evicted, and not even the folder or a manifest can be written.
Then the cache folder is in memory. `engine/manifests/manifests.py` uses `REFUSALS`.
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

# Error numbers of a disk that is full, failing, over quota or read-only: no mistake of a setting.
REFUSALS = frozenset({errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS})
# Error numbers of an engine that lacks something itself: neither another folder nor another disk would help.
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
MEMORY_FOLDER = Path("/dev/shm")
# Most bytes of a folder in memory, which takes at most a quarter of the free space there, too.
FALLBACK_BYTES = 512 << 20


def is_refusal(error: OSError) -> bool:
    """Whether an error of writing a chunk is the disk's, so that the chunk may go to memory.

    While an engine runs, that is every error but `SHORTAGES`: missing rights, a stale handle, a device that is gone. At
    its start only `REFUSALS` are, because the folder of another user, for example, is a wrong setting.
    """
    return not isinstance(error, StreamerError) and error.errno not in SHORTAGES


class RamFallback:
    """Keeps chunks that the disk refused, in a folder in memory.

    One `ChunkCache` has it. `begin`, `open` and `remove` run in threads, the rest on its loop.

    Args:
        cache: the cache folder; its id is in the name of the folder in memory.
        group: name or number of the group that may read the folder. None means only this user.
        memory: where to make the folder, on a filesystem in memory.

    Attributes:
        path: the folder in memory. None means that there is none: `begin` was not called, or could not make it.
        folder: the opened folder. None means that no chunk was put into it yet.
        limit_bytes: maximum number of bytes of chunk files.
        chunks: lengths of its files in bytes, by key.
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

        If another user has taken its name, it gets another one. If it cannot be made, `path` stays None.
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
        """Bytes of its chunk files, as `table.charge` counts them."""
        return sum(map(charge, self.chunks.values()))

    def open(self) -> CacheFolder:
        """Returns the folder in memory, at the first call after making its layout.

        Raises:
            CacheError: `begin` could not make it, or its layout cannot be made.
            ConfigError: the group does not exist.
        """
        with self._opening:  # opening removes unfinished files: a second thread would remove that of the first
            if self.folder is None:
                if self.path is None:
                    raise CacheError(f"{self._memory} takes no folder, and the disk of {self._cache.path} no chunk")
                self.folder = open_folder(self.path, self._group)
        return self.folder

    def chunk_path(self, key: bytes) -> Path | None:
        """Returns the file of a chunk, or None if it is not here."""
        return self.folder.chunk_path(key) if self.folder is not None and key in self.chunks else None

    async def publish(self, chunk: ChunkBytes, length: int, pool: ThreadPoolExecutor, refusal: int | str) -> Published:
        """Writes a chunk that the disk refused to the folder in memory; returns where it is.

        Args:
            chunk: the chunk.
            length: length of its file in bytes.
            pool: threads that write.
            refusal: error number with which the disk refused the chunk, or the reason as text.

        Raises:
            CacheError: it does not fit into memory either, or there is no folder in memory.
            ConfigError: `ulimit -f` is smaller than the file, or the group does not exist.
            OSError: the engine lacks descriptors or memory.
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
        """Returns the error for a chunk that neither the disk nor memory takes; does not raise it."""
        reason = refusal if isinstance(refusal, str) else os.strerror(refusal)
        return CacheError(
            f"chunk {chunk.key.hex()} ({format_bytes(length)}) fits neither on the disk of {self._cache.path} "
            f"({reason}) nor in {self.path}; free space there",
            where=str(self._cache.path),
            **({} if isinstance(refusal, str) else {"errno": refusal}),
        )

    def remove(self) -> None:
        """Removes the folder and its content, and ends the lock; idempotent."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.folder = None


def make_folder_name(text: str) -> str:
    """Returns the name of a folder in memory that belongs to this user; it ends with the text."""
    return f"{_prefix()}{text}"


def make_lock_folder(path: Path) -> int | None:
    """Makes an empty folder that only this user may enter, and locks it.

    Returns:
        The descriptor of the lock, or None if the folder cannot be made, because it exists, for example.
    """
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700)
        return _lock(path, os.O_CREAT)
    return None


def _lock(path: Path, flags: int = 0) -> int:
    """Locks a folder and returns the descriptor of the lock.

    Args:
        path: the folder.
        flags: further flags of open(2) for the lock file; without O_CREAT it must exist.

    Raises:
        OSError: another process has the lock or has removed the folder meanwhile, or there is no lock file.
    """
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # An engine may have removed the folder and made another one of this name since the file was opened.
        if not os.path.samestat(os.fstat(descriptor), os.stat(path / LOCK_NAME)):
            raise FileNotFoundError(errno.ENOENT, "the lock file was made again", str(path / LOCK_NAME))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove_leftover_folders(memory: Path = MEMORY_FOLDER) -> None:
    """Removes the folders of engines of this user that have ended without removing them.

    The folders of earlier versions have no lock file, and stay.
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


# Bytes of a new folder, its catalog, and the manifest of a small dataset.
_PROBE_BYTES = 1 << 20
# Inodes of its folders, markers, catalog, a manifest and some chunks.
_INODES = 100


def find_cache(config: CacheConfig, memory: Path = MEMORY_FOLDER) -> tuple[CacheConfig, str]:
    """Returns the configuration of a cache that can be written to: the given one, or one of a new folder in memory.

    Removes leftover folders in memory before. A disk that fails for another reason than `REFUSALS` gives the given
    configuration: the opening of the cache folder then says what is wrong.

    Args:
        config: the configured cache.
        memory: where to make a folder in memory.

    Returns:
        The configuration, and a sentence for the user if the cache is in memory, otherwise "".

    Raises:
        ConfigError: a limit of this process forbids to write, such as `ulimit -f`, or the group does not exist.
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
    """Removes the folder in memory that `find_cache` made, at the end of its engine."""
    shutil.rmtree(directory, ignore_errors=True)


def _probe_disk(directory: Path, group: str | None) -> None:
    """Checks that the disk takes a small file in a cache folder, unless the folder has chunks.

    Makes the folder if it is missing, and removes the file.

    Raises:
        OSError: the disk refuses the folder or the file, or is read-only.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.statvfs(directory).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if any(list_chunk_files(CacheFolder(directory, "", Permissions.make(group)))):
        return
    found = os.statvfs(directory)
    if found.f_files and found.f_favail < _INODES:
        raise OSError(errno.ENOSPC, "No inodes left")
    # The name begins like the marker, so that a folder with this file, left by a kill, is taken for an empty one.
    path = directory / f"{LOCK_NAME}.{secrets.token_hex(4)}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        linux.allocate(descriptor, _PROBE_BYTES)
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _make_substitute(memory: Path, name: str) -> Path | None:
    """Makes an empty folder in memory that only this user may enter; returns it, or None if it cannot be made.

    If the name is taken, by another user or by an engine that runs, the folder gets another one.
    """
    for path in (memory / name, memory / f"{name}-{secrets.token_hex(4)}"):
        with contextlib.suppress(OSError):
            path.mkdir(mode=0o700)
            return path
    return None
