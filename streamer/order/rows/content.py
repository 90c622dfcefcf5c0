"""Makes the rows of a set of chunks: as many in every epoch, while the documents that share a row change.

`batches/rows/table.py` counts the rows of all sets by it (the table of rows), and `batches/rows/planned.py` makes rows
in workers. An order needs the number of rows of each set as it needs the samples of each chunk.

The number of rows is that of best fit, of concatenation or of buckets, and the same in every epoch. With best fit,
epoch 0 has the rows of best fit, except that documents of equal size change places. Later epochs are packed anew, by
best fit in a noisy order of sizes, if that needs no more rows.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from streamer.order.hashing import TAG_COMPANION, TAG_PACKED, Integers, Words, fold, fold_each
from streamer.order.rows.items import (
    Items,
    best_fit,
    best_fit_in,
    buckets,
    concat,
    cut_items,
    limit_costs,
    pad_sizes,
    spread,
    stable_order,
)
from streamer.order.rows.sets import Sets
from streamer.order.rows.spec import RowSpec

# A size counts less than it is in the order of later epochs: by up to 0.3, 0.1 or 0.03 of it, here in 65,536ths. The
# first of these with which no more rows are needed is taken; 50 to 100 % of sets are packed anew (2026-11-24).
_NOISE = (19661, 6554, 1966)


class SetRows(msgspec.Struct, frozen=True, eq=False):
    """The rows of a set.

    Attributes:
        items: the items, row after row.
        first: (R+1,) place in `items` of the first item of each of R rows, and the number of items.
    """

    items: Items
    first: Integers

    def __len__(self) -> int:
        return len(self.first) - 1


class RowContent:
    """Makes the rows of a set. Pure: equal arguments give equal rows on any machine.

    Args:
        spec: the spec of the rows.
        seed: seed of the order; None without shuffle, where every epoch has the same rows.
    """

    def __init__(self, spec: RowSpec, seed: int | None) -> None:
        self._spec = spec
        self._seed = seed

    def rows(self, costs: Integers, documents: Integers, epoch: int, count: int | None = None) -> SetRows:
        """Returns the rows of a set in an epoch.

        Args:
            costs: (D,) tokens of each document of the set, or -1 for one that cannot be read.
            documents: (D,) number of each document in the dataset, by which it is drawn.
            epoch: number by which rows are drawn, as `CodeBook.content` returns it: for one dataset the epoch.
            count: rows of the set, if they are known. None counts them.

        Raises:
            ConfigError: a document is longer than a row, and overflow="error".
        """
        spec = self._spec
        seed = self._seed
        kept = limit_costs(costs, spec)
        if spec.policy == "buckets":
            words = documents if seed is None else fold_each(fold(seed, TAG_COMPANION, epoch), documents)
            return SetRows(*_buckets(spec, kept, words))
        if spec.policy == "concat":
            order = np.arange(len(kept))
            if seed is not None:
                order = np.argsort(fold_each(fold(seed, TAG_COMPANION, epoch), documents), kind="stable")
            return SetRows(*concat(kept, pad_sizes(kept, spec), order, spec.length))
        items = cut_items(kept, spec.length)
        if seed is not None and epoch > 0:
            wanted_rows = _count(spec, costs) if count is None else count
            if (anew := self._pack_anew(items, documents, epoch, wanted_rows)) is not None:
                return _gather(items, anew, wanted_rows)
        row, count = best_fit(pad_sizes(items.size, spec), spec.length)
        if seed is None:
            return _gather(items, row, count)
        words = fold_each(fold(seed, TAG_COMPANION, epoch), documents)
        packed = _gather(items, row, count)
        # Documents of equal size change places by a hash of each; pieces of documents stay where they are.
        whole = np.flatnonzero(packed.items.size == kept[packed.items.document])
        sizes = packed.items.size[whole]
        document = packed.items.document.copy()
        places = whole[np.argsort(sizes, kind="stable")]
        drawn = whole[np.lexsort((words[packed.items.document[whole]], sizes))]
        document[places] = packed.items.document[drawn]
        return SetRows(Items(document, packed.items.begin, packed.items.size), packed.first)

    def _pack_anew(self, items: Items, documents: Integers, epoch: int, wanted_rows: int) -> Integers | None:
        """Returns the row of each item in another packing, with `wanted_rows` rows; None if all tries need more."""
        spec = self._spec
        seed = self._seed
        assert seed is not None
        sizes = pad_sizes(items.size, spec)
        for turn, noise in enumerate(_NOISE):
            states = fold_each(fold(seed, TAG_PACKED, epoch, turn), documents[items.document])
            words = fold_each(states, items.begin)
            # The share is an integer, since floating point would differ between processors.
            share = (words >> np.uint64(32)).astype(np.int64) * noise >> 16
            order = np.argsort(-sizes * ((1 << 32) - share), kind="stable")
            row, count = best_fit_in(order, sizes, spec.length)
            if count <= wanted_rows:
                return spread(row, count, wanted_rows)
        return None


def row_counts(spec: RowSpec, sets: Sets, costs_of: Callable[[int], Integers]) -> Integers:
    """Returns the table of rows: how many rows each of S sets has, in every epoch, (S,).

    Takes 0.5 us for each document with best fit (2026-11-24), less with concatenation.

    Args:
        spec: the spec of the rows.
        sets: the sets, of which only the number counts.
        costs_of: returns the tokens of each document of a set, (D,), from the set's number.

    Raises:
        ConfigError: a document is longer than a row, and overflow="error".
    """
    return np.array([_count(spec, costs_of(number)) for number in range(len(sets))], np.int64)


def _count(spec: RowSpec, costs: Integers) -> int:
    """Returns the number of rows of one set, from the tokens of each of its documents, (D,)."""
    kept = limit_costs(costs, spec)
    if spec.policy == "concat":
        return -(-int(pad_sizes(kept, spec).sum()) // spec.length)
    if spec.policy == "buckets":
        return len(_buckets(spec, kept, kept)[1]) - 1
    return best_fit(pad_sizes(cut_items(kept, spec.length).size, spec), spec.length)[1]


def _buckets(spec: RowSpec, kept: Integers, words: Integers | Words) -> tuple[Items, Integers]:
    """Puts the documents of a set into buckets, by size, descending; those of equal size by `words`, one of each."""
    assert isinstance(spec.most, int), "buckets have a limit"
    return buckets(kept, np.lexsort((words, -kept)), spec.length, spec.most)


def _gather(items: Items, row: Integers, count: int) -> SetRows:
    """Returns the rows of items, sorted by their first document: so without shuffle they are near the data's order.

    Args:
        items: the items, in the order of the documents.
        row: (T,) number of each item's row.
        count: number of rows.
    """
    lead = np.full(count, len(items.document), np.int64)
    np.minimum.at(lead, row, np.arange(len(row)))
    number = np.empty(count, np.int64)
    number[stable_order(lead, len(items.document))] = np.arange(count)
    row = number[row]
    order = stable_order(row, count)
    return SetRows(items.take(order), np.append(0, np.cumsum(np.bincount(row, minlength=count))))
