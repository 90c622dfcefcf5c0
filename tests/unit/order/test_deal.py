"""Tests of the groups of a lane: how pieces are mixed and found again."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.order.deal import Deal, slice_count


def _deal(window: int, *lanes: list[int]) -> Deal:
    sizes = [size for lane in lanes for size in lane]
    prefix = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    first = np.concatenate([[0], np.cumsum([len(lane) for lane in lanes])]).astype(np.int64)
    return Deal(window, prefix, first, prefix[first])


def _counts(deal: Deal, lane: int, groups: int) -> list[list[int]]:
    slices = deal.slices(np.full(groups, lane), np.arange(groups))
    counts: list[list[int]] = (slices.end - slices.begin).tolist()
    return counts


def test_the_window_grows_from_one_piece_to_k() -> None:
    """Piece j of a lane goes into min(k, j+1) slices, one per group from group j on."""
    assert _counts(_deal(3, [6, 6, 6, 6]), 0, 6) == [
        [0, 0, 6],
        [0, 0, 3],
        [0, 3, 2],
        [0, 2, 2],
        [2, 2, 0],
        [2, 0, 0],
    ]


def test_a_piece_of_fewer_samples_than_slices_is_spread_over_the_window() -> None:
    """A piece of two samples and four slices is spread over the window: they are in the first and the third."""
    deal = _deal(4, [9, 9, 9, 2])
    mine = [row[3 - t] for t, row in enumerate(_counts(deal, 0, 7)[3:7])]
    assert mine == [1, 0, 1, 0]


def test_a_piece_of_one_sample_has_one_slice() -> None:
    """A piece of one sample has one slice, in its first group, and is not open after it."""
    assert slice_count(np.array([9, 9]), np.array([1, 2]), 4).tolist() == [1, 4]


@pytest.mark.parametrize("window", [1, 2, 3, 7, 40])
def test_groups_follow_each_other_without_gap(window: int) -> None:
    """The start of a group is the sum of the groups before it, in each lane."""
    deal = _deal(window, [5, 1, 8, 3, 2], [4, 4], [], [30])
    for lane, total in enumerate([19, 8, 0, 30]):
        groups = np.arange(50)
        slices = deal.slices(np.full(50, lane), groups)
        counts = (slices.end - slices.begin).sum(axis=1)
        assert slices.start.tolist() == (np.cumsum(counts) - counts).tolist()
        assert counts.sum() == total


@pytest.mark.parametrize("window", [1, 2, 3, 7, 40])
def test_the_group_of_every_index_is_found(window: int) -> None:
    """Bisection finds the group whose half-open run holds an index."""
    deal = _deal(window, [5, 1, 8, 3, 2], [4, 4], [30])
    for lane, total in enumerate([19, 8, 30]):
        lanes, indices = np.full(total, lane), np.arange(total)
        groups = deal.find(lanes, indices)
        slices = deal.slices(lanes, groups)
        stop = slices.start + (slices.end - slices.begin).sum(axis=1)
        assert np.all((slices.start <= indices) & (indices < stop))


def test_many_rows_are_worked_on_in_parts() -> None:
    """A window of 1,024 is looked up 64 rows at a time, in a matrix of 512 KiB."""
    parts = _deal(1024, [5]).parts(130)
    assert [(p.start, p.stop) for p in parts] == [(0, 64), (64, 128), (128, 192)]
