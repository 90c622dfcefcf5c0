"""The ring: slots of one shared memory, each free, at work, or lent until its last view has died."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable

import msgspec

from streamer.loader import memory
from streamer.loader.fence import Fence
from streamer.loader.leaves import Bytes

# A freed slot is filled with this when `poison` is on, so that a view that outlived its slot is seen.
POISON = 0xDB
# Slots for what the trainer holds: the batch in use, the one it takes next, one more for the prefetcher.
HELD_SLOTS = 3
# Batches of one data set differ a little in size; more than this is grown into.
_SLACK = 1.125


class Shape(msgspec.Struct, frozen=True):
    """How many slots of how many bytes."""

    slots: int
    slot_bytes: int

    @property
    def nbytes(self) -> int:
        """The whole ring."""
        return self.slots * self.slot_bytes


def fit(batch_bytes: int, batches: int, ring_bytes: int) -> Shape | None:
    """Cuts a budget into slots for batches of a size; None: not even two fit.

    Args:
        batch_bytes: what the largest batch so far takes.
        batches: how many are wanted ahead of the trainer, besides those it holds.
        ring_bytes: the budget.
    """
    slot_bytes = memory.page_aligned(int(batch_bytes * _SLACK))
    slots = min(batches + HELD_SLOTS, ring_bytes // slot_bytes)
    return Shape(slots, slot_bytes) if slots >= 2 else None


class Ring:
    """One ring, in the process that hands out its slots.

    `take` and `reclaim` belong to the feeder; views die on any thread, at any time: all that happens then is an
    append to a deque and a call of `on_free`.

    Args:
        number: tells the rings of one loader apart.
        shape: how many slots of how many bytes.
        on_free: called when a lent slot has no view left, on whatever thread that was; must not block.
        poison: fill freed slots with POISON.
    """

    def __init__(self, number: int, shape: Shape, on_free: Callable[[], None], poison: bool = False) -> None:
        self.number = number
        self.shape = shape
        self.descriptor = memory.create_sealed("streamer-ring", shape.nbytes)
        self._mapping = memory.map_shared(self.descriptor, shape.nbytes)
        self._on_free = on_free
        self._poison = poison
        # The last one that was freed is taken first: what a fast trainer leaves unused stays out of the CPU's caches.
        self._free = list(reversed(range(shape.slots)))
        self._dead: deque[int] = deque()
        self._fenced: deque[tuple[Fence, list[int]]] = deque()
        self.fencing = False

    def __repr__(self) -> str:
        return f"Ring({self.number}, {self.shape.slots} x {self.shape.slot_bytes} bytes, {len(self._free)} free)"

    @property
    def free(self) -> int:
        """Slots free right now."""
        return len(self._free)

    @property
    def address(self) -> int:
        """Where the ring lies in this process."""
        return int(memory.window(self._mapping, 0, 1).ctypes.data)

    def take(self) -> int | None:
        """A free slot, or None."""
        self.reclaim()
        return self._free.pop() if self._free else None

    def put_back(self, slot: int) -> None:
        """A slot that was taken and never lent."""
        if self._poison:
            memory.window(self._mapping, slot * self.shape.slot_bytes, self.shape.slot_bytes).fill(POISON)
        self._free.append(slot)

    def lend(self, slot: int) -> Bytes:
        """The slot's memory; it is free again when the array and every view on it are gone."""
        lent = memory.window(self._mapping, slot * self.shape.slot_bytes, self.shape.slot_bytes)
        finalizer = weakref.finalize(lent, _died, self._dead, slot, self._on_free)
        finalizer.atexit = False
        return lent

    def reclaim(self) -> None:
        """Takes back the slots whose views have died and whose fences have passed."""
        while self._fenced and self._fenced[0][0].done():
            for slot in self._fenced.popleft()[1]:
                self.put_back(slot)
        while self._dead and not self.fencing:
            self.put_back(self._dead.popleft())

    def fence(self, make: Callable[[], Fence]) -> None:
        """Puts a fence behind everything that died until now: a copy that was begun before may still be reading.

        Called by the trainer's thread, on whose stream such copies are.
        """
        slots = []
        while self._dead:
            slots.append(self._dead.popleft())
        if slots:
            self._fenced.append((make(), slots))
        if self._fenced:
            # Nobody calls when an event has passed: the feeder looks now.
            self._on_free()

    def wait_for_fences(self) -> None:
        """Waits until nothing on the device reads a dead slot any more."""
        for fence, _ in list(self._fenced):
            fence.wait()

    def close(self) -> None:
        """Gives the descriptor back; the mapping goes with its last view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _died(dead: deque[int], slot: int, on_free: Callable[[], None]) -> None:
    dead.append(slot)
    on_free()


class RingView:
    """A ring as a worker sees it: memory to write to."""

    def __init__(self, descriptor: int, shape: Shape) -> None:
        self._shape = shape
        self._mapping = memory.map_shared(descriptor, shape.nbytes)

    @property
    def slot_bytes(self) -> int:
        """What fits into a slot."""
        return self._shape.slot_bytes

    def slot(self, number: int) -> Bytes:
        """A slot's memory."""
        return memory.window(self._mapping, number * self._shape.slot_bytes, self._shape.slot_bytes)
