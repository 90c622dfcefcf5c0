"""A kind of order: what plans, codes and workers ask, whatever the kind is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from streamer.order.hashing import Integers, Words
from streamer.order.kinds.codes import CodeBook, Selected
from streamer.order.protocol import Order
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec

if TYPE_CHECKING:
    from streamer.order.growing.cohorts import Cohorts
    from streamer.order.growing.log import KnownRounds, Rounds


class Counted(Selected, Protocol):
    """A member, as its order counts it: samples in chunks, or rows in sets of chunks."""

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
    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> Order:
        """Returns the order of an epoch: of samples, or of rows, whose chunks are sets then."""

    @abstractmethod
    def codes(self, members: Sequence[Selected]) -> CodeBook:
        """Returns the codes of the samples of the members."""

    def known_rounds(self, members: Sequence[Counted]) -> KnownRounds | NoRounds:
        """Returns what a worker keeps of the rounds that the rank tells it with each batch."""
        return NO_ROUNDS
