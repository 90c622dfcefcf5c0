"""Copies past the CPU's caches: every byte, nothing beside it, and the same result without the compiled module."""

from __future__ import annotations

import mmap
import random

import numpy as np
import pytest

from streamer.loader import leaves
from streamer.loader.leaves import ArrayLeaf, StackLeaf, StringsLeaf
from streamer.loader.slots import BatchReader, PackedBatch

compiled = pytest.importorskip("streamer.loader._copy", reason="installed where there was no C compiler")

GUARD = 0xDB


@pytest.mark.parametrize("seed", range(40))
def test_rows_of_any_length_at_any_address(seed):
    """What stands before and behind the target stays."""
    draw, bytes_of = random.Random(seed), np.random.default_rng(seed)
    rows = [
        bytes_of.integers(0, 256, draw.choice((0, 1, 15, 63, 64, 65, 130, 4096, 70_001)), np.uint8)[draw.randrange(9) :]
        for _ in range(draw.randrange(12))
    ]
    wanted = b"".join(row.tobytes() for row in rows)
    memory = np.full(len(wanted) + 200, GUARD, np.uint8)
    start = draw.randrange(100)
    compiled.copy_rows(memory[start : start + len(wanted)], rows)
    assert memory[start : start + len(wanted)].tobytes() == wanted
    assert (memory[:start] == GUARD).all()
    assert (memory[start + len(wanted) :] == GUARD).all()


def test_any_buffer_is_a_row():
    """Bytes, views, mappings, arrays of any dtype, also read-only ones."""
    mapping = mmap.mmap(-1, 4096)
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    rows = (b"abc", memoryview(b"xdefx")[1:-1], mapping, fixed)
    memory = bytearray(6 + 4096 + 24)
    compiled.copy_rows(memory, rows)
    assert bytes(memory) == b"abcdef" + bytes(4096) + fixed.tobytes()


@pytest.mark.parametrize("lengths", [(4, 5), (4, 3), (), (9,)])
def test_rows_that_do_not_fit_write_nothing(lengths):
    """Neither too many bytes nor too few."""
    memory = bytearray(b"\xdb" * 8)
    with pytest.raises(ValueError, match="bytes of memory"):
        compiled.copy_rows(memory, [bytes(length) for length in lengths])
    assert memory == b"\xdb" * 8
    memory.extend(b"!")  # no view is left that would forbid it


@pytest.mark.parametrize(
    ("memory", "rows", "error"),
    [
        (bytes(4), [b"1234"], BufferError),
        (bytearray(4), [np.arange(8, dtype=np.uint8)[::2]], ValueError),
        (bytearray(4), [b"12", 34], TypeError),
        (bytearray(4), 5, TypeError),
    ],
    ids=["read-only memory", "not contiguous", "not a buffer", "not a sequence"],
)
def test_what_cannot_be_copied_is_refused(memory, rows, error):
    """By the error of whom it concerns."""
    with pytest.raises(error):
        compiled.copy_rows(memory, rows)
    assert bytes(memory) == bytes(4)


@pytest.fixture(params=["compiled", "without compiler"])
def way(request, monkeypatch):
    """Both ways in which a package may be installed."""
    calls = []

    def copy_rows(memory, rows):
        calls.append(len(rows))
        if request.param == "without compiler":
            raise BufferError
        compiled.copy_rows(memory, rows)

    monkeypatch.setattr(leaves, "copy_rows", copy_rows)
    return calls


def _leaf(kind, order):
    numbers = np.random.default_rng(3).integers(0, 1 << 40, (9, 300, 250))
    rows = [np.asarray(row, order=order) for row in numbers]
    if kind == "stack":
        return StackLeaf(rows), rows
    if kind == "array":
        array = np.asarray(numbers, order=order)
        return ArrayLeaf(array), array
    texts = [row.tobytes() for row in rows]
    return StringsLeaf(texts), texts


@pytest.mark.parametrize("kind", ["stack", "array", "strings"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_large_leaves_are_what_they_were(way, kind, order):
    """Also where rows lie in another order than they are written in."""
    leaf, wanted = _leaf(kind, order)
    packed = PackedBatch({"x": leaf})
    memory = np.full(packed.nbytes, GUARD, np.uint8)
    packed.write(memory)
    back = BatchReader(memory).read(packed.description)["x"]
    assert way == [1 if kind == "array" else 9]
    assert back == wanted if kind == "strings" else np.array_equal(back.numpy(), wanted)


def test_small_leaves_stay_in_the_caches(way):
    """Their reader finds them there."""
    leaf = StackLeaf([np.zeros(1 << 20, np.uint8)] * 3)
    leaf.write(np.empty(leaf.nbytes, np.uint8))
    assert way == []
