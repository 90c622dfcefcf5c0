"""Slots: free, at work, lent; never used again under a live view or a pending copy."""

from __future__ import annotations

import functools
import gc
import os

import numpy as np
import pytest
import torch

from streamer.loader import memory
from streamer.loader.leaves import ArrayLeaf
from streamer.loader.ring import HELD_SLOTS, POISON, Ring, RingView, Shape, fit
from streamer.loader.slots import BatchReader, PackedBatch


class Counter:
    calls = 0

    def __call__(self) -> None:
        self.calls += 1


class LateCopy:
    """A fence that passes when it is told."""

    def __init__(self) -> None:
        self.over = False

    def done(self) -> bool:
        return self.over

    def wait(self) -> None:
        self.over = True


def with_ring(test):
    """Gives a test its ring. Not a fixture: pytest would hold it, and so its mapping, beyond the test."""

    @functools.wraps(test)
    def run():
        made = Ring(1, Shape(3, 8192), Counter(), poison=True)
        try:
            test(made)
        finally:
            made.close()

    del run.__wrapped__
    return run


def put(ring: Ring, slot: int, value: float) -> tuple[int, int]:
    packed = PackedBatch({"x": ArrayLeaf(np.full((8, 16), value, np.float32)), "y": ArrayLeaf(np.arange(4))})
    packed.write(RingView(ring.descriptor, ring.shape).slot(slot))
    return packed.description


@with_ring
def test_slot_returns_after_the_last_view(ring):
    """A slice, its reshaped slice and that one's array each keep the slot; then it is free, and only then."""
    slot = ring.take()
    batch = BatchReader(ring.lend(slot)).read(put(ring, slot, 3.0))
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
    """One tensor kept while all others come and go still holds what was delivered."""
    slot = ring.take()
    kept = BatchReader(ring.lend(slot)).read(put(ring, slot, -1.0))["x"]
    for turn in range(1000):
        other = ring.take()
        assert other is not None
        assert other != slot
        batch = BatchReader(ring.lend(other)).read(put(ring, other, turn))
        assert batch["x"][0, 0] == turn
        del batch
    assert torch.equal(kept, torch.full((8, 16), -1.0))


@with_ring
def test_freed_slot_is_poisoned(ring):
    """With `poison`, memory that outlives its slot is recognised."""
    slot = ring.take()
    lent = ring.lend(slot)
    outlived = memory.window(ring._mapping, slot * 8192, 8192)
    del lent
    ring.reclaim()
    assert (outlived == POISON).all()


def test_slice_of_a_long_lived_array_is_the_trap():
    """Why each delivery has an array of its own: numpy re-bases views of a slice, and the slice dies at once."""
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
def test_waker_is_called_per_dead_slot(ring):
    """The feeder hears of every slot that comes back."""
    lent = [ring.lend(ring.take()) for _ in range(3)]
    assert ring.take() is None
    lent.clear()
    assert ring._on_free.calls == 3
    assert ring.take() is not None


@with_ring
def test_dead_slot_waits_for_the_copy(ring):
    """With fencing, the last view's death is not enough: a copy that was begun may still read."""
    ring.fencing = True
    slot = ring.take()
    lent = ring.lend(slot)
    del lent
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
    """A fence is made only when something has died."""
    ring.fencing = True
    ring.fence(lambda: pytest.fail("nothing died"))


@with_ring
def test_memory_is_sealed_and_present(ring):
    """Nobody can truncate the ring under a copy, and all of it exists."""
    with pytest.raises(PermissionError):
        os.ftruncate(ring.descriptor, 4096)
    with pytest.raises(PermissionError):
        os.ftruncate(ring.descriptor, 1 << 20)
    assert os.fstat(ring.descriptor).st_blocks * 512 >= ring.shape.nbytes


@with_ring
def test_worker_reads_what_the_rank_wrote(ring):
    """Both ends see one memory."""
    RingView(ring.descriptor, ring.shape).slot(2)[:4] = [1, 2, 3, 4]
    assert ring.lend(2)[:4].tolist() == [1, 2, 3, 4]


def test_fit():
    """Slots are whole pages with room for a little more, as many as wanted and allowed, at least two."""
    assert fit(1000, 8, 1 << 20) == Shape(8 + HELD_SLOTS, 4096)
    assert fit(100_000, 8, 500_000) == Shape(4, 114_688)
    assert fit(100_000, 8, 200_000) is None


def test_the_last_slot_that_was_freed_is_taken_first():
    """A trainer that keeps few batches uses few slots."""
    ring = Ring(1, Shape(4, 4096), lambda: None)
    for _ in range(3):
        slot = ring.take()
        assert slot == 0
        ring.put_back(slot)
    held = ring.take()
    assert [ring.take(), held] == [1, 0]
    ring.close()
