"""Orders rows so that batches cost every rank the same: rows of a lane change places inside superwindows.

`order/kinds/leveling.py` makes it for `balance=`, around the order of one dataset or of a mix, and
`batches/rows/explain.py` for predictions. A row is a row of packed documents, or a sample that is not packed. A
superwindow is some consecutive batches (`order/level.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import gcd
from typing import TYPE_CHECKING, cast

import numpy as np

from streamer.base.sorting import unique
from streamer.order.epoch import EpochOrder
from streamer.order.hashing import TAG_LEVEL, TAG_TURN, Flags, Integers, fold, fold_each
from streamer.order.level import MOST_ROWS, BalanceSpec, level, level_members, superwindow
from streamer.order.protocol import Batches, Needs
from streamer.order.rank_split import RankSplit, real_positions
from streamer.order.row_order import OuterOrder, RowOrder

if TYPE_CHECKING:
    from streamer.order.mix.order import MixOrder

# Returns the int64 cost of rows, from what the inner order calls them, and the epoch.
CostOf = Callable[[Integers, int], Integers]

# Superwindows that are kept of each lane: the running one, and the next one, which the look-ahead plans.
_KEPT = 2


class BalancedOrder(OuterOrder["RowOrder | EpochOrder | MixOrder"]):
    """A `SampleOrder` of equal cost per rank. Owned by one thread.

    It permutes positions inside of superwindows of `window` positions, counted from position 0. The rows behind the
    last whole batch stay where they are.

    Args:
        inner: the order of one epoch, shuffled; the number of its lanes divides the batch of the spec.
        spec: which costs are made level, and for which batch.
        cost: returns the costs of rows.
    """

    def __init__(self, inner: RowOrder | EpochOrder | MixOrder, spec: BalanceSpec, cost: CostOf) -> None:
        assert spec.batch % inner.lanes == 0, "the lanes divide the batch"
        super().__init__(inner)
        self._shuffled = cast("EpochOrder | MixOrder", inner.inner if isinstance(inner, RowOrder) else inner)
        self._spec = spec
        self._cost = cost
        self._rows = spec.batch // inner.lanes
        self._group = gcd(spec.rows, self._rows)
        self._turns = superwindow(self._rows, min(MOST_ROWS, self._shuffled.lane_opened))
        self._batches = inner.samples // spec.batch
        self._kept: OrderedDict[tuple[int, int], Integers] = OrderedDict()

    def __repr__(self) -> str:
        return f"BalancedOrder({self.inner!r}, {self._spec}, {self._turns} batches together)"

    def open_epoch(self, epoch: int) -> BalancedOrder:
        """Returns the order of another epoch, by the same costs."""
        return BalancedOrder(self.inner.open_epoch(epoch), self._spec, self._cost)

    @property
    def window(self) -> int:
        """Number of positions of a superwindow, over all lanes."""
        return self._turns * self._spec.batch

    def ordinals(self, positions: Integers) -> Integers:
        """Returns the rows at some positions: (N,). Positions from `samples` on repeat rows, as in the inner order.

        Raises:
            ConfigError: a negative position.
        """
        real = real_positions(np.asarray(positions, dtype=np.int64), self.samples, self.lanes)
        return self.inner.ordinals(self._sources(real))

    def repeats(self, positions: Integers) -> Flags:
        """Returns which positions only fill a batch up: (N,). Rows that repeat others change places, too."""
        return self.inner.repeats(np.where(positions < self.samples, self._sources(positions), positions))

    def needs(self, split: RankSplit, run: Batches) -> list[Needs]:
        """Returns the chunks that a rank uses in a run of batches; see `SampleOrder.needs`.

        A chunk that a superwindow uses counts as used in all of it. Rows stay in their lanes, so that a rank needs no
        other chunks than in the inner order.
        """
        low, high = self._widen(np.array([run.first_position]), np.array([run.stop_position - 1]))
        begin = (int(low[0]) - run.origin) // run.size
        end = (int(high[0]) - run.origin) // run.size + 1
        wide = Batches(run.origin, run.size, begin, end)
        found = []
        for needs in self.inner.needs(split, wide):
            start = run.origin + needs.first * run.size
            stop = run.origin + (needs.last + 1) * run.size
            first, last = self._widen(start, stop - 1)
            used = (first < run.stop_position) & (last >= run.first_position)
            found.append(Needs(needs.chunk[used], run.number(first[used]), run.number(last[used]), needs.passes[used]))
        return found

    def chunk_lanes(self, chunks: int) -> Integers:
        """Returns the lane of each of `chunks` chunks as the inner order does: (M,). Not for a mix."""
        return cast("RowOrder | EpochOrder", self.inner).chunk_lanes(chunks)

    def count_drawn(self, position: int) -> Integers:
        """Returns how many rows of each member of a mix the inner order has before a position."""
        return cast("RowOrder | MixOrder", self.inner).count_drawn(position)

    def _widen(self, first: Integers, last: Integers) -> tuple[Integers, Integers]:
        """Returns the first and the last position of the superwindows that have runs of positions: (N,) each.

        Args:
            first: (N,) first position of each run; may be negative.
            last: (N,) last position of each run.
        """
        whole = self._batches * self._spec.batch
        low = np.where(first < whole, first // self.window * self.window, first)
        high = np.where(last < whole, np.minimum((last // self.window + 1) * self.window, whole) - 1, last)
        return np.minimum(low, first), np.maximum(high, last)

    def _sources(self, positions: Integers) -> Integers:
        """Returns the positions of the inner order whose rows come at some positions: (N,). Keeps superwindows."""
        index, lanes = np.divmod(positions, self.lanes)
        windows, places = np.divmod(index, self._turns * self._rows)
        found = positions.copy()
        moved = np.flatnonzero(index < self._batches * self._rows)
        cells = windows[moved] * self.lanes + lanes[moved]
        for cell in unique(cells).tolist():
            window, lane = divmod(cell, self.lanes)
            if (lane, window) not in self._kept:
                while len(self._kept) >= _KEPT * self.lanes:
                    self._kept.popitem(last=False)
                self._kept[lane, window] = self._level_lane(lane, window)
            mine = moved[cells == cell]
            found[mine] = self._kept[lane, window][places[mine]] * self.lanes + lane
        return found

    def _level_lane(self, lane: int, window: int) -> Integers:
        """Returns the new order of the rows of a superwindow in a lane, as numbers of the rows in the lane."""
        first = window * self._turns
        turns = min(self._turns, self._batches - first)
        index = np.arange(first * self._rows, (first + turns) * self._rows)
        rows = self.inner.ordinals(index * self.lanes + lane)
        costs = self._cost(rows, self.epoch)
        seed = self._shuffled.spec.seed
        keys = fold_each(fold(seed, TAG_LEVEL, self.epoch, lane), index[:: self._group])
        turn_keys = fold_each(fold(seed, TAG_TURN, self.epoch), np.arange(first, first + turns))
        if isinstance(self._shuffled, EpochOrder):
            found: Integers = index[level(costs=costs, turns=turns, group=self._group, keys=keys, turn_keys=turn_keys)]
        else:
            members = self._shuffled.codes.members(rows)
            found = index[
                level_members(costs=costs, members=members, group=self._group, keys=keys, turn_keys=turn_keys)
            ]
        return found
