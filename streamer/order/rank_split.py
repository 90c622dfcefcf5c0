"""Decides which rank takes which sample of a global batch.

`order/plan.py` splits batches by it, all orders map padding by `real_positions`, `loader/rank/sharing.py` makes the
table for nodes that share caches, and `order/quality.py` and `batches/rows/explain.py` predict by it. B is the global
batch, R the number of ranks, L that of lanes.

A batch has the positions [a, a+B), and position p is in lane p mod L. Sorted by (lane, position) they are dealt in R
equal runs, so a rank draws from few lanes and needs the chunks of few lanes. The batch does not depend on R.

Where nodes share their caches, lanes are split by the content of the caches: a table says how many samples of each lane
of a batch each node takes. The table decides only which rank takes which sample: the batches are the same for every
table. It exists only if L divides B, so that each lane has the same number of samples in every batch.

Positions behind the end of an epoch fill up the last batch with samples that a rank has open anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TypeAlias

import msgspec
import numpy as np

from streamer.base.sorting import unique
from streamer.errors import ConfigError
from streamer.order.hashing import Integers


def real_positions(positions: Integers, samples: int | Integers, lanes: int) -> Integers:
    """Maps padding, the positions p >= n, to the positions that it repeats: p - L ceil((p-n+1)/L). Others stay.

    So padding repeats the end of the same lane, whose chunk the same rank has open. With fewer samples than lanes, some
    lanes have no sample: there it is p mod n.

    Args:
        positions: (N,) positions in an epoch.
        samples: n, number of samples of the epoch, at least 1; or (N,) the n for each position.
        lanes: L.

    Raises:
        ConfigError: a negative position.
    """
    if positions.size and positions.min() < 0:
        raise ConfigError(f"position {positions.min()} is negative", field="position")
    beyond = positions - samples + 1
    if positions.size == 0 or beyond.max() <= 0:
        return positions
    repeated = positions - lanes * -(-beyond // lanes)
    repeated = np.where(repeated < 0, positions % samples, repeated)
    return np.where(beyond > 0, repeated, positions)


class RankSplit(msgspec.Struct, frozen=True):
    """One rank's place in every global batch.

    Attributes:
        lanes: number of lanes of the order.
        global_batch: samples of a batch over all ranks.
        world: number of ranks, which divides the batch.
        rank: number of this rank, from 0; the ranks of a node are consecutive.

    Raises:
        ConfigError: the ranks cannot share the batch equally, or there is no such rank.
    """

    lanes: int
    global_batch: int
    world: int
    rank: int

    def __post_init__(self) -> None:
        if self.global_batch < 1 or self.world < 1 or self.global_batch % self.world:
            raise ConfigError(
                f"global_batch={self.global_batch} cannot be shared equally by {self.world} ranks; "
                f"take a multiple of {self.world}, e.g. {-(-self.global_batch // max(1, self.world)) * self.world}",
                field="batch_size",
            )
        if not 0 <= self.rank < self.world:
            raise ConfigError(f"rank={self.rank} is not in 0..{self.world - 1}", field="rank")

    @property
    def per_rank(self) -> int:
        """Number of samples of this rank in a batch."""
        return self.global_batch // self.world

    def positions(self, starts: Integers) -> Integers:
        """Returns this rank's positions in batches that begin at `starts`, (G,): (G, B/R), by lane, then position."""
        first, counts = self._lane_runs(starts)
        lane_offset = np.cumsum(counts, axis=1) - counts
        rows = np.arange(len(starts), dtype=np.int64)[:, None]
        offset = np.arange(self.per_rank, dtype=np.int64) + self.rank * self.per_rank
        flat = (lane_offset + rows * self.global_batch).ravel()
        # Empty lanes share their start with the next one: the last of equal ones is not empty.
        cell = np.searchsorted(flat, offset + rows * self.global_batch, side="right") - 1
        within = offset - lane_offset.ravel()[cell]
        positions: Integers = first.ravel()[cell] + within * self.lanes
        return positions

    def rank_lanes(self, start: int) -> Integers:
        """Returns the lanes that this rank draws from in any of the batches that follow each other from `start` on."""
        begin = self.rank * self.per_rank
        end = begin + self.per_rank
        if self.global_batch % self.lanes == 0:
            share = self.global_batch // self.lanes
            return np.arange(begin // share, (end - 1) // share + 1, dtype=np.int64)
        used = np.zeros(self.lanes, dtype=np.bool_)
        # If L does not divide B, the lanes of a rank change, with a period of L / gcd(L, B) batches.
        for turn in range(self.lanes // gcd(self.lanes, self.global_batch)):
            _, counts = self._lane_runs(np.array([start + turn * self.global_batch], dtype=np.int64))
            stop = np.cumsum(counts[0])
            used |= (counts[0] > 0) & (stop > begin) & (stop - counts[0] < end)
        return np.flatnonzero(used).astype(np.int64)

    def _lane_runs(self, starts: Integers) -> tuple[Integers, Integers]:
        """Returns the first position of each lane in each batch, and its number of positions there: (G, L)."""
        lane = np.arange(self.lanes, dtype=np.int64)
        first = starts[:, None] + (lane - starts[:, None]) % self.lanes
        counts = (starts[:, None] + self.global_batch - first + self.lanes - 1) // self.lanes
        return first, np.maximum(counts, 0)


LaneRun: TypeAlias = tuple[int, int, int]
"""A rank's samples of one lane in each batch: the lane, the first of the lane's samples there, and how many."""


def split_lanes(lanes: int, per_lane: int, room: Sequence[int], held: Integers) -> Integers:
    """Makes the table: gives each lane to the nodes that hold most of it, as far as they have samples to take.

    Lanes that no node holds go to the nodes in order. So if nothing is held, each rank has the samples that it has
    without a table. A node that is lost or added moves 1 / nodes of the lanes; with a stable matching of lanes and
    nodes it would move 2 to 5 / nodes (simulated with 16 and 256 nodes, 2026-11-22).

    Args:
        lanes: L.
        per_lane: samples of a lane in each batch.
        room: samples that each node takes of each batch. Their sum is lanes x per_lane.
        held: (L, nodes) bytes of each lane in each node's cache.

    Returns:
        (L, nodes) number of samples of each lane that each node takes of each batch.
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
    """Returns which samples of each lane one rank takes of a batch: a part of those that its node takes, by lane.

    Args:
        table: result of `split_lanes`.
        node: number of the rank's node.
        share: half-open part of the node's samples, in the order of the lanes, that is the rank's.
    """
    before = table[:, :node].sum(axis=1)
    stop = np.cumsum(table[:, node])
    start = stop - table[:, node]
    first, last = np.maximum(start, share.start), np.minimum(stop, share.stop)
    used = np.flatnonzero(first < last)
    begin = before + first - start
    return tuple(zip(used.tolist(), begin[used].tolist(), (last - first)[used].tolist(), strict=True))


class LaneSplit(RankSplit, frozen=True):
    """One rank's place in every global batch according to a table. The number of lanes divides the batch.

    Attributes:
        runs: result of `lane_runs`: the rank's samples of each lane, together `per_rank`.
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
