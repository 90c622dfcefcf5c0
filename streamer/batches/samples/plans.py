"""The batches of one rank: the recipe that says which, and their plans, epoch by epoch. Imports no torch."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.codes import StreamCodes
from streamer.batches.samples.opened import MemberRecipe, Members
from streamer.order.kinds import find_orders
from streamer.order.kinds.kind import NO_ROUNDS, NoRounds, RankView
from streamer.order.kinds.leveling import find_level
from streamer.order.lane_split import LaneRun
from streamer.order.plan import LastBatch, RankPlan
from streamer.order.protocol import Order
from streamer.order.rank_split import RankSplit

if TYPE_CHECKING:
    from streamer.order.balanced_order import BalancedOrder
    from streamer.order.epoch import EpochOrder
    from streamer.order.growing import Rounds
    from streamer.order.mix import MixOrder
    from streamer.order.row_order import RowOrder
    from streamer.order.state import AnySpec

Integers = npt.NDArray[np.int64]

# The running epoch and the next one, which the look-ahead plans.
_PLANS_KEPT = 2


class BatchRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of one rank's batches; small, and without torch unless a transform uses it.

    Attributes:
        members: the datasets; one, or those of a mix in their order.
        spec: the order.
        rank, world_size: of this rank.
        global_batch: samples of a batch over all ranks.
        last_batch: what becomes of an incomplete last batch.
        roots: cache folders as this machine sees them.
        entry: epoch and position in it at which a resumed run began: the batches of that epoch are numbered from there.
        runs: the rank's samples of each lane of a batch, where each rank reads what its node holds.
    """

    members: tuple[MemberRecipe, ...]
    spec: AnySpec
    rank: int
    world_size: int
    global_batch: int
    last_batch: LastBatch
    roots: tuple[Path, ...]
    entry: tuple[int, int] = (0, 0)
    runs: tuple[LaneRun, ...] = ()

    def start(self, epoch: int) -> int:
        """Returns the position in an epoch at which its batch 0 begins."""
        return self.entry[1] if epoch == self.entry[0] else 0

    @property
    def split(self) -> RankSplit:
        """The rank's place in every global batch."""
        return RankSplit(self.spec.lanes, self.global_batch, self.world_size, self.rank)


class Plans:
    """Caches the plans of the last epochs; building one costs tens of milliseconds for large manifests."""

    def __init__(self, recipe: BatchRecipe, members: Members, rounds: Rounds | NoRounds = NO_ROUNDS) -> None:
        self._recipe = recipe
        self._order = _first_order(recipe, members, rounds)
        self._chunks = members.first_chunks[-1]
        self._kept: OrderedDict[int, RankPlan] = OrderedDict()

    def plan(self, epoch: int) -> RankPlan:
        """The rank's plan of an epoch."""
        # Looked up once: another thread may plan another epoch meanwhile.
        plan = self._kept.get(epoch)
        if plan is None:
            plan = self._kept[epoch] = self._build(epoch)
            while len(self._kept) > _PLANS_KEPT:
                self._kept.popitem(last=False)
        return plan

    def _build(self, epoch: int) -> RankPlan:
        recipe = self._recipe
        # From the order of the last epoch, which has computed the parts that are equal in all epochs.
        self._order = order = self._order.at(epoch)
        geometry = recipe.global_batch, recipe.world_size, recipe.rank, recipe.last_batch
        return RankPlan(order, *geometry, start=order.origin + recipe.start(epoch), runs=recipe.runs)

    def chunk_lanes(self) -> Integers:
        """Returns each chunk's lane in one dataset, (M,); -1: no sample of it is selected. Not for a redrawn cut."""
        return cast("EpochOrder | RowOrder | BalancedOrder", self._order).chunk_lanes(self._chunks)

    def drawn(self, epoch: int, position: int) -> Integers:
        """Returns a mix's samples by member among the first `position` positions of an epoch: (members,)."""
        return cast("MixOrder | RowOrder", self.plan(epoch).order).drawn(position)


def _first_order(recipe: BatchRecipe, members: Members, rounds: Rounds | NoRounds) -> Order:
    """The order of the epoch in which a run begins."""
    view = RankView(recipe.split, recipe.entry, rounds)
    order = find_orders(recipe.spec).order(members.each, recipe.entry[0], view)
    codes = StreamCodes(recipe.spec, members)
    return find_level(recipe.spec.balance).apply(members.map_to_chunks(order), codes.costs)
