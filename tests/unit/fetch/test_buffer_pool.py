"""Buffers for chunks are lent, taken back and bounded."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from streamer.fetch.buffer_pool import GRAIN_BYTES, IDLE_BYTES, Landing, Slabs, room_bytes

MiB = 1 << 20


def test_slab_that_came_back_is_lent_again() -> None:
    """A chunk of about the same length gets the same memory: nothing is mapped anew."""
    slabs = Slabs(64 * MiB)
    first = slabs.take(8 * MiB - 100_000)
    slabs.give(first)
    second = slabs.take(8 * MiB - 3)
    assert second is first
    assert len(second.view) == 8 * MiB - 3
    assert slabs.mapped_bytes == 8 * MiB


def test_view_of_a_slab_that_came_back_is_dead() -> None:
    """Who reads on after the end is told, and does not see another chunk's bytes."""
    slabs = Slabs(MiB)
    slab = slabs.take(1000)
    view = slab.view
    slabs.give(slab)
    with pytest.raises(ValueError, match="released"):
        view[0]


@pytest.mark.skipif(sys.platform != "linux", reason="mremap")
@pytest.mark.parametrize("hold", [lambda view: np.frombuffer(view, np.uint8), lambda view: view[:]])
def test_slab_that_somebody_still_reads_is_not_lent_again(hold: Callable[[memoryview], memoryview]) -> None:
    """Slices and arrays keep their bytes; the slab is forgotten."""
    slabs = Slabs(MiB)
    slab = slabs.take(1000)
    slab.view[:3] = b"abc"
    held = hold(slab.view)
    slabs.give(slab)
    assert slabs.mapped_bytes == 0
    slabs.take(1000).view[:3] = b"xyz"
    assert held[:3].tobytes() == b"abc"


def test_what_is_free_stays_within_the_bound() -> None:
    """Slabs that nobody uses are unmapped for others; those that are lent may exceed the bound."""
    slabs = Slabs(4 * MiB)
    lent = [slabs.take(2 * MiB) for _ in range(3)]
    assert slabs.mapped_bytes == 6 * MiB
    for slab in lent:
        slabs.give(slab)
    assert slabs.mapped_bytes == 4 * MiB
    slabs.take(3 * MiB)
    assert slabs.mapped_bytes == 3 * MiB


def test_idle_process_keeps_few() -> None:
    """When the last slab comes back, what is kept shrinks to what a new start needs."""
    slabs = Slabs(4 * IDLE_BYTES)
    lent = [slabs.take(64 * MiB) for _ in range(6)]
    for slab in lent[:-1]:
        slabs.give(slab)
    assert slabs.mapped_bytes == 6 * 64 * MiB
    slabs.give(lent[-1])
    assert slabs.mapped_bytes == IDLE_BYTES


def test_much_smaller_chunk_gets_a_slab_of_its_own() -> None:
    """A large slab is not taken by what needs less than four fifths of it."""
    slabs = Slabs(64 * MiB)
    slabs.give(slabs.take(8 * MiB))
    assert slabs.take(6 * MiB).room_bytes == 6 * MiB


def test_chunk_that_waits_has_no_slab() -> None:
    """It is taken with the first byte, so the next chunk lands in the memory of the one before."""
    slabs = Slabs(64 * MiB)
    first, second = Landing(slabs, MiB), Landing(slabs, MiB)
    assert slabs.mapped_bytes == 0
    first.room()[:3] = b"abc"
    first.room()[-2:] = b"yz"
    assert (bytes(first.room()[:3]), bytes(first.room()[-2:])) == (b"abc", b"yz")
    first.clear()
    first.clear()
    second.room()[5:6] = b"x"
    assert slabs.mapped_bytes == MiB


def test_empty_chunk_lands() -> None:
    """Samples without a byte are a chunk as well."""
    landing = Landing(Slabs(MiB), 0)
    assert bytes(landing.room()) == b""
    landing.clear()


@pytest.mark.parametrize(
    ("length", "room"),
    [
        (0, GRAIN_BYTES),
        (1, GRAIN_BYTES),
        (GRAIN_BYTES + 1, 2 * GRAIN_BYTES),
        (MiB + 1, MiB + MiB // 8),
        (8 * MiB, 8 * MiB),
        (8 * MiB + 1, 9 * MiB),
        (1000 * MiB, 1024 * MiB),
    ],
)
def test_rooms_come_in_eighths(length: int, room: int) -> None:
    """Room for every length, at most an eighth too much above 512 KiB."""
    assert room_bytes(length) == room
