"""Buffers for chunks, used again and again.

Bodies come in pieces of about 256 KiB in the client's memory. Kept until the chunk is written they fill the heap with
holes and fault in page by page: 2.1 GB resident for 0.5 GB of chunks under way, 86,000-145,000 page faults per GB. A
piece that is copied at once is still in the processor's cache and its memory serves the next piece; the buffers here
are faulted in once, by huge pages where the kernel has them: 0.7 GB and 4,000-9,000 faults (two cores, loopback,
2 to 6 GB in chunks of 8 MiB, 2026-11-20).
"""

from __future__ import annotations

import mmap
import sys
from collections import deque

# Smaller chunks share no huge page; a length is rounded up to this.
GRAIN_BYTES = 64 << 10
# Rooms come in eighths of a power of two and serve what needs at least four fifths of them: chunks are cut at samples,
# so that no two are of one length.
STEPS = 8
LARGEST_SHARE = 1.25


# An idle engine keeps no more: 32 chunks of 8 MiB to begin with again.
IDLE_BYTES = 256 << 20


class Slab:
    """One buffer.

    Args:
        room_bytes: its length.

    Attributes:
        view: as much of it as was asked for.
    """

    def __init__(self, room_bytes: int) -> None:
        self._memory = mmap.mmap(-1, room_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.room_bytes = room_bytes
        self.view = memoryview(b"")

    def __repr__(self) -> str:
        return f"Slab({len(self.view)} of {self.room_bytes} bytes)"

    def lend(self, length: int) -> None:
        """Makes `view` of that length."""
        self.view = memoryview(self._memory)[:length]

    def take_back(self) -> bool:
        """Ends `view`; False: somebody holds slices of it or arrays over it, so the memory is not free."""
        self.view.release()
        if sys.platform == "linux":  # elsewhere there is no resize, and none to tell
            try:
                self._memory.resize(self.room_bytes)  # to what it is: refused while there are views (0.5 us)
            except BufferError:
                return False
        return True


class Slabs:
    """Lends slabs and keeps those that come back; when all are back, few. Lives on one event loop.

    What is lent follows what the fetcher reserves, and takes up to a quarter more.

    Args:
        most_bytes: slabs that are free are unmapped when all together exceed this.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.mapped_bytes = 0
        self._lent = 0
        self._free: deque[Slab] = deque()

    def __repr__(self) -> str:
        return f"Slabs({self.mapped_bytes} of {self.most_bytes} bytes, {self._lent} lent, {len(self._free)} free)"

    def take(self, length: int) -> Slab:
        """Lends a slab with room for `length` bytes; their values are arbitrary."""
        room = room_bytes(length)
        slab = self._fitting(room) or self._mapped(room)
        slab.lend(length)
        self._lent += 1
        return slab

    def give(self, slab: Slab) -> None:
        """Takes a slab back; its view is dead from now on."""
        self._lent -= 1
        if slab.take_back():
            self._free.append(slab)
        else:
            self.mapped_bytes -= slab.room_bytes
        self._shrink(self.most_bytes if self._lent else min(self.most_bytes, IDLE_BYTES))

    def _fitting(self, room: int) -> Slab | None:
        """The slab used last is the likeliest to be in some cache."""
        for number in range(len(self._free) - 1, -1, -1):
            slab = self._free[number]
            if room <= slab.room_bytes <= LARGEST_SHARE * room:
                del self._free[number]
                return slab
        return None

    def _mapped(self, room: int) -> Slab:
        self._shrink(self.most_bytes - room)
        slab = Slab(room)
        self.mapped_bytes += room
        return slab

    def _shrink(self, most_bytes: int) -> None:
        while self._free and self.mapped_bytes > most_bytes:
            self.mapped_bytes -= self._free.popleft().room_bytes


class Landing:
    """Where the bytes of one chunk go.

    Its slab is taken when the first byte comes: of the chunks that were asked for together, most wait for those due
    first, whose slabs are warm and free by then (64 chunks of 80 objects of 100 KB: 133 instead of 633 MB resident,
    2026-11-20).

    Args:
        slabs: where it comes from.
        length: of the chunk, in bytes.
    """

    def __init__(self, slabs: Slabs, length: int) -> None:
        self._slabs = slabs
        self._slab: Slab | None = None
        self.length = length

    def __repr__(self) -> str:
        return f"Landing({self.length} bytes, {self._slab})"

    def room(self) -> memoryview:
        """The chunk's bytes."""
        if self._slab is None:
            self._slab = self._slabs.take(self.length)
        return self._slab.view

    def clear(self) -> None:
        """Gives the slab back; idempotent."""
        slab, self._slab = self._slab, None
        if slab is not None:
            self._slabs.give(slab)


def room_bytes(length: int) -> int:
    """The length of a slab for `length` bytes: an eighth of a power of two, at least the grain."""
    step = max(GRAIN_BYTES, (1 << (max(1, length) - 1).bit_length()) // (2 * STEPS))
    return max(1, -(-length // step)) * step
