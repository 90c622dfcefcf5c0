"""The ring: slots of shared memory for batches, reused when the last view on them is deleted.

If a batch needs a slot and none is free, the worker that writes the batch makes the memory of a new one, because it
knows the size of the batch. A batch that does not fit into its slot gets new memory in the same way, which replaces
that of the slot. Each slot therefore has the size of a batch of this run, and there are as many slots as batches in
use at the same time.

The feeder owns the ring of a loader (`loader/feed/feeder.py`); `loader/feed/supply.py` opens its batches.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable

import msgspec

from streamer.batches.batch.buffers import Bytes
from streamer.batches.ring import shared_memory
from streamer.batches.ring.pinning import Fence, Pinner
from streamer.config import format_bytes

logger = logging.getLogger(__name__)

# The byte with which freed slots are filled if `poison` is set, so that a view that outlives its slot is noticed.
POISON = 0xDB
# Number of slots that the trainer holds: the batch in use, the next one, one more for the prefetcher.
HELD_SLOTS = 3


class Limits(msgspec.Struct, frozen=True):
    """The limits of the ring.

    Attributes:
        usual: largest number of slots.
        most: largest number of slots while the next batch is late and later ones are finished.
        nbytes: largest number of bytes of all slots together.
    """

    usual: int
    most: int
    nbytes: int


class Slot:
    """Memory for one batch.

    Attributes:
        number: number of the slot, unique in the ring, never used again.
        descriptor: file descriptor of the memory, or -1 if it has no memory yet.
        nbytes: bytes of the memory, 0 without memory.
        view: weak reference to the array as which the trainer holds it, or None if the trainer does not hold it.
    """

    __slots__ = ("_mapping", "descriptor", "nbytes", "number", "view")

    def __init__(self, number: int) -> None:
        self.number = number
        self.descriptor = -1
        self.nbytes = 0
        self.view: SlotView | None = None
        self._mapping = memoryview(b"")

    def __repr__(self) -> str:
        return f"Slot({self.number}, {self.nbytes} bytes)"

    def replace(self, descriptor: int, nbytes: int) -> None:
        """Maps the memory of a descriptor in place of the old one, and closes the old descriptor.

        The slot closes the new descriptor in the end. Raises an OSError if the memory cannot be mapped.
        """
        mapping = shared_memory.map_memfd(descriptor, nbytes)
        self.close()
        self.descriptor = descriptor
        self.nbytes = nbytes
        self._mapping = mapping

    def window(self) -> Bytes:
        """Returns a new array over the memory of the slot."""
        return shared_memory.window(self._mapping, 0, self.nbytes)

    def close(self) -> None:
        """Closes the descriptor: the slot has no memory then. The mapping ends with its last view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1
        self.nbytes = 0
        self._mapping = memoryview(b"")


class SlotView(weakref.ref[Bytes]):
    """A weak reference to the array as which a slot is held: it still knows the slot when the array is deleted."""

    __slots__ = ("slot",)
    slot: Slot


class Ring:
    """The slots of one loader, in the trainer's process.

    Used on the feeder's thread, but for `hold`, `fence` and `wait_for_fences`, which the trainer's thread calls. Views
    are deleted on any thread, at any time. That runs no Python code, because a Ctrl-C inside of a finalizer is lost: 14
    % of them were, in a loop that only takes batches (2026-11-23).

    A slot is free, taken (`take`), held by the trainer (`hold`), or released: its views are deleted, and `reclaim`
    frees it, after a fence if there must be one.

    Args:
        limits: largest number and bytes of the slots.
        on_fence: called by the trainer's thread while slots wait for a fence. It must not block.
        pinner: registers slots with the device, or None if that is not needed.
        poison: whether freed slots are filled with POISON.

    Attributes:
        fencing: whether released slots must wait for a fence.
    """

    def __init__(
        self, limits: Limits, on_fence: Callable[[], None], pinner: Pinner | None = None, *, poison: bool = False
    ) -> None:
        self.fencing = False
        self._limits = limits
        self._on_fence = on_fence
        self._pinner = pinner
        self._poison = poison
        self._count = 0
        self._last_nbytes = 0
        self._slots: dict[int, Slot] = {}
        # The slot that was freed last is taken first, so that unused slots stay out of the CPU caches.
        self._free: list[Slot] = []
        self._released: deque[weakref.ref[Bytes]] = deque()
        self._fenced: deque[tuple[Fence, list[Slot]]] = deque()
        self._warned = False

    def __repr__(self) -> str:
        return f"Ring({self.slots} slots, {format_bytes(self.nbytes)}, {self.free} free)"

    @property
    def slots(self) -> int:
        """Number of all slots."""
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together."""
        return sum(slot.nbytes for slot in list(self._slots.values()))

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def take(self, *, late: bool) -> Slot | None:
        """Returns a free slot or a new one without memory, or None if the limits allow no further slot.

        Frees released slots first.

        Args:
            late: whether the next batch to be delivered is not finished, so that `Limits.most` counts.
        """
        self.reclaim()
        if self._free:
            return self._free.pop()
        if self.slots >= (self._limits.most if late else self._limits.usual):
            return None
        # A slot without memory is counted with the size of the memory that was made last.
        usual = self._last_nbytes
        if sum(slot.nbytes or usual for slot in self._slots.values()) + usual > self._limits.nbytes:
            return None
        self._count += 1
        slot = self._slots[self._count] = Slot(self._count)
        return slot

    def adopt(self, slot: Slot, descriptor: int, nbytes: int) -> bool:
        """Sets the memory of a taken slot to the one that a worker made for its batch.

        The old memory of the slot is unregistered and closed in any case.

        Args:
            slot: A slot that was taken.
            descriptor: File descriptor of the new memory.
            nbytes: Size of the new memory.

        Returns:
            Whether the ring has space for it and owns the descriptor. If not, the slot is removed from the ring, and
            the descriptor stays with the caller.

        Raises:
            ConfigError: the memory could not be registered with CUDA, and that is required.
            OSError: the memory cannot be mapped.
        """
        if slot.nbytes and self._pinner is not None:
            self._pinner.unregister(slot.number)
        slot.close()
        self._last_nbytes = nbytes
        if self.nbytes + nbytes > self._limits.nbytes:
            del self._slots[slot.number]
            if not self._warned:
                self._warned = True
                logger.warning(
                    "ring_bytes=%d holds %d batches and no further one of %d bytes: such a batch gets memory of its "
                    "own, which is not used again; raise ring_bytes, or lower prefetch_batches or num_workers",
                    self._limits.nbytes,
                    self.slots,
                    nbytes,
                )
            return False
        slot.replace(descriptor, nbytes)
        if self._pinner is not None:
            self.fencing = self._pinner.register(slot.number, slot.window())
        return True

    def put_back(self, slot: Slot) -> None:
        """Frees a slot that was taken and that the trainer does not hold."""
        if self._poison and slot.nbytes:
            slot.window().fill(POISON)
        self._free.append(slot)

    def hold(self, slot: Slot, memory: Bytes | None = None) -> Bytes:
        """Returns an array over the slot's memory. The slot is released when the array and all views on it are deleted.

        Args:
            slot: A slot that was taken.
            memory: The array of an earlier call that was interrupted, or None for a new one.
        """
        memory = slot.window() if memory is None else memory
        if slot.view is None:
            view = SlotView(memory, self._released.append)
            view.slot = slot
            slot.view = view
        return memory

    def reclaim(self) -> None:
        """Frees the slots whose views are deleted, but only after their fence if `fencing` is set. Does not wait."""
        while self._fenced and self._fenced[0][0].is_done():
            for slot in self._fenced.popleft()[1]:
                self.put_back(slot)
        while self._released and not self.fencing:
            self.put_back(self._take_free_slot())

    def fence(self, make: Callable[[], Fence]) -> None:
        """Makes one fence for all slots released so far: a copy that began earlier may still read them.

        Called by the trainer's thread, on whose stream such copies are. `make` returns a fence behind them, and is
        called only if slots have been released.
        """
        slots = []
        while self._released:
            slots.append(self._take_free_slot())
        if slots:
            self._fenced.append((make(), slots))
        if self._fenced:
            # CUDA does not signal that an event has passed: the feeder is woken to check.
            self._on_fence()

    def wait_for_fences(self) -> None:
        """Waits until the device has passed all fences that were made."""
        for fence, _ in list(self._fenced):
            fence.wait()

    def close(self) -> None:
        """Closes the descriptors of all slots. Their memory stays until the ring and the last view on it are gone."""
        for slot in self._slots.values():
            slot.view = None
            if slot.descriptor >= 0:
                os.close(slot.descriptor)
                slot.descriptor = -1

    def _take_free_slot(self) -> Slot:
        view = self._released.popleft()
        assert isinstance(view, SlotView)
        view.slot.view = None
        return view.slot
