"""Tests of the permutation of [0, size) without a table."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.order.hashing import fold, fold_each, permute

_MASK = (1 << 64) - 1


def _reference(value: int, size: int, key: int) -> int:
    """Returns the value of the same permutation with Python's integers, one value at a time."""

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    bits = (size - 1).bit_length()
    low_bits = bits // 2
    while size > 1:
        low, high = value & ((1 << low_bits) - 1), value >> low_bits
        for turn in range(4):
            state = (key + (turn + 1) * 0x9E3779B97F4A7C15) & _MASK
            if turn % 2:
                low ^= mix(state ^ high) & ((1 << low_bits) - 1)
            else:
                high ^= mix(state ^ low) & ((1 << (bits - low_bits)) - 1)
        value = high << low_bits | low
        if value < size:
            break
    return value


def _permutation(size: int, key: int) -> np.ndarray:
    return permute(np.arange(size), np.full(size, size), np.full(size, key, dtype=np.uint64))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 100, 1000, 4097])
def test_every_size_is_permuted(size: int) -> None:
    """The permutation of any size has each value below the size once."""
    assert np.array_equal(np.sort(_permutation(size, fold(size))), np.arange(size))


@pytest.mark.parametrize("size", [1, 2, 3, 9, 100, 257])
def test_it_equals_the_same_thing_written_with_integers(size: int) -> None:
    """The vectorised permutation gives what a loop with Python's integers gives."""
    key = fold(5, size)
    assert _permutation(size, key).tolist() == [_reference(i, size, key) for i in range(size)]


def test_sizes_and_keys_may_differ_per_value() -> None:
    """One call permutes values of different sizes and keys."""
    sizes = np.array([1, 2, 10, 1 << 33, (1 << 40) + 1, 3])
    keys = fold_each(fold(1), np.arange(6))
    values = sizes - 1
    found = permute(values, sizes, keys)
    assert found.tolist() == [_reference(int(v), int(s), int(k)) for v, s, k in zip(values, sizes, keys, strict=True)]


def test_values_spread_evenly_over_places_and_keys() -> None:
    """Over 4,000 keys each value of [0, 10) comes to each place 400 +- 100 times (5 sigma)."""
    keys = np.repeat(fold_each(fold(2), np.arange(4000)), 10)
    found = permute(np.tile(np.arange(10), 4000), np.full(40_000, 10), keys).reshape(4000, 10)
    counts = np.array([np.bincount(found[:, i], minlength=10) for i in range(10)])
    assert counts.min() > 300
    assert counts.max() < 500


def test_nothing_is_permuted_to_nothing() -> None:
    """An empty array is permuted to an empty array."""
    empty = np.empty(0, dtype=np.int64)
    assert permute(empty, empty, empty.astype(np.uint64)).shape == (0,)
