"""Describes rows of documents before a job has them: how full they are, how local, and how level the ranks.

`streamer explain` prints it (`tools/explain_command.py`).
"""

from __future__ import annotations

import numpy as np

from streamer.batches.rows.options import ROW_COST
from streamer.batches.rows.planned import PlannedRows
from streamer.config import counted, format_bytes
from streamer.order.balanced_order import BalancedOrder
from streamer.order.epoch import EpochOrder
from streamer.order.hashing import Integers
from streamer.order.level import BalanceSpec
from streamer.order.rank_split import RankSplit
from streamer.order.row_order import RowOrder, row_window
from streamer.order.spec import OrderSpec, auto_lanes

# Ranks are compared for each of these numbers of rows that a rank has in a step.
_ROWS = (1, 2, 4, 8)
# Number of first steps over which `dearest_rank` takes the mean.
_STEPS = 64


def explain_rows(planned: PlannedRows, stored_bytes: int, global_batch: int, seed: int) -> str:
    """Describes the rows of a dataset that is shuffled, and how unequal ranks are, without and with `Balance`.

    Packs the sets of the first batches: some seconds for large batches.

    Args:
        planned: the rows.
        stored_bytes: Stored bytes of their documents.
        global_batch: rows of a batch over all ranks.
        seed: Seed of the order.

    Raises:
        ConfigError: see `dearest_rank`.
    """
    order = _order(planned, global_batch, seed).inner
    assert isinstance(order, EpochOrder)
    set_bytes = stored_bytes / len(planned.counts)
    opened = min(order.lanes * order.spec.lane_window, len(planned.counts))
    first_bytes = min(order.lanes, opened) * set_bytes
    lines = [
        f"rows     {planned.describe()}",
        f"sets     {format_bytes(set_bytes)} each, local before the first of their rows: {format_bytes(first_bytes)} "
        f"over all nodes for the first batch; {counted(opened, 'sets')} open, {format_bytes(opened * set_bytes)} of "
        "cache",
        "balance  cost of the slowest rank over the mean of all; n tokens of a document cost {} n + {} n^2".format(
            *ROW_COST
        ),
    ]
    for rows in _ROWS:
        ranks = global_batch // rows
        if global_batch % rows or ranks < 2 or planned.rows < global_batch:
            continue
        plain, level = dearest_rank(planned, ranks, rows, seed)
        what = f"{ranks} ranks of {counted(rows, 'rows')}"
        lines.append(f"         {what}: {plain:.3f}, with Balance(rows_per_rank={rows}) {level:.3f}")
    return "\n".join(lines)


def dearest_rank(
    planned: PlannedRows, ranks: int, rows: int, seed: int, cost: tuple[int, int] = ROW_COST
) -> tuple[float, float]:
    """Returns the cost of the slowest rank of a step divided by the mean of all, without and with `Balance(rows)`.

    Both are means over the first steps of epoch 0.

    Args:
        planned: the rows, at least those of one step.
        ranks: Number of ranks.
        rows: Rows of a rank in a step.
        seed: Seed of the order.
        cost: The pair (a, b) in the cost a x n + b x n**2 of a document with n tokens in a row.

    Raises:
        ConfigError: `ranks`, `rows` or `cost` is outside of its rule.
    """
    batch = ranks * rows

    def costs(found: Integers, epoch: int) -> Integers:
        return planned.costs(found, seed, epoch, cost)

    def dearest(order: RowOrder | BalancedOrder) -> float:
        starts = np.arange(min(_STEPS, order.samples // batch), dtype=np.int64) * batch
        of_ranks = np.empty((ranks, len(starts)))
        for rank in range(ranks):
            positions = RankSplit(order.lanes, batch, ranks, rank).positions(starts)
            of_ranks[rank] = costs(order.ordinals(positions.ravel()), 0).reshape(positions.shape).sum(axis=1)
        return float((of_ranks.max(axis=0) / of_ranks.mean(axis=0)).mean())

    level = BalancedOrder(_order(planned, batch, seed, rows), BalanceSpec(rows, *cost, batch), costs)
    return dearest(_order(planned, batch, seed)), dearest(level)


def _order(planned: PlannedRows, global_batch: int, seed: int, together: int = 1) -> RowOrder:
    """Returns the order of a job without `Balance`. With `together` it is the one that `Balance` makes level.

    Args:
        planned: the rows.
        global_batch: rows of a batch over all ranks.
        seed: Seed of the order.
        together: `rows_per_rank` of `Balance`, or 1 without it.
    """
    sets, chunks = (int(np.count_nonzero(each)) for each in (planned.counts, planned.documents.chunk_samples))
    lanes = auto_lanes(sets, global_batch // together)
    window = row_window(sets=sets, chunks=chunks, global_batch=global_batch, lanes=lanes, shuffle_window=None)
    spec = OrderSpec(
        manifest_digest=planned.documents.digest,
        seed=seed,
        shuffle="block",
        lanes=lanes,
        window=window,
        rows=planned.recipe.spec,
    )
    return RowOrder(EpochOrder(spec, planned.counts, 0), planned.sets)
