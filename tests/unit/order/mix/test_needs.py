"""Tests of what a mix asks of the engine: which chunks, from when to when, and how little more than samples need."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.order import RankPlan, Schedule
from streamer.order.mix import Batching, MixOrder
from tests.mixes import member_chunks, mix, order, request, sources

SIZES = {"web": 75_000, "books": 22_500, "rare": 15_000}
WEIGHTS = {"web": 0.90, "books": 0.09, "rare": 0.01}
# A window that leaves the small members more than a chunk per lane would need more chunks than they have.
CHUNK = 75


def _mixed(epoch_samples: int, batching: Batching = "stratified") -> MixOrder:
    return mix(SIZES, 256, chunk=CHUNK, weights=WEIGHTS, epoch_samples=epoch_samples, lanes=8, batching=batching)


def _uses(mixed: MixOrder) -> tuple[np.ndarray, np.ndarray]:
    """Returns (N,) chunk and pass of all samples of an epoch, as one number, and their batches."""
    chunks, passes = mixed.chunks(mixed.ordinals(np.arange(mixed.samples)))
    return passes * 10_000 + chunks, np.arange(mixed.samples) // 256


def _open(first: np.ndarray, last: np.ndarray, batches: int) -> np.ndarray:
    """Returns (batches,) chunks between first and last need."""
    change = np.zeros(batches + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return np.cumsum(change)[:-1]


def _members(mixed: MixOrder, uses: np.ndarray) -> np.ndarray:
    """Returns the member of each chunk number."""
    sizes = [len(source.chunk_samples) for source in sources(SIZES, CHUNK)]
    return np.searchsorted(np.cumsum(sizes), uses % 10_000, side="right")


@pytest.mark.parametrize("batching", ["stratified", "random", "homogeneous"])
def test_few_chunks_of_a_member_are_open_at_a_time(batching: Batching) -> None:
    """At most K + L + 1 chunks of a member are open over all nodes, and 2 K + L with whole batches of one member."""
    mixed = _mixed(225_000, batching)
    uses, batch = _uses(mixed)
    found, entry = np.unique(uses, return_inverse=True)
    first, last = np.full(len(found), 1 << 40), np.full(len(found), -1)
    np.minimum.at(first, entry, batch)
    np.maximum.at(last, entry, batch)
    for number, member in enumerate(mixed.spec.members):
        mine = _members(mixed, found) == number
        opened = _open(first[mine], last[mine], int(batch[-1]) + 1).max()
        window = member.order.window
        assert opened <= (2 * window + 8 if batching == "homogeneous" else window + 8 + 1)


def _entries(plans: list[RankPlan]) -> np.ndarray:
    """Returns the chunk and pass of all entries of some schedules, as one number."""
    schedules = [plan.schedule() for plan in plans]
    return np.concatenate([schedule.passes * 10_000 + schedule.chunk for schedule in schedules])


@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_nodes_fetch_little_more_than_the_samples_need(nodes: int) -> None:
    """All nodes together fetch at most 1.01 times the bytes that samples need, and the chunks at an epoch's ends.

    For the largest member that is at most 1.05 in all. Fetched by epochs as long as three passes of it, without a
    cache; the ends are chunks that the epochs before and after have open already.
    """
    mixed = _mixed(500_000)
    fetched = np.bincount(_members(mixed, _entries([RankPlan(mixed, 256, nodes, r) for r in range(nodes)])))
    used = np.array(mixed.spec.quotas(0)) / CHUNK
    over = fetched / used
    # The ends of an epoch are cut chunks, which the epochs before and after have open already.
    ends = np.array([member.order.window + 8 for member in mixed.spec.members])
    assert np.all(fetched <= 1.01 * used + ends)
    assert over[0] <= 1.05


def _true(plan: RankPlan, mixed: MixOrder) -> dict[int, tuple[int, int]]:
    """Returns the first and last batch in which a rank uses each chunk and pass."""
    needs: dict[int, tuple[int, int]] = {}
    for number in range(plan.batches):
        chunks, passes = mixed.chunks(plan.batch(number).ordinals)
        for use in set((passes * 10_000 + chunks).tolist()):
            needs[use] = (needs.get(use, (number, number))[0], number)
    return needs


def _told(schedule: Schedule) -> dict[int, tuple[int, int]]:
    """Returns the first and last batch that a schedule says of each chunk and pass."""
    uses = (schedule.passes * 10_000 + schedule.chunk).tolist()
    return dict(zip(uses, zip(schedule.first.tolist(), schedule.last.tolist(), strict=True), strict=True))


@pytest.mark.parametrize(
    ("batching", "window"), [("stratified", 3), ("random", 16), ("homogeneous", 16)], ids=lambda value: str(value)
)
@pytest.mark.parametrize(("world", "rank"), [(1, 0), (8, 5)])
def test_needs_are_told_nearly_exactly(batching: Batching, window: int, world: int, rank: int) -> None:
    """A chunk is told to be needed never shorter than it is, and longer by 3 batches stratified, 16 otherwise, at most.

    Beside that come the samples by which the bounds of a piece are wide in a dataset alone, k + 2 of the member's own
    lane, and with whole batches of a rare member the gap between them.
    """
    mixed = _mixed(60_000, batching)
    plan = RankPlan(mixed, 256, world, rank)
    told, true = _told(plan.schedule()), _true(plan, mixed)
    assert set(true) <= set(told)
    members = _members(mixed, np.array(list(true)))
    early = np.array([true[use][0] - told[use][0] for use in true])
    late = np.array([told[use][1] - true[use][1] for use in true])
    assert min(early.min(), late.min()) >= 0
    for number, member in enumerate(mixed.spec.members):
        rate = mixed.spec.quotas(0)[number] / mixed.samples
        pieces = (member.order.lane_window + 2) / (32 * rate)
        # Whole batches of a rare member are far apart: the next one is up to a window later than on average.
        gap = 1 / rate + 16 if batching == "homogeneous" else pieces
        slack = window + gap + (4 / (32 * rate) if batching == "stratified" else 0)
        assert max(early[members == number].max(), late[members == number].max()) <= slack


def test_a_part_of_the_epoch_costs_its_own_chunks_only() -> None:
    """The schedule of ten batches of a long epoch has the chunks of those batches."""
    sizes = {"a": 30_000_000, "b": 3_000_000}
    members = sources(sizes, 1000)
    mixed = order(request(list(sizes), lanes=8, window=64).spec(members, 64), members)
    schedule = RankPlan(mixed, 64, 1, 0).schedule(400_000, 400_010)
    assert 64 <= len(schedule) <= 64 + 2 * 2 * 8
    assert (schedule.first.min(), schedule.last.max()) == (400_000, 400_009)


def test_a_member_that_comes_often_has_one_entry_per_chunk() -> None:
    """A member whose chunks are open all the time has one entry for each chunk, not one for each of its 900 passes."""
    mixed = mix({"big": 30_000, "tiny": 40}, 64, chunk=10, lanes=8, weights={"big": 1, "tiny": 1}, epoch_samples=72_000)
    schedule = RankPlan(mixed, 64, 1, 0).schedule()
    tiny = schedule.chunk >= 3000
    assert tiny.sum() == 4
    assert (schedule.first[tiny] == 0).all()
    assert (schedule.last[tiny] == 1124).all()


def test_members_over_the_same_chunks_share_their_numbers() -> None:
    """Two members over the same chunks have one entry for each chunk."""
    sizes = {"a": 800, "b": 800}
    members = sources(sizes, 20)
    chunks = [chunk.__class__(chunk.samples, chunk.first, 0) for chunk in member_chunks(members)]
    mixed = MixOrder(request(list(sizes), lanes=4).spec(members, 20), chunks, 0)
    schedule = RankPlan(mixed, 20, 1, 0).schedule()
    assert sorted(schedule.chunk.tolist()) == list(range(40))


def test_a_rank_gets_its_own_lanes_only() -> None:
    """No chunk of a member is asked for by two of 4 ranks, but for those cut between two lanes."""
    mixed = mix({"a": 40_000, "b": 8_000}, 64, chunk=20, lanes=8)
    told = np.concatenate([RankPlan(mixed, 64, 4, rank).schedule().chunk for rank in range(4)])
    assert 2400 <= len(told) <= 2400 + 2 * 7
