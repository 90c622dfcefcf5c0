"""Memory that the engine and a recoder share: a file without a name, written by one and mapped by the other."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence

# Kept from job to job: new pages cost 2 s/GB of CPU (shared machine, 2026-11-22). A longer chunk gives the rest back.
KEPT_BYTES = 32 << 20
# What the kernel takes in one call (IOV_MAX).
_BUFFERS_PER_CALL = 1024

Buffer = memoryview | bytes


class SharedMemory:
    """One file in memory; grows as it is written, and never shrinks: a mapping of it is never cut off.

    Args:
        name: as `/proc/<pid>/fd` shows it.
        descriptor: of one that another process has made; None: a new one.
    """

    def __init__(self, name: str, descriptor: int | None = None) -> None:
        self._name = name
        if descriptor is None:
            descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        self.descriptor = descriptor

    def __repr__(self) -> str:
        return f"SharedMemory({self._name!r}, {self.descriptor})"

    def write(self, buffers: Sequence[Buffer], at: int = 0) -> int:
        """Writes buffers one after the other from offset `at`; returns where they end."""
        views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        first = 0
        while first < len(views):
            written = os.pwritev(self.descriptor, views[first : first + _BUFFERS_PER_CALL], at)
            at += written
            while first < len(views) and written >= len(views[first]):
                written -= len(views[first])
                first += 1
            if written:
                views[first] = views[first][written:]
        return at

    def view(self, length: int) -> memoryview:
        """The first bytes, read-only; they change with the next `write`.

        Raises:
            ValueError: there are fewer.
        """
        if not length:
            return memoryview(b"")
        if os.fstat(self.descriptor).st_size < length:
            raise ValueError(f"{self._name} has fewer than {length} bytes")
        return memoryview(mmap.mmap(self.descriptor, length, prot=mmap.PROT_READ))

    def trim(self) -> None:
        """Frees the memory beyond `KEPT_BYTES`; the file stays as long as it is, full of zeros there."""
        length = os.fstat(self.descriptor).st_size
        if length > KEPT_BYTES:
            with mmap.mmap(self.descriptor, 0) as whole:
                whole.madvise(mmap.MADV_REMOVE, KEPT_BYTES, length - KEPT_BYTES)

    def close(self) -> None:
        """Views of it stay valid."""
        os.close(self.descriptor)
