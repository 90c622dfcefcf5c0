"""The meaning of the numbers that the loader carries for samples; see `streamer.batches.samples.codes`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Protocol

import msgspec
import numpy as np

from streamer.order.hashing import Integers


class Selected(Protocol):
    """The samples of a member, as codes count them."""

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        ...

    def number(self, ordinal: int) -> int:
        """Returns the number in the selection of an ordinal in the manifest."""
        ...

    def to_manifest(self, ordinals: Integers) -> Integers:
        """Returns the ordinals in the manifest of ordinals in the selection."""
        ...


class Uses(msgspec.Struct, frozen=True, eq=False):
    """The samples of one member among some codes.

    Attributes:
        member: its number.
        rows: (N,) their places among the codes.
        ordinals: (N,) their ordinals in the manifest.
        runs: (N,) what their random numbers depend on, see `SampleLocation`.
    """

    member: int
    rows: Integers
    ordinals: Integers
    runs: Iterable[int]


class CodeBook(ABC):
    """Encodes and decodes the samples of a stream."""

    @abstractmethod
    def carried(self, samples: Integers) -> Integers:
        """Returns the codes of what the order calls its samples: (N,)."""

    @abstractmethod
    def encode(self, members: Integers, turns: Integers, numbers: Integers) -> Integers:
        """Returns codes, (N,), of member, pass and number in the member."""

    @abstractmethod
    def members(self, codes: Integers) -> Integers:
        """Returns the number of the member of each code: (N,)."""

    @abstractmethod
    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """Returns the members of the samples of a batch, each with the place of its first sample."""

    @abstractmethod
    def locate(self, code: int) -> tuple[int, int]:
        """Returns the number of the member, and of the sample in its selection."""

    @abstractmethod
    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """Returns the samples that codes stand for in an epoch, by member."""

    @abstractmethod
    def parts(self, rows: Integers, counts: Sequence[int]) -> tuple[Integers, Integers, Integers]:
        """Returns member, number in it and pass of what the order calls rows, or samples that are not packed.

        Args:
            rows: (N,) what the order calls them.
            counts: rows of each member.
        """

    @abstractmethod
    def content(self, epoch: int, member: int, turn: int) -> int:
        """Returns the epoch, or pass, whose documents a row has."""


class Ordinals(CodeBook):
    """The codes of one dataset: ordinals in its manifest, so that they do not depend on a selection."""

    def __init__(self, data: Selected) -> None:
        self._data = data

    def carried(self, samples: Integers) -> Integers:
        """See `CodeBook`."""
        return self._data.to_manifest(samples)

    def encode(self, members: Integers, turns: Integers, numbers: Integers) -> Integers:
        """See `CodeBook`."""
        return self._data.to_manifest(numbers)

    def members(self, codes: Integers) -> Integers:
        """See `CodeBook`."""
        return np.zeros_like(codes)

    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """See `CodeBook`."""
        return {0: 0}

    def locate(self, code: int) -> tuple[int, int]:
        """See `CodeBook`."""
        return 0, self._data.number(code)

    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """See `CodeBook`; the run is the epoch."""
        return (Uses(0, np.arange(len(codes)), codes, repeat(epoch)),)

    def parts(self, rows: Integers, counts: Sequence[int]) -> tuple[Integers, Integers, Integers]:
        """See `CodeBook`."""
        return np.zeros_like(rows), rows, np.zeros_like(rows)

    def content(self, epoch: int, member: int, turn: int) -> int:
        """See `CodeBook`."""
        return epoch
