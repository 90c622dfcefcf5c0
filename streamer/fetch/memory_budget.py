"""Bounds the memory for bodies, and keeps the buffers that chunks are fetched into.

Bodies come in pieces of about 256 KiB in the client's memory. If these were kept until the chunk is written, they would
fill the heap with holes and fault in page by page: 2.1 GB resident for 0.5 GB of chunks in flight, and 86,000-145,000
page faults per GB. A piece that is copied at once is still in the processor's cache, and its memory serves the next
piece; the buffers here are faulted in once, by huge pages if the kernel has them: 0.7 GB and 4,000-9,000 faults (two
cores, loopback, 2 to 6 GB in chunks of 8 MiB, 2026-11-20).

A shared buffer is a file in memory, for a recoder that maps the fetched bytes. Copying them in the engine instead took
.12 CPU s/GB more, and a message waited .30 instead of .13 ms for the engine's loop (99 %, two cores, 2026-11-24).
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable

from streamer.base import linux
from streamer.base.cgroup import Cgroup, usable_memory_bytes
from streamer.config import FetchConfig, GiB, MiB
from streamer.fetch.fair_gate import FairGate, WaitQueue

# Smaller chunks do not share a huge page; a length is rounded up to this.
GRAIN_BYTES = 64 << 10
# Sizes are eighths of a power of two; a buffer serves lengths of at least four fifths of its size. Chunks are cut at
# samples, so their lengths all differ.
STEPS = 8
LARGEST_SHARE = 1.25


# The most that an idle engine keeps: 32 chunks of 8 MiB to begin with again.
IDLE_BYTES = 256 << 20
# A shared buffer costs two descriptors; shorter chunks are cheaper to copy.
SHARED_FROM_BYTES = 1 << 20


class PooledBuffer:
    """One buffer.

    Args:
        size_bytes: its length.
        shared: whether another process can map it.

    Attributes:
        view: the part of it that was asked for.
        descriptor: descriptor of its file in memory, if it is shared.
    """

    def __init__(self, size_bytes: int, shared: bool = False) -> None:
        self.descriptor: int | None = None
        if not shared:
            self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            # A file without a name, of fixed length, so that a mapping of it is never cut off.
            self.descriptor = linux.memory_file("streamer-fetched")
            os.ftruncate(self.descriptor, size_bytes)
            linux.seal(self.descriptor, "SHRINK", "GROW")
            weakref.finalize(self, os.close, self.descriptor)
            self._memory = mmap.mmap(self.descriptor, size_bytes, flags=mmap.MAP_SHARED)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)
        self.size_bytes = size_bytes
        self.view = memoryview(b"")

    def __repr__(self) -> str:
        return f"PooledBuffer({len(self.view)} of {self.size_bytes} bytes)"

    def begin_use(self, length: int) -> None:
        """Makes `view` of that length."""
        self.view = memoryview(self._memory)[:length]

    def end_use(self) -> bool:
        """Ends `view`; returns False if slices of it or arrays over it exist, so that the memory is not free."""
        self.view.release()
        if sys.platform == "linux":  # other systems have no resize that would show it
            try:
                self._memory.resize(self.size_bytes)  # to its present size: refused while there are views (0.5 us)
            except BufferError:
                return False
        return True


class BufferPool:
    """Hands out buffers and keeps returned ones, fewer when none is in use. Lives on one event loop.

    The buffers in use follow the fetcher's reservations and take up to a quarter more.

    Args:
        most_bytes: free buffers are unmapped when all buffers together exceed this.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.mapped_bytes = 0
        self._in_use = 0
        self._free: deque[PooledBuffer] = deque()

    def __repr__(self) -> str:
        return (
            f"BufferPool({self.mapped_bytes} of {self.most_bytes} bytes, {self._in_use} in use, {len(self._free)} free)"
        )

    def take(self, length: int, shared: bool = False) -> PooledBuffer:
        """Hands out a buffer for at least `length` bytes; their values are arbitrary.

        Args:
            length: length in bytes.
            shared: whether another process is to map it, which is ignored below `SHARED_FROM_BYTES`.
        """
        size = size_bytes(length)
        shared = shared and length >= SHARED_FROM_BYTES
        buffer = self._take_free(size, shared)
        if buffer is None:
            self._shrink(self.most_bytes - size)
            buffer = PooledBuffer(size, shared)
            self.mapped_bytes += size
        buffer.begin_use(length)
        self._in_use += 1
        return buffer

    def give(self, buffer: PooledBuffer) -> None:
        """Takes a buffer back; its view is invalid from then on."""
        self._in_use -= 1
        if buffer.end_use():
            self._free.append(buffer)
        else:
            self.mapped_bytes -= buffer.size_bytes
        self._shrink(self.most_bytes if self._in_use else min(self.most_bytes, IDLE_BYTES))

    def resize(self, most_bytes: int) -> None:
        """Sets another bound and unmaps free buffers beyond it."""
        self.most_bytes = most_bytes
        self._shrink(most_bytes)

    def clear(self) -> None:
        """Unmaps the free buffers."""
        self._shrink(0)

    def _take_free(self, size: int, shared: bool) -> PooledBuffer | None:
        """Takes a free buffer, the one used last, because it is the likeliest to be in some cache."""
        for number in range(len(self._free) - 1, -1, -1):
            buffer = self._free[number]
            fits = size <= buffer.size_bytes <= LARGEST_SHARE * size
            if fits and shared == (buffer.descriptor is not None):
                del self._free[number]
                return buffer
        return None

    def _shrink(self, most_bytes: int) -> None:
        while self._free and self.mapped_bytes > most_bytes:
            self.mapped_bytes -= self._free.popleft().size_bytes


class ChunkBuffer:
    """The buffer of one chunk, taken from the pool at first use.

    It is taken at the first byte, not at the reservation: most of the chunks that were asked for together wait for
    those due first, whose buffers are warm and free by then (64 chunks of 80 objects of 100 KB: 133 instead of 633 MB
    resident, 2026-11-20).

    Args:
        pool: the pool that it is taken from.
        length: length of the chunk in bytes.
        shared: see `BufferPool.take`.
    """

    def __init__(self, pool: BufferPool, length: int, shared: bool = False) -> None:
        self._pool = pool
        self._shared = shared
        self._buffer: PooledBuffer | None = None
        self.length = length

    def __repr__(self) -> str:
        return f"ChunkBuffer({self.length} bytes, {self._buffer})"

    def view(self) -> memoryview:
        """Returns the chunk's bytes."""
        if self._buffer is None:
            self._buffer = self._pool.take(self.length, self._shared)
        return self._buffer.view

    @property
    def descriptor(self) -> int | None:
        """Descriptor of a file that begins with the chunk's bytes, if the buffer is shared."""
        return None if self._buffer is None else self._buffer.descriptor

    def clear(self) -> None:
        """Returns the buffer to the pool; idempotent."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give(buffer)


def size_bytes(length: int) -> int:
    """Returns the size of a buffer for `length` bytes: a multiple of an eighth of a power of two, or the grain."""
    step = max(GRAIN_BYTES, (1 << (max(1, length) - 1).bit_length()) // (2 * STEPS))
    return max(1, -(-length // step)) * step


# A quarter leaves room for the trainer's workers and the page cache; above 1 GiB no link needs more in flight
# (100 Gbit/s at 100 ms is 1.2 GB).
SHARE = 4
MAX_BYTES = 1 * GiB
LEAST_BYTES = 64 * MiB


class MemoryBudget:
    """The bytes reserved for chunks being fetched, and their buffers. Shared by the fetchers of one event loop.

    Args:
        config: the limits.

    Attributes:
        gate: the reserved bytes, and the requests that wait for some.
        buffers: the buffers themselves.
    """

    def __init__(self, config: FetchConfig) -> None:
        self.gate = FairGate(config.memory_bytes or budget_bytes())
        self.buffers = BufferPool(self.gate.limit)

    def __repr__(self) -> str:
        return f"MemoryBudget({self.gate}, {self.buffers})"

    async def reserve(
        self, queue: WaitQueue, length: int, *, shared: bool = False
    ) -> tuple[ChunkBuffer, Callable[[], None]]:
        """Waits until bytes may be reserved.

        Args:
            queue: where the request waits.
            length: number of bytes.
            shared: whether another process is to map them; see `BufferPool.take`.

        Returns:
            A buffer, which takes memory at its first use, and a function that gives it and the bytes back once.
        """
        owner = await self.gate.acquire(queue, length)
        buffer = ChunkBuffer(self.buffers, length, shared)

        def give_back() -> None:
            buffer.clear()
            self.gate.release(length, owner)

        return buffer, give_back

    def resize(self, limit_bytes: int) -> None:
        """Sets another bound; reserved bytes stay reserved."""
        self.gate.resize(limit_bytes)
        self.buffers.resize(limit_bytes)


def budget_bytes(cgroup: Cgroup | None = None) -> int:
    """Returns a quarter of the memory of this cgroup (or machine), between 64 MiB and 1 GiB."""
    return min(max(usable_memory_bytes(cgroup) // SHARE, LEAST_BYTES), MAX_BYTES)
