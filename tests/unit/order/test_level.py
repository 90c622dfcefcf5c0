"""Tests of levelling: rows of a superwindow are distributed so that batches, and the groups in them, cost the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError
from streamer.order.level import BalanceSpec, level, superwindow


@given(st.sampled_from([1, 2, 4]), st.integers(1, 8), st.integers(1, 4), st.integers(0, 99))
def test_is_a_permutation(group, turns, groups, seed):
    """Levelling is a permutation: every row comes once, whatever the costs."""
    random, count = np.random.default_rng(seed), group * turns * groups
    costs = random.integers(0, 50, count)
    keys = random.integers(0, 1 << 60, count // group).astype(np.uint64)
    turn_keys = random.integers(0, 1 << 60, turns).astype(np.uint64)
    assert sorted(level(costs, turns, group, keys, turn_keys).tolist()) == list(range(count))


def test_groups_are_level_and_like_groups_share_a_batch():
    """The dearest group of 4 rows of very different costs is below 1.02 of its batch's mean, in the median of batches.

    Without levelling it is above 1.5 in the mean.
    """
    random = np.random.default_rng(0)
    costs = (random.lognormal(0, 1, 4096) * 1000).astype(np.int64)
    keys = np.arange(1024).astype(np.uint64)
    sums = costs[level(costs, 64, 4, keys, np.arange(64).astype(np.uint64))].reshape(64, 16, 4).sum(axis=2)
    apart = sums.max(axis=1) / sums.mean(axis=1)
    before = costs.reshape(64, 16, 4).sum(axis=2)
    assert np.median(apart) < 1.02
    assert (before.max(axis=1) / before.mean(axis=1)).mean() > 1.5


def test_batches_are_not_sorted_by_cost():
    """Batches are ordered by the keys that all lanes share, not by cost: equal keys give equal orders in two lanes."""
    costs = np.arange(64)
    turn_keys = np.array([3, 1, 2, 0], np.uint64)
    one, other = (
        costs[level(costs, 4, 1, keys, turn_keys)].reshape(4, 16).sum(axis=1)
        for keys in (np.arange(64).astype(np.uint64), np.arange(64)[::-1].astype(np.uint64))
    )
    assert one.tolist() == other.tolist()
    assert sorted(one.tolist(), reverse=True) == [one.tolist()[at] for at in (3, 1, 2, 0)]


@pytest.mark.parametrize(
    ("rows", "most", "turns"), [(4, 1024, 256), (3, 1024, 256), (1, 1, 1), (2000, 1024, 1), (5, 64, 8)]
)
def test_superwindows(rows, most, turns):
    """A superwindow is the largest power of two of batches with at most so many rows, at least one batch."""
    assert superwindow(rows, most) == turns


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, 1, 1, 4), "rows_per_rank=0 must be at least 1"),
        ((1, 0, 0, 4), "coefficients=.0, 0. must be two"),
        ((1, -1, 1, 4), "coefficients=.-1, 1."),
    ],
)
def test_specs_outside_the_rules_are_refused(given, message):
    """A spec of a balance outside the rules is refused with its value and the rule."""
    with pytest.raises(ConfigError, match=message):
        BalanceSpec(*given)
