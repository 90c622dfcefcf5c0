"""The order of one dataset."""

from __future__ import annotations

from collections.abc import Sequence

from streamer.order.epoch import EpochOrder
from streamer.order.kinds.codes import Ordinals, Selected
from streamer.order.kinds.kind import Counted, Orders, RankView
from streamer.order.spec import OrderSpec


class OneOrders(Orders):
    """The orders of one dataset, each a permutation of its samples."""

    def __init__(self, spec: OrderSpec) -> None:
        self._spec = spec

    def order(self, members: Sequence[Counted], epoch: int, view: RankView) -> EpochOrder:
        """See `Orders`."""
        (only,) = members
        words = only.order_words if self._spec.cut == "by_key" else None
        return EpochOrder(self._spec, only.order_samples, epoch, chunk_words=words)

    def codes(self, members: Sequence[Selected]) -> Ordinals:
        """See `Orders`."""
        (only,) = members
        return Ordinals(only)
