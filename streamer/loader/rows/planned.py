"""Which documents are in which row: the table of rows in its file, and the sets that are open."""

from __future__ import annotations

import fcntl
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.config import counted
from streamer.errors import ManifestCorruptError, ManifestError
from streamer.loader.rows.options import Buckets, Packing
from streamer.manifest.arrow_ipc.reader import map_table
from streamer.manifest.staging import settle_file, workplace
from streamer.order.rows.content import RowContent, Rows, row_counts
from streamer.order.rows.items import kept_costs
from streamer.order.rows.sets import Sets, chunks_per_set, make_sets
from streamer.order.rows.spec import RowSpec
from streamer.unique import unique

logger = logging.getLogger(__name__)

Integers = npt.NDArray[np.int64]
Narrow = npt.NDArray[np.uint32] | Integers
CostsOf = Callable[[Integers], Integers]

_SCHEMA = {"rows": "int64", "chunks": "int64", "tokens": "int64", "left_out": "int64"}
# Costs that are summed at once: 8 MB.
_BLOCK = 1 << 20
# Documents whose table takes a time that is worth a line.
_MANY = 5_000_000
# With best fit, on one core (benchmarks/rows.py, 2026-11-26).
_DOCUMENT_SECONDS = 0.5e-6
# Items of the sets that are kept open: 64 MB. A set that is opened again costs 0.5 us for each document.
_KEPT_ITEMS = 1 << 22


class Documents(msgspec.Struct, frozen=True, eq=False):
    """The chunks of a dataset's documents, which are numbered through its selection.

    Attributes:
        manifest_digest: of the manifest.
        digest: identity of the documents.
        chunk_samples: (M,) documents of each chunk.
        chunk_first: (M+1,) documents before each chunk.
        costs: numbers of documents -> their tokens.
        shuffle: whether rows are shuffled.
    """

    manifest_digest: str
    digest: str
    chunk_samples: Integers
    chunk_first: Integers
    costs: CostsOf
    shuffle: bool

    def of_chunks(self, chunks: npt.NDArray[np.uint32]) -> Integers:
        """Returns the numbers of the documents of some chunks, chunk after chunk: (D,)."""
        firsts, counts = self.chunk_first[chunks], self.chunk_samples[chunks]
        before = np.cumsum(counts) - counts
        numbers: Integers = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(firsts - before, counts)
        return numbers


class RowTable(msgspec.Struct, frozen=True, eq=False):
    """The sets of a dataset, and how many rows each of them has.

    Attributes:
        sets: the chunks of each set.
        counts: (S,) rows of each set, in every epoch.
        tokens: (S,) tokens of them.
        left_out: (S,) tokens of their documents that are in no row, by `overflow`.
    """

    sets: Sets
    counts: Integers
    tokens: Integers
    left_out: Integers

    @classmethod
    def make(cls, spec: RowSpec, documents: Documents) -> RowTable:
        """Packs every set once: 0.5 us for each document with best fit (2026-11-24).

        Raises:
            ManifestError: no document has a token.
            ConfigError: a document is longer than a row, and overflow="error".
        """
        of_chunks = _tokens_of_chunks(spec, documents)
        if (tokens := int(of_chunks[0].sum())) == 0:
            raise ManifestError(
                f"none of the {documents.chunk_first[-1]} documents has a token for a row of {spec.length}"
            )
        per_set = chunks_per_set(documents.chunk_samples, tokens, spec.length, spec.set_rows)
        sets = make_sets(documents.chunk_samples, per_set, shuffle=documents.shuffle)
        counts = row_counts(spec, sets, lambda number: documents.costs(documents.of_chunks(sets.chunks(number))))
        kept, given = (np.add.reduceat(of_each[sets.all_chunks], sets.first[:-1]) for of_each in of_chunks)
        return cls(sets, counts, kept, given - kept)

    @classmethod
    def open(cls, path: Path, documents: Documents) -> RowTable:
        """Maps the file of a table.

        Raises:
            ManifestCorruptError: it is not the table of these documents.
        """
        columns = map_table(path, _SCHEMA)  # type: ignore[arg-type]
        counts, chunks, tokens, left_out = (np.asarray(columns[name]).view(np.int64) for name in _SCHEMA)
        sets = make_sets(documents.chunk_samples, int(chunks[0]) if len(chunks) else 1, shuffle=documents.shuffle)
        if not np.array_equal(np.diff(sets.first), chunks):
            raise ManifestCorruptError(f"{path}: not the sets of these documents", path=str(path))
        return cls(sets, counts, tokens, left_out)

    def write(self, path: Path) -> None:
        """Writes the file.

        Raises:
            ManifestError: it cannot be written.
        """
        # Only here: processes that read a table do not need nanoarrow (6 ms of a start, 2026-11-22).
        from streamer.manifest.arrow_ipc.writer import write_table

        with workplace(path.parent) as place:
            chunks = np.diff(self.sets.first)
            columns = self.counts, chunks, self.tokens, self.left_out
            write_table(place / path.name, dict(zip(_SCHEMA, columns, strict=True)))
            settle_file(place / path.name, path)


def _tokens_of_chunks(spec: RowSpec, documents: Documents) -> Integers:
    """Returns the tokens of each chunk, (2, M): those that go to rows, and all.

    Raises:
        ConfigError: a document is longer than a row, and overflow="error".
    """
    ends, count = documents.chunk_first, int(documents.chunk_first[-1])
    before = np.zeros((2, len(ends)), np.int64)
    total = np.zeros((2, 1), np.int64)
    for first in range(0, count, _BLOCK):
        numbers = np.arange(first, min(first + _BLOCK, count))
        costs = documents.costs(numbers)
        sums = total + np.cumsum([kept_costs(costs, spec), np.maximum(costs, 0)], axis=1)
        here = slice(*np.searchsorted(ends, [first, first + len(numbers)], side="right"))
        before[:, here] = sums[:, ends[here] - first - 1]
        total = sums[:, -1:]
    return np.diff(before)


def table_path(folder: Path, spec: RowSpec, documents: Documents) -> Path:
    """Returns the file of the table of these documents; its name is a digest of all that decides the rows."""
    parts = msgspec.json.encode([documents.digest, documents.shuffle, spec])
    return folder / f"{documents.manifest_digest}.{blake2b(parts, digest_size=8).hexdigest()}.rows.arrows"


def find_table(folder: Path, spec: RowSpec, documents: Documents) -> Path:
    """Returns the file of the table; the first process of a machine makes it, the others wait.

    Raises:
        ManifestError: no document has a token, or the file cannot be written.
        ConfigError: a document is longer than a row, and overflow="error".
    """
    path = table_path(folder, spec, documents)
    if not _is_whole(path, documents):
        with _one_at_a_time(folder):
            if not _is_whole(path, documents):
                count = int(documents.chunk_first[-1])
                if count >= _MANY:
                    logger.warning(
                        "making the table of rows of %d documents once, about %.0f s", count, count * _DOCUMENT_SECONDS
                    )
                RowTable.make(spec, documents).write(path)
    return path


def _is_whole(path: Path, documents: Documents) -> bool:
    if not path.is_file():
        return False
    try:
        RowTable.open(path, documents)
    except ManifestCorruptError:
        return False
    return True


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Holds a lock on the folder; the kernel releases it when the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ManifestError(f"cannot write a table of rows to {folder}: {error}", path=str(folder)) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Pieces(msgspec.Struct, frozen=True, eq=False):
    """The documents of some rows, row after row.

    Attributes:
        document: (T,) numbers of the documents in the dataset.
        begin, size: (T,) the tokens of the document that are in the row.
        tokens: (T,) all tokens of the document.
        first: (rows + 1,) where the documents of each row begin.
    """

    document: Integers
    begin: Integers
    size: Integers
    tokens: Integers
    first: Integers

    def counts(self, made: list[int], cost: tuple[int, int]) -> tuple[int, int, int, int]:
        """Returns how many documents were made, how many of them are pieces, their tokens, and their cost.

        Args:
            made: places of the documents that were made.
            cost: of the tokens of a document in a row, and of their square.
        """
        sizes = self.size[made]
        pieces = int(np.count_nonzero(sizes < self.tokens[made]))
        return len(made), pieces, int(sizes.sum()), int((cost[0] * sizes + cost[1] * sizes**2).sum())

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
        items, ends = rows.items, np.cumsum(documents.chunk_samples[chunks])
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

    def __init__(self, recipe: RowsRecipe, documents: Documents) -> None:
        table = RowTable.open(recipe.table, documents)
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
        spec, documents = self.recipe.spec, int(self.documents.chunk_first[-1])
        what = "batches of at most" if spec.policy == "buckets" else "rows of"
        left_out = f"; {self.left_out:,} tokens are left out ({spec.overflow})" if self.left_out else ""
        return (
            f"{self.rows:,} {what} {spec.length:,} tokens in {counted(len(self.counts), 'sets')} of up to "
            f"{counted(int(np.diff(self.sets.first).max()), 'chunks')}: {self.tokens:,} tokens of {documents:,} "
            f"documents, {self.tokens / (self.rows * spec.length):.2%} full{left_out}"
        )

    def pieces(self, row: int, seed: int, epoch: int) -> Pieces:
        """Returns the documents of a row.

        Args:
            row: number of the row, as the order says it.
            seed: of the order.
            epoch: of a mix's member the pass.
        """
        number = int(np.searchsorted(self.first, row, side="right")) - 1
        opened, at = self._opened(number, seed, epoch), row - int(self.first[number])
        part = slice(int(opened.first[at]), int(opened.first[at + 1]))
        begin, size, tokens = (column[part].astype(np.int64) for column in (opened.begin, opened.size, opened.tokens))
        return Pieces(opened.numbers(part), begin, size, tokens, np.array([0, part.stop - part.start]))

    def costs(self, rows: Integers, seed: int, epoch: int, coefficients: tuple[int, int]) -> Integers:
        """Returns the cost of some rows, (N,): the sum over their documents.

        Args:
            rows: (N,) numbers of the rows.
            seed: of the order.
            epoch: of the rows.
            coefficients: of the tokens of a document in the row, and of their square.
        """
        sets = np.searchsorted(self.first, rows, side="right") - 1
        found = np.empty(len(rows), np.int64)
        for number in unique(sets).tolist():
            opened, mine = self._opened(number, seed, epoch), sets == number
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
        documents, chunks = self.documents, self.sets.chunks(number)
        numbers = documents.of_chunks(chunks)
        content = RowContent(self.recipe.spec, seed if documents.shuffle else None)
        costs = documents.costs(numbers)
        rows = content.rows(costs, numbers, epoch)
        opened = self._open[key] = _Open.of(rows, costs, documents, chunks)
        self._items += len(opened.document)
        while self._items > _KEPT_ITEMS and len(self._open) > 1:
            _, closed = self._open.popitem(last=False)
            self._items -= len(closed.document)
        return opened


def _narrow(values: Integers) -> Narrow:
    """Returns the values in four bytes each, if they fit."""
    return values.astype(np.uint32) if not len(values) or int(values.max()) < 1 << 32 else values
