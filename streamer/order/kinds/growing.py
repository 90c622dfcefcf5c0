"""Makes the orders and codes of a growing dataset; `order/kinds/__init__.py` finds it by the kind of the spec."""

from __future__ import annotations

from collections.abc import Sequence

from streamer.order.growing.log import KnownRounds
from streamer.order.growing.order import GrowingOrder
from streamer.order.growing.spec import GrowingSpec
from streamer.order.kinds.kind import Counted, NoRounds, Orders, RankView, Selected
from streamer.order.kinds.mix import MemberCodes


class GrowingOrders(Orders):
    """The orders of a growing dataset: epochs of one endless stream of rounds."""

    def __init__(self, spec: GrowingSpec) -> None:
        self._spec = spec

    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> GrowingOrder:
        """See `Orders.order`; `view` has rounds: a rank knows all so far, a worker those of its batch."""
        assert not isinstance(view.rounds, NoRounds), "the rank, or `open_rounds`, has rounds"
        lanes = self._spec.rank_lanes(view.split, view.entry)
        return GrowingOrder(view.rounds, lanes, self._spec.epoch_samples, epoch)

    def codes(self, members: Sequence[Selected]) -> UseCodes:
        """See `Orders.codes`; the only member is the dataset."""
        return UseCodes(members)

    def open_rounds(self, members: Sequence[Counted]) -> KnownRounds:
        """Returns the object into which a worker puts the rounds that the rank sends with each batch."""
        (only,) = members
        return KnownRounds(only.cohorts(self._spec.order))


class UseCodes(MemberCodes):
    """The codes of a growing dataset: those of a mix of one member, with the number of the use in place of the pass."""

    def first_run(self, epoch: int, member: int) -> int:
        """Returns 0, which is added to the use of a code, since uses count over all epochs already."""
        return 0

    def content(self, epoch: int, member: int, turn: int) -> int:
        """Returns the last bit of the use `turn`, 0 or 1, by which the documents of a row are drawn."""
        # The last bit of a use is that of the pass (`RoundTables`): the uses of a row in one pass have the same
        # documents, or a document would be used more often than another one.
        return turn % 2
