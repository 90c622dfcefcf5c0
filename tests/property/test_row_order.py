"""The order of rows: the same batches on any ranks, every row once, and all chunks of a set where they are due."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.order import EpochOrder, OrderSpec, RankPlan, State
from streamer.order.balanced_order import BalancedOrder
from streamer.order.level import BalanceSpec
from streamer.order.mix import MixSource
from streamer.order.row_order import RowOrder, join_sets, row_window
from streamer.order.rows.content import RowContent, row_counts
from streamer.order.rows.sets import chunks_per_set, make_sets
from streamer.order.rows.spec import RowSpec
from streamer.order.spec import auto_lanes
from tests.documents import lengths
from tests.mixes import order as mix_order
from tests.mixes import request

SLOW = settings(suppress_health_check=[HealthCheck.too_slow])


class Packed:
    """A dataset of rows: its sets, its table, and orders of it."""

    def __init__(self, documents: int, chunks: int, seed: int, batch: int, *, shuffle: bool) -> None:
        random = np.random.default_rng(seed)
        self.costs = lengths(documents, 64, seed)
        cuts = np.sort(random.integers(0, documents + 1, chunks - 1))
        self.samples = np.diff([0, *cuts.tolist(), documents])
        first = np.append(0, np.cumsum(self.samples))
        self.rows = RowSpec(64, set_rows=8)
        per_set = chunks_per_set(self.samples, int(self.costs.sum()), 64, 8)
        self.sets = make_sets(self.samples, per_set, shuffle=shuffle)
        self.counts = row_counts(
            self.rows,
            self.sets,
            lambda number: np.concatenate([self.costs[first[c] : first[c + 1]] for c in self.sets.chunks(number)]),
        )
        self.first = np.append(0, np.cumsum(self.counts))
        lanes = auto_lanes(len(self.counts), batch) if shuffle else 1
        used = int(np.count_nonzero(self.samples))
        window = row_window(len(self.counts), used, batch, lanes, None) if shuffle else 1
        mode = "block" if shuffle else "none"
        self.spec = OrderSpec("d" * 32, seed, mode, lanes, window, rows=self.rows)

    def order(self, epoch: int) -> RowOrder:
        return RowOrder(EpochOrder(self.spec, self.counts, epoch), self.sets)

    def chunks_of(self, row: int) -> list[int]:
        return self.sets.chunks(int(np.searchsorted(self.first, row, side="right")) - 1).tolist()


@st.composite
def packed(draw):
    batch = draw(st.sampled_from([1, 4, 12]))
    chunks = draw(st.integers(1, 60))
    documents = draw(st.integers(20, 600))
    return Packed(documents, chunks, draw(st.integers(0, 99)), batch, shuffle=draw(st.booleans())), batch


@SLOW
@given(packed(), st.integers(0, 3))
def test_batches_do_not_depend_on_ranks(given_data, epoch):
    """An epoch has every row once, and the rows of a batch are the same for any number of ranks."""
    data, batch = given_data
    order = data.order(epoch)
    whole = RankPlan(order, batch, 1, 0, "fill")
    worlds = [
        [RankPlan(order, batch, world, rank, "fill") for rank in range(world)]
        for world in (2, 3, 4, 12)
        if batch % world == 0
    ]
    found = Counter()
    for number in range(whole.batches):
        rows = whole.batch(number)
        found.update(rows.ordinals[~rows.repeated].tolist())
        for plans in worlds:
            parts = [plan.batch(number).ordinals for plan in plans]
            assert sorted(np.concatenate(parts).tolist()) == sorted(rows.ordinals.tolist())
    assert found == Counter(range(int(data.counts.sum())))


@SLOW
@given(packed(), st.integers(0, 2))
def test_every_chunk_of_a_set_is_there_for_each_of_its_rows(given_data, epoch):
    """The schedule of a rank covers all chunks of the set of each of its rows, also where the batch is filled up."""
    data, batch = given_data
    for world in (w for w in (1, 4) if batch % w == 0):
        for rank in range(world):
            plan = RankPlan(data.order(epoch), batch, world, rank, "fill")
            schedule = plan.schedule()
            spans = {
                int(chunk): (first, last)
                for chunk, first, last in zip(schedule.chunk, schedule.first, schedule.last, strict=True)
            }
            for number in range(plan.batches):
                for row in plan.batch(number).ordinals.tolist():
                    for chunk in data.chunks_of(row):
                        assert spans[chunk][0] <= number <= spans[chunk][1]


@SLOW
@given(packed(), st.integers(0, 200), st.sampled_from([1, 2, 4, 12]))
def test_a_state_goes_on_with_other_ranks_and_batches(given_data, stop, other):
    """Rows delivered before a state and after it are together each row once, whatever the batch after it."""
    data, batch = given_data
    order = data.order(1)
    plan = RankPlan(order, batch, 1, 0, "short")
    before = min(stop, plan.batches - 1)
    saved = State(data.spec, 1, plan.position(before), batch).to_dict()
    state = State.from_dict(saved)
    state.check(data.spec)
    resume = state.resume(order.samples, other, "short")
    rest = RankPlan(data.order(resume.epoch), other, 1, 0, "short", start=resume.start)
    rows = [plan.batch(number).ordinals for number in range(before)]
    rows += [rest.batch(number).ordinals for number in range(resume.batch, rest.batches)]
    assert Counter(np.concatenate(rows).tolist()) == Counter(range(order.samples))


@SLOW
@given(packed())
def test_the_chunks_of_a_set_are_in_its_lane(given_data):
    """All chunks of a set are in the set's lane, so that a node keeps whole sets; an empty chunk is in no lane."""
    data, _ = given_data
    order = data.order(0)
    if data.spec.shuffle == "none":
        return
    lanes, of_sets = order.chunk_lanes(len(data.samples)), order.inner.cut.chunk_lanes(len(data.counts))
    assert (lanes[data.samples == 0] == -1).all()
    for number in range(len(data.counts)):
        assert set(lanes[data.sets.chunks(number)].tolist()) == {of_sets[number]}


@pytest.mark.parametrize("balance", [False, True])
def test_each_chunk_is_fetched_by_one_node(balance):
    """Four nodes of two ranks each fetch together at most 2 % more than all chunks, for sets at the edges of lanes."""
    lanes, batch, chunks = 8, 64, 1600
    sets = make_sets(np.full(chunks, 9), 4, shuffle=True)
    counts = np.random.default_rng(0).integers(30, 50, len(sets))
    cost = np.random.default_rng(1).integers(1, 1000, int(counts.sum()))
    spec = OrderSpec("d" * 32, 17, "block", lanes, 32, rows=RowSpec(64))

    def order() -> RowOrder | BalancedOrder:
        plain = RowOrder(EpochOrder(spec, counts, 1), sets)
        return BalancedOrder(plain, BalanceSpec(4, 1, 0, batch), lambda rows, _: cost[rows]) if balance else plain

    of_set, fetched = order().chunk_lanes(chunks), []
    for node in range(4):
        own = set()
        for rank in (2 * node, 2 * node + 1):
            schedule = RankPlan(order(), batch, 8, rank, "drop").schedule()
            own |= set(schedule.chunk.tolist())
        fetched.append(len(own))
        # What is of another node's lanes is on the edge.
        assert np.count_nonzero(of_set[sorted(own)] // 2 != node) <= 2 * 4
    assert chunks <= sum(fetched) <= 1.02 * chunks


def test_shares_of_a_mix_are_shares_of_tokens():
    """Weights of a mix of rows are shares of tokens, though documents of its members differ by a factor of ten:
    within two rows of each batch, and within .003 of the epoch.
    """
    spec, weights = RowSpec(1024), {"web": 0.7, "code": 0.2, "chat": 0.1}
    counts, tokens = [], []
    for seed, scale in enumerate((100, 1000, 200)):
        costs = lengths(200_000 // scale * 10, scale, seed)
        whole = [RowContent(spec, 17).rows(part, np.arange(len(part)), 0) for part in np.array_split(costs, 12)]
        counts.append(np.array([len(rows) for rows in whole]))
        tokens.append(np.concatenate([np.add.reduceat(rows.items.size, rows.first[:-1]) for rows in whole]))
    sources = [MixSource(name, "d" * 32, own, 1, rows=spec) for name, own in zip(weights, counts, strict=True)]
    order = mix_order(request(list(weights), weights=weights, epoch_samples=6400).spec(sources, 64), sources)
    found = np.zeros(3)
    for first in range(0, order.samples, 64):
        codes = order.ordinals(np.arange(first, first + 64))
        members, numbers = order.codes.members(codes), order.codes.ordinals(codes)
        for member, weight in enumerate(weights.values()):
            mine = numbers[members == member]
            assert abs(len(mine) - 64 * weight) <= 2
            found[member] += tokens[member][mine].sum()
    assert found / found.sum() == pytest.approx(list(weights.values()), abs=0.003)


def test_the_sets_of_a_mix_have_the_chunks_of_its_members():
    """Joined sets of a mix number their chunks through all members."""
    one, other = make_sets(np.full(8, 3), 4, shuffle=False), make_sets(np.full(5, 3), 4, shuffle=False)
    sets = join_sets([(one, 0), (other, 8)])
    assert [sets.chunks(number).tolist() for number in range(len(sets))] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11, 12],
    ]


def test_as_many_chunks_are_open_as_without_rows():
    """The window in sets is the window in chunks divided by the chunks of a set, and at least one set of each lane."""
    assert row_window(250, 1000, 64, 4, None) == 15
    assert row_window(250, 1000, 64, 4, 400) == 100
    assert row_window(4, 16, 64, 1, None) == 4
    assert row_window(32, 128, 64, 32, None) == 32
