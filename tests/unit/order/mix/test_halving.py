"""Tests of counts that are split evenly over batches."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.order.mix.places import split_evenly


def _counts(seed: int, shape: tuple[int, int], most: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, most + 1, shape)


@pytest.mark.parametrize("parts", [1, 2, 8, 16])
@pytest.mark.parametrize("most", [1, 5, 400])
@pytest.mark.parametrize("shape", [(1, 1), (3, 8), (20, 4), (1, 9), (7, 64)])
def test_every_member_and_lane_has_its_share_of_each_batch(shape: tuple[int, int], most: int, parts: int) -> None:
    """Every member and lane has its share of each batch, rounded up or down; all batches together have the counts."""
    counts = _counts(parts, shape, most)
    found = split_evenly(counts[None], parts, np.array([3], np.uint64))[0]
    assert found.min() >= 0
    assert np.array_equal(found.sum(axis=0), counts)
    for axes in ((2,), (1,), (1, 2)):
        assert np.abs(found.sum(axis=axes) - counts.sum(axis=tuple(a - 1 for a in axes)) / parts).max() < 1


@pytest.mark.parametrize("most", [1, 7, 60])
def test_the_first_batches_of_a_cell_are_near_their_part(most: int) -> None:
    """The first p of T batches have less than 1.7 samples more or fewer than p / T of each count.

    Schedules rely on this bound.
    """
    for seed in range(20):
        counts = _counts(seed, (12, 16), most)
        found = split_evenly(counts[None], 16, np.array([seed], np.uint64))[0]
        before = np.cumsum(found, axis=0)
        exact = np.arange(1, 17)[:, None, None] * counts / 16
        assert np.abs(before - exact).max() < 1.7


def test_tables_are_split_the_same_alone_and_together() -> None:
    """A table of counts is split the same alone and together with others.

    A window does not depend on those that are asked with it.
    """
    counts = np.stack([_counts(seed, (9, 8), 30) for seed in range(5)])
    states = np.arange(5, dtype=np.uint64)
    together = split_evenly(counts, 8, states)
    alone = [split_evenly(counts[i : i + 1], 8, states[i : i + 1])[0] for i in range(5)]
    assert np.array_equal(together, np.stack(alone))


def test_lanes_that_are_full_stay_full() -> None:
    """A lane whose counts are T batches of W places has exactly W in each batch."""
    counts = np.random.default_rng(1).multinomial(16 * 7, [0.5, 0.3, 0.15, 0.05], size=8).T
    assert (split_evenly(counts[None], 16, np.array([0], np.uint64))[0].sum(axis=1) == 7).all()


def test_what_is_odd_falls_to_either_half() -> None:
    """An odd sample falls to either half by the state, not always to the first."""
    counts = np.ones((1, 6, 1), np.int64)
    first = [split_evenly(counts, 2, np.array([state], np.uint64))[0, 0, 0, 0] for state in range(40)]
    assert 8 < sum(first) < 32
