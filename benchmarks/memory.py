"""Memory that is the machine's own before something is measured.

Many hosts of virtual machines take back free pages within seconds and hand them out again at the first touch. On one
such machine a new file cost 3.0 CPU s/GB to write and 0.2 where the pages were still there (dd, 2026-11-20), whoever
wrote it; with a full page cache around it 1.6 while a tenth of the memory was free, 0.6 with 3 %. There new pages come
from pages that the machine holds, as they do on a machine that has been training for a while.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

_STEP_BYTES = 8 << 20
# Given back at once, and after how many seconds again: a host takes it away within two (AMD EPYC, 2026-11-22).
_PIECE_BYTES, _PIECE_SECONDS = 512 << 20, 0.4
# Linux 5.14.
_MADV_POPULATE_WRITE = 23
# Less is near the kernel's own reserve.
_FREE_SHARE = 0.03


def free_bytes() -> int:
    """Pages that nobody uses, not even for files."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def drop(paths: Iterable[Path]) -> None:
    """Takes these files out of the page cache: the next who reads them reads the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)  # what is not on the disk yet cannot be dropped
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def bring(paths: Iterable[Path]) -> None:
    """Reads these files into the page cache, from where some hosts have them dropped within a minute."""
    buffer = bytearray(_STEP_BYTES)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


class Reserve:
    """Pages of the machine's own that are given back to the kernel while something is measured: it takes those.

    For what takes many pages in a few seconds. In huge pages: 2 GB freed in small ones are not what is taken next, new
    files cost 0.9 to 3.0 CPU s/GB right after, and 0.27 after 2 GB in huge ones (AMD EPYC, 2026-11-22).

    Args:
        nbytes: in all.
    """

    def __init__(self, nbytes: int = 4 << 30) -> None:
        self._pieces = [mmap.mmap(-1, _PIECE_BYTES, mmap.MAP_PRIVATE) for _ in range(nbytes // _PIECE_BYTES)]
        for piece in self._pieces:
            piece.madvise(mmap.MADV_HUGEPAGE)
            piece.madvise(_MADV_POPULATE_WRITE)
        self._stopped = threading.Event()
        self._giver = threading.Thread(target=self._give, daemon=True)

    def __enter__(self) -> Reserve:
        self._pieces.pop().close()
        self._giver.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopped.set()
        self._giver.join()
        self._pieces.clear()

    def _give(self) -> None:
        while self._pieces and not self._stopped.wait(_PIECE_SECONDS):
            self._pieces.pop().close()


class PageCache:
    """Fills the page cache with zeros read from a file without blocks; the file goes with this object.

    Attributes:
        filled_bytes: read so far.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """
        Args:
            folder: where the file lies; any folder on a file system that knows sparse files.
        """
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._buffer = bytearray(_STEP_BYTES)
        self._total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.filled_bytes = 0

    def __enter__(self) -> PageCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def fill(self) -> int:
        """Reads until nearly no memory is free, once over all memory at most.

        Returns:
            Bytes read.
        """
        descriptor, begin = self._file.fileno(), self.filled_bytes
        while free_bytes() > _FREE_SHARE * self._total and self.filled_bytes - begin < self._total:
            os.ftruncate(descriptor, self.filled_bytes + _STEP_BYTES)
            self.filled_bytes += os.preadv(descriptor, [self._buffer], self.filled_bytes)
        return self.filled_bytes - begin
