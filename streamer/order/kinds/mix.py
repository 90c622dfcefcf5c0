"""The order of a mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from streamer.order.kinds.kind import Counted, Orders, RankView, Selected
from streamer.order.kinds.member_codes import MemberCodes
from streamer.order.mix.order import MixOrder
from streamer.order.mix.spec import MixSpec
from streamer.order.mix.streams import MemberChunks


class MixOrders(Orders):
    """The orders of a mix: which member a position belongs to, and which of its samples."""

    def __init__(self, spec: MixSpec) -> None:
        self._spec = spec

    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> MixOrder:
        """See `Orders`."""
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
    """The codes of a mix: the run of a sample is the pass over its member, over all epochs.

    Args:
        members: in their order.
        first_passes: returns the first pass of each member in an epoch.
    """

    def __init__(self, members: Sequence[Selected], first_passes: Callable[[int], Sequence[int]]) -> None:
        super().__init__(members)
        self._first_passes = first_passes
        self._first: tuple[int, Sequence[int]] = (-1, ())

    def first_run(self, epoch: int, member: int) -> int:
        """Returns the first pass of a member in an epoch."""
        if self._first[0] != epoch:
            self._first = epoch, self._first_passes(epoch)
        return self._first[1][member]

    def content(self, epoch: int, member: int, turn: int) -> int:
        """See `CodeBook`."""
        return turn + self.first_run(epoch, member)
