"""Plans the rows of a dataset before they are read: says which documents, and which of their tokens, are in each row.

Rows are planned set by set: a set is packed when one of its rows is first asked for, and stays open for the next ones.
`batches/samples/opened.py` opens the rows, in the trainer and in workers. `explain.py` beside it describes them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UnsetType

from streamer.base.sorting import unique
from streamer.batches.rows.balance import AnyBalance, Measurable
from streamer.batches.rows.options import Estimate, RowOption
from streamer.batches.rows.order_rows import Geometry, OrderRows, RowRecipe, SampleSource, Words
from streamer.batches.rows.pieces import Pieces
from streamer.batches.rows.table import Documents, Integers, RowTable
from streamer.config import counted
from streamer.order.level import BalanceSpec, level_of
from streamer.order.protocol import SampleOrder
from streamer.order.row_order import RowOrder, join_sets, row_window
from streamer.order.rows.content import RowContent, SetRows
from streamer.order.rows.sets import Sets
from streamer.order.rows.spec import RowSpec
from streamer.order.spec import OrderSpec, auto_lanes

if TYPE_CHECKING:
    from streamer.order.epoch import EpochOrder
    from streamer.order.kinds.kind import CodeBook

Narrow = npt.NDArray[np.uint32] | Integers

# Number of items in the sets that are kept open: 64 MB. A set that is opened again costs 0.5 us for each document.
_KEPT_ITEMS = 1 << 22


class _OpenSet(msgspec.Struct, frozen=True, eq=False):
    """A set that is open in an epoch, in 16 bytes for each item: a document, or a part of one, in a row.

    Attributes:
        document: (T,) number in the set of the document of each of T items.
        begin: (T,) first token of the document that is in the row.
        size: (T,) number of tokens of the document that are in the row.
        tokens: (T,) number of all tokens of the document.
        first: (R+1,) index of the first item of each of the set's R rows, and T.
        ends: (chunks,) number of documents of the set up to the end of each chunk.
        shift: (chunks,) number of a document in the dataset, less its number in the set.
    """

    document: Narrow
    begin: Narrow
    size: Narrow
    tokens: Narrow
    first: Narrow
    ends: Integers
    shift: Integers

    @classmethod
    def make_from(
        cls, rows: SetRows, costs: Integers, documents: Documents, chunks: npt.NDArray[np.uint32]
    ) -> _OpenSet:
        """Makes an open set of packed rows, the tokens (`costs`) of the set's documents, and the set's chunks."""
        items = rows.items
        ends = np.cumsum(documents.chunk_samples[chunks])
        return cls(
            document=_narrow(items.document),
            begin=_narrow(items.begin),
            size=_narrow(items.size),
            tokens=_narrow(costs[items.document]),
            first=_narrow(rows.first),
            ends=ends,
            shift=documents.chunk_first[chunks] - (ends - documents.chunk_samples[chunks]),
        )

    def numbers(self, part: slice) -> Integers:
        """Returns the numbers in the dataset of the documents of some items."""
        document = self.document[part].astype(np.int64)
        numbers: Integers = document + self.shift[np.searchsorted(self.ends, document, side="right")]
        return numbers


class RowsRecipe(RowRecipe, frozen=True, kw_only=True):
    """All that another process needs to know of the rows of a dataset.

    Attributes:
        packing: options of the user.
        spec: what fixes the rows.
        shuffle: whether the rows are shuffled.
        table: path of the file with the table of rows.
    """

    packing: RowOption
    spec: RowSpec
    shuffle: bool
    table: Path

    @property
    def paths(self) -> list[Path]:
        """See `RowRecipe`."""
        return [self.table]

    def open(self, data: SampleSource) -> PlannedRows:
        """Opens the rows of a dataset in this process; errors as of `RowRecipe.open`."""
        return PlannedRows(self, data.documents(self.packing, shuffle=self.shuffle)[0])


class PlannedRows(OrderRows):
    """The rows of a dataset: which documents are in each, in any epoch. Used by one thread at a time.

    Args:
        recipe: Recipe of the rows.
        documents: Documents of the dataset.
        table: Table of the recipe's file. None opens the file, which takes 16 ms for 1e9 documents.

    Attributes:
        documents: the documents of the dataset.
        sets: the chunks of each of the S sets.
        counts: (S,) number of rows of each set.
        first: (S+1,) number of rows before each set, and of all.
        tokens: number of tokens in all rows.
        left_out: number of tokens that are in no row, by `overflow`.

    Raises:
        ManifestCorruptError: the recipe's table is damaged, or is not one of these documents.
    """

    def __init__(self, recipe: RowsRecipe, documents: Documents, table: RowTable | None = None) -> None:
        table = table or RowTable.open(recipe.table, documents)
        self._recipe = recipe
        self.sets: Sets = table.sets
        self.counts = table.counts
        self.tokens = int(table.tokens.sum())
        self.left_out = int(table.left_out.sum())
        self.first: Integers = np.append(0, np.cumsum(table.counts))
        self.documents = documents
        self._open: OrderedDict[tuple[int, int, int], _OpenSet] = OrderedDict()
        self._items = 0

    def __repr__(self) -> str:
        return f"PlannedRows({self.rows} rows in {len(self.counts)} sets, {self.recipe.spec})"

    @property
    def recipe(self) -> RowsRecipe:
        """The recipe of the rows."""
        return self._recipe

    @property
    def name(self) -> str:  # type: ignore[override]
        """Text for the name of a stream, with a blank before it."""
        return f" in rows of {self.recipe.spec.length}, {self.recipe.spec.policy}"

    def total(self) -> int:
        """Returns the number of rows of an epoch, over all ranks."""
        return self.rows

    @property
    def rows(self) -> int:
        """Number of rows of an epoch, over all ranks."""
        return int(self.first[-1])

    def describe(self) -> str:
        """Returns a description for the log: rows, sets, tokens, and how full the rows are."""
        spec = self.recipe.spec
        packing = self.recipe.packing
        documents = int(self.documents.chunk_first[-1])
        length = packing.room
        about = "about " if isinstance(packing.lengths, Estimate) else ""
        left_out = f"; {self.left_out:,} tokens are left out ({spec.overflow})" if self.left_out else ""
        return (
            f"{self.rows:,} {packing.words} {length:,} tokens in {counted(len(self.counts), 'sets')} of up to "
            f"{counted(int(np.diff(self.sets.first).max()), 'chunks')}: {about}{self.tokens:,} tokens of {documents:,} "
            f"documents, {about}{self.tokens / (self.rows * length):.2%} full{left_out}"
        )

    def pieces(self, row: int, seed: int, epoch: int) -> Pieces:
        """Returns the documents of a row. Packs the set of the row if it is not open.

        Args:
            row: number of the row in the dataset.
            seed: Seed of the order.
            epoch: Epoch of the order, or the pass of a member of a mix.
        """
        number = int(np.searchsorted(self.first, row, side="right")) - 1
        opened = self._open_set(number, seed, epoch)
        at = row - int(self.first[number])
        part = slice(int(opened.first[at]), int(opened.first[at + 1]))
        begin, size, tokens = (column[part].astype(np.int64) for column in (opened.begin, opened.size, opened.tokens))
        return Pieces(
            document=opened.numbers(part),
            begin=begin,
            size=size,
            tokens=tokens,
            first=np.array([0, part.stop - part.start]),
        )

    def are_dense(self, data: SampleSource) -> bool:
        """Returns True: rows are numbered without gaps."""
        return True

    def counts_of(self, data: SampleSource) -> Integers:
        """See `OrderRows`."""
        return self.counts

    def first_of(self, data: SampleSource) -> Integers:
        """See `OrderRows`."""
        return self.first

    def words_of(self, data: SampleSource) -> Words:
        """See `OrderRows`."""
        words: Words = data.manifest.chunk_words[self.sets.all_chunks[self.sets.first[:-1]]]
        return words

    def codes(self, book: CodeBook, ordinals: Integers) -> Integers:
        """Returns the numbers of the rows as they are."""
        return ordinals

    def costs_of(
        self, data: SampleSource, numbers: Integers, seed: int, epoch: int, coefficients: tuple[int, int]
    ) -> Integers:
        """See `OrderRows`."""
        return self.costs(numbers, seed, epoch, coefficients)

    def measure(self, data: Measurable, balance: AnyBalance) -> None:
        """Does nothing: the costs of rows are known."""

    def map_to_chunks(
        self, order: SampleOrder, members: Sequence[OrderRows], first_chunks: Sequence[int]
    ) -> SampleOrder:
        """See `OrderRows`."""
        sets = [cast("PlannedRows", rows).sets for rows in members]
        return RowOrder(cast("EpochOrder", order), join_sets(list(zip(sets, first_chunks, strict=False))))

    def geometry(
        self, data: SampleSource, global_batch: int, level: BalanceSpec | UnsetType, given: Geometry
    ) -> Geometry:
        """Returns lanes and window of the order, counted in sets; see `OrderRows`."""
        sets = int(np.count_nonzero(self.counts))
        chunks = int(np.count_nonzero(data.chunk_samples))
        lanes = auto_lanes(sets, level_of(level).count_units(global_batch)) if given.lanes is None else given.lanes
        return Geometry(
            lanes,
            row_window(sets=sets, chunks=chunks, global_batch=global_batch, lanes=lanes, shuffle_window=given.window),
        )

    def explain(self, spec: OrderSpec, data: SampleSource, global_batch: int, nodes: int) -> str:
        """See `OrderRows`."""
        return f"{self.describe()}; order {spec.order_id}, {counted(spec.lanes, 'lanes')}"

    def costs(self, rows: Integers, seed: int, epoch: int, coefficients: tuple[int, int]) -> Integers:
        """Returns the cost of some rows, (N,): the sum over their documents. Packs their sets if they are not open.

        Args:
            rows: (N,) numbers of the rows.
            seed: Seed of the order.
            epoch: Epoch of the rows, or the pass of a member of a mix.
            coefficients: The pair (a, b) in the cost a x n + b x n**2 of a document with n tokens in the row.
        """
        sets = np.searchsorted(self.first, rows, side="right") - 1
        found = np.empty(len(rows), np.int64)
        for number in unique(sets).tolist():
            opened = self._open_set(number, seed, epoch)
            mine = sets == number
            tokens = opened.size.astype(np.int64)
            own = np.add.reduceat(coefficients[0] * tokens + coefficients[1] * tokens**2, opened.first[:-1])
            found[mine] = own[rows[mine] - self.first[number]]
        return found

    def _open_set(self, number: int, seed: int, epoch: int) -> _OpenSet:
        """Returns a set as it is in an epoch. Packs it if it is not open, and closes sets that were not used lately."""
        key = number, seed, epoch
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        documents = self.documents
        chunks = self.sets.chunks(number)
        numbers = documents.list_documents(chunks)
        content = RowContent(self.recipe.spec, seed if documents.shuffle else None)
        costs = documents.costs(numbers)
        rows = content.rows(costs, numbers, epoch, int(self.counts[number]))
        opened = self._open[key] = _OpenSet.make_from(rows, costs, documents, chunks)
        self._items += len(opened.document)
        while self._items > _KEPT_ITEMS and len(self._open) > 1:
            _, closed = self._open.popitem(last=False)
            self._items -= len(closed.document)
        return opened


def _narrow(values: Integers) -> Narrow:
    """Returns the values in four bytes each if they fit, else as they are."""
    return values.astype(np.uint32) if not len(values) or int(values.max()) < 1 << 32 else values
