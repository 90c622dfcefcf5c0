"""Tests of the cut, which deals chunks to lanes."""

from __future__ import annotations

from itertools import chain

import msgspec
import numpy as np
import pytest

from streamer.order.cut import cut_lanes, lane_starts
from streamer.order.spec import OrderSpec

SPEC = OrderSpec("m", 3, "block", 4, 8)


def _samples(spec: OrderSpec, sizes: np.ndarray, epoch: int = 0) -> list[list[tuple[int, int]]]:
    """Returns for each lane the (chunk, sample of the chunk) that it holds."""
    cut = cut_lanes(spec, sizes, epoch)
    found = []
    for lane in range(spec.lanes):
        _, chunks, counts = cut.pieces(np.array([lane]), sizes)
        held = []
        for i, (chunk, count) in enumerate(zip(chunks.tolist(), counts.tolist(), strict=True)):
            first = int(cut.head[lane]) if i == 0 else 0
            held += [(chunk, first + j) for j in range(count)]
        found.append(held)
    return found


@pytest.mark.parametrize("sizes", [[5, 0, 7, 1, 3, 9], [100], [1], [0, 0, 2, 0], [1] * 50, [40, 1, 1], [0, 3, 0]])
def test_every_sample_is_in_one_lane(sizes: list[int]) -> None:
    """The lanes hold each sample of each chunk once, n div L or one more of them."""
    array = np.array(sizes, dtype=np.int64)
    lanes = _samples(SPEC, array)
    held = sorted(pair for lane in lanes for pair in lane)
    assert held == [(c, i) for c, size in enumerate(sizes) for i in range(size)]
    assert [len(lane) for lane in lanes] == np.diff(lane_starts(sum(sizes), 4)).tolist()


def test_a_fixed_cut_is_the_same_in_every_epoch() -> None:
    """A fixed cut keeps a chunk in its lane in every epoch, so that node caches stay useful."""
    sizes = np.full(40, 5)
    assert _samples(SPEC, sizes, 0) == _samples(SPEC, sizes, 1)


def test_a_redrawn_cut_deals_anew() -> None:
    """A redrawn cut is another one in each epoch, and each still has every sample."""
    spec = msgspec.structs.replace(SPEC, cut="redrawn")
    sizes = np.full(40, 5)
    first, second = _samples(spec, sizes, 0), _samples(spec, sizes, 1)
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second))


def test_more_lanes_than_samples_leave_lanes_empty() -> None:
    """With n samples and more lanes the first n lanes have one sample each."""
    spec = msgspec.structs.replace(SPEC, lanes=9)
    assert [len(lane) for lane in _samples(spec, np.array([2, 0, 1]))] == [1] * 3 + [0] * 6


def test_a_chunk_larger_than_a_lane_is_cut_more_than_once() -> None:
    """A chunk of all samples is cut into a run for each lane."""
    cut = cut_lanes(SPEC, np.array([10]), 0)
    assert cut.head.tolist() == [0, 3, 6, 8]
    assert cut.tail.tolist() == [3, 6, 8, 10]
