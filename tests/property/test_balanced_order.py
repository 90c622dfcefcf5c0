"""Balanced batches: a permutation inside of superwindows, the same on any ranks, from any state, of level cost."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.order import EpochOrder, OrderSpec, RankPlan, State
from streamer.order.balanced_order import BalancedOrder
from streamer.order.level import BalanceSpec
from streamer.order.mix import MemberChunks, MixOrder, MixSource
from streamer.order.row_order import RowOrder
from streamer.order.rows.sets import make_sets
from streamer.order.rows.spec import RowSpec
from tests.mixes import request

SLOW = settings(suppress_health_check=[HealthCheck.too_slow])


class Balanced:
    """Sets of rows with random costs, or chunks of samples, of one dataset or of a mix, in an order of some lanes."""

    def __init__(
        self, seed: int, batch: int, lanes: int, group: int, *, of: str = "rows", sets: int = 30, mean: int = 20
    ) -> None:
        random = np.random.default_rng(seed)
        self.counts = random.integers(1, 2 * mean, sets)
        self.cost = (random.lognormal(0, 1, int(self.counts.sum())) * 1000).astype(np.int64)
        self.sets = make_sets(np.ones(4 * sets, np.int64), 4, shuffle=True) if "rows" in of else None
        self.first = np.append(0, np.cumsum(self.counts))
        self.batch, self.of = batch, of
        # Of a mix: the sets of each of its three members, and the rows before them.
        ends = (0, 3, sets // 2, sets) if "mix" in of else (0, sets)
        self.parts = [slice(*two) for two in pairwise(ends)]
        self.before = np.array([self.first[part.start] for part in self.parts])
        balance, parts = BalanceSpec(group, 1, 0, batch), {"rows": RowSpec(64)} if self.sets else {}
        if "mix" not in of:
            self.spec = OrderSpec("d" * 32, seed, "block", lanes, 4 * lanes, balance=balance, **parts)
            return
        sources = [
            MixSource(f"m{number}", "d" * 32, self.counts[part], seed + number, **parts)
            for number, part in enumerate(self.parts)
        ]
        said = {"seed": seed, "batching": of.split()[1], "lanes": lanes, "weights": {"m0": 2, "m1": 1, "m2": 1}}
        made = request([source.name for source in sources], **said, epoch_samples=int(self.counts.sum()))
        self.spec = msgspec.structs.replace(made, balance=balance).spec(sources, batch)

    def plain(self, epoch: int) -> RowOrder | EpochOrder | MixOrder:
        if isinstance(self.spec, OrderSpec):
            inner = EpochOrder(self.spec, self.counts, epoch)
        else:
            inner = MixOrder(self.spec, [self._chunks(part) for part in self.parts], epoch)
        return inner if self.sets is None else RowOrder(inner, self.sets)

    def order(self, epoch: int) -> BalancedOrder:
        return BalancedOrder(self.plain(epoch), self.spec.balance, lambda rows, _: self.cost[self.numbers(rows)])

    def members(self, codes: np.ndarray) -> np.ndarray:
        return codes >> 48

    def numbers(self, codes: np.ndarray) -> np.ndarray:
        """The rows of all members that codes stand for, in one sequence."""
        samples = np.array([self.counts[part].sum() for part in self.parts])[self.members(codes)]
        return self.before[self.members(codes)] + (codes & (1 << 48) - 1) % samples

    def chunks_of(self, code: int) -> list[int]:
        number = int(np.searchsorted(self.first, self.numbers(np.array([code]))[0], side="right")) - 1
        return [number] if self.sets is None else self.sets.chunks(number).tolist()

    def _chunks(self, part: slice) -> MemberChunks:
        return MemberChunks(self.counts[part], np.append(0, np.cumsum(self.counts[part])), part.start)


KINDS = ["rows", "samples", "mix stratified", "mix random", "mix homogeneous", "mix stratified rows"]


@st.composite
def balanced(draw):
    lanes = draw(st.sampled_from([1, 2, 4]))
    group = draw(st.sampled_from([1, 2, 3]))
    batch = lanes * group * draw(st.integers(1, 3))
    return Balanced(draw(st.integers(0, 99)), batch, lanes, group, of=draw(st.sampled_from(KINDS)))


@SLOW
@given(balanced(), st.integers(0, 2))
def test_every_row_once_and_the_same_batches_on_any_ranks(data, epoch):
    """A balanced epoch has the rows of the plain one, and each batch is the same for any number of ranks.
    A position that is looked up alone has the same row; a batch that is filled up counts, too.
    """
    order = data.order(epoch)
    positions = np.arange(order.samples)
    everything, plain = order.ordinals(positions), data.plain(epoch).ordinals(positions)
    assert sorted(everything.tolist()) == sorted(plain.tolist())
    assert (data.members(everything) == data.members(plain)).all(), "a mix keeps the shares of its batches"
    real, of_plain = order.repeats(positions), data.plain(epoch).repeats(positions)
    assert sorted(everything[real].tolist()) == sorted(plain[of_plain].tolist())
    some = np.random.default_rng(0).permutation(order.samples)[:50]
    assert (data.order(epoch).ordinals(some) == everything[some]).all()
    assert (
        (order.count_drawn(order.samples) == data.plain(epoch).count_drawn(order.samples)).all()
        if "mix" in data.of
        else True
    )
    whole = RankPlan(order, data.batch, 1, 0, "fill")
    for world in (w for w in (2, 3, 4, 8) if data.batch % w == 0):
        plans = [RankPlan(order, data.batch, world, rank, "fill") for rank in range(world)]
        for number in {0, whole.batches // 2, whole.batches - 1}:
            parts = np.concatenate([plan.batch(number).ordinals for plan in plans])
            assert Counter(parts.tolist()) == Counter(whole.batch(number).ordinals.tolist())


@SLOW
@given(balanced(), st.integers(0, 60), st.sampled_from([0, 1, 5]))
def test_rows_stay_in_their_superwindow_and_lane(data, start, more):
    """Balancing moves a row within its lane and by less than a window; a rank's schedule names all chunks of its rows
    from any batch on, for batches of any size.
    """
    size = data.batch + more
    order = data.order(1)
    positions = np.arange(order.samples)
    sources = order._sources(positions)
    assert (sources % order.lanes == positions % order.lanes).all()
    assert (np.abs(sources - positions) < order.window).all()
    plan = RankPlan(order, size, 1, 0, "short", start=min(3 * more, order.samples))
    first = min(start, plan.batches - 1)
    schedule = plan.schedule(first)
    # Several of a chunk in a mix: one for each pass.
    spans = defaultdict(list)
    for chunk, begin, end in zip(schedule.chunk.tolist(), schedule.first, schedule.last, strict=True):
        spans[chunk].append((begin, end))
    for number in range(first, plan.batches):
        for row in plan.batch(number).ordinals.tolist():
            for chunk in data.chunks_of(row):
                assert any(begin <= number <= end for begin, end in spans[chunk])


@SLOW
@given(balanced(), st.integers(0, 60), st.sampled_from([1, 2, 6]))
def test_a_state_goes_on_with_other_batches(data, stop, other):
    """A balanced epoch that is resumed with another batch size delivers every row once over both runs:
    its order stays that of the state's batch size.
    """
    order = data.order(1)
    plan = RankPlan(order, data.batch, 1, 0, "short")
    before = min(stop, plan.batches - 1)
    state = State.from_dict(State(data.spec, 1, plan.position(before), data.batch).to_dict())
    state.check(data.spec)
    resume = state.resume(order.samples, other, "short")
    rest = RankPlan(data.order(1), other, 1, 0, "short", start=resume.start)
    rows = [plan.batch(number).ordinals for number in range(before)]
    rows += [rest.batch(number).ordinals for number in range(resume.batch, rest.batches)]
    assert Counter(np.concatenate(rows).tolist()) == Counter(order.ordinals(np.arange(order.samples)).tolist())


@pytest.mark.parametrize(
    ("of", "ranks", "rows", "most"),
    [
        ("rows", 8, 4, 1.2),
        ("rows", 8, 1, 1.35),
        ("rows", 16, 2, 1.3),
        ("samples", 8, 4, 1.2),
        # What a member's share of a group leaves unequal stays.
        ("mix stratified", 8, 4, 1.3),
        ("mix stratified rows", 16, 2, 1.6),
    ],
)
def test_ranks_cost_the_same(of, ranks, rows, most):
    """Balanced batches lower the dearest rank of a step, over the mean of all, by more than 0.3, to below its limit
    where costs differ by a factor of ten and more.
    """
    data = Balanced(0, ranks * rows, 2, rows, of=of, sets=200, mean=60)
    apart = []
    for order in (data.plain(0), data.order(0)):
        plan = RankPlan(order, data.batch, 1, 0, "drop")
        sums = [
            data.cost[data.numbers(plan.batch(number).ordinals)].reshape(ranks, rows).sum(axis=1)
            for number in range(plan.batches)
        ]
        apart.append(np.mean([own.max() / own.mean() for own in sums]))
    assert apart[1] < most < apart[0] - 0.3
