"""The ring: slots of shared memory for batches, reused when the last view on them is deleted.

If a batch needs a slot and none is free, the worker that writes the batch makes the memory of a new one, because it
knows the size of the batch. A batch that does not fit into its slot gets new memory in the same way, which replaces
that of the slot. Each slot therefore has the size of a batch of this run, and there are as many slots as batches in
use at the same time.
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

# Freed slots are filled with this byte if `poison` is set, so that a view that outlives its slot is noticed.
POISON = 0xDB
# Slots that the trainer holds: the batch in use, the next one, one more for the prefetcher.
HELD_SLOTS = 3


class Limits(msgspec.Struct, frozen=True):
    """The limits of the ring.

    Attributes:
        usual: number of slots.
        most: number of slots while the next batch is late and later ones are finished.
        nbytes: of all slots together.
    """

    usual: int
    most: int
    nbytes: int


class Slot:
    """Memory for one batch.

    Attributes:
        number: unique in the ring.
        descriptor: of the memory; -1: no memory yet.
        nbytes: of the memory.
        view: the array as which the trainer holds it.
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
        """Replaces the memory, and owns the new descriptor."""
        mapping = shared_memory.map_memfd(descriptor, nbytes)
        self.close()
        self.descriptor = descriptor
        self.nbytes = nbytes
        self._mapping = mapping

    def window(self) -> Bytes:
        """A new array over the memory."""
        return shared_memory.window(self._mapping, 0, self.nbytes)

    def close(self) -> None:
        """Closes the descriptor; the mapping ends with its last view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1
        self.nbytes = 0
        self._mapping = memoryview(b"")


class SlotView(weakref.ref[Bytes]):
    """The array as which a slot is held; knows its slot when the array is gone."""

    __slots__ = ("slot",)
    slot: Slot


class Ring:
    """The slots of one loader, in the trainer's process.

    Used on the feeder's thread, except that views are deleted on any thread, at any time. That runs no Python code: a
    Ctrl-C that comes inside a finalizer is lost, 14 % of them in a loop that only takes batches (2026-11-23).

    Args:
        limits: number and bytes of the slots.
        on_fence: called by the trainer's thread while slots wait for a fence; must not block.
        pinner: registers slots with the device; None: not needed.
        poison: fill freed slots with POISON.

    Attributes:
        fencing: released slots wait for a fence.
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
        """Number of slots."""
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
        """Returns a free slot or a new one without memory, or None if the limit is reached.

        Args:
            late: the next batch to be delivered is not finished.
        """
        self.reclaim()
        if self._free:
            return self._free.pop()
        if self.slots >= (self._limits.most if late else self._limits.usual):
            return None
        # Another slot would have the size of the last one.
        usual = self._last_nbytes
        if sum(slot.nbytes or usual for slot in self._slots.values()) + usual > self._limits.nbytes:
            return None
        self._count += 1
        slot = self._slots[self._count] = Slot(self._count)
        return slot

    def adopt(self, slot: Slot, descriptor: int, nbytes: int) -> bool:
        """Sets the memory of a taken slot to the one that a worker made for its batch.

        Returns:
            Whether the ring has space for it; otherwise the slot is removed, and the memory belongs to the caller.
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
        """Frees a taken slot that the trainer does not hold."""
        if self._poison and slot.nbytes:
            slot.window().fill(POISON)
        self._free.append(slot)

    def hold(self, slot: Slot, memory: Bytes | None = None) -> Bytes:
        """Returns the slot's memory. The slot is free again when the array and all views on it are deleted.

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
        """Frees the slots whose views are deleted and whose fences have passed."""
        while self._fenced and self._fenced[0][0].is_done():
            for slot in self._fenced.popleft()[1]:
                self.put_back(slot)
        while self._released and not self.fencing:
            self.put_back(self._take_free_slot())

    def fence(self, make: Callable[[], Fence]) -> None:
        """Puts a fence behind all slots released so far: a copy that began earlier may still read them.

        Called by the trainer's thread, on whose stream such copies are.
        """
        slots = []
        while self._released:
            slots.append(self._take_free_slot())
        if slots:
            self._fenced.append((make(), slots))
        if self._fenced:
            # A passed event sends no signal: the feeder checks now.
            self._on_fence()

    def wait_for_fences(self) -> None:
        """Waits until nothing on the device reads a released slot any more."""
        for fence, _ in list(self._fenced):
            fence.wait()

    def close(self) -> None:
        """Closes the descriptors; memory ends with its last view."""
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
