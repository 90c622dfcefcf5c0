"""Items, which are placed in rows, and how they are: a document that fits into a row is one item, a longer one is cut.

Best fit: each item goes to the row with the least sufficient room, or opens a row. No item is cut. In decreasing order
of size this is best-fit decreasing: at most 11/9 of the least possible number of rows, and 4 (Johnson, "Near-optimal
bin packing algorithms", 1973). On lengths of texts, code and images it took the tokens divided by the length of a row,
plus half a row (2026-11-24). Any two rows hold more than one row's tokens together.

Concatenation: documents one after the other, cut at the end of each row. Buckets: whole documents of like length, as
many as a budget allows when they are padded to the longest.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import Integers
from streamer.order.rows.spec import RowSpec


class Items(msgspec.Struct, frozen=True, eq=False):
    """Runs of tokens of documents.

    Attributes:
        document: (T,) number of the document in its set.
        begin: (T,) its first token in the document.
        size: (T,) its tokens.
    """

    document: Integers
    begin: Integers
    size: Integers

    def take(self, places: Integers) -> Items:
        """Returns the items at these places."""
        return Items(self.document[places], self.begin[places], self.size[places])


def limit_costs(costs: Integers, spec: RowSpec) -> Integers:
    """Returns the tokens of each document that go to rows, after `overflow`: (D,).

    Args:
        costs: (D,) tokens of each document, or -1 if it cannot be read, and is in no row.
        spec: Spec of the rows.

    Raises:
        ConfigError: overflow="error", and a document is longer than a row.
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
    """Returns the tokens that items take in their rows: rounded up to `multiple_of`."""
    return sizes if spec.multiple_of == 1 else -(-sizes // spec.multiple_of) * spec.multiple_of


def cut_items(kept: Integers, length: int) -> Items:
    """Cuts documents at multiples of `length`; a document without tokens makes no item."""
    pieces = -(-kept // length)
    document = np.repeat(np.arange(len(kept)), pieces)
    begin = (np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * length
    return Items(document, begin, np.minimum(kept[document] - begin, length))


# A row's room and number in one integer, so that a sorted list finds the least sufficient room of the lowest number.
_SHIFT = 32
_MASK = (1 << _SHIFT) - 1


def best_fit(sizes: Integers, length: int) -> tuple[Integers, int]:
    """Best-fit decreasing: the row of each item, and the number of rows. Ties go to the item that comes first.

    Equal sizes are placed together. That changes nothing: after one of them is in the row with the least sufficient
    room, this row has the least sufficient room for the next one, too. Takes 0.3 to 0.8 us for each item (2026-11-26).

    Args:
        sizes: (T,) 1..length.
        length: Length of a row.
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
    """Best fit of items in a given order; see `best_fit`. Takes 0.6 to 0.8 us for each item (2026-11-26).

    Sizes are shifted as rooms are: so a row's room and number change in one subtraction (a third less CPU).
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
    """Returns the stable order of values 0..limit; those below 2**16 take a tenth of the time (numpy's radix sort)."""
    return np.argsort(values.astype(np.uint16) if limit < 1 << 16 else values, kind="stable")


def spread(row: Integers, rows: int, wanted: int) -> Integers:
    """Uses exactly `wanted` rows: while there are fewer, the row with the most items gives its last one to a new row.

    Args:
        row: (T,) the row of each item; T >= wanted.
        rows: their number.
        wanted: Number of rows, at least.
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
    """Returns the documents bucket after bucket, and where each bucket begins, (R+1,).

    A bucket is closed when another document would make it larger than the budget, or than `max_samples`: so their
    numbers follow from the sizes alone, whatever the order of equal sizes is. Documents without a token are in none.

    Args:
        sizes: (D,) tokens of each document, at most `budget`.
        order: (D,) the documents by size, descending.
        budget: Limit of documents x the longest of them.
        max_samples: Documents of a bucket at most.
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
