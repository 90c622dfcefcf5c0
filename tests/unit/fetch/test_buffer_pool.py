"""Buffers for chunks: how they are lent, taken back and bounded."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable

import numpy as np
import pytest

from streamer.fetch.memory_budget import (
    GRAIN_BYTES,
    IDLE_BYTES,
    SHARED_FROM_BYTES,
    BufferPool,
    ChunkBuffer,
    size_bytes,
)

MiB = 1 << 20


def test_slab_that_came_back_is_lent_again() -> None:
    """A buffer that was given back is lent again for a chunk of about the same length, without a new mapping."""
    pool = BufferPool(64 * MiB)
    first = pool.take(8 * MiB - 100_000)
    pool.give(first)
    second = pool.take(8 * MiB - 3)
    assert second is first
    assert len(second.view) == 8 * MiB - 3
    assert pool.mapped_bytes == 8 * MiB


def test_view_of_a_slab_that_came_back_is_dead() -> None:
    """A view of a buffer that was given back raises an error on use, so that it cannot show another chunk's bytes."""
    pool = BufferPool(MiB)
    buffer = pool.take(1000)
    view = buffer.view
    pool.give(buffer)
    with pytest.raises(ValueError, match="released"):
        view[0]


@pytest.mark.skipif(sys.platform != "linux", reason="mremap")
@pytest.mark.parametrize("hold", [lambda view: np.frombuffer(view, np.uint8), lambda view: view[:]])
def test_slab_that_somebody_still_reads_is_not_lent_again(hold: Callable[[memoryview], memoryview]) -> None:
    """A buffer with slices or arrays that are still in use is not lent again, and they keep their bytes."""
    pool = BufferPool(MiB)
    buffer = pool.take(1000)
    buffer.view[:3] = b"abc"
    held = hold(buffer.view)
    pool.give(buffer)
    assert pool.mapped_bytes == 0
    pool.take(1000).view[:3] = b"xyz"
    assert held[:3].tobytes() == b"abc"


def test_what_is_free_stays_within_the_bound() -> None:
    """Free buffers stay within the bound and are unmapped for others; buffers in use may exceed it."""
    pool = BufferPool(4 * MiB)
    taken = [pool.take(2 * MiB) for _ in range(3)]
    assert pool.mapped_bytes == 6 * MiB
    for buffer in taken:
        pool.give(buffer)
    assert pool.mapped_bytes == 4 * MiB
    pool.take(3 * MiB)
    assert pool.mapped_bytes == 3 * MiB


def test_idle_process_keeps_few() -> None:
    """When the last buffer is given back, the pool keeps only what a new start needs."""
    pool = BufferPool(4 * IDLE_BYTES)
    taken = [pool.take(64 * MiB) for _ in range(6)]
    for buffer in taken[:-1]:
        pool.give(buffer)
    assert pool.mapped_bytes == 6 * 64 * MiB
    pool.give(taken[-1])
    assert pool.mapped_bytes == IDLE_BYTES


def test_much_smaller_chunk_gets_a_slab_of_its_own() -> None:
    """A free buffer is not lent for a chunk that needs less than four fifths of it."""
    pool = BufferPool(64 * MiB)
    pool.give(pool.take(8 * MiB))
    assert pool.take(6 * MiB).size_bytes == 6 * MiB


def descriptors() -> int:
    """Returns the number of descriptors that are open in this process."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="memfd")
def test_another_process_can_map_a_shared_slab() -> None:
    """Another process can map a shared buffer in use; its file cannot be resized, and is closed with the buffer."""
    before = descriptors()
    pool = BufferPool(8 * MiB)
    chunk = ChunkBuffer(pool, 2 * MiB, shared=True)
    chunk.view()[:3] = b"abc"
    assert chunk.descriptor is not None
    with mmap.mmap(chunk.descriptor, 2 * MiB, prot=mmap.PROT_READ) as other:
        assert other[:3] == b"abc"
    for length in (MiB, 3 * MiB):
        with pytest.raises(PermissionError):
            os.ftruncate(chunk.descriptor, length)
    chunk.clear()
    assert chunk.descriptor is None
    pool.clear()
    assert (pool.mapped_bytes, descriptors()) == (0, before)


@pytest.mark.skipif(sys.platform != "linux", reason="memfd")
def test_a_shared_slab_is_lent_again_as_such() -> None:
    """A shared buffer is lent again as a shared one, a private one as private, and small ones are never shared."""
    pool = BufferPool(64 * MiB)
    shared, own = pool.take(2 * MiB, shared=True), pool.take(2 * MiB)
    pool.give(shared)
    pool.give(own)
    assert pool.take(2 * MiB) is own
    assert pool.take(2 * MiB, shared=True) is shared
    assert pool.take(SHARED_FROM_BYTES - 1, shared=True).descriptor is None


@pytest.mark.skipif(sys.platform != "linux", reason="mremap")
def test_a_shared_slab_that_somebody_still_reads_is_forgotten() -> None:
    """A shared buffer in use that is given back leaves the pool: its file closes, the view keeps its bytes."""
    before = descriptors()
    pool = BufferPool(8 * MiB)
    buffer = pool.take(2 * MiB, shared=True)
    buffer.view[:3] = b"abc"
    held = buffer.view[:3]
    pool.give(buffer)
    assert (pool.mapped_bytes, bytes(held)) == (0, b"abc")
    del held, buffer
    assert descriptors() == before


def test_chunk_that_waits_has_no_slab() -> None:
    """A chunk takes its buffer with its first byte, so that the next chunk gets the memory of the one before."""
    pool = BufferPool(64 * MiB)
    first, second = ChunkBuffer(pool, MiB), ChunkBuffer(pool, MiB)
    assert pool.mapped_bytes == 0
    first.view()[:3] = b"abc"
    first.view()[-2:] = b"yz"
    assert (bytes(first.view()[:3]), bytes(first.view()[-2:])) == (b"abc", b"yz")
    first.clear()
    first.clear()
    second.view()[5:6] = b"x"
    assert pool.mapped_bytes == MiB


def test_empty_chunk_lands() -> None:
    """A chunk without bytes can be received."""
    landing = ChunkBuffer(BufferPool(MiB), 0)
    assert bytes(landing.view()) == b""
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
    """The size of a buffer holds the length and, above 512 KiB, is at most an eighth larger."""
    assert size_bytes(length) == room
