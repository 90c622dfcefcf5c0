"""Describes rows of documents before a job has them, for `streamer index --packing`: how full, how local, how level."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamer.config import counted, format_bytes
from streamer.loader.rows.options import ROW_COST
from streamer.loader.rows.planned import PlannedRows
from streamer.order.balanced_order import BalancedOrder
from streamer.order.epoch import EpochOrder
from streamer.order.hashing import Integers
from streamer.order.level import BalanceSpec
from streamer.order.rank_split import RankSplit
from streamer.order.row_order import RowOrder, row_window
from streamer.order.spec import OrderSpec, auto_lanes

# Rows of a rank that are compared.
_ROWS = (1, 2, 4, 8)
# Steps over whose dearest ranks the mean is taken.
_STEPS = 64


def explain_rows(planned: PlannedRows, stored_bytes: int, global_batch: int, seed: int) -> str:
    """Describes the rows of a dataset that is shuffled, and how unequal ranks are, without and with `Balance`.

    Packs the sets of the first batches: some seconds for large batches.

    Args:
        planned: the rows.
        stored_bytes: of their documents.
        global_batch: B, rows over all ranks.
        seed: of the order.
    """
    compared = _Compared(planned, global_batch, seed)
    lines = [f"rows     {planned.in_words()}", f"sets     {compared.local(stored_bytes)}", *compared.balance()]
    return "\n".join(lines)


class _Compared:
    """The orders that a job may have, for one global batch; arguments as of `explain_rows`."""

    def __init__(self, planned: PlannedRows, global_batch: int, seed: int) -> None:
        self._planned, self._batch, self._seed = planned, global_batch, seed

    def local(self, stored_bytes: int) -> str:
        """Describes what must be local: bytes of a set, of the first batch, and of all sets that are open."""
        order = self._order().inner
        assert isinstance(order, EpochOrder)
        set_bytes = stored_bytes / len(self._planned.counts)
        opened = min(order.lanes * order.spec.lane_window, len(self._planned.counts))
        first = min(order.lanes, opened) * set_bytes
        return (
            f"{format_bytes(set_bytes)} each, local before the first of their rows: {format_bytes(first)} over all "
            f"nodes for the first batch; {counted(opened, 'sets')} open, {format_bytes(opened * set_bytes)} of cache"
        )

    def balance(self) -> Iterator[str]:
        """Yields the cost of the dearest rank of a step by the mean, for several rows of a rank."""
        linear, quadratic = ROW_COST
        cost = f"n tokens of a document cost {linear} n + {quadratic} n^2"
        yield f"balance  the dearest rank of a step by the mean of all; {cost}"
        for rows in _ROWS:
            ranks = self._batch // rows
            if self._batch % rows or ranks < 2 or self._planned.rows < self._batch:
                continue
            plain, level = (self._dearest(order, rows) for order in (self._order(), self._level(rows)))
            what = f"{ranks} ranks of {counted(rows, 'rows')}"
            yield f"         {what}: {plain:.3f}, with Balance(rows={rows}) {level:.3f}"

    def _order(self, together: int = 1) -> RowOrder:
        """Returns the order of a job without `Balance`, or the one inside of `Balance(rows=together)`."""
        planned = self._planned
        sets, chunks = (int(np.count_nonzero(each)) for each in (planned.counts, planned.documents.chunk_samples))
        lanes = auto_lanes(sets, self._batch // together)
        window = row_window(sets, chunks, self._batch, lanes, None)
        spec = OrderSpec(planned.documents.digest, self._seed, "block", lanes, window, rows=planned.recipe.spec)
        return RowOrder(EpochOrder(spec, planned.counts, 0), planned.sets)

    def _level(self, rows: int) -> BalancedOrder:
        return BalancedOrder(self._order(rows), BalanceSpec(rows, *ROW_COST, self._batch), self._costs)

    def _costs(self, rows: Integers, epoch: int) -> Integers:
        return self._planned.costs(rows, self._seed, epoch, ROW_COST)

    def _dearest(self, order: RowOrder | BalancedOrder, rows: int) -> float:
        """Returns the mean over the first steps of epoch 0."""
        starts = np.arange(min(_STEPS, order.samples // self._batch), dtype=np.int64) * self._batch
        ranks = self._batch // rows
        costs = np.empty((ranks, len(starts)))
        for rank in range(ranks):
            positions = RankSplit(order.lanes, self._batch, ranks, rank).positions(starts)
            costs[rank] = self._costs(order.ordinals(positions.ravel()), 0).reshape(positions.shape).sum(axis=1)
        return float((costs.max(axis=0) / costs.mean(axis=0)).mean())
