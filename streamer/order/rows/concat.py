"""Concatenation: documents one after the other, cut at the end of each row."""

from __future__ import annotations

import numpy as np

from streamer.order.hashing import Integers
from streamer.order.rows.items import Items


def concat(kept: Integers, taken: Integers, order: Integers, length: int) -> tuple[Items, Integers]:
    """Returns the items in the order of the rows, and where the items of each row begin: (R+1,).

    ceil(sum of taken / length) rows, whatever the order is; only the last one is not full.

    Args:
        kept: (D,) tokens of each document.
        taken: (D,) the places that they take, at least as many.
        order: (D,) the documents.
        length: Length of a row.
    """
    ends = np.cumsum(taken[order])
    total = int(ends[-1]) if len(ends) else 0
    row_starts = np.arange(0, total, length)
    cuts = np.unique(np.append(row_starts, ends[ends < total]))
    at = np.searchsorted(ends, cuts, side="right")
    document = order[at]
    begin = cuts - (ends[at] - taken[document])
    sizes = np.minimum(np.diff(np.append(cuts, total)), kept[document] - begin)
    return Items(document, begin, sizes), np.append(np.searchsorted(cuts, row_starts), len(cuts))
