"""What a batch is made of: samples, or rows of documents. One object that the maker of batches asks, either way."""

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

# These are names, so that only datasets with rows load what makes them.
_UNITS = {
    "samples": ("streamer.batches.samples.units", "SampleUnitMaker"),
    "rows": ("streamer.batches.samples.row_units", "RowUnitMaker"),
    "buckets": ("streamer.batches.samples.row_units", "RowUnitMaker"),
}

# A user's `collate_fn`: list of samples -> batch.
Collate = Callable[[list[object]], object]


class BatchUnits(ABC):
    """The units of one batch.

    Attributes:
        ordinals: (N,) codes of what is read: samples, or the documents of rows.
        are_compared: whether samples of several members are compared once more; rows were when they were made.
    """

    ordinals: Integers
    are_compared: ClassVar[bool]

    @abstractmethod
    def begin(self, rows: Rows, at: Callable[[int], None], *, singly: bool) -> None:
        """Begins to read.

        Args:
            rows: Rows of the slot to which arrays may be written.
            at: called with the place of the first sample of each chunk that is read.
            singly: whether each one is read by itself.

        Raises:
            ChunkUnreadableError: the bytes of a sample are missing or wrong.
        """

    @abstractmethod
    def keep(self, sample: object, place: int) -> object:
        """Returns what is kept of a sample that was made.

        Args:
            sample: what the transform has returned.
            place: its place among the ordinals.

        Raises:
            DecodeError: it has not what was planned for it.
        """

    @abstractmethod
    def complete(
        self, made: dict[int, object], rows: Rows, fill: Callable[[], dict[int, object]]
    ) -> tuple[dict[int, object], PackedCounts | None]:
        """Returns the samples, or rows, by their places in the batch, and the counts of rows.

        Args:
            made: what `keep` has returned, by place; some may be missing.
            rows: the rows of the slot.
            fill: returns samples with others in place of those that are missing.
        """

    @abstractmethod
    def collate(self, samples: list[object], ragged: Sequence[str]) -> object:
        """Returns a batch of buffers.

        Args:
            samples: or rows.
            ragged: fields that are joined, not stacked.
        """


class UnitMaker(ABC):
    """What batches are made of.

    Attributes:
        take_rows: whether they can be written to rows of a slot, whatever decodes them.
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
            codes: (N,) its samples, or rows, as a plan has them.
        """

    @abstractmethod
    def torch_collate(self, ragged: Sequence[str]) -> Collate:
        """Returns what makes a batch of tensors, where the trainer makes the batches."""


class SamplesOfBatch(BatchUnits):
    """The samples of one batch."""

    are_compared = True

    def __init__(self, source: StreamReader, epoch: int, codes: Integers) -> None:
        self._source = source
        self._epoch = epoch
        self.ordinals = codes

    def begin(self, rows: Rows, at: Callable[[int], None], *, singly: bool) -> None:
        """See `BatchUnits`."""
        self._source.begin(self._epoch, self.ordinals, rows, at)

    def keep(self, sample: object, place: int) -> object:
        """See `BatchUnits`."""
        return sample

    def complete(
        self, made: dict[int, object], rows: Rows, fill: Callable[[], dict[int, object]]
    ) -> tuple[dict[int, object], None]:
        """See `BatchUnits`."""
        return (fill() if len(made) < len(self.ordinals) else made), None

    def collate(self, samples: list[object], ragged: Sequence[str]) -> object:
        """See `BatchUnits`."""
        return collate_ragged(samples, ragged) if ragged else collate(samples)


class SampleUnitMaker(UnitMaker):
    """Batches of samples."""

    take_rows = False

    def begin_batch(self, source: StreamReader, epoch: int, codes: Integers) -> SamplesOfBatch:
        """See `UnitMaker`."""
        return SamplesOfBatch(source, epoch, codes)

    def torch_collate(self, ragged: Sequence[str]) -> Collate:
        """See `UnitMaker`."""
        return (lambda samples: join_ragged(samples, ragged)) if ragged else collate_by_torch


def find_units(packing: AnyPacking) -> UnitMaker:
    """Returns what batches are made of."""
    module, name = _UNITS[packing.making]
    units: UnitMaker = getattr(import_module(module), name)(packing)
    return units
