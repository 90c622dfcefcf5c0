"""One rank's epoch of a growing dataset."""

from __future__ import annotations

from streamer.order.growing.order import GrowingOrder
from streamer.order.plan import LastBatch, RankPlan


class GrowingPlan(RankPlan):
    """As `RankPlan`, in positions of the stream of all rounds; computes no batch of a round that is not known.

    Args:
        order: the epoch.
        global_batch: B, samples over all ranks.
        world: R, ranks; must divide B.
        rank: this rank.
        last_batch: what becomes of an incomplete last batch; there is one only after a resume with another B.
        start: the position of batch 0.
    """

    order: GrowingOrder

    def __init__(
        self,
        order: GrowingOrder,
        global_batch: int,
        world: int,
        rank: int,
        last_batch: LastBatch,
        *,
        start: int,
    ) -> None:
        super().__init__(order, global_batch, world, rank, last_batch, start=start)

    def _block_of(self, batch: int) -> range:
        """The batches around this one that are wholly in its round; else the batch alone."""
        block, size = super()._block_of(batch), self.rank_split.global_batch
        of = self.order.round_at(self.position(batch))
        first, stop = (
            max(block.start, -(-(of.start - self.start) // size)),
            min(block.stop, (of.stop - self.start) // size),
        )
        return range(first, stop) if first <= batch < stop else range(batch, batch + 1)
