"""Plans the batches of one rank, epoch by epoch, and says what the codes of their samples mean. Imports no torch.

Workers plan the batches that they make (`batches/samples/recipe.py`), and the rank plans the chunks that it needs
(`loader/rank/rank_stream.py`). The audit of states plans batches again (`tools/audit_states.py`).

Plans, workers and messages carry a sample as one int64, its code. For one dataset the code is the ordinal in its
manifest. In a mix the code has the member and the pass as well, see `streamer.order.mix.streams`: a sample that comes
twice in an epoch has two codes, so that each use gets random numbers of its own. The codes of a growing dataset are
those of a mix of one member, with a number for each use instead of the pass. Where documents are packed, plans have
codes of rows, while workers and messages have those of documents. `streamer.order.kinds` has the codes of each kind of
order.
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
    """Makes and reads the codes of one stream. All arrays are int64.

    Args:
        spec: spec of the order.
        members: the opened datasets.
    """

    def __init__(self, spec: AnySpec, members: Members) -> None:
        self._members = members
        self._book = find_orders(spec).codes(members.each)
        self._seeds = [order.seed for order in spec.orders]

    def encode(self, ordinals: Integers) -> Integers:
        """Returns the codes of samples from the numbers that the order has for them, (N,). Rows keep these numbers."""
        return self._members.each[0].rows.codes(self._book, ordinals)

    def documents(self, epoch: int, rows: Integers) -> tuple[Integers, Pieces]:
        """Returns the documents of some rows: their codes, (T,), and which tokens of them are in each row.

        Args:
            epoch: Epoch of the rows.
            rows: (N,) codes of the rows.
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
            rows: (N,) numbers that the order has for them.
            coefficients: The pair (a, b) in the cost a x n + b x n**2 of a document or sample of n tokens.
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
        """Returns the members of the samples of a batch, each with the index of its first sample in `codes`."""
        return self._book.first_of_each(codes)

    def locate(self, code: int) -> tuple[int, int]:
        """Returns the number of the member, and the number of the sample in the member's selection."""
        return self._book.locate(code)

    def _parts(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Returns member, number in the member and pass of rows, or of samples, by the order's numbers: (N,) each."""
        return self._book.parts(rows, self._members.order_samples)


Integers = npt.NDArray[np.int64]

# Number of plans that `Plans` keeps: those of the running epoch and of the next one, which the look-ahead needs.
_PLANS_KEPT = 2


class BatchRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """All that decides one rank's batches. It is sent to workers: small, and without torch unless a transform uses it.

    Attributes:
        members: recipes of the datasets, one, or those of a mix in their order.
        spec: spec of the order.
        rank: number of this rank.
        world_size: number of ranks.
        global_batch: number of samples of a batch over all ranks.
        last_batch: what becomes of an incomplete last batch.
        roots: cache folders as this machine sees them.
        entry: epoch and position in it at which a resumed run began. The batches of that epoch are numbered from there.
        runs: the rank's samples of each lane of a batch, where each rank reads what its node holds, else ().
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
    """Makes the plans of epochs, and keeps the last two: one takes tens of milliseconds for large manifests.

    Args:
        recipe: what decides the rank's batches.
        members: the opened datasets of the recipe.
        rounds: rounds that are known, for a growing dataset only.
    """

    def __init__(self, recipe: BatchRecipe, members: Members, rounds: Rounds | NoRounds = NO_ROUNDS) -> None:
        self._recipe = recipe
        # The first order is that of the epoch in which the run begins; `plan` opens the other epochs from it.
        view = RankView(recipe.split, recipe.entry, rounds)
        order = find_orders(recipe.spec).order(members.each, recipe.entry[0], view)
        costs = StreamCodes(recipe.spec, members).costs
        self._order: SampleOrder = find_level(recipe.spec.balance).apply(members.map_to_chunks(order), costs)
        self._chunks = members.first_chunks[-1]
        self._kept: OrderedDict[int, RankPlan] = OrderedDict()

    def plan(self, epoch: int) -> RankPlan:
        """Returns the rank's plan of an epoch; errors as of `RankPlan`. Several threads may call it."""
        # Looked up once: another thread may plan another epoch meanwhile.
        plan = self._kept.get(epoch)
        if plan is None:
            recipe = self._recipe
            # The order that was used last has computed the parts that are equal in all epochs.
            self._order = order = self._order.open_epoch(epoch)
            geometry = recipe.global_batch, recipe.world_size, recipe.rank, recipe.last_batch
            plan = RankPlan(order, *geometry, start=order.origin + recipe.start(epoch), runs=recipe.runs)
            self._kept[epoch] = plan
            while len(self._kept) > _PLANS_KEPT:
                self._kept.popitem(last=False)
        return plan

    def chunk_lanes(self) -> Integers:
        """Returns the lane of each chunk of one dataset, (M,), or -1 for chunks without selected samples.

        Not for an order whose cut into lanes is drawn anew in each epoch.
        """
        return cast("EpochOrder | RowOrder | BalancedOrder", self._order).chunk_lanes(self._chunks)

    def count_drawn(self, epoch: int, position: int) -> Integers:
        """Returns a mix's samples by member among the first `position` positions of an epoch: (members,).

        Raises:
            ConfigError: see `plan`.
        """
        return cast("MixOrder | RowOrder", self.plan(epoch).order).count_drawn(position)
