"""A kind of order: what plans, codes and workers ask, whatever the kind is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from streamer.order.hashing import Integers, Words
from streamer.order.protocol import SampleOrder
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec

if TYPE_CHECKING:
    from streamer.order.growing.cohorts import Cohorts
    from streamer.order.growing.log import KnownRounds, Rounds


class Selected(Protocol):
    """The samples of a member, as codes count them. It cuts the import of `batches`, which opens datasets."""

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
    def carry(self, samples: Integers) -> Integers:
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


class Counted(Selected, Protocol):
    """A member, as its order counts it: samples in chunks, or rows in sets of chunks. It cuts the same import."""

    @property
    def order_samples(self) -> Integers:
        """(M,) samples per chunk, or (S,) rows per set."""
        ...

    @property
    def order_first(self) -> Integers:
        """Their prefix sum."""
        ...

    @property
    def order_words(self) -> Words:
        """The first 8 bytes of the key of each chunk, or of the first chunk of each set."""
        ...

    def cohorts(self, spec: OrderSpec) -> Cohorts:
        """Returns the cohorts in which a growing dataset admits its samples, or rows."""
        ...


class NoRounds:
    """The rounds of an order that is not decided in rounds: there are none to tell."""

    def set(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Does nothing."""


NO_ROUNDS = NoRounds()


class RankView(msgspec.Struct, frozen=True, eq=False):
    """The place from which a rank looks at an order.

    Attributes:
        split: the rank's place in every batch.
        entry: epoch and position in it at which the run began.
        rounds: the rounds that are known, where an order is decided in rounds.
    """

    split: RankSplit
    entry: tuple[int, int]
    rounds: Rounds | NoRounds


class Orders(ABC):
    """The orders of one kind: of all epochs of a spec."""

    @abstractmethod
    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> SampleOrder:
        """Returns the order of an epoch: of samples, or of rows, whose chunks are sets then."""

    @abstractmethod
    def codes(self, members: Sequence[Selected]) -> CodeBook:
        """Returns the codes of the samples of the members."""

    def open_rounds(self, members: Sequence[Counted]) -> KnownRounds | NoRounds:
        """Returns what a worker keeps of the rounds that the rank tells it with each batch."""
        return NO_ROUNDS
