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
from streamer.order.epoch import EpochOrder
from streamer.order.lane_split import LaneRun
from streamer.order.level import BalanceSpec
from streamer.order.plan import LastBatch, RankPlan
from streamer.order.rank_split import RankSplit
from streamer.order.spec import OrderSpec

if TYPE_CHECKING:
    from streamer.order.balanced_order import BalancedOrder
    from streamer.order.growing import GrowingOrder, Rounds
    from streamer.order.mix import MixOrder
    from streamer.order.mix.spec import MixSpec
    from streamer.order.row_order import RowOrder

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
        epoch_samples: of a growing dataset, samples of an epoch over all ranks; 0: it does not grow.
    """

    members: tuple[MemberRecipe, ...]
    spec: OrderSpec | MixSpec
    rank: int
    world_size: int
    global_batch: int
    last_batch: LastBatch
    roots: tuple[Path, ...]
    entry: tuple[int, int] = (0, 0)
    runs: tuple[LaneRun, ...] = ()
    epoch_samples: int = 0

    def start(self, epoch: int) -> int:
        """Returns the position in an epoch at which its batch 0 begins."""
        return self.entry[1] if epoch == self.entry[0] else 0

    @property
    def split(self) -> RankSplit:
        """The rank's place in every global batch."""
        return RankSplit(self.spec.lanes, self.global_batch, self.world_size, self.rank)

    @property
    def growing_lanes(self) -> Integers:
        """The lanes that the rank draws from in any epoch of a growing dataset."""
        lanes = self.spec.lanes
        batch = self.global_batch
        # Else the batches of each epoch begin in other lanes; only after a resume with another batch size.
        if self.epoch_samples % batch and batch % lanes:
            return np.arange(lanes, dtype=np.int64)
        return self.split.rank_lanes(self.entry[0] * self.epoch_samples + self.entry[1])


class Plans:
    """Caches the plans of the last epochs; building one costs tens of milliseconds for large manifests."""

    def __init__(self, recipe: BatchRecipe, members: Members, rounds: Rounds | None = None) -> None:
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


def _first_order(
    recipe: BatchRecipe, members: Members, rounds: Rounds | None
) -> EpochOrder | MixOrder | GrowingOrder | RowOrder | BalancedOrder:
    """The order of the epoch in which a run begins. What one dataset does not need is only loaded for others."""
    epoch = recipe.entry[0]
    order: EpochOrder | MixOrder | GrowingOrder | RowOrder
    order = shuffled = _shuffled(recipe, members, epoch, rounds)
    if rows := [member.rows for member in members.each if member.rows is not None]:
        from streamer.order.row_order import RowOrder, joined_sets

        sets = joined_sets(list(zip([one.sets for one in rows], members.first_chunks, strict=False)))
        order = RowOrder(shuffled, sets)
    balance = recipe.spec.balance
    if not isinstance(balance, BalanceSpec):
        return order
    from streamer.order.balanced_order import BalancedOrder

    codes = StreamCodes(recipe.spec, members)
    coefficients = (balance.linear, balance.quadratic)
    inner = cast("EpochOrder | MixOrder | RowOrder", order)
    return BalancedOrder(inner, balance, lambda rows, of: codes.costs(of, rows, coefficients))


def _shuffled(
    recipe: BatchRecipe, members: Members, epoch: int, rounds: Rounds | None
) -> EpochOrder | MixOrder | GrowingOrder:
    """The order of samples, or of rows, whose chunks are sets then."""
    if rounds is not None:
        from streamer.order.growing import GrowingOrder

        return GrowingOrder(rounds, recipe.growing_lanes, recipe.epoch_samples, epoch)
    if isinstance(recipe.spec, OrderSpec):
        only = members.each[0]
        words = only.manifest.chunk_words if recipe.spec.cut == "by_key" else None
        if words is not None and only.rows is not None:
            words = words[only.rows.sets.all_chunks[only.rows.sets.first[:-1]]]
        return EpochOrder(recipe.spec, only.order_samples, epoch, chunk_words=words)
    from streamer.order.mix import MemberChunks, MixOrder

    bases = members.first_chunks if members.each[0].rows is None else members.first_sets
    chunks = [
        MemberChunks(member.order_samples, member.order_first, base)
        for member, base in zip(members.each, bases, strict=False)
    ]
    return MixOrder(recipe.spec, chunks, max(epoch, recipe.spec.origin_epoch))
