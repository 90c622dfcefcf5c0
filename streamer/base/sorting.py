"""Sorts very many names so that other threads go on meanwhile, and finds the distinct values of columns.

Stores and indexing (`indexing/listed_rows.py`) sort names; all rooms that work with numpy use `unique` and
`unique_inverse`.

`sorted` gives up the lock of the interpreter only at its end: an engine that sorts 10^6 names in no order answers no
client for a second. `np.unique` imports `numpy.ma` at its first call, which takes 8 ms of CPU in each process. The
first batch waited for it in the rank, in the engine and in a worker (numpy 2.4, 2026-11-20).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Key = TypeVar("Key", str, int)
Value = TypeVar("Value", bound=np.generic)

# So many keys are sorted in one step, which takes 0.02 s. More of them are first divided into about _PARTS parts, at
# keys that are chosen from a sample of about _SAMPLED keys.
_FEW = 1 << 15
_SAMPLED = 1 << 12
_PARTS = 1 << 8


def sort_places(keys: Sequence[Key]) -> list[int]:
    """Returns the indices that sort the keys, ascending; equal keys keep their order."""
    places = range(len(keys))
    if len(keys) <= _FEW:
        return sorted(places, key=keys.__getitem__)
    # Most stores list names in order.
    if all(key <= following for key, following in pairwise(keys)):
        return list(places)
    sample = sorted(keys[:: len(keys) // _SAMPLED])
    pivots = sample[:: len(sample) // _PARTS]
    parts: list[list[int]] = [[] for _ in range(len(pivots) + 1)]
    for place in places:
        parts[bisect_right(pivots, keys[place])].append(place)
    for part in parts:
        part.sort(key=keys.__getitem__)
    return [place for part in parts for place in part]


def sort_names(names: Iterable[str]) -> list[str]:
    """Returns a list of the names in ascending order, as `sorted` does."""
    found = list(names)
    return [found[place] for place in sort_places(found)]


def unique(values: NDArray[Value]) -> NDArray[Value]:
    """Returns the distinct values of a column (n,), ascending, as a new array."""
    arranged = np.sort(values)
    return arranged[_begins(arranged)]


def unique_inverse(values: NDArray[Value]) -> tuple[NDArray[Value], NDArray[np.intp], NDArray[np.intp]]:
    """Returns the distinct values of a column, where each occurs first, and which of them each entry is.

    Args:
        values: column of shape (n,).

    Returns:
        The distinct values, ascending, (d,), the index in `values` at which each occurs first, (d,), and for each entry
        the index of its value among the distinct ones, (n,).
    """
    places = np.argsort(values, kind="stable")
    arranged = values[places]
    begins = _begins(arranged)
    entry = np.empty(len(values), np.intp)
    entry[places] = np.cumsum(begins) - 1
    return arranged[begins], places[begins], entry


def _begins(arranged: NDArray[Value]) -> NDArray[np.bool_]:
    """Returns for each value of a sorted column whether it differs from the one before it; True for the first."""
    begins = np.ones(len(arranged), np.bool_)
    begins[1:] = arranged[1:] != arranged[:-1]
    return begins
