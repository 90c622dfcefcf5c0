"""The memory for bodies: its size if the configuration has none, and the buffers."""

from __future__ import annotations

from collections.abc import Callable

from streamer.base.cgroup import Cgroup, usable_memory_bytes
from streamer.config import FetchConfig, GiB, MiB
from streamer.fetch.buffer_pool import BufferPool, ChunkBuffer
from streamer.fetch.fair_gate import FairGate, WaitQueue

# A quarter leaves room for the trainer's workers and the page cache; above 1 GiB no link needs more in flight
# (100 Gbit/s at 100 ms is 1.2 GB).
SHARE = 4
MOST_BYTES = 1 * GiB
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
    """A quarter of the memory of this cgroup (or machine), between 64 MiB and 1 GiB."""
    return min(max(usable_memory_bytes(cgroup) // SHARE, LEAST_BYTES), MOST_BYTES)
