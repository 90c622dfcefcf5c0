"""Files and folders that are made of manifests, and kept beside them: written once, opened mapped, removed after them.

    <digest>.<question>.<ending>            what was made of one manifest
    <digest>-<digest>.<question>.<ending>   of two

The question says what was asked of the manifest, in words or as a hash. They lie in the folder of the manifests, or in
a fallback folder if that one is read-only for the process that makes them. What is damaged is made again.
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
# Mounted read-only, or another user's, as a sidecar's cache is for a trainer.
_READ_ONLY = frozenset([errno.EROFS, errno.EACCES, errno.EPERM])


def hash_question(question: bytes) -> str:
    """Returns 16 hex characters that stand for a question in a name."""
    return blake2b(question, digest_size=8).hexdigest()


class KeptFiles:
    """The files and folders that are made of the manifests of one folder.

    Args:
        beside: Folder of the manifests.
        fallback_dir: Where files are written if the manifest's folder is read-only for this process. Locks are there.
    """

    def __init__(self, beside: Path, fallback_dir: Path | None = None) -> None:
        self.beside = beside
        self.fallback_dir = fallback_dir or beside

    def __repr__(self) -> str:
        return f"KeptFiles({self.beside}, {self.fallback_dir})"

    @property
    def folders(self) -> list[Path]:
        """Folders that files are looked for in, the one that is preferred first."""
        return list(dict.fromkeys([self.beside, self.fallback_dir]))

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to the manifest's folder."""
        return os.access(self.beside, os.W_OK)

    def glob(self, pattern: str) -> list[Path]:
        """Returns what fits a pattern of names."""
        return [path for folder in self.folders for path in sorted(folder.glob(pattern))]

    def open(self, name: str, open_path: Callable[[Path], Opened]) -> Opened | None:
        """Opens what has a name. Returns None if nothing has, or if it is damaged.

        Args:
            name: Name of the file or folder.
            open_path: Raises ManifestCorruptError if it is damaged, and ManifestError if it cannot be used.
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
        """Opens what has a name; the first process of a machine makes it, the others wait.

        Args:
            name: Name of the file or folder.
            open_path: the same as for `open`.
            make: Writes the file or folder at a temporary path.

        Raises:
            ManifestError: it cannot be written.
        """
        found = self.open(name, open_path)
        if found is None:
            with self.lock(name):
                found = self.open(name, open_path)
                if found is None:
                    found = open_path(self.write(name, make, open_path))
        return found

    def write(self, name: str, make: Callable[[Path], object], check: Callable[[Path], object] = Path.stat) -> Path:
        """Writes a file, or a folder, which appears as a whole; returns its path.

        Args:
            name: Name of the file or folder. A file that is there is replaced.
            make: Writes it at a temporary path.
            check: Raises a ManifestError for a folder that is there and has to be replaced.

        Raises:
            ManifestError: it cannot be written.
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
        """Creates a temporary folder in the first folder that is not read-only, before any work is done."""
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
        """Lets one process of this machine work on what is made of the same manifest and has the same ending."""
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
    """Returns what a folder has that is made of manifests, by their digests."""
    made: dict[str, list[Path]] = {}
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            first, dot, _ = path.name.partition(".")
            for digest in first.split("-") if dot and DIGEST.match(first) else ():
                made.setdefault(digest, []).append(path)
    return made


def remove_orphans(folder: Path, digests: Collection[str]) -> None:
    """Removes what is made of manifests that are not among these, but for what a process has open.

    Raises:
        OSError: it cannot be removed.
    """
    for path in {path for digest, paths in find_made(folder).items() if digest not in digests for path in paths}:
        # Several processes may remove it at once.
        with suppress(FileNotFoundError):
            if path.is_dir():
                remove_unread(path)
            else:
                path.unlink()
