"""Says what a batch is made of: samples, or rows of documents. `BatchMaker` asks it the same questions for both.

Besides the maker of batches (`batches/workers/batch_maker.py`), the trainer asks for the collate function of batches
that it makes itself (`loader/feed/supply.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from streamer.batches.batch.collate import collate, collate_by_torch
from streamer.batches.batch.placement import Rows
from streamer.batches.batch.ragged import collate_ragged, join_ragged
from streamer.batches.rows.options import AnyPacking
from streamer.batches.rows.pieces import PackedCounts
from streamer.batches.samples.recipe import StreamReader

Integers = npt.NDArray[np.int64]

# Module and class for each `making` of a packing. They are names, so that only datasets with rows load what makes rows.
_UNITS = {
    "samples": ("streamer.batches.samples.units", "SampleUnitMaker"),
    "rows": ("streamer.batches.samples.row_units", "RowUnitMaker"),
    "buckets": ("streamer.batches.samples.row_units", "RowUnitMaker"),
}

# A function that makes a batch of a list of samples, as `collate_fn` of a user.
Collate = Callable[[list[object]], object]


class BatchUnits(ABC):
    """The units of one batch: its samples, or the documents of its rows.

    `BatchMaker` calls `begin`, makes each of them, gives each to `keep`, and then calls `complete` and `collate`.

    Attributes:
        ordinals: int64 (N,), codes of what is read: samples, or the documents of rows.
        are_compared: whether samples of several members of a mix must be compared before they are collated. The
            documents of rows are compared when the rows are made.
    """

    ordinals: Integers
    are_compared: ClassVar[bool]

    @abstractmethod
    def begin(self, rows: Rows, at: Callable[[int], None], *, singly: bool) -> None:
        """Locates what is read, and reads in advance what can be read together.

        Args:
            rows: Rows of the slot to which arrays may be written.
            at: called with the index among `ordinals` of the first sample of each chunk that is read.
            singly: whether each sample must be read by itself, since some must not be read at all.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
        """

    @abstractmethod
    def keep(self, sample: object, place: int) -> object:
        """Returns what is kept of a sample that was made: the sample, or a `Document`.

        Args:
            sample: what the transform has returned.
            place: index of the sample among `ordinals`.

        Raises:
            DecodeError: a document does not have the fields or the tokens that were planned for it.
        """

    @abstractmethod
    def complete(
        self, made: dict[int, object], rows: Rows, fill: Callable[[], dict[int, object]]
    ) -> tuple[dict[int, object], PackedCounts | None]:
        """Returns the samples, or rows, by their index in the batch, and the counts of rows, which samples do not have.

        Args:
            made: what `keep` has returned, by index among `ordinals`. Some may be missing.
            rows: the rows of the slot, to which the arrays of packed rows are written.
            fill: function that returns all samples, with other ones in place of those that are missing.

        Raises:
            WorkerError: no sample of the batch, or no document of a bucket, could be made.
            DecodeError: the documents of rows or of a bucket do not fit together.
        """

    @abstractmethod
    def collate(self, samples: list[object], ragged: Sequence[str]) -> object:
        """Returns the batch with a `Buffer` in place of each tensor.

        Args:
            samples: the samples, or rows, in the order of the batch.
            ragged: fields of samples that become `Ragged`.

        Raises:
            Exception: an error of `collate`, for samples that make no batch.
        """


class UnitMaker(ABC):
    """Makes the units of each batch, for one option `packing=` of a dataset.

    Attributes:
        take_rows: whether the arrays of a batch can be made in rows of the slot, whatever decodes the samples.
    """

    take_rows: ClassVar[bool]

    def __init__(self, packing: AnyPacking) -> None:
        self.packing = packing

    @abstractmethod
    def begin_batch(self, source: StreamReader, epoch: int, codes: Integers) -> BatchUnits:
        """Returns the units of one batch.

        Args:
            source: Source of the samples.
            epoch: Epoch of the batch.
            codes: int64 (N,), codes of its samples or rows, as `StreamReader.batch` returned them.
        """

    @abstractmethod
    def torch_collate(self, ragged: Sequence[str]) -> Collate:
        """Returns the function that makes a batch of tensors, for batches that the trainer makes itself."""


class SamplesOfBatch(BatchUnits):
    """The samples of one batch, each of which is read and delivered as it is."""

    are_compared = True

    def __init__(self, source: StreamReader, epoch: int, codes: Integers) -> None:
        self._source = source
        self._epoch = epoch
        self.ordinals = codes

    def begin(self, rows: Rows, at: Callable[[int], None], *, singly: bool) -> None:
        """See `BatchUnits`."""
        self._source.begin(self._epoch, self.ordinals, rows, at)

    def keep(self, sample: object, place: int) -> object:
        """Returns the sample as it is."""
        return sample

    def complete(
        self, made: dict[int, object], rows: Rows, fill: Callable[[], dict[int, object]]
    ) -> tuple[dict[int, object], None]:
        """Returns the samples, and None. Calls `fill` if some are missing."""
        return (fill() if len(made) < len(self.ordinals) else made), None

    def collate(self, samples: list[object], ragged: Sequence[str]) -> object:
        """See `BatchUnits`."""
        return collate_ragged(samples, ragged) if ragged else collate(samples)


class SampleUnitMaker(UnitMaker):
    """Makes batches of samples that are not packed."""

    take_rows = False

    def begin_batch(self, source: StreamReader, epoch: int, codes: Integers) -> SamplesOfBatch:
        """See `UnitMaker`."""
        return SamplesOfBatch(source, epoch, codes)

    def torch_collate(self, ragged: Sequence[str]) -> Collate:
        """See `UnitMaker`."""
        return (lambda samples: join_ragged(samples, ragged)) if ragged else collate_by_torch


def find_units(packing: AnyPacking) -> UnitMaker:
    """Returns the maker of units for `packing=` of a dataset. Imports its module."""
    module, name = _UNITS[packing.making]
    units: UnitMaker = getattr(import_module(module), name)(packing)
    return units
