"""Tests of the slots of the ring: made on demand, free, at work, held.

No slot is used again under a live view or a pending copy; the shared memory is real.
"""

from __future__ import annotations

import functools
import gc
import os
import sys

import numpy as np
import pytest
import torch

from streamer.batches.batch.buffers import ArrayBuffer
from streamer.batches.batch.slot_layout import BatchReader, WritableBatch
from streamer.batches.ring import shared_memory as memory
from streamer.batches.ring.ring import POISON, Limits, Ring, Slot


class Counter:
    """Stands for the callback of a ring, and counts its calls."""

    calls = 0

    def __call__(self) -> None:
        self.calls += 1


class LateCopy:
    """Stands for the event of a copy, and passes when it is told."""

    def __init__(self) -> None:
        self.over = False

    def is_done(self) -> bool:
        return self.over

    def wait(self) -> None:
        self.over = True


def with_ring(test):
    """Gives a test its ring of three slots.

    Not a fixture: pytest would hold it, and so its memory, beyond the test.
    """

    @functools.wraps(test)
    def run():
        made = Ring(Limits(3, 3, 1 << 20), Counter(), poison=True)
        slots = [take(made) for _ in range(3)]
        while slots:
            made.put_back(slots.pop())
        try:
            test(made)
        finally:
            made.close()

    del run.__wrapped__
    return run


def take(ring: Ring, nbytes: int = 8192) -> Slot:
    """Takes a slot with memory, as after a worker's first batch in it."""
    slot = ring.take(late=False)
    assert slot is not None
    if slot.nbytes == 0:
        assert ring.adopt(slot, memory.create_memfd("test-slot", nbytes), nbytes)
    return slot


def put(slot: Slot, value: float) -> tuple[int, int]:
    packed = WritableBatch({"x": ArrayBuffer(np.full((8, 16), value, np.float32)), "y": ArrayBuffer(np.arange(4))})
    packed.write(slot.window())
    return packed.description


@with_ring
def test_slot_returns_after_the_last_view(ring):
    """A slot is free only when the last view of its batch has died: a slice, a reshaped slice, and that one's array."""
    slot = take(ring)
    batch = BatchReader(ring.hold(slot)).read(put(slot, 3.0))
    part = batch["x"][2:4]
    del batch
    ring.reclaim()
    assert ring.free == 2
    array = part.reshape(-1).numpy()[::2]
    del part
    ring.reclaim()
    assert ring.free == 2
    assert (array == 3.0).all()
    del array
    ring.reclaim()
    assert ring.free == 3


@with_ring
def test_kept_tensor_survives_a_thousand_batches(ring):
    """A tensor that is kept while a thousand other batches come and go still holds what was delivered."""
    slot = take(ring)
    kept = BatchReader(ring.hold(slot)).read(put(slot, -1.0))["x"]
    for turn in range(1000):
        other = take(ring)
        assert other is not slot
        batch = BatchReader(ring.hold(other)).read(put(other, turn))
        assert batch["x"][0, 0] == turn
        del batch
    assert torch.equal(kept, torch.full((8, 16), -1.0))


@with_ring
def test_freed_slot_is_poisoned(ring):
    """With `poison`, the memory of a freed slot is overwritten, so that a late read of it is seen."""
    slot = take(ring)
    held = ring.hold(slot)
    outlived = slot.window()
    del held
    ring.reclaim()
    assert (outlived == POISON).all()


def test_slice_of_a_long_lived_array_is_the_trap():
    """NumPy re-bases views of a slice, and the slice dies at once: each delivery therefore has an array of its own."""
    import weakref

    long_lived = np.zeros(100, np.uint8)
    slot = long_lived[10:20]
    fired = []
    weakref.finalize(slot, fired.append, True)
    view = slot.view(np.uint16)
    del slot
    gc.collect()
    assert fired
    assert view.base is long_lived


@with_ring
def test_the_end_of_a_view_runs_no_python(ring):
    """The end of a view calls no function of Python, in which a Ctrl-C would be printed and lost."""
    held = [ring.hold(take(ring)) for _ in range(3)]
    assert ring.take(late=True) is None
    entered = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        held.clear()
    finally:
        sys.setprofile(None)
    assert entered == []
    assert ring.take(late=False) is not None
    assert ring.free == 2


@with_ring
def test_dead_slot_waits_for_the_copy(ring):
    """With fencing a slot is free only when the copies that were begun before its last view died are over."""
    ring.fencing = True
    held = ring.hold(take(ring))
    del held
    ring.reclaim()
    assert ring.free == 2
    copy = LateCopy()
    ring.fence(lambda: copy)
    ring.reclaim()
    assert ring.free == 2
    copy.over = True
    ring.reclaim()
    assert ring.free == 3


@with_ring
def test_no_event_without_a_dead_slot(ring):
    """A ring with fencing makes no fence while no view has died."""
    ring.fencing = True
    ring.fence(lambda: pytest.fail("nothing died"))


def test_the_last_slot_that_was_freed_is_taken_first():
    """The slot that was freed last is taken first, so that a trainer that keeps few batches uses few slots."""
    ring = Ring(Limits(4, 4, 1 << 20), lambda: None)
    first = take(ring)
    for _ in range(3):
        ring.put_back(first)
        assert take(ring) is first
    assert take(ring) is not first
    assert ring.slots == 2
    ring.close()


def test_more_slots_while_the_next_batch_is_late():
    """A ring has more slots than usual, up to its limit, only while the batch that is delivered next is late."""
    ring = Ring(Limits(2, 4, 1 << 20), lambda: None)
    assert all(ring.take(late=False) for _ in range(2))
    assert ring.take(late=False) is None
    assert all(ring.take(late=True) for _ in range(2))
    assert ring.take(late=True) is None
    ring.close()


def test_a_batch_that_outgrows_its_slot_replaces_its_memory():
    """A batch that outgrows its slot replaces the slot's memory, and the ring counts the new."""
    ring = Ring(Limits(2, 2, 1 << 20), lambda: None)
    slot = take(ring, 4096)
    assert ring.adopt(slot, memory.create_memfd("test-slot", 12288), 12288)
    assert (slot.nbytes, ring.nbytes, ring.slots) == (12288, 12288, 1)
    ring.close()


def test_no_slot_beyond_the_limit():
    """A slot whose usual size does not fit into the ring's bytes is not made, and one that comes back is taken."""
    ring = Ring(Limits(4, 4, 20480), lambda: None)
    slot = take(ring)
    take(ring)
    assert ring.take(late=True) is None
    ring.put_back(slot)
    assert ring.take(late=True) is slot
    ring.close()


def test_memory_beyond_the_limit_is_not_adopted(caplog):
    """Memory beyond the ring's bytes is not adopted: the caller keeps it, and the slot is gone.

    One warning names `ring_bytes`.
    """
    ring = Ring(Limits(4, 4, 12288), lambda: None)
    slots = [ring.take(late=False) for _ in range(3)]
    take_memory = functools.partial(memory.create_memfd, "test-slot", 8192)
    assert ring.adopt(slots[0], take_memory(), 8192)
    for slot in slots[1:]:
        descriptor = take_memory()
        assert not ring.adopt(slot, descriptor, 8192)
        os.close(descriptor)  # it is still open
    assert (ring.slots, ring.nbytes) == (1, 8192)
    assert caplog.text.count("raise ring_bytes") == 1
    ring.close()
