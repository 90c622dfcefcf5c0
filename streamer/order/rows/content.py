"""Makes the rows of one set: as many in every epoch, while the documents that share a row change.

The number of rows of a set is that of best fit, or of concatenation; all numbers together are the table of rows, which
an order needs as it needs the samples of chunks. Epoch 0 has the rows of best fit, with documents of equal size drawn
anew; later epochs are packed anew, by best fit in a noisy order of sizes, where that takes no more rows.
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

# How far sizes are changed for the order of later epochs, in 65,536ths of a size: 0.3, 0.1, 0.03. The first that needs
# no more rows is taken; 50 to 100 % of sets are packed anew (2026-11-24).
_NOISE = (19661, 6554, 1966)


class SetRows(msgspec.Struct, frozen=True, eq=False):
    """The rows of a set.

    Attributes:
        items: row after row; in each row in the order of the documents, or of concatenation.
        first: (R+1,) where the items of each row begin.
    """

    items: Items
    first: Integers

    def __len__(self) -> int:
        return len(self.first) - 1


class RowContent:
    """Makes the rows of a set. Pure: equal arguments give equal rows on any machine.

    Args:
        spec: of the rows.
        seed: of the order; None: without shuffle, every epoch has the same rows.
    """

    def __init__(self, spec: RowSpec, seed: int | None) -> None:
        self._spec = spec
        self._seed = seed

    def rows(self, costs: Integers, documents: Integers, epoch: int, count: int | None = None) -> SetRows:
        """Returns the rows of a set in an epoch.

        Args:
            costs: (D,) tokens of its documents.
            documents: (D,) their numbers in the dataset, by which they are drawn.
            epoch: the epoch; for a member of a mix, its pass.
            count: rows of the set, where the table is known: best fit does not count them again.

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
        """Returns the rows of another packing, exactly `wanted_rows` of them, or None if all tries need more."""
        spec = self._spec
        seed = self._seed
        assert seed is not None
        sizes = pad_sizes(items.size, spec)
        for turn, noise in enumerate(_NOISE):
            states = fold_each(fold(seed, TAG_PACKED, epoch, turn), documents[items.document])
            words = fold_each(states, items.begin)
            # Integers are used since floating point would differ between processors.
            share = (words >> np.uint64(32)).astype(np.int64) * noise >> 16
            order = np.argsort(-sizes * ((1 << 32) - share), kind="stable")
            row, count = best_fit_in(order, sizes, spec.length)
            if count <= wanted_rows:
                return spread(row, count, wanted_rows)
        return None


def row_counts(spec: RowSpec, sets: Sets, costs_of: Callable[[int], Integers]) -> Integers:
    """Returns the table of rows, (S,): how many each set has, in every epoch.

    Takes 0.5 us for each document with best fit (2026-11-24), less with concatenation.

    Args:
        spec: Spec of the rows.
        sets: the chunks of each set.
        costs_of: set -> (D,) tokens of its documents.

    Raises:
        ConfigError: a document is longer than a row, and overflow="error".
    """
    return np.array([_count(spec, costs_of(number)) for number in range(len(sets))], np.int64)


def _count(spec: RowSpec, costs: Integers) -> int:
    """Returns the rows of one set, from (D,) tokens of its documents."""
    kept = limit_costs(costs, spec)
    if spec.policy == "concat":
        return -(-int(pad_sizes(kept, spec).sum()) // spec.length)
    if spec.policy == "buckets":
        return len(_buckets(spec, kept, kept)[1]) - 1
    return best_fit(pad_sizes(cut_items(kept, spec.length).size, spec), spec.length)[1]


def _buckets(spec: RowSpec, kept: Integers, words: Integers | Words) -> tuple[Items, Integers]:
    """Puts the documents in buckets, by size, descending; those of equal size by a word of each."""
    assert isinstance(spec.most, int), "buckets have a limit"
    return buckets(kept, np.lexsort((words, -kept)), spec.length, spec.most)


def _gather(items: Items, row: Integers, count: int) -> SetRows:
    """Sorts items by row, and rows by their first document, so that without shuffle they are near the data's order."""
    lead = np.full(count, len(items.document), np.int64)
    np.minimum.at(lead, row, np.arange(len(row)))
    number = np.empty(count, np.int64)
    number[stable_order(lead, len(items.document))] = np.arange(count)
    row = number[row]
    order = stable_order(row, count)
    return SetRows(items.take(order), np.append(0, np.cumsum(np.bincount(row, minlength=count))))
