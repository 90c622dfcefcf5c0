"""Reads, lists and writes files of this machine or of a mounted file system, pinned by size and time of change.

`store/__init__.py` opens it for file:// and bare paths. `shards/reading.py` reads files without the store
(`read_files`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import stat
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path

from streamer.base.sorting import sort_names
from streamer.errors import ObjectNotFoundError, StoreError, printable
from streamer.manifest.beside import CACHE_MARKER, is_hidden, is_hidden_folder
from streamer.manifest.model import Extent, ObjectRecord
from streamer.store import failures, versions
from streamer.store.addresses import patterns, urls
from streamer.store.base import Get, StoreCounters, StoreStatistics, Take
from streamer.store.failures import translate_errors
from streamer.store.fsspec_errors import map_error

logger = logging.getLogger(__name__)

PAGE_OBJECTS = 1000
# At most this many links may lead to one folder: folders that link to each other could be walked without an end.
MOST_VISITS = 1000
# A folder of the disk, whatever path leads to it: its device and its inode.
_Folder = tuple[int, int]


class LocalStore:
    """Reads, lists and writes local files, each call in a thread of the event loop's default pool."""

    def __init__(self) -> None:
        self._counters = StoreCounters()

    def __repr__(self) -> str:
        return f"LocalStore({self._counters})"

    async def get(self, asked: Get, take: Take) -> None:
        """Reads a range (see `ObjectStore.get`), and passes it on as one piece."""
        self._counters.requests += 1
        with translate_errors(map_error, asked.target.url):
            piece = memoryview(bytearray(asked.length))
            piece = piece[: await asyncio.to_thread(_read_into, asked.target, asked.start, piece)]
        self._counters.count_bytes(piece)
        take(piece)
        if piece.nbytes != asked.length:
            raise failures.short_read(asked.target.url, asked.start, asked.stop, piece.nbytes)

    async def list(self, url: str) -> AsyncGenerator[Sequence[ObjectRecord], None]:
        """Lists files (see `ObjectStore.list`), sorted by path, in pages of `PAGE_OBJECTS`."""
        self._counters.lists += 1
        pattern = await patterns.parse_pattern(urls.split(url).key)
        with translate_errors(map_error, url):
            found = await asyncio.to_thread(_walk, urls.split(url).key, pattern)
        for first in range(0, len(found), PAGE_OBJECTS):
            yield found[first : first + PAGE_OBJECTS]

    async def put(self, url: str, content: bytes) -> None:
        """Writes a file from memory (see `ObjectStore.put`); makes its folders. The file appears as a whole."""
        self._counters.requests += 1
        with translate_errors(map_error, url):
            await asyncio.to_thread(_write, urls.split(url).key, content)

    async def put_file(self, url: str, path: Path) -> ObjectRecord:
        """Moves a file to the path of a url (see `ObjectStore.put_file`); copies it to another file system."""
        self._counters.requests += 1
        with translate_errors(map_error, url):
            target = urls.split(url).key
            await asyncio.to_thread(_move, path, target)
            return _record(target)

    def statistics(self) -> StoreStatistics:
        """Returns the counts since the store was opened."""
        return self._counters.freeze()

    async def prepare(self) -> None:
        """Does nothing: nothing is needed."""

    async def refresh(self) -> None:
        """Does nothing: nothing expires."""

    async def aclose(self) -> None:
        """Does nothing: nothing is open."""


def read_files(extents: Sequence[Extent], views: Sequence[memoryview]) -> None:
    """Reads ranges of files one after the other in this thread.

    For ranges of 110 KB, `LocalStore.get` takes 100 us more for each (2026-11-23).

    Args:
        extents: the ranges.
        views: memory for each of them, of its length.

    Raises:
        ObjectNotFoundError, ObjectChangedError, ShortReadError, StoreError: as `LocalStore.get`.
    """
    for extent, view in zip(extents, views, strict=True):
        url = extent.object.url
        with translate_errors(map_error, url):
            filled = _read_into(extent.object, extent.start, view)
        if filled != extent.length:
            raise failures.short_read(url, extent.start, extent.stop, filled)


def _read_into(target: ObjectRecord, start: int, view: memoryview) -> int:
    """Reads a file from `start` until the view is full or the file ends; returns the number of bytes.

    Compares the open file's version before and after that. Raises ObjectChangedError, StoreError and OSError.
    """
    # A manifest may name a pipe, whose opening would wait for a writer and hold the thread for ever (hence O_NONBLOCK).
    descriptor = os.open(urls.split(target.url).key, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require(target, descriptor)
        filled = 0
        while filled < len(view) and (count := os.preadv(descriptor, [view[filled:]], start + filled)):
            filled += count
        _require(target, descriptor)
    finally:
        os.close(descriptor)
    return filled


def _require(target: ObjectRecord, descriptor: int) -> None:
    """Raises StoreError if an open file is not a regular one, ObjectChangedError if it has another version."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(f"{target.url} is not a regular file any more; index the data again", url=target.url)
    versions.require(target, versions.stat_version(status.st_size, status.st_mtime_ns))


def _walk(path: str, pattern: patterns.UrlPattern) -> list[ObjectRecord]:
    """Returns the records of the files that a path or pattern names, sorted by path. Raises as `LocalStore.list`."""
    if pattern.single and os.path.isfile(path):
        return [_record(path)]
    start = path if pattern.single else pattern.folder
    if not os.path.isdir(start):
        if os.path.islink(start.rstrip("/")):
            raise _broken_link(start.rstrip("/"))
        raise ObjectNotFoundError(
            f"{start}: no such file or folder on the machine of the engine; check the path", url=start
        )
    names = [name for name in sort_names(files_below(start)) if pattern.matches(name)]
    pattern.require(names)
    return [record for name in names if (record := _record_if_there(name, start)) is not None]


def files_below(start: str) -> Iterator[str]:
    """Yields the paths of all files below a folder, in no order. Links to folders are followed.

    A link to a folder that contains the link is not followed, which is a warning in the log. A folder that several
    links name is walked for each of them, as ImageFolder does. A cache folder of streamer below it is left out.

    Raises:
        StoreError: links lead to one folder from more than `MOST_VISITS` places.
        OSError: a folder cannot be read.
    """
    visits: Counter[_Folder] = Counter()
    waiting: list[tuple[str, frozenset[_Folder]]] = [(start, frozenset([_identity(start)]))]
    while waiting:
        folder, above = waiting.pop()
        entries = _entries(folder, start)
        if folder != start and any(entry.name == CACHE_MARKER for entry in entries):
            logger.warning("%s is a cache folder of streamer below the data, and is left out", folder)
            continue
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError:
                # A link to itself; the error of opening it says why.
                is_folder = False
            if not is_folder:
                yield os.path.join(folder, entry.name)
                continue
            found = _identity(entry.path)
            if entry.is_symlink():
                if found in above:
                    logger.warning("%s is a link to a folder that it is in, and is not followed", printable(entry.path))
                    continue
                visits[found] += 1
                if visits[found] > MOST_VISITS:
                    raise StoreError(
                        f"{entry.path}: links lead to {os.path.realpath(entry.path)} from more than {MOST_VISITS} "
                        f"places below {start}; name the folders that hold the data as urls, or delete the links",
                        url=entry.path,
                        limit=MOST_VISITS,
                    )
            waiting.append((entry.path, above | {found}))


def _entries(folder: str, start: str) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder below `start`; none if it is hidden and may not be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        # The root of a disk has such a folder, lost+found, which only the administrator may read.
        if is_hidden_folder(os.path.relpath(folder, start)):
            return []
        raise


def _identity(folder: str) -> _Folder:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _record_if_there(path: str, start: str) -> ObjectRecord | None:
    """Returns the record of a file below `start`; None if it is no regular file, or has been removed meanwhile.

    Raises:
        ObjectNotFoundError: it is a link that leads nowhere, and not a hidden one, as locks of editors are.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ELOOP, errno.ENOTDIR} or not os.path.islink(path):
            if isinstance(error, FileNotFoundError):
                return None
            raise
        if is_hidden(path[len(start.rstrip("/")) + 1 :]):
            return None
        raise _broken_link(path) from error
    if not stat.S_ISREG(status.st_mode):
        # Pipes and devices are left out, as reading them may wait for ever.
        logger.warning("%s is neither a file nor a folder, and is left out", printable(path))
        return None
    return ObjectRecord(path, status.st_size, versions.stat_version(status.st_size, status.st_mtime_ns))


def _broken_link(path: str) -> ObjectNotFoundError:
    return ObjectNotFoundError(
        f"{path} is a symbolic link to {os.readlink(path)}, which is not on the machine of the engine; mend the link, "
        "or delete it",
        url=path,
    )


def _record(path: str) -> ObjectRecord:
    status = os.stat(path)
    return ObjectRecord(path, status.st_size, versions.stat_version(status.st_size, status.st_mtime_ns))


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{os.getpid()}.part"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _move(source: Path, target: str) -> None:
    """Moves a file, or copies it to another file system; makes the folders. Raises OSError.

    The disk has the content before the name, so that a power loss leaves no name without content.
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    _sync(source)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = f"{target}.{os.getpid()}.part"
        try:
            shutil.copyfile(source, temporary)
            _sync(temporary)
            os.replace(temporary, target)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise


def _sync(path: Path | str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
