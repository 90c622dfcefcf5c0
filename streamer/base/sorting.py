"""Sorts very many names so that other threads go on meanwhile, and finds the distinct values of columns.

`sorted` gives up the lock of the interpreter only at its end: an engine that sorts 10^6 names in no order answers no
client for a second. `np.unique` imports `numpy.ma` at its first call, 8 ms of CPU in each process: the first batch
waited for it in the rank, in the engine and in a worker (numpy 2.4, 2026-11-20).
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

# Keys that are sorted in one step: 0.02 s.
_FEW = 1 << 15
_SAMPLED = 1 << 12
_PARTS = 1 << 8


def sort_places(keys: Sequence[Key]) -> list[int]:
    """Returns the places of keys in the order of the keys, and of the places among equal ones."""
    places = range(len(keys))
    if len(keys) <= _FEW:
        return sorted(places, key=keys.__getitem__)
    # Stores list in order, mostly.
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
    """Returns names in order, as `sorted` does."""
    found = list(names)
    return [found[place] for place in sort_places(found)]


def unique(values: NDArray[Value]) -> NDArray[Value]:
    """Returns the distinct values of a column, ascending."""
    arranged = np.sort(values)
    return arranged[_begins(arranged)]


def unique_inverse(values: NDArray[Value]) -> tuple[NDArray[Value], NDArray[np.intp], NDArray[np.intp]]:
    """Returns the distinct values of a column with the first place of each, and the number of each entry among them.

    Args:
        values: (n,)

    Returns:
        (d,) the values, ascending, (d,) their first places, (n,) the index of each entry's value.
    """
    places = np.argsort(values, kind="stable")
    arranged = values[places]
    begins = _begins(arranged)
    entry = np.empty(len(values), np.intp)
    entry[places] = np.cumsum(begins) - 1
    return arranged[begins], places[begins], entry


def _begins(arranged: NDArray[Value]) -> NDArray[np.bool_]:
    """Returns the positions where a run of equal values begins."""
    begins = np.ones(len(arranged), np.bool_)
    begins[1:] = arranged[1:] != arranged[:-1]
    return begins
