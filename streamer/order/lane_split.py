"""Splits lanes by the content of the caches: how many samples of each lane of a batch each node takes.

A table decides only which rank takes which sample of a batch: the batches are the same for every table. It exists only
if the lanes divide the batch, so that each lane has equally many samples in every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from streamer.base.unique import unique
from streamer.order.hashing import Integers
from streamer.order.rank_split import RankSplit

LaneRun: TypeAlias = tuple[int, int, int]
"""A rank's samples of one lane of each batch: the lane, the first of its samples, and how many follow."""


def split_lanes(lanes: int, per_lane: int, room: Sequence[int], held: Integers) -> Integers:
    """Assigns each lane to the nodes that hold most of it, as far as they have space.

    Lanes that no node holds go to the nodes in order: if nothing is held, each rank has the samples that it has without
    a table. Compared with a stable matching of lanes and nodes, a lost or added node moves 1 / nodes of the lanes
    instead of 2 to 5 / nodes (simulated with 16 and 256 nodes, 2026-11-22).

    Args:
        lanes: L.
        per_lane: samples of a lane in each batch.
        room: samples of each node in each batch; their sum is lanes x per_lane.
        held: (L, nodes) bytes of each lane that each node holds.

    Returns:
        (L, nodes) samples of each lane in each batch that each node takes.
    """
    table = np.zeros((lanes, len(room)), np.int64)
    need, left = [per_lane] * lanes, list(room)

    def take(lane: int, node: int) -> None:
        taken = min(need[lane], left[node])
        table[lane, node] += taken
        need[lane] -= taken
        left[node] -= taken

    most_first = np.argsort(-held, axis=None, kind="stable")
    for cell in most_first[: np.count_nonzero(held > 0)].tolist():
        take(*divmod(cell, len(room)))
    node = 0
    for lane in range(lanes):
        while need[lane]:
            take(lane, node)
            node += not left[node]
    return table


def lane_runs(table: Integers, node: int, share: slice) -> tuple[LaneRun, ...]:
    """The samples of one rank, from those of its node in the order of the lanes.

    Args:
        table: result of `split_lanes`.
        node: node of the rank.
        share: its half-open part of the node's samples of a batch.
    """
    before = table[:, :node].sum(axis=1)
    stop = np.cumsum(table[:, node])
    start = stop - table[:, node]
    first, last = np.maximum(start, share.start), np.minimum(stop, share.stop)
    used = np.flatnonzero(first < last)
    begin = before + first - start
    return tuple(zip(used.tolist(), begin[used].tolist(), (last - first)[used].tolist(), strict=True))


class LaneSplit(RankSplit, frozen=True):
    """One rank's place in every global batch according to a table. The lanes divide the batch.

    Attributes:
        runs: the rank's runs by lane; together `per_rank` samples.
    """

    runs: tuple[LaneRun, ...]

    def positions(self, starts: Integers) -> Integers:
        """See `RankSplit.positions`."""
        lane = np.repeat([lane for lane, _, _ in self.runs], [count for _, _, count in self.runs])
        within = np.concatenate([np.arange(begin, begin + count) for _, begin, count in self.runs])
        first = starts[:, None] + (lane - starts[:, None]) % self.lanes
        positions: Integers = first + within * self.lanes
        return positions

    def rank_lanes(self, start: int) -> Integers:
        """See `RankSplit.rank_lanes`."""
        return unique(np.array([lane for lane, _, _ in self.runs], np.int64))
