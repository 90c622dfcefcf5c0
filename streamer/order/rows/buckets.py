"""Buckets: whole documents of like length, as many as a budget allows when they are padded to the longest."""

from __future__ import annotations

import numpy as np

from streamer.order.hashing import Integers
from streamer.order.rows.items import Items


def buckets(sizes: Integers, order: Integers, budget: int, most: int) -> tuple[Items, Integers]:
    """Returns the documents bucket after bucket, and where each bucket begins, (R+1,).

    A bucket is closed when another document would make it larger than the budget, or than `most`: so their numbers
    follow from the sizes alone, whatever the order of equal sizes is. Documents without a token are in none.

    Args:
        sizes: (D,) tokens of each document, at most `budget`.
        order: (D,) the documents by size, descending.
        budget: most of documents x the longest of them.
        most: documents of a bucket.
    """
    document = order[sizes[order] > 0]
    first = [0]
    count = 0
    longest = 0
    for place, size in enumerate(sizes[document].tolist()):
        if count and ((count + 1) * longest > budget or count == most):
            first.append(place)
            count = 0
        if not count:
            longest = size
        count += 1
    ends = np.array([*first, len(document)] if len(document) else [0], np.int64)
    return Items(document, np.zeros_like(document), sizes[document]), ends
