"""Bounds the memory for chunks that are being fetched, and keeps the buffers that they are fetched into.

The fetchers of one process share a budget (`fetch/fetcher.py`, `fetch/fetcher_set.py`); chunks from peers count, too
(`peers/client.py`). `recode/` and `service/` only ask how much memory a part of the engine should take
(`budget_bytes`).

Bodies come in pieces of about 256 KiB in the memory of the store's client. Pieces that are kept until the chunk is
written fragment the heap and fault in page by page: 2.1 GB resident for 0.5 GB of chunks in flight, and 86,000-145,000
page faults per GB. A piece that is copied at once is still in the processor's cache, and its memory serves the next
piece. The buffers here are faulted in once, by huge pages if the kernel has them: 0.7 GB and 4,000-9,000 faults (two
cores, loopback, 2 to 6 GB in chunks of 8 MiB, 2026-11-20).

A shared buffer is a file in memory: a recoder, which is another process, maps the fetched bytes. Copying them in the
engine instead took 0.12 CPU s/GB more, and a message waited 0.30 instead of 0.13 ms for the engine's loop (p99, two
cores, 2026-11-24).
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

# The size of a buffer is a multiple of this, so that small chunks share no huge page.
GRAIN_BYTES = 64 << 10
# Chunks are cut at samples, so their lengths all differ. To be used again, buffers have sizes that are eighths of a
# power of two, and a free one serves requests for sizes of at least four fifths of its own.
STEPS = 8
LARGEST_SHARE = 1.25


# At most this much stays mapped while no buffer is in use: 32 chunks of 8 MiB to begin with again.
IDLE_BYTES = 256 << 20
# Shorter chunks get no shared buffer, which takes two descriptors: it is cheaper to copy them.
SHARED_FROM_BYTES = 1 << 20


class PooledBuffer:
    """Holds the memory of one buffer, which serves one chunk after the other.

    Args:
        size_bytes: size of the memory.
        shared: whether it is a file in memory that another process can map.

    Attributes:
        view: the bytes of the present chunk; valid from `begin_use` to `end_use`.
        descriptor: descriptor of the file in memory, or None if the buffer is not shared. Closed with this object.

    Raises:
        ConfigError, OSError: no file in memory can be made (see `memory_file`).
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
        """Sets `view` to the first `length` bytes."""
        self.view = memoryview(self._memory)[:length]

    def end_use(self) -> bool:
        """Ends `view`; returns False if slices of it, or arrays over these, exist: then the memory may not be reused.

        Only Linux can tell. On other systems the result is True.
        """
        self.view.release()
        if sys.platform == "linux":  # other systems have no resize that would show it
            try:
                # It keeps its size. Python refuses this while there are views (0.5 us).
                self._memory.resize(self.size_bytes)
            except BufferError:
                return False
        return True


class BufferPool:
    """Hands out buffers and keeps those that are given back, to be used again. Lives on one event loop.

    It does not bound the buffers in use: `MemoryBudget` does. They take more than it counts, for sizes are rounded up.

    Args:
        most_bytes: free buffers are unmapped when all buffers together exceed this.

    Attributes:
        mapped_bytes: size of all buffers, in use or free.
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
        """Returns a buffer whose `view` has `length` bytes of arbitrary values; the caller gives it back by `give`.

        Args:
            length: length in bytes.
            shared: whether another process is to map the bytes. It is ignored below `SHARED_FROM_BYTES`.

        Raises:
            ConfigError, OSError: see `PooledBuffer`.
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
        """Takes a buffer back; its view is invalid from then on. A buffer that still has views is not used again."""
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
        """Takes the free buffer that was used last of those that fit; None if there is none.

        The one used last is the likeliest to be in the processor's cache.
        """
        for number in range(len(self._free) - 1, -1, -1):
            buffer = self._free[number]
            fits = size <= buffer.size_bytes <= LARGEST_SHARE * size
            if fits and shared == (buffer.descriptor is not None):
                del self._free[number]
                return buffer
        return None

    def _shrink(self, most_bytes: int) -> None:
        """Unmaps free buffers, the longest unused first, until all buffers take at most `most_bytes`."""
        while self._free and self.mapped_bytes > most_bytes:
            self.mapped_bytes -= self._free.popleft().size_bytes


class ChunkBuffer:
    """Holds the place of one chunk's bytes, and takes a buffer for them at the first use of `view`.

    That is at the first byte, not when the bytes are reserved. Most chunks that are asked for together wait for those
    due first, and can use their buffers afterwards (64 chunks of 80 objects of 100 KB: 133 instead of 633 MB resident,
    2026-11-20).

    Args:
        pool: the pool that the buffer is taken from.
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
        """Returns the memory for the chunk's bytes; takes a buffer at the first call, which may raise OSError."""
        if self._buffer is None:
            self._buffer = self._pool.take(self.length, self._shared)
        return self._buffer.view

    @property
    def descriptor(self) -> int | None:
        """Descriptor of a file in memory that begins with the chunk's bytes; None if there is no shared buffer."""
        return None if self._buffer is None else self._buffer.descriptor

    def clear(self) -> None:
        """Returns the buffer to the pool; idempotent."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self._pool.give(buffer)


def size_bytes(length: int) -> int:
    """Returns the size in bytes of a buffer for `length` bytes.

    The length is rounded up to a multiple of an eighth of the largest power of two below it, or of `GRAIN_BYTES` if
    that is more.
    """
    step = max(GRAIN_BYTES, (1 << (max(1, length) - 1).bit_length()) // (2 * STEPS))
    return max(1, -(-length // step)) * step


# A budget is a quarter of the memory, which leaves room for the trainer's workers and the page cache. No link needs
# more than 1 GiB in flight (100 Gbit/s at 100 ms is 1.2 GB).
SHARE = 4
MAX_BYTES = 1 * GiB
LEAST_BYTES = 64 * MiB


class MemoryBudget:
    """Bounds the bytes reserved for chunks being fetched, and has their buffers. One event loop's fetchers share it.

    Args:
        config: its `memory_bytes` is the bound. None or 0 there means `budget_bytes()`.

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
        """Waits until `length` bytes may be reserved, and reserves them. A cancelled wait reserves nothing.

        Args:
            queue: where the request waits.
            length: number of bytes.
            shared: whether another process is to map them (`BufferPool.take`).

        Returns:
            A buffer, which takes memory at its first use, and a function that gives buffer and bytes back. The caller
            calls it exactly once.
        """
        owner = await self.gate.acquire(queue, length)
        buffer = ChunkBuffer(self.buffers, length, shared)

        def give_back() -> None:
            buffer.clear()
            self.gate.release(length, owner)

        return buffer, give_back

    def resize(self, limit_bytes: int) -> None:
        """Sets another bound in bytes; reserved bytes stay reserved."""
        self.gate.resize(limit_bytes)
        self.buffers.resize(limit_bytes)


def budget_bytes(cgroup: Cgroup | None = None) -> int:
    """Returns a quarter of the memory that this process may use, at least 64 MiB and at most 1 GiB.

    Args:
        cgroup: the cgroup whose limit counts. None means that of this process.
    """
    return min(max(usable_memory_bytes(cgroup) // SHARE, LEAST_BYTES), MAX_BYTES)
