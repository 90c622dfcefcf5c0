"""Decides which rank takes which sample of a global batch.

A batch is the positions [a, a+B). Sorted by (lane, position) they are dealt in R equal runs, so a
rank draws from few lanes and needs the chunks of few lanes. The batch does not depend on R.
"""

from __future__ import annotations

from math import gcd

import msgspec
import numpy as np

from streamer.errors import ConfigError
from streamer.order.hashing import Flags, Integers


class RankSplit(msgspec.Struct, frozen=True):
    """One rank's place in every global batch.

    Attributes:
        lanes: L of the order.
        global_batch: B, samples.
        world: R, ranks; divides B.
        rank: 0 <= rank < R; the ranks of a node are consecutive.

    Raises:
        ConfigError: R does not divide B, or there is no such rank.
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
        """Samples of this rank per batch."""
        return self.global_batch // self.world

    def positions(self, starts: Integers) -> Integers:
        """Returns this rank's positions in batches that start at (G,) positions: (G, B/R), by lane, then position."""
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
        """The lanes this rank draws from in any batch of a run of batches from `start` on."""
        if self.global_batch % self.lanes == 0:
            share = self.global_batch // self.lanes
            low, high = self.rank * self.per_rank, (self.rank + 1) * self.per_rank - 1
            return np.arange(low // share, high // share + 1, dtype=np.int64)
        used = np.zeros(self.lanes, dtype=np.bool_)
        # If L does not divide B the ranks' lanes move, with a period of L / gcd(L, B) batches.
        for turn in range(self.lanes // gcd(self.lanes, self.global_batch)):
            used |= self._drawn(start + turn * self.global_batch)
        return np.flatnonzero(used).astype(np.int64)

    def _drawn(self, start: int) -> Flags:
        _, counts = self._lane_runs(np.array([start], dtype=np.int64))
        stop = np.cumsum(counts[0])
        low, high = self.rank * self.per_rank, (self.rank + 1) * self.per_rank
        drawn: Flags = (counts[0] > 0) & (stop > low) & (stop - counts[0] < high)
        return drawn

    def _lane_runs(self, starts: Integers) -> tuple[Integers, Integers]:
        """Returns the first position of each lane in each batch, and its number of positions there: (G, L)."""
        lane = np.arange(self.lanes, dtype=np.int64)
        first = starts[:, None] + (lane - starts[:, None]) % self.lanes
        counts = (starts[:, None] + self.global_batch - first + self.lanes - 1) // self.lanes
        return first, np.maximum(counts, 0)
