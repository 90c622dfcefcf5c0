"""Memory that the engine and a recoder share: a file without a name, with the job, then the records."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from streamer.base import linux

# Bytes kept from job to job: new pages cost 2 s/GB of CPU (shared machine, 2026-11-22). A longer chunk returns the
# rest.
KEPT_BYTES = 32 << 20
# Shorter buffers are copied without releasing the GIL: numpy takes a microsecond for each.
_LARGE_BYTES = 16 << 10

Buffer = memoryview | bytes


class SharedMemory:
    """A file in memory that grows as it is written, and never shrinks, so that a mapping of it is never cut off."""

    def __init__(self, name: str, descriptor: int | None = None) -> None:
        self._name = name
        if descriptor is None:
            descriptor = linux.memory_file(name)
            linux.seal(descriptor, "SHRINK")
        self.descriptor = descriptor
        self._mapping: mmap.mmap | None = None

    def __repr__(self) -> str:
        return f"SharedMemory({self._name!r}, {self.descriptor})"

    def write(self, buffers: Sequence[Buffer], at: int = 0) -> int:
        """Writes buffers one after the other from offset `at`; returns where they end.

        It writes through the mapping: `pwritev` takes .168 CPU s/GB, this .033 (8 MiB, busy machine, 2026-11-23).
        """
        end = at + sum(map(len, buffers))
        if os.fstat(self.descriptor).st_size < end:
            os.ftruncate(self.descriptor, end)
        if at < end:
            mapping = self._map(end)
            for buffer in buffers:
                stop = at + len(buffer)
                if len(buffer) < _LARGE_BYTES:
                    mapping[at:stop] = buffer
                else:
                    np.copyto(np.frombuffer(mapping, np.uint8, len(buffer), at), np.frombuffer(buffer, np.uint8))
                at = stop
        return end

    def view(self, length: int) -> memoryview:
        """Returns the first bytes, read-only; they change with the next `write`. Raises ValueError at the end."""
        return memoryview(self._map(length))[:length].toreadonly() if length else memoryview(b"")

    def trim(self) -> None:
        """Frees the memory beyond `KEPT_BYTES`; the file keeps its length, with zeros there."""
        length = os.fstat(self.descriptor).st_size
        if length > KEPT_BYTES:
            linux.free_pages(self._map(length), KEPT_BYTES, length - KEPT_BYTES)

    def close(self) -> None:
        """Closes the file; views stay valid."""
        self._mapping = None
        os.close(self.descriptor)

    def _map(self, length: int) -> mmap.mmap:
        """Maps at least the first bytes of the file, for good: the first use of each page costs a fault."""
        if self._mapping is None or len(self._mapping) < length:
            self._mapping = None
            self._mapping = mmap.mmap(self.descriptor, length)
        return self._mapping


def map_memory(descriptor: int, length: int) -> memoryview:
    """Returns the first bytes of a file, read-only; unmapped with their last view. Raises ValueError at the end."""
    return memoryview(mmap.mmap(descriptor, length, prot=mmap.PROT_READ)) if length else memoryview(b"")
