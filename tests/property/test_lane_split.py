"""Lanes dealt by a table: whatever the caches hold, the batches stay, and each sample has one rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.order.rank_split import lane_runs, split_lanes


@dataclass(frozen=True)
class Fleet:
    """An epoch, the ranks on each node, and what the nodes hold."""

    sizes: tuple[int, ...]
    spec: OrderSpec
    per_lane: int
    nodes: tuple[tuple[int, ...], ...]
    held: np.ndarray
    start: int

    @property
    def batch(self) -> int:
        return self.spec.lanes * self.per_lane

    @property
    def world(self) -> int:
        return sum(map(len, self.nodes))

    def table(self, held: np.ndarray) -> np.ndarray:
        room = [len(ranks) * self.batch // self.world for ranks in self.nodes]
        return split_lanes(self.spec.lanes, self.per_lane, room, held)

    def plan(self, rank: int, held: np.ndarray | None) -> RankPlan:
        """A rank's plan, with a table or without one."""
        order = EpochOrder(self.spec, np.array(self.sizes), 1)
        if held is None:
            return RankPlan(order, self.batch, self.world, rank, "fill", start=self.start)
        node = next(number for number, ranks in enumerate(self.nodes) if rank in ranks)
        each = self.batch // self.world
        at = self.nodes[node].index(rank) * each
        runs = lane_runs(self.table(held), node, slice(at, at + each))
        return RankPlan(order, self.batch, self.world, rank, "fill", start=self.start, runs=runs)


@st.composite
def fleets(draw: st.DrawFn, consecutive: bool = False) -> Fleet:
    """Few samples, many shapes; nodes of one to three ranks, some that hold nothing."""
    lanes, per_lane = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    world = draw(st.sampled_from([r for r in range(1, 13) if lanes * per_lane % r == 0]))
    ranks = list(range(world)) if consecutive else draw(st.permutations(range(world)))
    nodes = []
    while ranks:
        count = draw(st.integers(1, 3))
        nodes.append(tuple(ranks[:count]))
        ranks = ranks[count:]
    held = draw(
        st.lists(st.sampled_from([0, 0, 1, 7, 7, 100]), min_size=lanes * len(nodes), max_size=lanes * len(nodes))
    )
    sizes = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(sum)))
    start = draw(st.integers(0, sum(sizes)))
    spec = OrderSpec("m", 17, "block", lanes, draw(st.integers(1, 40)))
    return Fleet(sizes, spec, per_lane, tuple(nodes), np.array(held).reshape(lanes, len(nodes)), start)


@given(fleets())
def test_a_table_deals_every_lane_and_fills_every_node(fleet: Fleet) -> None:
    """A table of lanes deals all of each lane and gives each node its share of the samples.
    A node takes the lane of which most is held before others do.
    """
    table = fleet.table(fleet.held)
    assert (table >= 0).all()
    assert (table.sum(axis=1) == fleet.per_lane).all()
    assert (table.sum(axis=0) == [len(ranks) * fleet.batch // fleet.world for ranks in fleet.nodes]).all()
    lane, node = np.unravel_index(np.argmax(fleet.held), fleet.held.shape)
    if fleet.held[lane, node]:
        assert table[lane, node] == min(fleet.per_lane, table[:, node].sum())


@given(fleets())
def test_every_table_gives_the_same_batches(fleet: Fleet) -> None:
    """Batches dealt by a table have the same samples as batches without one, and each sample goes to one rank.
    Each rank's schedule covers the chunks of its samples.
    """
    plain = [fleet.plan(rank, None) for rank in range(fleet.world)]
    dealt = [fleet.plan(rank, fleet.held) for rank in range(fleet.world)]
    for number in range(plain[0].batches):
        before, after = ([plan.batch(number) for plan in plans] for plans in (plain, dealt))
        assert [len(part.positions) for part in after] == [fleet.batch // fleet.world] * fleet.world
        whole = [
            dict(zip(*(np.concatenate(column) for column in _columns(parts)), strict=True)) for parts in (before, after)
        ]
        assert len(whole[1]) == fleet.batch
        assert whole[0] == whole[1]
        assert all((plan.find_repeats(number) == part.repeated).all() for plan, part in zip(dealt, after, strict=True))
    for plan in dealt:
        schedule = plan.schedule()
        told = {
            chunk: (first, last)
            for chunk, first, last in zip(schedule.chunk, schedule.first, schedule.last, strict=True)
        }
        for number in range(plan.batches):
            for chunk in set(plan.order.chunks(plan.batch(number).ordinals)[0].tolist()):
                assert told[chunk][0] <= number <= told[chunk][1]


@given(fleets(consecutive=True))
def test_where_nothing_is_held_ranks_have_what_they_have_without_a_table(fleet: Fleet) -> None:
    """With empty caches, each rank has the positions that it has without a table, so a first run reads as before."""
    for rank in range(fleet.world):
        plain, dealt = fleet.plan(rank, None), fleet.plan(rank, np.zeros_like(fleet.held))
        for number in range(plain.batches):
            assert plain.batch(number).positions.tolist() == dealt.batch(number).positions.tolist()


def _columns(parts: list) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [part.positions for part in parts], [part.ordinals for part in parts]


def test_a_node_less_or_more_moves_one_share() -> None:
    """Of 16 nodes, 15 keep what they held when one leaves, and a 17th that joins takes a 17th of the samples."""
    lanes, per_lane = 64, 17 * 15
    nothing = np.zeros((lanes, 16), np.int64)
    held = split_lanes(lanes, per_lane, [lanes * per_lane // 16] * 16, nothing)
    lost = split_lanes(lanes, per_lane, [lanes * per_lane // 15] * 15, held[:, :15])
    joined = split_lanes(lanes, per_lane, [lanes * per_lane // 17] * 17, np.column_stack([held, nothing[:, 0]]))
    assert np.minimum(lost, held[:, :15]).sum() == held[:, :15].sum()
    assert np.minimum(joined[:, :16], held).sum() == joined[:, :16].sum() == lanes * per_lane * 16 // 17


@given(st.data())
def test_rows_that_are_made_level_together_stay_with_one_rank(data: st.DataObject) -> None:
    """With g rows of a lane in each balanced group, every rank's runs are whole groups, whatever the caches hold."""
    group, lanes, per_lane = (data.draw(st.integers(1, most)) for most in (4, 6, 6))
    world = data.draw(st.sampled_from([r for r in range(1, 13) if lanes * per_lane % r == 0]))
    each = group * lanes * per_lane // world
    counts = data.draw(st.permutations([1] * world).map(lambda ranks: np.array_split(ranks, min(3, world))))
    room = [len(ranks) * each for ranks in counts]
    cells = st.lists(st.integers(0, 5), min_size=lanes * len(room), max_size=lanes * len(room))
    held = np.array(data.draw(cells)).reshape(lanes, len(room))
    table = split_lanes(lanes, group * per_lane, room, held)
    for node, ranks in enumerate(counts):
        for rank in range(len(ranks)):
            runs = lane_runs(table, node, slice(rank * each, (rank + 1) * each))
            assert all(begin % group == 0 and count % group == 0 for _, begin, count in runs)
