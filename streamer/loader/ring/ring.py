"""The ring: slots of shared memory that batches are written to, used again when the last view on them is gone.

A slot is made when a batch needs one and none is free, by the worker that writes the batch: only it knows how much the
batch takes. A batch that does not fit into its slot gets new memory in the same way, which takes the slot's place. So
slots have the size of the batches of this run, and there are as many as are in use at the same time.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from streamer.config import format_bytes
from streamer.loader.batch.buffers import Bytes
from streamer.loader.ring import shared_memory as memory
from streamer.loader.ring.fence import Fence

logger = logging.getLogger(__name__)

# A freed slot is filled with this when `poison` is on, so that a view that outlived its slot is seen.
POISON = 0xDB
# Slots for what the trainer holds: the batch in use, the one it takes next, one more for the prefetcher.
HELD_SLOTS = 3


class Limits(msgspec.Struct, frozen=True):
    """How many slots there may be.

    Attributes:
        usual: made when a batch needs one.
        most: made while the batch that is delivered next is late: others are finished in the meantime.
        nbytes: of all of them.
    """

    usual: int
    most: int
    nbytes: int


class Slot:
    """Memory for one batch.

    Attributes:
        number: tells the slots of one ring apart.
        descriptor: of the memory; -1: it has none yet.
        nbytes: of the memory.
    """

    __slots__ = ("_mapping", "descriptor", "nbytes", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.descriptor = -1
        self.nbytes = 0
        self._mapping = memoryview(b"")

    def __repr__(self) -> str:
        return f"Slot({self.number}, {self.nbytes} bytes)"

    def replace(self, descriptor: int, nbytes: int) -> None:
        """Takes other memory, and owns its descriptor from then on."""
        mapping = memory.map_shared(descriptor, nbytes)
        self.close()
        self.descriptor, self.nbytes, self._mapping = descriptor, nbytes, mapping

    def window(self) -> Bytes:
        """A new array over the memory."""
        return memory.window(self._mapping, 0, self.nbytes)

    def close(self) -> None:
        """Gives the descriptor back; the mapping goes with its last view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self.nbytes, self._mapping = -1, 0, memoryview(b"")


class Registrar(Protocol):
    """Makes memory known to a device."""

    def register(self, slot: Slot) -> None:
        """The slot has new memory."""
        ...

    def unregister(self, slot: Slot) -> None:
        """The slot loses its memory; no copy from it is under way."""
        ...


class Ring:
    """The slots of one loader, in the process that hands them out.

    On the feeder's thread, except that views die on any thread, at any time: all that happens then is an append to a
    deque and a call of `on_free`.

    Args:
        limits: how many slots there may be.
        on_free: called when a lent slot has no view left, on whatever thread that was; must not block.
        registrar: makes slots known to the device; None: need not.
        poison: fill freed slots with POISON.

    Attributes:
        fencing: slots that died wait for a fence.
    """

    def __init__(
        self,
        limits: Limits,
        on_free: Callable[[], None],
        registrar: Registrar | None = None,
        *,
        poison: bool = False,
    ) -> None:
        self.fencing = False
        self._limits = limits
        self._on_free = on_free
        self._registrar = registrar
        self._poison = poison
        self._count = 0
        self._last_nbytes = 0
        self._slots: dict[int, Slot] = {}
        # The last one that was freed is taken first: what a fast trainer leaves unused stays out of the CPU's caches.
        self._free: list[Slot] = []
        self._released: deque[Slot] = deque()
        self._fenced: deque[tuple[Fence, list[Slot]]] = deque()
        self._warned = False

    def __repr__(self) -> str:
        return f"Ring({self.slots} slots, {format_bytes(self.nbytes)}, {self.free} free)"

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """Of all slots together."""
        return sum(slot.nbytes for slot in list(self._slots.values()))

    @property
    def free(self) -> int:
        """Slots free right now."""
        return len(self._free)

    def take(self, *, late: bool) -> Slot | None:
        """A free slot, or a new one without memory; None: there are as many as there may be.

        Args:
            late: the batch that is delivered next is not finished.
        """
        self.reclaim()
        if self._free:
            return self._free.pop()
        if self.slots >= (self._limits.most if late else self._limits.usual) or self._is_full():
            return None
        self._count += 1
        slot = self._slots[self._count] = Slot(self._count)
        return slot

    def adopt(self, slot: Slot, descriptor: int, nbytes: int) -> bool:
        """Gives a slot that was taken the memory that a worker made for its batch.

        Returns:
            Whether the ring has room for it; otherwise there is no such slot any more, and the memory is the caller's.
        """
        self._release(slot)
        self._last_nbytes = nbytes
        if self.nbytes + nbytes > self._limits.nbytes:
            del self._slots[slot.number]
            self._warn(nbytes)
            return False
        slot.replace(descriptor, nbytes)
        if self._registrar is not None:
            self._registrar.register(slot)
        return True

    def put_back(self, slot: Slot) -> None:
        """A slot that was taken and is not lent any more, or never was."""
        if self._poison and slot.nbytes:
            slot.window().fill(POISON)
        self._free.append(slot)

    def lend(self, slot: Slot) -> Bytes:
        """The slot's memory; it is free again when the array and every view on it are gone."""
        lent = slot.window()
        finalizer = weakref.finalize(lent, _view_ended, self._released, slot, self._on_free)
        finalizer.atexit = False
        return lent

    def reclaim(self) -> None:
        """Takes back the slots whose views have died and whose fences have passed."""
        while self._fenced and self._fenced[0][0].done():
            for slot in self._fenced.popleft()[1]:
                self.put_back(slot)
        while self._released and not self.fencing:
            self.put_back(self._released.popleft())

    def fence(self, make: Callable[[], Fence]) -> None:
        """Puts a fence behind everything that died until now: a copy that was begun before may still be reading.

        Called by the trainer's thread, on whose stream such copies are.
        """
        slots = []
        while self._released:
            slots.append(self._released.popleft())
        if slots:
            self._fenced.append((make(), slots))
        if self._fenced:
            # Nothing tells that an event has passed: the feeder looks now.
            self._on_free()

    def wait_for_fences(self) -> None:
        """Waits until nothing on the device reads a released slot any more."""
        for fence, _ in list(self._fenced):
            fence.wait()

    def close(self) -> None:
        """Gives the descriptors back; memory goes with its last view."""
        for slot in self._slots.values():
            if slot.descriptor >= 0:
                os.close(slot.descriptor)
                slot.descriptor = -1

    def _is_full(self) -> bool:
        """Whether there is no room for another slot, if it becomes as large as the one that was made last."""
        usual = self._last_nbytes
        return sum(slot.nbytes or usual for slot in self._slots.values()) + usual > self._limits.nbytes

    def _release(self, slot: Slot) -> None:
        if slot.nbytes and self._registrar is not None:
            self._registrar.unregister(slot)
        slot.close()

    def _warn(self, nbytes: int) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "ring_bytes=%d holds %d batches and no further one of %d bytes: such a batch gets memory of its own, "
                "which is not used again; raise ring_bytes, or lower prefetch_batches or num_workers",
                self._limits.nbytes,
                self.slots,
                nbytes,
            )


def _view_ended(released: deque[Slot], slot: Slot, on_free: Callable[[], None]) -> None:
    released.append(slot)
    on_free()
