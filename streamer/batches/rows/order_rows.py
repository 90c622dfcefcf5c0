"""Says what an order counts of a dataset: its samples (`SampleRows`), or rows of documents (`PlannedRows`).

Opened datasets and plans ask it (`batches/samples/opened.py`, `batches/samples/plans.py`), and so does the loader's
kind of one dataset (`loader/kinds/one.py`). Where samples are not packed, nothing that makes rows is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType

from streamer.batches.rows.balance import AnyBalance, Measurable
from streamer.batches.rows.options import NO_PACKING, AnyPacking, NoPacking, RowOption
from streamer.errors import BrokenError, ConfigError
from streamer.manifest.table import Manifest
from streamer.order.level import BalanceSpec
from streamer.order.protocol import SampleOrder
from streamer.order.rows.spec import MOST_LENGTH, RowSpec
from streamer.order.spec import OrderSpec

if TYPE_CHECKING:
    from streamer.batches.rows.costs import DocumentCosts
    from streamer.batches.rows.pieces import Pieces
    from streamer.batches.rows.table import Documents
    from streamer.order.kinds.kind import CodeBook
    from streamer.order.rows.sets import Sets

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


class Geometry(NamedTuple):
    """Lanes and shuffle window of an order, each None where it is chosen from the counts."""

    lanes: int | None
    window: int | None


class SampleSource(Protocol):
    """The selected samples of a manifest: `OpenedDataset`, which imports this module and so is not imported here."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        ...

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        ...

    @property
    def lengths(self) -> DocumentCosts | None:
        """Lengths of the samples of the manifest, or None if batches of samples are not made level."""
        ...

    @property
    def chunk_samples(self) -> Integers:
        """Number of selected samples of each of the M chunks: (M,)."""
        ...

    @property
    def chunk_first(self) -> Integers:
        """Number of selected samples before each chunk, and of all: (M+1,)."""
        ...

    @property
    def stored_bytes(self) -> int:
        """Number of stored bytes of the selected samples."""
        ...

    def to_manifest(self, ordinals: Integers) -> Integers:
        """Returns the ordinals in the manifest of ordinals in the selection."""
        ...

    def documents(self, packing: RowOption, *, shuffle: bool) -> tuple[Documents, DocumentCosts]:
        """Returns the samples as documents, and how many tokens each has."""
        ...


class RowRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that another process needs to know of what an order counts.

    Attributes:
        packing: how documents are packed into rows.
        spec: what fixes the rows, or UNSET where samples are counted.
    """

    packing: AnyPacking
    spec: RowSpec | UnsetType

    @property
    def paths(self) -> list[Path]:
        """Files that `open` reads, but for the user's file of lengths."""
        raise NotImplementedError

    def open(self, data: SampleSource) -> OrderRows:
        """Opens the rows of a dataset in this process.

        Raises:
            ManifestCorruptError: a file is damaged, or belongs to other data.
            ConfigError: the file with the lengths of samples has changed.
        """
        raise NotImplementedError


class OrderRows(ABC):
    """What an order counts of a dataset.

    Here M is the number of chunks, and S the number of sets of rows.

    Attributes:
        sets: the chunks of each set of rows, or None where samples are counted in their chunks.
        left_out: number of tokens of documents that are in no row of an epoch.
        name: text for the name of a stream, with a blank before it, or "".
    """

    sets: Sets | None = None
    left_out: int = 0
    name: str

    @property
    @abstractmethod
    def recipe(self) -> RowRecipe:
        """All that another process needs to open the same rows."""

    @property
    def packing(self) -> AnyPacking:
        """How documents are packed into rows, or `NO_PACKING`."""
        return self.recipe.packing

    @property
    def spec(self) -> RowSpec | UnsetType:
        """What fixes the rows, or UNSET where samples are counted."""
        return self.recipe.spec

    @abstractmethod
    def describe(self) -> str:
        """Returns a description of the rows for the log."""

    @abstractmethod
    def total(self) -> int:
        """Returns the number of rows of an epoch, over all ranks.

        Raises:
            ConfigError: samples are not packed.
        """

    @abstractmethod
    def are_dense(self, data: SampleSource) -> bool:
        """Returns whether the samples, or rows, of an epoch are numbered from 0 on without gaps."""

    @abstractmethod
    def counts_of(self, data: SampleSource) -> Integers:
        """Returns the number of samples of each chunk, (M,), or of rows of each set, (S,)."""

    @abstractmethod
    def first_of(self, data: SampleSource) -> Integers:
        """Returns the prefix sum of `counts_of`, from 0 on: (M+1,) or (S+1,)."""

    @abstractmethod
    def words_of(self, data: SampleSource) -> Words:
        """Returns the first 8 bytes of the keys of the chunks, (M,), or of the first chunk of each set, (S,)."""

    @abstractmethod
    def codes(self, book: CodeBook, ordinals: Integers) -> Integers:
        """Returns the codes of samples from the numbers that an order has for them. Rows keep these numbers."""

    @abstractmethod
    def pieces(self, row: int, seed: int, epoch: int) -> Pieces:
        """Returns the documents of a row, see `PlannedRows.pieces`.

        Raises:
            BrokenError: samples are counted.
        """

    @abstractmethod
    def costs_of(
        self, data: SampleSource, numbers: Integers, seed: int, epoch: int, coefficients: tuple[int, int]
    ) -> Integers:
        """Returns the cost of some rows, or samples: (N,).

        Args:
            data: the dataset.
            numbers: (N,) numbers of the rows, or samples.
            seed: Seed of the order.
            epoch: Epoch of the rows, or the pass of a member of a mix.
            coefficients: The pair (a, b) in the cost a x n + b x n**2 of a document or sample of n tokens.
        """

    @abstractmethod
    def measure(self, data: Measurable, balance: AnyBalance) -> None:
        """Opens the lengths of samples if `balance` needs them. Does nothing for rows, whose costs are known.

        Raises:
            ConfigError: nothing says how long a sample is, or the file of lengths is not one of this dataset.
        """

    @abstractmethod
    def map_to_chunks(
        self, order: SampleOrder, members: Sequence[OrderRows], first_chunks: Sequence[int]
    ) -> SampleOrder:
        """Returns an order that says which chunks it needs.

        An order of samples is returned as it is. An order of rows counts sets, which are mapped to their chunks.

        Args:
            order: Order of samples, or rows.
            members: the rows of each member.
            first_chunks: number of the first chunk of each member.
        """

    @abstractmethod
    def geometry(
        self, data: SampleSource, global_batch: int, level: BalanceSpec | UnsetType, given: Geometry
    ) -> Geometry:
        """Returns lanes and window of a shuffled order: its window is in chunks, or for rows in sets.

        Args:
            data: the dataset.
            global_batch: samples, or rows, of a batch over all ranks.
            level: how batches are made level, or UNSET.
            given: the user's lanes and window, whose window is in chunks.
        """

    @abstractmethod
    def explain(self, spec: OrderSpec, data: SampleSource, global_batch: int, nodes: int) -> str:
        """Returns a text that describes the order, for samples also how well it shuffles.

        Args:
            spec: spec of the order.
            data: the dataset.
            global_batch: samples, or rows, of a batch over all ranks.
            nodes: number of machines.

        Raises:
            ConfigError: samples are counted, and the nodes cannot share the batch equally.
        """


class NoRows(RowRecipe, frozen=True, kw_only=True):
    """The recipe of samples that are not packed."""

    packing: NoPacking = NO_PACKING
    spec: UnsetType = UNSET

    @property
    def paths(self) -> list[Path]:
        """Files that `open` reads, an empty list."""
        return []

    def open(self, data: SampleSource) -> SampleRows:
        """Returns the samples as what is counted."""
        return SampleRows()


class SampleRows(OrderRows):
    """Samples that are not packed: an order counts them in their chunks."""

    name = ""

    @property
    def recipe(self) -> NoRows:
        """See `OrderRows`."""
        return NoRows()

    def total(self) -> int:
        """Raises a ConfigError: a dataset without `packing=` has no rows."""
        raise ConfigError("rows is for a dataset with packing=; this one has samples", field="packing")

    def describe(self) -> str:
        """See `OrderRows`."""
        return "samples, which are not packed"

    def are_dense(self, data: SampleSource) -> bool:
        """Returns whether all samples of the manifest are selected."""
        return data.samples == data.manifest.samples

    def counts_of(self, data: SampleSource) -> Integers:
        """See `OrderRows`."""
        return data.chunk_samples

    def first_of(self, data: SampleSource) -> Integers:
        """See `OrderRows`."""
        return data.chunk_first

    def words_of(self, data: SampleSource) -> Words:
        """See `OrderRows`."""
        return data.manifest.chunk_words

    def codes(self, book: CodeBook, ordinals: Integers) -> Integers:
        """See `OrderRows`."""
        return book.carry(ordinals)

    def pieces(self, row: int, seed: int, epoch: int) -> Pieces:
        """Raises a BrokenError: samples have no documents."""
        raise BrokenError("the documents of a row are asked for, and samples are not packed; please report it")

    def costs_of(
        self, data: SampleSource, numbers: Integers, seed: int, epoch: int, coefficients: tuple[int, int]
    ) -> Integers:
        """See `OrderRows`."""
        assert data.lengths is not None, "costs are asked for where samples are balanced"
        # Lengths are limited so that the sum of a superwindow fits 63 bits, see `BalanceSpec`.
        length = data.lengths.count_tokens(data.to_manifest(numbers)).clip(0, MOST_LENGTH)
        cost: Integers = coefficients[0] * length + coefficients[1] * length**2
        return cost

    def measure(self, data: Measurable, balance: AnyBalance) -> None:
        """See `OrderRows`."""
        balance.measure(data)

    def map_to_chunks(
        self, order: SampleOrder, members: Sequence[OrderRows], first_chunks: Sequence[int]
    ) -> SampleOrder:
        """Returns the order as it is: it counts samples in the chunks themselves."""
        return order

    def geometry(
        self, data: SampleSource, global_batch: int, level: BalanceSpec | UnsetType, given: Geometry
    ) -> Geometry:
        """Returns what the user has given, and None for the rest."""
        return given

    def explain(self, spec: OrderSpec, data: SampleSource, global_batch: int, nodes: int) -> str:
        """See `OrderRows`."""
        # Imported here, since workers do not need it.
        from streamer.order.quality import explain

        return explain(spec, data.chunk_samples, global_batch, total_bytes=data.stored_bytes, nodes=nodes)


NO_ROWS = NoRows()
