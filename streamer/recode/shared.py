"""Provides the memory that the engine and a recoder share: a nameless file with the job, then with the records.

`recode/pool.py` writes jobs and reads records, `recode/__main__.py` does the reverse. `map_memory` also maps what fetch
processes have fetched (`engine/processes/process.py`), and files of annotations.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from streamer.base import linux

# So many bytes stay allocated from job to job, because new pages cost 2 s/GB of CPU (shared machine, 2026-11-22). What
# a longer chunk used beyond them is freed after it.
KEPT_BYTES = 32 << 20
# Buffers from this length on are copied by numpy, which releases the GIL, but takes a microsecond for each.
_LARGE_BYTES = 16 << 10

Buffer = memoryview | bytes


class SharedMemory:
    """A file in memory that grows as it is written, and never shrinks, so that a mapping of it is never cut off.

    Args:
        name: name in `/proc/<pid>/fd` and in `repr`.
        descriptor: the file, if another process has made it. None makes a new one.

    Attributes:
        descriptor: descriptor of the file, to pass to a child.

    Raises:
        ConfigError, OSError: no file in memory can be made (see `memory_file`).
    """

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
        """Writes buffers one after the other from offset `at`; returns the offset at which they end.

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
        """Returns the first `length` bytes, read-only; they change with the next `write`.

        Raises:
            ValueError: the file is shorter.
        """
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
    """Maps the first `length` bytes of a file, read-only; they stay mapped as long as a view of them exists.

    Raises:
        ValueError: the file is shorter.
    """
    return memoryview(mmap.mmap(descriptor, length, prot=mmap.PROT_READ)) if length else memoryview(b"")
