"""Walks the folders of this machine: symbolic links are followed, and those that lead in a circle are found."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator

from streamer.errors import StoreError
from streamer.manifest.hidden import is_hidden_folder

logger = logging.getLogger(__name__)

# Links that lead to one folder from many places: folders that link to each other could be walked without an end.
MOST_VISITS = 1000
# A folder of the disk, whatever path leads to it: its device and its inode.
_Folder = tuple[int, int]


def files_below(start: str) -> Iterator[str]:
    """Yields the paths of all files below a folder, in no order; of linked folders below the link.

    A link to a folder that it is in is not followed, because all below it is found without it; a line in the log names
    it. A folder that several links name is walked for each of them, as ImageFolder does it.

    Raises:
        StoreError: links lead to one folder from more than `MOST_VISITS` places.
        OSError: a folder cannot be read.
    """
    visits: Counter[_Folder] = Counter()
    waiting: list[tuple[str, frozenset[_Folder]]] = [(start, frozenset([_identity(start)]))]
    while waiting:
        folder, above = waiting.pop()
        for entry in _entries(folder, start):
            if not _is_folder(entry):
                yield os.path.join(folder, entry.name)
                continue
            found = _identity(entry.path)
            if entry.is_symlink():
                if found in above:
                    logger.warning("%s is a link to a folder that it is in, and is not followed", entry.path)
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
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except PermissionError:
        # Only the administrator reads lost+found, which the root of a disk has.
        if is_hidden_folder(os.path.relpath(folder, start)):
            return []
        raise


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link to itself; whoever opens it learns why not.
        return False


def _identity(folder: str) -> _Folder:
    status = os.stat(folder)
    return status.st_dev, status.st_ino
