"""Makes the orders and codes of a mix; `order/kinds/__init__.py` finds it by the kind of the spec.

`order/kinds/growing.py` has its codes from `MemberCodes`, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from streamer.order.hashing import Integers
from streamer.order.kinds.kind import CodeBook, Counted, Orders, RankView, Selected, Uses
from streamer.order.mix.order import MixOrder
from streamer.order.mix.spec import MixSpec
from streamer.order.mix.streams import MemberChunks, SampleCodes


class MemberCodes(CodeBook):
    """The codes of a stream in which a sample comes more than once: each of its uses has a code of its own."""

    def __init__(self, members: Sequence[Selected]) -> None:
        self._members = members
        self._codes = SampleCodes([member.samples for member in members])

    @abstractmethod
    def first_run(self, epoch: int, member: int) -> int:
        """Returns the number that is added to the pass of a code, so that passes count over all epochs."""

    def carry(self, samples: Integers) -> Integers:
        """See `CodeBook.carry`; the order calls its samples by codes already."""
        return samples

    def encode(self, members: Integers, turns: Integers, numbers: Integers) -> Integers:
        """See `CodeBook.encode`."""
        return self._codes.encode(members, turns, numbers)

    def members(self, codes: Integers) -> Integers:
        """See `CodeBook`."""
        return self._codes.members(codes)

    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """See `CodeBook`."""
        first: dict[int, int] = {}
        for place, number in enumerate(self._codes.members(codes).tolist()):
            first.setdefault(number, place)
        return first

    def locate(self, code: int) -> tuple[int, int]:
        """See `CodeBook`."""
        codes = np.array([code], np.int64)
        return int(self._codes.members(codes)[0]), int(self._codes.ordinals(codes)[0])

    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """See `CodeBook`."""
        numbers = self._codes.ordinals(codes)
        turns = self._codes.turns(codes)
        members = self._codes.members(codes)
        arranged = members.argsort(kind="stable")
        cuts = (np.flatnonzero(np.diff(members[arranged])) + 1).tolist()
        found = []
        for start, stop in pairwise((0, *cuts, len(codes))):
            rows = arranged[start:stop]
            member = int(members[rows[0]])
            ordinals = self._members[member].to_manifest(numbers[rows])
            found.append(Uses(member, rows, ordinals, (turns[rows] + self.first_run(epoch, member)).tolist()))
        return found

    def parts(self, rows: Integers, counts: Sequence[int]) -> tuple[Integers, Integers, Integers]:
        """See `CodeBook.parts`."""
        codes = SampleCodes(counts)
        return codes.members(rows), codes.ordinals(rows), codes.turns(rows)


class MixOrders(Orders):
    """Makes the orders of a mix, which say to which member a position belongs, and which of its samples it is."""

    def __init__(self, spec: MixSpec) -> None:
        self._spec = spec

    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> MixOrder:
        """Returns the order of an epoch as `Orders.order`, for one before the mix's first epoch that of the first.

        Chunks are numbered through all members.
        """
        bases = [0, *np.cumsum([len(member.order_samples) for member in members]).tolist()]
        chunks = [
            MemberChunks(member.order_samples, member.order_first, base)
            for member, base in zip(members, bases, strict=False)
        ]
        return MixOrder(self._spec, chunks, max(epoch, self._spec.origin_epoch))

    def codes(self, members: Sequence[Selected]) -> MixCodes:
        """See `Orders`."""
        return MixCodes(members, self._spec.first_passes)


class MixCodes(MemberCodes):
    """The codes of a mix; the random numbers of a sample depend on its member's pass, counted over all epochs.

    Args:
        members: the members, in their order.
        first_passes: returns the first pass of each member in an epoch.
    """

    def __init__(self, members: Sequence[Selected], first_passes: Callable[[int], Sequence[int]]) -> None:
        super().__init__(members)
        self._first_passes = first_passes
        self._first: tuple[int, Sequence[int]] = (-1, ())

    def first_run(self, epoch: int, member: int) -> int:
        """Returns the number of a member's first pass in an epoch; that of the last epoch asked for is kept."""
        if self._first[0] != epoch:
            self._first = epoch, self._first_passes(epoch)
        return self._first[1][member]

    def content(self, epoch: int, member: int, turn: int) -> int:
        """See `CodeBook`."""
        return turn + self.first_run(epoch, member)
