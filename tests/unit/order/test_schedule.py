"""Tests of the schedule that the engine is told: tight enough that the open chunks stay near K."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.order import EpochOrder, OrderSpec, RankPlan, Schedule


def _open(first: np.ndarray, last: np.ndarray, batches: int) -> np.ndarray:
    """Returns (batches,) chunks between first and last need."""
    change = np.zeros(batches + 1, dtype=np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last + 1, -1)
    return np.cumsum(change)[:-1]


def _true_needs(plan: RankPlan, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the chunks that a rank uses, and the first and last batch of each."""
    ordinals = np.array([plan.batch(g).ordinals for g in range(plan.batches)])
    needed = np.zeros((plan.batches, plan.order.samples // size), dtype=bool)
    for g, row in enumerate(ordinals):
        needed[g, row // size] = True
    chunks = np.flatnonzero(needed.any(axis=0))
    needed = needed[:, chunks]
    return chunks, needed.argmax(axis=0), plan.batches - 1 - needed[::-1].argmax(axis=0)


def _sorted_by_chunk(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    arranged = np.argsort(schedule.chunk)
    return schedule.first[arranged], schedule.last[arranged]


@pytest.mark.parametrize("size", [1, 3, 17, 50, 64])
@pytest.mark.parametrize("window", [16, 64, 256])
def test_each_chunk_is_scheduled_nearly_exactly(size: int, window: int) -> None:
    """A need is told wider by less than one group of all lanes, L pieces, and a sample per open chunk."""
    batch = 64
    order = EpochOrder(OrderSpec("m", 1, "block", 8, window), np.full(1000, size), 0)
    plan = RankPlan(order, batch, 1, 0)
    chunks, first, last = _true_needs(plan, size)
    schedule = plan.schedule()
    told_first, told_last = _sorted_by_chunk(schedule)
    assert np.array_equal(np.sort(schedule.chunk), chunks)
    slack = -(-(8 * size + 2 * window) // batch) + 1
    assert np.all((first - told_first >= 0) & (first - told_first <= slack))
    assert np.all((told_last - last >= 0) & (told_last - last <= slack))


@pytest.mark.parametrize(("size", "window"), [(50, 16), (50, 64), (50, 256), (8, 64), (1000, 64)])
def test_what_is_open_stays_near_the_window(size: int, window: int) -> None:
    """At any batch at most K chunks are open, 2 more for each lane, and those that one batch can finish."""
    lanes, batch = 8, 64
    order = EpochOrder(OrderSpec("m", 1, "block", lanes, window), np.full(1000, size), 0)
    schedule = RankPlan(order, batch, 1, 0).schedule()
    opened = _open(schedule.first, schedule.last, -(-order.samples // batch))
    assert opened.max() <= window + 2 * lanes + 2 * (window + batch) // size


def test_a_rank_gets_its_own_lanes_only() -> None:
    """Four ranks on eight lanes ask for no chunk twice, but for those cut between two lanes."""
    order = EpochOrder(OrderSpec("m", 1, "block", 8, 64), np.full(1000, 50), 0)
    told = np.concatenate([RankPlan(order, 64, 4, r).schedule().chunk for r in range(4)])
    assert 1000 <= len(told) <= 1000 + 3


def test_a_part_of_the_epoch_costs_its_own_chunks_only() -> None:
    """The schedule of ten batches of a large epoch has the chunks of those batches alone."""
    order = EpochOrder(OrderSpec("m", 1, "block", 8, 64), np.full(100_000, 1000), 0)
    schedule = RankPlan(order, 64, 1, 0).schedule(900_000, 900_010)
    assert 64 <= len(schedule) <= 64 + 2 * 8
    assert (schedule.first.min(), schedule.last.max()) == (900_000, 900_009)


def test_no_batches_need_no_chunks() -> None:
    """An empty run of batches has an empty schedule of the right types."""
    plan = RankPlan(EpochOrder(OrderSpec("m", 1, "block", 8, 64), np.full(10, 10), 0), 10, 1, 0)
    empty = plan.schedule(4, 4)
    assert len(empty) == 0
    assert [a.dtype.name for a in (empty.chunk, empty.first, empty.last)] == ["uint32", "int64", "int64"]


def test_padding_asks_for_the_chunks_it_repeats() -> None:
    """A rank that fills the last batch up needs the chunk of the repeated samples in that batch."""
    order = EpochOrder(OrderSpec("m", 1, "none", 1, 1), np.full(10, 10), 0)
    schedule = RankPlan(order, 64, 4, 3).schedule()
    assert schedule.chunk[schedule.last == 1].tolist() == [9]


@pytest.mark.parametrize("run", [(-1, 2), (3, 2), (0, 11)])
def test_batches_outside_the_epoch_are_refused(run: tuple[int, int]) -> None:
    """A schedule of batches outside of the epoch is an `IndexError`."""
    plan = RankPlan(EpochOrder(OrderSpec("m", 1, "block", 8, 64), np.full(10, 10), 0), 10, 1, 0)
    with pytest.raises(IndexError, match=r"are not in 0\.\.10"):
        plan.schedule(*run)
