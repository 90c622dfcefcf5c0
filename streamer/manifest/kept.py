"""Keeps files and folders that are made of manifests beside them: written once, opened often, removed after them.

    <digest>.<question>.<ending>            what was made of one manifest
    <digest>-<digest>.<question>.<ending>   what was made of two manifests

Used for selections, columns, tables of keys, joins, rows and costs (`manifest/`, `loader/members/`, `batches/`), for
what a survey remembers (`indexing/survey.py`), and by the engine's store of manifests, which removes orphans;
`indexing/index_log.py` has its hash. The question says what was asked of the manifest, in words or as a hash. The files
lie in the folder of the manifests, or in a fallback folder if that one is read-only for the process that makes them.
What is damaged is made again.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

from streamer.errors import ManifestCorruptError, ManifestError
from streamer.manifest.reader_lock import remove_unread
from streamer.manifest.staging import one_at_a_time, settle, settle_file, workplace

logger = logging.getLogger(__name__)

Opened = TypeVar("Opened")

DIGEST = re.compile("[0-9a-f]{32}")
# Errors of a folder that is mounted read-only or is another user's, as a sidecar's cache is for a trainer.
_READ_ONLY = frozenset([errno.EROFS, errno.EACCES, errno.EPERM])


def hash_question(question: bytes) -> str:
    """Returns 16 hex characters that stand for a question in the name of a file."""
    return blake2b(question, digest_size=8).hexdigest()


class KeptFiles:
    """Opens, writes and locks the files and folders that are made of the manifests of one folder.

    Args:
        beside: folder of the manifests.
        fallback_dir: folder where files are written if that of the manifests is read-only for this process. Locks are
            there, too, or in `beside` if this folder is read-only. None means `beside`.
    """

    def __init__(self, beside: Path, fallback_dir: Path | None = None) -> None:
        self.beside = beside
        self.fallback_dir = fallback_dir or beside

    def __repr__(self) -> str:
        return f"KeptFiles({self.beside}, {self.fallback_dir})"

    @property
    def folders(self) -> list[Path]:
        """Folders in which files are looked for and written, the preferred one first."""
        return list(dict.fromkeys([self.beside, self.fallback_dir]))

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to the folder of the manifests."""
        return os.access(self.beside, os.W_OK)

    def glob(self, pattern: str) -> list[Path]:
        """Returns the files and folders whose names fit a pattern, by folder, then by name."""
        return [path for folder in self.folders for path in sorted(folder.glob(pattern))]

    def open(self, name: str, open_path: Callable[[Path], Opened]) -> Opened | None:
        """Opens the file or folder of a name. Returns None if there is none, or none that can be used (logged).

        Args:
            name: name of the file or folder.
            open_path: opens a path; raises ManifestCorruptError if it is damaged, ManifestError if it cannot be used,
                and FileNotFoundError if it is gone. Other errors are passed on.
        """
        for path in (folder / name for folder in self.folders):
            if path.exists():
                try:
                    return open_path(path)
                except FileNotFoundError:
                    # Another process has removed it since.
                    continue
                except ManifestCorruptError as error:
                    logger.warning("%s; it is made again", error.message)
                except ManifestError as error:
                    logger.info("%s; it is made again", error.message)
        return None

    def open_or_make(self, name: str, open_path: Callable[[Path], Opened], make: Callable[[Path], object]) -> Opened:
        """Opens the file or folder of a name; if there is none, one process of this machine makes it, others wait.

        Args:
            name: name of the file or folder.
            open_path: the same as for `open`.
            make: writes the file or folder at a temporary path.

        Raises:
            ManifestError: it cannot be written, or `open_path` refuses what was made. What `make` raises is passed on,
                an OSError as ManifestError.
            OSError: the lock file cannot be written.
        """
        found = self.open(name, open_path)
        if found is None:
            with self.lock(name):
                found = self.open(name, open_path)
                if found is None:
                    found = open_path(self.write(name, make, open_path))
        return found

    def write(self, name: str, make: Callable[[Path], object], check: Callable[[Path], object] = Path.stat) -> Path:
        """Writes a file or a folder, which appears as a whole; returns its path.

        Args:
            name: name of the file or folder. A file that is there is replaced.
            make: writes it at a temporary path.
            check: raises a ManifestError for a folder that is there and has to be replaced. Any other folder stays.

        Raises:
            ManifestError: it cannot be written. What `make` raises is passed on, an OSError as ManifestError.
        """
        with ExitStack() as stack:
            made = self._enter_workplace(stack) / name
            make(made)
            target = made.parent.parent / name
            if made.is_dir():
                return settle(made, target, check=check)
            settle_file(made, target)
            return target

    def _enter_workplace(self, stack: ExitStack) -> Path:
        """Creates a temporary folder in the first of `folders` that is not read-only; the stack removes it."""
        *preferred, last = self.folders
        for folder in preferred:
            try:
                return stack.enter_context(workplace(folder))
            except ManifestError as error:
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _READ_ONLY:
                    raise
        return stack.enter_context(workplace(last))

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Lets one process of this machine work inside, while others wait at the entry.

        The lock is one for all names that begin with the same digests and have the same ending.

        Raises:
            OSError: the lock file cannot be written.
        """
        file = f"{name.partition('.')[0]}{Path(name).suffix}.lock"
        with ExitStack() as stack:
            try:
                stack.enter_context(one_at_a_time(self.fallback_dir / file))
            except OSError as error:
                if error.errno not in _READ_ONLY:
                    raise
                stack.enter_context(one_at_a_time(self.beside / file))
            yield


def find_made(folder: Path) -> dict[str, list[Path]]:
    """Returns the files and folders in a folder that are made of manifests, by digest; those of two are in both lists.

    A folder that does not exist has none.
    """
    made: dict[str, list[Path]] = {}
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            first, dot, _ = path.name.partition(".")
            for digest in first.split("-") if dot and DIGEST.match(first) else ():
                made.setdefault(digest, []).append(path)
    return made


def remove_orphans(folder: Path, digests: Collection[str]) -> None:
    """Removes what is made of a manifest that is not among `digests`; a folder that a process holds stays.

    Args:
        folder: folder with the files and folders.
        digests: digests of the manifests that exist.

    Raises:
        OSError: a file or folder cannot be removed.
    """
    for path in {path for digest, paths in find_made(folder).items() if digest not in digests for path in paths}:
        # Several processes may remove it at once.
        with suppress(FileNotFoundError):
            if path.is_dir():
                remove_unread(path)
            else:
                path.unlink()
