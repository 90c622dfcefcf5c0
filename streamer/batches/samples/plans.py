"""Plans the batches of one rank, epoch by epoch, and says what the codes of their samples mean. Imports no torch.

Plans, workers and messages carry a sample as one int64, its code. Of a dataset alone that is the ordinal in its
manifest. In a mix it has the member and the pass as well, see `streamer.order.mix.streams`: a sample that comes twice
in an epoch has two codes, so that each use gets random numbers of its own. A growing dataset has codes as a mix of one
member has them, with a number for each use instead of the pass. Where documents are packed, plans have codes of rows,
workers and messages those of documents. `streamer.order.kinds` has the codes of each kind of order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.batches.samples.opened import MemberRecipe, Members
from streamer.order.kinds import find_orders
from streamer.order.kinds.kind import NO_ROUNDS, NoRounds, RankView, Uses
from streamer.order.kinds.leveling import find_level
from streamer.order.plan import LastBatch, RankPlan
from streamer.order.protocol import SampleOrder
from streamer.order.rank_split import LaneRun, RankSplit

if TYPE_CHECKING:
    from streamer.batches.rows.pieces import Pieces
    from streamer.order.balanced_order import BalancedOrder
    from streamer.order.epoch import EpochOrder
    from streamer.order.growing import Rounds
    from streamer.order.mix import MixOrder
    from streamer.order.row_order import RowOrder
    from streamer.order.state import AnySpec


class StreamCodes:
    """Reads the codes of one stream."""

    def __init__(self, spec: AnySpec, members: Members) -> None:
        self._members = members
        self._book = find_orders(spec).codes(members.each)
        self._seeds = [order.seed for order in spec.orders]

    def encode(self, ordinals: Integers) -> Integers:
        """The codes of what the order calls its samples; of rows, what the order calls them."""
        return self._members.each[0].rows.codes(self._book, ordinals)

    def documents(self, epoch: int, rows: Integers) -> tuple[Integers, Pieces]:
        """The documents of some rows: their codes, and which tokens of them are in each row.

        Args:
            epoch: Epoch of the rows.
            rows: (N,) what the order calls them.
        """
        from streamer.batches.rows.pieces import Pieces

        members, numbers, turns = self._parts(rows)
        found = []
        pieces = []
        for member, number, turn in zip(members.tolist(), numbers, turns.tolist(), strict=True):
            run = self._book.content(epoch, member, turn)
            pieces.append(part := self._members.each[member].rows.pieces(number, self._seeds[member], run))
            same = np.ones_like(part.document)
            found.append(self._book.encode(member * same, turn * same, part.document))
        return np.concatenate(found), Pieces.join(pieces)

    def costs(self, epoch: int, rows: Integers, coefficients: tuple[int, int]) -> Integers:
        """Returns the costs of some rows, or samples that are not packed: (N,).

        Args:
            epoch: Epoch of the rows.
            rows: (N,) what the order calls them.
            coefficients: Coefficients of the tokens of a document or sample, and of their square.
        """
        members, numbers, turns = self._parts(rows)
        found = np.empty(len(rows), np.int64)
        # A member has a few passes in an epoch.
        for member, turn in sorted(set(zip(members.tolist(), turns.tolist(), strict=True))):
            mine = (members == member) & (turns == turn)
            run = self._book.content(epoch, member, turn)
            data = self._members.each[member]
            found[mine] = data.costs(numbers[mine], self._seeds[member], run, coefficients)
        return found

    def uses(self, epoch: int, codes: Integers) -> Sequence[Uses]:
        """Returns the samples that codes stand for in an epoch, by member."""
        return self._book.uses(epoch, codes)

    def members(self, codes: Integers) -> Integers:
        """Returns the number of the member of each code: (N,)."""
        return self._book.members(codes)

    def first_of_each(self, codes: Integers) -> dict[int, int]:
        """Returns the members of the samples of a batch, each with the place of its first sample."""
        return self._book.first_of_each(codes)

    def locate(self, code: int) -> tuple[int, int]:
        """Number of the member, and of the sample in its selection."""
        return self._book.locate(code)

    def _parts(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Returns member, number in it and pass of what the order calls rows."""
        return self._book.parts(rows, self._members.order_samples)


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
        # The order of the epoch in which the run begins.
        view = RankView(recipe.split, recipe.entry, rounds)
        order = find_orders(recipe.spec).order(members.each, recipe.entry[0], view)
        costs = StreamCodes(recipe.spec, members).costs
        self._order: SampleOrder = find_level(recipe.spec.balance).apply(members.map_to_chunks(order), costs)
        self._chunks = members.first_chunks[-1]
        self._kept: OrderedDict[int, RankPlan] = OrderedDict()

    def plan(self, epoch: int) -> RankPlan:
        """The rank's plan of an epoch."""
        # Looked up once: another thread may plan another epoch meanwhile.
        plan = self._kept.get(epoch)
        if plan is None:
            recipe = self._recipe
            # The order of the last epoch has computed the parts that are equal in all epochs.
            self._order = order = self._order.open_epoch(epoch)
            geometry = recipe.global_batch, recipe.world_size, recipe.rank, recipe.last_batch
            plan = RankPlan(order, *geometry, start=order.origin + recipe.start(epoch), runs=recipe.runs)
            self._kept[epoch] = plan
            while len(self._kept) > _PLANS_KEPT:
                self._kept.popitem(last=False)
        return plan

    def chunk_lanes(self) -> Integers:
        """Returns each chunk's lane in one dataset, (M,), or -1 without selected samples. Not for a redrawn cut."""
        return cast("EpochOrder | RowOrder | BalancedOrder", self._order).chunk_lanes(self._chunks)

    def count_drawn(self, epoch: int, position: int) -> Integers:
        """Returns a mix's samples by member among the first `position` positions of an epoch: (members,)."""
        return cast("MixOrder | RowOrder", self.plan(epoch).order).count_drawn(position)
