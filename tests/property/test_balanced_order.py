"""Balanced batches: a permutation inside of superwindows, the same on any ranks, from any state, of level cost."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.order import EpochOrder, OrderSpec, RankPlan, State
from streamer.order.balanced_order import BalancedOrder
from streamer.order.level import BalanceSpec
from streamer.order.row_order import RowOrder
from streamer.order.rows.sets import make_sets
from streamer.order.rows.spec import RowSpec

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Balanced:
    """Sets of rows with random costs, in an order of some lanes."""

    def __init__(self, seed: int, batch: int, lanes: int, group: int, sets: int = 30, mean: int = 20) -> None:
        random = np.random.default_rng(seed)
        self.counts = random.integers(1, 2 * mean, sets)
        self.cost = (random.lognormal(0, 1, int(self.counts.sum())) * 1000).astype(np.int64)
        self.sets = make_sets(np.ones(4 * sets, np.int64), 4, shuffle=True)
        self.first = np.append(0, np.cumsum(self.counts))
        self.batch, self.group = batch, group
        self.spec = OrderSpec(
            "d" * 32, seed, "block", lanes, 4 * lanes, rows=RowSpec(64), balance=BalanceSpec(group, 1, 0, batch)
        )

    def plain(self, epoch: int) -> RowOrder:
        return RowOrder(EpochOrder(self.spec, self.counts, epoch), self.sets)

    def order(self, epoch: int) -> BalancedOrder:
        return BalancedOrder(self.plain(epoch), self.spec.balance, lambda rows, _: self.cost[rows])

    def chunks_of(self, row: int) -> list[int]:
        return self.sets.chunks(int(np.searchsorted(self.first, row, side="right")) - 1).tolist()


@st.composite
def balanced(draw):
    lanes = draw(st.sampled_from([1, 2, 4]))
    group = draw(st.sampled_from([1, 2, 3]))
    batch = lanes * group * draw(st.integers(1, 3))
    return Balanced(draw(st.integers(0, 99)), batch, lanes, group)


@SLOW
@given(balanced(), st.integers(0, 2))
def test_every_row_once_and_the_same_batches_on_any_ranks(data, epoch):
    """Also where a position is looked up alone, and where the batch is filled up."""
    order = data.order(epoch)
    everything = order.ordinals(np.arange(order.samples))
    assert sorted(everything.tolist()) == list(range(order.samples))
    some = np.random.default_rng(0).permutation(order.samples)[:50]
    assert (data.order(epoch).ordinals(some) == everything[some]).all()
    whole = RankPlan(order, data.batch, 1, 0, "fill")
    for world in (w for w in (2, 3, 4) if data.batch % w == 0):
        plans = [RankPlan(data.order(epoch), data.batch, world, rank, "fill") for rank in range(world)]
        for number in {0, whole.batches // 2, whole.batches - 1}:
            parts = np.concatenate([plan.batch(number).ordinals for plan in plans])
            assert Counter(parts.tolist()) == Counter(whole.batch(number).ordinals.tolist())


@SLOW
@given(balanced(), st.integers(0, 60), st.sampled_from([0, 1, 5]))
def test_rows_stay_in_their_superwindow_and_lane(data, start, more):
    """The schedule of a rank names all chunks of the rows that it reads, from any batch on, of any size."""
    size = data.batch + more
    order = data.order(1)
    positions = np.arange(order.samples)
    sources = order._sources(positions)
    assert (sources % order.lanes == positions % order.lanes).all()
    assert (np.abs(sources - positions) < order.window).all()
    plan = RankPlan(order, size, 1, 0, "short", start=min(3 * more, order.samples))
    first = min(start, plan.batches - 1)
    schedule = plan.schedule(first)
    spans = {
        int(chunk): (begin, end)
        for chunk, begin, end in zip(schedule.chunk, schedule.first, schedule.last, strict=True)
    }
    for number in range(first, plan.batches):
        for row in plan.batch(number).ordinals.tolist():
            assert all(spans[chunk][0] <= number <= spans[chunk][1] for chunk in data.chunks_of(row))


@SLOW
@given(balanced(), st.integers(0, 60), st.sampled_from([1, 2, 6]))
def test_a_state_goes_on_with_other_batches(data, stop, other):
    """The batches stay those of the state's batch size: every row once."""
    order = data.order(1)
    plan = RankPlan(order, data.batch, 1, 0, "short")
    before = min(stop, plan.batches - 1)
    state = State.from_dict(State(data.spec, 1, plan.position(before), data.batch).to_dict())
    state.check(data.spec)
    resume = state.resume(order.samples, other, "short")
    rest = RankPlan(data.order(1), other, 1, 0, "short", start=resume.start)
    rows = [plan.batch(number).ordinals for number in range(before)]
    rows += [rest.batch(number).ordinals for number in range(resume.batch, rest.batches)]
    assert Counter(np.concatenate(rows).tolist()) == Counter(range(order.samples))


@pytest.mark.parametrize(("ranks", "rows", "most"), [(8, 4, 1.2), (8, 1, 1.35), (16, 2, 1.3)])
def test_ranks_cost_the_same(ranks, rows, most):
    """Costs that differ by a factor of ten and more: the dearest rank of a step, by the mean of all."""
    data = Balanced(0, ranks * rows, 2, rows, sets=200, mean=60)
    apart = []
    for order in (data.plain(0), data.order(0)):
        plan = RankPlan(order, data.batch, 1, 0, "drop")
        sums = [
            data.cost[plan.batch(number).ordinals].reshape(ranks, rows).sum(axis=1) for number in range(plan.batches)
        ]
        apart.append(np.mean([own.max() / own.mean() for own in sums]))
    assert apart[1] < most < apart[0] - 0.3
