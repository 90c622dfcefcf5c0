"""`np.unique` without `numpy.ma`, which numpy imports at its first call: 8 ms of CPU in each process.

The first batch waited for it three times: in the rank, in the engine and in a worker (numpy 2.4, 2026-11-20).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", bound=np.generic)


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
