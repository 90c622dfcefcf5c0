"""Cuts documents into items, and places items in rows: by best fit, by concatenation, or in buckets.

`order/rows/content.py` makes the rows of a set with it, and `batches/rows/table.py` counts by `limit_costs` how many
tokens go to rows. A document that fits into a row is one item, a longer one is cut into several. Below, D is the number
of documents, T that of items, R that of rows.

Best fit: each item goes to the row with the least sufficient room, or opens a row; no item is cut. In decreasing order
of size this is best-fit decreasing: it needs at most 11/9 of the least possible number of rows, and 4 more (Johnson,
"Near-optimal bin packing algorithms", 1973). On lengths of texts, code and images it needed half a row more than the
tokens fill (2026-11-24). Any two rows together have more tokens than one row can hold.

Concatenation: documents one after the other, cut at the end of each row. Buckets: whole documents of like length, as
many as a budget allows when each is padded to the longest.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import Integers
from streamer.order.rows.spec import RowSpec


class Items(msgspec.Struct, frozen=True, eq=False):
    """Some items: runs of tokens of documents.

    Attributes:
        document: (T,) number of the item's document in its set.
        begin: (T,) number of the item's first token in the document.
        size: (T,) number of tokens.
    """

    document: Integers
    begin: Integers
    size: Integers

    def take(self, places: Integers) -> Items:
        """Returns the items at these places."""
        return Items(self.document[places], self.begin[places], self.size[places])


def limit_costs(costs: Integers, spec: RowSpec) -> Integers:
    """Returns how many tokens of each document go to rows, as `RowSpec.overflow` says: (D,).

    Args:
        costs: (D,) tokens of each document, or -1 if it cannot be read; then none of it goes to a row.
        spec: the spec of the rows.

    Raises:
        ConfigError: a document is longer than a row, and overflow="error".
    """
    costs = np.maximum(costs, 0).astype(np.int64)
    longer = costs > spec.length
    if spec.overflow == "split" or not longer.any():
        return costs
    if spec.overflow == "error":
        remedy = 'a larger length, or overflow="split", "truncate" or "drop"'
        if spec.policy == "buckets":
            remedy = 'a larger budget, or overflow="drop"'
        raise ConfigError(
            f'overflow="error": {int(longer.sum())} documents are longer than {spec.room}, the longest has '
            f"{int(costs.max())}; give {remedy}",
            field="overflow",
        )
    return np.where(longer, spec.length if spec.overflow == "truncate" else 0, costs)


def pad_sizes(sizes: Integers, spec: RowSpec) -> Integers:
    """Returns how many tokens of a row each item takes: its size rounded up to `RowSpec.multiple_of`."""
    return sizes if spec.multiple_of == 1 else -(-sizes // spec.multiple_of) * spec.multiple_of


def cut_items(kept: Integers, length: int) -> Items:
    """Cuts documents, of `kept` tokens each, (D,), at multiples of `length`; one without tokens makes no item."""
    pieces = -(-kept // length)
    document = np.repeat(np.arange(len(kept)), pieces)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
    return Items(document, begin, np.minimum(kept[document] - begin, length))


# A row's room is shifted by this, and its number added. So a sorted list finds the least sufficient room, and of rows
# with the same room the one with the lowest number.
_SHIFT = 32
_MASK = (1 << _SHIFT) - 1


def best_fit(sizes: Integers, length: int) -> tuple[Integers, int]:
    """Places items by best fit, the largest first; of equal ones the one that comes first.

    Equal sizes are placed together. That changes nothing: after one of them is in the row with the least sufficient
    room, this row has the least sufficient room for the next one, too. Takes 0.3 to 0.8 us for each item (2026-11-26).

    Args:
        sizes: (T,) tokens that each item takes, 1..length.
        length: tokens of a row.

    Returns:
        The number of each item's row, (T,), and the number of rows.
    """
    order = stable_order(length - sizes, length)
    ranked = sizes[order]
    starts = np.flatnonzero(np.diff(ranked, prepend=0))
    counts = np.diff(np.append(starts, len(ranked)))
    least = int(ranked[-1]) if len(ranked) else 0
    rooms: list[int] = []
    rows: list[int] = []
    taken: list[int] = []
    opened = 0
    for size, count in zip(ranked[starts].tolist(), counts.tolist(), strict=True):
        left = count
        while left:
            at = bisect_left(rooms, size << _SHIFT)
            if at == len(rooms):
                room = length
                row = opened
                opened += 1
            else:
                key = rooms.pop(at)
                room = key >> _SHIFT
                row = key & _MASK
            fits = min(left, room // size)
            rows.append(row)
            taken.append(fits)
            left -= fits
            room -= fits * size
            if room >= least:
                insort(rooms, room << _SHIFT | row)
    found = np.empty(len(order), np.int64)
    found[order] = np.repeat(np.array(rows, np.int64), taken)
    return found, opened


def best_fit_in(order: Integers, sizes: Integers, length: int) -> tuple[Integers, int]:
    """Places items by best fit in a given order. Takes 0.6 to 0.8 us for each item (2026-11-26).

    Sizes are shifted as rooms are, so that a row's room and number change in one subtraction (a third less CPU).

    Args:
        order: (T,) numbers of the items, in the order in which they are placed.
        sizes: (T,) tokens that each item takes, 1..length.
        length: tokens of a row.

    Returns:
        The number of each item's row, (T,), and the number of rows.
    """
    rooms: list[int] = []
    keys: list[int] = []
    opened = 0
    empty = length << _SHIFT
    full = (int(sizes.min()) if len(sizes) else 0) << _SHIFT
    for size in (sizes[order] << _SHIFT).tolist():
        at = bisect_left(rooms, size)
        if at == len(rooms):
            key = empty + opened - size
            opened += 1
        else:
            key = rooms.pop(at) - size
        keys.append(key)
        if key >= full:
            insort(rooms, key)
    found = np.empty(len(order), np.int64)
    found[order] = np.array(keys, np.int64) & _MASK
    return found, opened


def stable_order(values: Integers, limit: int) -> Integers:
    """Returns the places of values 0..limit in their stable order; a limit below 2**16 takes a tenth of the time."""
    return np.argsort(values.astype(np.uint16) if limit < 1 << 16 else values, kind="stable")


def spread(row: Integers, rows: int, wanted: int) -> Integers:
    """Returns the row of each item, (T,), after items were moved to new rows until there are `wanted` rows.

    The row with the most items gives its last one to a new row, again and again.

    Args:
        row: (T,) number of each item's row, T >= wanted.
        rows: number of rows now.
        wanted: number of rows to have; if it is less than `rows`, nothing changes.
    """
    row = row.copy()
    counts = np.bincount(row, minlength=wanted)
    for number in range(rows, wanted):
        fullest = int(np.argmax(counts))
        row[np.flatnonzero(row == fullest)[-1]] = number
        counts[fullest] -= 1
        counts[number] += 1
    return row


def buckets(sizes: Integers, order: Integers, budget: int, max_samples: int) -> tuple[Items, Integers]:
    """Puts whole documents into buckets, in a given order.

    A bucket is closed when another document would make it larger than the budget, or than `max_samples`. So the number
    of buckets follows from the sizes alone, whatever the order of equal sizes is. Documents without tokens are in none.

    Args:
        sizes: (D,) tokens of each document, at most `budget`.
        order: (D,) numbers of the documents, by size, descending.
        budget: maximum number of tokens of a bucket in which each document counts as long as the longest.
        max_samples: most documents of a bucket.

    Returns:
        The documents as items, bucket after bucket, and the place of each bucket's first item, and T: (R+1,).
    """
    document = order[sizes[order] > 0]
    first = [0]
    count = 0
    longest = 0
    for place, size in enumerate(sizes[document].tolist()):
        if count and ((count + 1) * longest > budget or count == max_samples):
            first.append(place)
            count = 0
        if not count:
            longest = size
        count += 1
    ends = np.array([*first, len(document)] if len(document) else [0], np.int64)
    return Items(document, np.zeros_like(document), sizes[document]), ends


def concat(kept: Integers, taken: Integers, order: Integers, length: int) -> tuple[Items, Integers]:
    """Puts documents into rows one after the other, and cuts them at the end of each row.

    There are ceil(sum of taken / length) rows, whatever the order is; all but the last one are full.

    Args:
        kept: (D,) tokens of each document.
        taken: (D,) tokens of rows that each document takes, at least as many.
        order: (D,) numbers of the documents, in their order.
        length: tokens of a row.

    Returns:
        The items, row after row, and the place of each row's first item, and T: (R+1,).
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
