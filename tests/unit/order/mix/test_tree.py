"""Tests of the tree by which the places of a lane are shared among members."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.order.mix.tree import LaneShares, build_tree

QUOTAS = [[70, 20, 9, 1], [5], [0, 13, 0, 400], [1, 1, 1, 1, 1, 1, 1], [1000, 333, 332, 17, 17, 0, 3]]


@pytest.mark.parametrize("quotas", QUOTAS, ids=str)
@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_counts_begin_at_zero_grow_by_one_place_and_end_at_the_quotas(quotas: list[int], lanes: int) -> None:
    """Each further place of a lane has exactly one member, and the lanes together have every member's quota."""
    shares = LaneShares(quotas, lanes, 3, 0)
    assert shares.quotas.sum(axis=1).tolist() == quotas
    assert shares.lane_samples.max() - shares.lane_samples.min() <= 1
    before = shares.counts(np.zeros(lanes, np.int64))
    assert not before.any()
    for slot in range(1, int(shares.lane_samples.max()) + 1):
        counts = shares.counts(np.minimum(slot, shares.lane_samples))
        assert (counts - before).min() >= 0
        assert (counts - before).sum(axis=0).tolist() == (shares.lane_samples >= slot).tolist()
        before = counts
    assert np.array_equal(before, shares.quotas)


@pytest.mark.parametrize("quotas", QUOTAS, ids=str)
@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_every_sample_has_the_place_at_which_it_is_counted(quotas: list[int], lanes: int) -> None:
    """`slots` is the inverse of `count`: the place of a member's sample is that at which it is counted."""
    shares = LaneShares(quotas, lanes, 3, 0)
    for member in range(len(quotas)):
        for lane in range(lanes):
            numbers = np.arange(shares.quotas[member, lane])
            at = np.full(len(numbers), lane)
            slots = shares.slots(member, at, numbers)
            assert np.array_equal(shares.count(member, at, slots), numbers)
            assert np.array_equal(shares.count(member, at, slots + 1), numbers + 1)


def test_many_runs_of_places_are_counted_at_once() -> None:
    """(V, L) places are counted at once as (M, V, L) counts, as one by one."""
    shares = LaneShares([70, 20, 9, 1], 4, 3, 0)
    slots = np.arange(12).reshape(3, 4)
    assert np.array_equal(shares.counts(slots), np.stack([shares.counts(row) for row in slots], axis=1))


def test_lanes_do_not_round_up_at_the_same_place() -> None:
    """All 64 lanes together are within 8 samples of the shares at every place; with equal phases it would be 50."""
    shares = LaneShares([6400, 3200, 640, 64], 64, 3, 0)
    for slot in range(1, 161):
        exact = np.array([6400, 3200, 640, 64]) * slot / 161
        assert np.abs(shares.counts(np.full(64, slot)).sum(axis=1) - exact).max() <= 8


def test_epochs_and_seeds_round_differently() -> None:
    """Counts are rounded differently in other epochs and with other seeds."""
    slots = np.full(8, 5)
    found = [
        LaneShares([70, 50, 30], 8, seed, epoch).counts(slots).tolist() for seed, epoch in ((3, 0), (3, 1), (4, 0))
    ]
    assert found[0] != found[1] != found[2] != found[0]


def test_the_tree_is_cut_where_the_halves_differ_least() -> None:
    """The tree is cut where its halves differ least, with members in order of size.

    8 stands alone; 3 and 1 against 2 and 2 would be as even.
    """
    levels, below = build_tree([1, 8, 2, 2, 3])
    assert (levels[0][0].left, below[levels[0][0].right]) == (1, [4, 2, 3, 0])
    assert [len(level) for level in levels] == [1, 1, 2]


def test_epochs_beyond_63_bits_are_refused() -> None:
    """An epoch whose counts multiply beyond 63 bits, as of 4e9 samples in a lane, is refused."""
    with pytest.raises(ConfigError, match="an epoch of 4,000,000,000 samples in 1 lanes is too long"):
        LaneShares([3_000_000_000, 1_000_000_000], 1, 0, 0)
