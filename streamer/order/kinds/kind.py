"""Defines what a kind of order is: `Orders` makes orders, `CodeBook` encodes samples, `Counted` is a member.

`order/kinds/` has a class of each for every kind. Plans and makers of batches (`batches/samples/plans.py`) ask them,
and `batches/` gives them its members; `loader/kinds/` takes `NoRounds` from here.

A stream has one member, or several in a mix. Its order counts a member's samples, or its rows where documents are
packed. A code is the number that stands for a sample of the stream in plans and messages.
"""

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
    """A member, as codes count its samples. It stands for classes of `batches/`, which this room does not import."""

    @property
    def samples(self) -> int:
        """Number of selected samples."""
        ...

    def number(self, ordinal: int) -> int:
        """Returns the number in the selection of a selected sample, from its ordinal in the manifest."""
        ...

    def to_manifest(self, ordinals: Integers) -> Integers:
        """Returns the ordinals in the manifest of samples, from their numbers in the selection: (N,)."""
        ...


class Uses(msgspec.Struct, frozen=True, eq=False):
    """Those of some codes that are samples of one member.

    Attributes:
        member: number of the member.
        rows: (N,) places of its samples among the codes.
        ordinals: (N,) ordinals of the samples in the member's manifest.
        runs: number on which the random numbers of each sample depend: the epoch, in a mix the pass, in a growing
            dataset the use. The iterable may be endless.
    """

    member: int
    rows: Integers
    ordinals: Integers
    runs: Iterable[int]


class CodeBook(ABC):
    """Encodes and decodes the samples of a stream.

    "What the order calls a sample" is what `SampleOrder.ordinals` returns: of one dataset its number in the selection,
    else a code.
    """

    @abstractmethod
    def carry(self, samples: Integers) -> Integers:
        """Returns the codes of samples, from what the order calls them: (N,)."""

    @abstractmethod
    def encode(self, members: Integers, turns: Integers, numbers: Integers) -> Integers:
        """Returns the codes of samples: (N,).

        Args:
            members: (N,) number of the member.
            turns: (N,) pass, from the member's first one of the epoch on; in a growing dataset the use.
            numbers: (N,) number of the sample in the member's selection.
        """

    @abstractmethod
    def members(self, codes: Integers) -> Integers:
        """Returns the number of the member of each code: (N,)."""

    @abstractmethod
    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """Returns the members that have samples among one or more codes, each with the place of its first one there."""

    @abstractmethod
    def locate(self, code: int) -> tuple[int, int]:
        """Returns the number of a code's member, and that of its sample in the member's selection."""

    @abstractmethod
    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """Returns the samples that one or more codes stand for in an epoch, an entry for each member that has some."""

    @abstractmethod
    def parts(self, rows: Integers, counts: Sequence[int]) -> tuple[Integers, Integers, Integers]:
        """Returns member, number in the member and pass of rows, or of samples that are not packed: (N,) each.

        Passes count from the member's first one of the epoch on; a growing dataset has the use in place of the pass.

        Args:
            rows: (N,) what the order calls the rows or samples.
            counts: number of rows or samples of each member.
        """

    @abstractmethod
    def content(self, epoch: int, member: int, turn: int) -> int:
        """Returns the number by which the documents of a row are drawn.

        It is the epoch, in a mix the pass, in a growing dataset the last bit of the use.

        Args:
            epoch: number of the epoch.
            member: number of the row's member.
            turn: the row's pass, as `parts` returns it.
        """


class Counted(Selected, Protocol):
    """A member, as its order counts it: samples in M chunks; where documents are packed, rows in S sets of chunks."""

    @property
    def order_samples(self) -> Integers:
        """Samples of each chunk, (M,), or rows of each set, (S,)."""
        ...

    @property
    def order_first(self) -> Integers:
        """Samples before each chunk, (M+1,), or rows before each set, (S+1,)."""
        ...

    @property
    def order_words(self) -> Words:
        """The first 8 bytes of the key of each chunk, (M,), or of the first chunk of each set, (S,), as a number."""
        ...

    def cohorts(self, spec: OrderSpec) -> Cohorts:
        """Returns the cohorts in which a growing dataset admits its samples, or rows."""
        ...


class NoRounds:
    """Stands for `KnownRounds` where an order is not decided in rounds: there are none to tell."""

    def set(self, rounds: Sequence[tuple[int, ...]]) -> None:
        """Does nothing, as there are no rounds."""


NO_ROUNDS = NoRounds()


class RankView(msgspec.Struct, frozen=True, eq=False):
    """What a rank or its worker knows when it makes an order.

    Attributes:
        split: the rank's place in every batch.
        entry: epoch and position in it at which the run began.
        rounds: the known rounds of a growing dataset; `NO_ROUNDS` for others.
    """

    split: RankSplit
    entry: tuple[int, int]
    rounds: Rounds | NoRounds


class Orders(ABC):
    """Makes the orders of all epochs of a spec, and the codes of its samples; each kind of stream has a subclass."""

    @abstractmethod
    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> SampleOrder:
        """Returns the order of an epoch: of samples, or of rows, and then its "chunks" are sets.

        Args:
            members: the members, in their order.
            epoch: number of the epoch.
            view: what the rank knows.
        """

    @abstractmethod
    def codes(self, members: Sequence[Selected]) -> CodeBook:
        """Returns what encodes and decodes the samples of the members."""

    def open_rounds(self, members: Sequence[Counted]) -> KnownRounds | NoRounds:
        """Returns what a worker puts the rounds into that the rank tells it with each batch."""
        return NO_ROUNDS
