"""Which documents are in which row: the sets that are open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.base.unique import unique
from streamer.batches.rows.counts import PackedCounts
from streamer.batches.rows.options import Buckets, Estimate, Packing
from streamer.batches.rows.table import Documents, Integers, RowTable
from streamer.config import counted
from streamer.order.rows.content import RowContent, Rows
from streamer.order.rows.spec import RowSpec

Narrow = npt.NDArray[np.uint32] | Integers

# Items of the sets that are kept open: 64 MB. A set that is opened again costs 0.5 us for each document.
_KEPT_ITEMS = 1 << 22


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """The documents of some rows, row after row.

    Attributes:
        document: (T,) numbers of the documents in the dataset.
        begin, size: (T,) the tokens of the document that are in the row.
        tokens: (T,) all tokens of the document.
        first: (rows + 1,) where the documents of each row begin.
        estimated: tokens that were estimated of the documents that were made; 0: the tokens are exact.
        overflowed: of those that the same documents have, tokens that have no room in their rows.
    """

    document: Integers
    begin: Integers
    size: Integers
    tokens: Integers
    first: Integers
    estimated: int = 0
    overflowed: int = 0

    def counts(self, made: list[int], places: int, cost: tuple[int, int]) -> PackedCounts:
        """Returns the counts of the documents that were made.

        Args:
            made: places of the documents that were made.
            places: tokens that the rows have room for.
            cost: Cost of the tokens of a document in a row, and of their square.
        """
        sizes = self.size[made]
        cut = int(np.count_nonzero(sizes < self.tokens[made]))
        total = int((cost[0] * sizes + cost[1] * sizes**2).sum())
        return PackedCounts(len(made), cut, int(sizes.sum()), places, total, self.estimated, self.overflowed)

    def settled(self, tokens: Mapping[int, int], packing: Packing) -> Pieces:
        """Returns the pieces of documents whose tokens were estimated, now that these are known.

        A piece is the same share of its document. What has no room in its row is left out; documents that were not
        made leave theirs to others.

        Args:
            tokens: Tokens of the documents that were made, by their places.
            packing: Packing of the rows.
        """
        made = list(tokens)
        found = np.zeros_like(self.tokens)
        planned = self.tokens
        found[made] = list(tokens.values())
        kept = found
        if packing.overflow == "truncate":
            planned = np.minimum(planned, packing.spec().length)
            kept = np.minimum(found, packing.length)
        begin = self.begin * kept // planned
        size = (self.begin + self.size) * kept // planned - begin
        taken = -(-size // packing.multiple_of) * packing.multiple_of
        before = np.cumsum(taken) - taken
        counts = np.diff(self.first)
        before -= np.repeat(before[self.first[:-1][counts > 0]], counts[counts > 0])
        fits = np.minimum(size, np.maximum(packing.length - before, 0))
        estimated = int(self.size[made].sum())
        overflowed = int((size - fits).sum())
        return Pieces(self.document, begin, fits, found, self.first, estimated, overflowed)

    @classmethod
    def joined(cls, parts: list[Pieces]) -> Pieces:
        """Joins those of several runs of rows, one run after the other."""
        document, begin, size, tokens = (
            np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__[:4]
        )
        counts = np.concatenate([np.diff(part.first) for part in parts])
        return cls(document, begin, size, tokens, np.append(0, np.cumsum(counts)))


class _Open(msgspec.Struct, frozen=True, eq=False):
    """A set that is open in an epoch, in 16 bytes for each document.

    Attributes:
        document: (T,) number of the document in the set.
        begin, size: (T,) the tokens of the document that are in the row.
        tokens: (T,) all tokens of the document.
        first: (R+1,) where the documents of each row begin.
        ends: (chunks,) documents of the set up to the end of each chunk.
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
    def of(cls, rows: Rows, costs: Integers, documents: Documents, chunks: npt.NDArray[np.uint32]) -> _Open:
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


class RowsRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that another process needs to know of the rows of a dataset.

    Attributes:
        packing: as the user says it.
        spec: what fixes them.
        shuffle: whether they are shuffled.
        table: file of the table.
    """

    packing: Packing | Buckets
    spec: RowSpec
    shuffle: bool
    table: Path


class PlannedRows:
    """The rows of a dataset: which documents are in each, in any epoch. Used by one thread at a time.

    Args:
        recipe: of the rows.
        documents: of the dataset.
        table: of the recipe's file, if it is open already: sorting the chunks of 1e9 documents takes 16 ms.

    Attributes:
        recipe: of the rows.
        documents: of the dataset.
        sets: the chunks of each set.
        counts: (S,) rows of each set.
        first: (S+1,) rows before each set.
        tokens: of all rows. left_out: tokens of documents that are in none, by `overflow`.

    Raises:
        ManifestCorruptError: the recipe's table is not one of these documents.
    """

    def __init__(self, recipe: RowsRecipe, documents: Documents, table: RowTable | None = None) -> None:
        table = table or RowTable.open(recipe.table, documents)
        self.recipe = recipe
        self.sets = table.sets
        self.counts = table.counts
        self.tokens = int(table.tokens.sum())
        self.left_out = int(table.left_out.sum())
        self.first: Integers = np.append(0, np.cumsum(table.counts))
        self.documents = documents
        self._open: OrderedDict[tuple[int, int, int], _Open] = OrderedDict()
        self._items = 0

    def __repr__(self) -> str:
        return f"PlannedRows({self.rows} rows in {len(self.counts)} sets, {self.recipe.spec})"

    @property
    def rows(self) -> int:
        """Number of rows of an epoch, over all ranks."""
        return int(self.first[-1])

    def in_words(self) -> str:
        """Describes the rows, for the log."""
        spec = self.recipe.spec
        packing = self.recipe.packing
        documents = int(self.documents.chunk_first[-1])
        what, length = (
            ("batches of at most", packing.budget) if isinstance(packing, Buckets) else ("rows of", packing.length)
        )
        about = "about " if isinstance(packing.cost, Estimate) else ""
        left_out = f"; {self.left_out:,} tokens are left out ({spec.overflow})" if self.left_out else ""
        return (
            f"{self.rows:,} {what} {length:,} tokens in {counted(len(self.counts), 'sets')} of up to "
            f"{counted(int(np.diff(self.sets.first).max()), 'chunks')}: {about}{self.tokens:,} tokens of {documents:,} "
            f"documents, {about}{self.tokens / (self.rows * length):.2%} full{left_out}"
        )

    def pieces(self, row: int, seed: int, epoch: int) -> Pieces:
        """Returns the documents of a row.

        Args:
            row: number of the row, as the order says it.
            seed: Seed of the order.
            epoch: Epoch of the order; for a member of a mix its pass.
        """
        number = int(np.searchsorted(self.first, row, side="right")) - 1
        opened = self._opened(number, seed, epoch)
        at = row - int(self.first[number])
        part = slice(int(opened.first[at]), int(opened.first[at + 1]))
        begin, size, tokens = (column[part].astype(np.int64) for column in (opened.begin, opened.size, opened.tokens))
        return Pieces(opened.numbers(part), begin, size, tokens, np.array([0, part.stop - part.start]))

    def costs(self, rows: Integers, seed: int, epoch: int, coefficients: tuple[int, int]) -> Integers:
        """Returns the cost of some rows, (N,): the sum over their documents.

        Args:
            rows: (N,) numbers of the rows.
            seed: Seed of the order.
            epoch: Epoch of the rows.
            coefficients: Coefficients of the tokens of a document in the row, and of their square.
        """
        sets = np.searchsorted(self.first, rows, side="right") - 1
        found = np.empty(len(rows), np.int64)
        for number in unique(sets).tolist():
            opened = self._opened(number, seed, epoch)
            mine = sets == number
            tokens = opened.size.astype(np.int64)
            own = np.add.reduceat(coefficients[0] * tokens + coefficients[1] * tokens**2, opened.first[:-1])
            found[mine] = own[rows[mine] - self.first[number]]
        return found

    def _opened(self, number: int, seed: int, epoch: int) -> _Open:
        """Opens a set in an epoch; the sets used last are kept."""
        key = number, seed, epoch
        if key in self._open:
            self._open.move_to_end(key)
            return self._open[key]
        documents = self.documents
        chunks = self.sets.chunks(number)
        numbers = documents.of_chunks(chunks)
        content = RowContent(self.recipe.spec, seed if documents.shuffle else None)
        costs = documents.costs(numbers)
        rows = content.rows(costs, numbers, epoch, int(self.counts[number]))
        opened = self._open[key] = _Open.of(rows, costs, documents, chunks)
        self._items += len(opened.document)
        while self._items > _KEPT_ITEMS and len(self._open) > 1:
            _, closed = self._open.popitem(last=False)
            self._items -= len(closed.document)
        return opened


def _narrow(values: Integers) -> Narrow:
    """Returns the values in four bytes each, if they fit."""
    return values.astype(np.uint32) if not len(values) or int(values.max()) < 1 << 32 else values
