"""Tests of the quotas of a mix: what the epochs take of each member."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from streamer.order.mix import Stage
from streamer.order.mix.spec import count_drawn_units
from tests.mixes import request, sources


def _weights(members: int, kind: str) -> tuple[int, ...]:
    drawn = np.random.default_rng(members).random(members)
    return tuple(int(w * 2**32) + 1 for w in (drawn if kind == "even" else drawn**12))


@pytest.mark.parametrize("kind", ["even", "steep"])
@pytest.mark.parametrize("members", [1, 2, 3, 17, 100])
def test_counts_grow_and_stay_near_their_share(members: int, kind: str) -> None:
    """The units of an epoch are given out exactly, and no member is ever more than 1 + log2 M units from its share."""
    weights = _weights(members, kind)
    stages, before = [Stage(0, weights, 37)], np.zeros(members, np.int64)
    for epoch in range(1, 150):
        drawn = np.array(count_drawn_units(stages, epoch))
        assert drawn.sum() == 37 * epoch
        assert np.all(drawn >= before)
        exact = np.array([37 * epoch * weight / sum(weights) for weight in weights])
        assert np.abs(drawn - exact).max() <= 1 + math.log2(members)
        before = drawn


def test_a_share_that_is_whole_is_given_in_every_epoch() -> None:
    """A share that is a whole number of units is given exactly in every epoch."""
    stages = [Stage(0, (2, 1, 1), 40)]
    assert [count_drawn_units(stages, epoch) for epoch in range(3)] == [[0, 0, 0], [20, 10, 10], [40, 20, 20]]


def test_a_tiny_share_comes_every_now_and_then() -> None:
    """A share of 1 of 1,000 units in epochs of 10 comes as one unit in every 100 epochs."""
    counts = [count_drawn_units([Stage(0, (999, 1), 10)], epoch)[1] for epoch in range(1001)]
    assert counts[-1] == 10
    assert {b - a for a, b in pairwise(counts)} == {0, 1}


def test_stages_give_what_they_say_from_their_epoch_on() -> None:
    """Stages of weights give their shares from their epoch on, and a member that pauses goes on later."""
    stages = [Stage(0, (1, 2, 0), 10), Stage(3, (0, 1, 1), 7), Stage(5, (1, 1, 1), 9)]
    exact = np.array([[0, 0, 0], [10 / 3, 20 / 3, 0], [20 / 3, 40 / 3, 0], [10, 20, 0], [10, 23.5, 3.5], [10, 27, 7]])
    for epoch in range(6):
        assert np.abs(np.array(count_drawn_units(stages, epoch)) - exact[epoch]).max() <= 1 + math.log2(3)
    assert count_drawn_units(stages, 5)[0] == count_drawn_units(stages, 3)[0]


def test_an_epoch_is_the_same_however_a_run_comes_to_it() -> None:
    """Quotas and starts of an epoch follow from the spec alone, and each epoch begins where the last one ended."""
    sizes = {"a": 900, "b": 700, "c": 40}
    weights = [(0, {"a": 1, "b": 1, "c": 0}), (4, {"a": 1, "b": 0, "c": 1}), (6, {"a": 0.2, "b": 0.5, "c": 0.3})]
    specs = [request(list(sizes), weights=weights, epoch_samples=500).spec(sources(sizes), 20) for _ in range(2)]
    for epoch in range(9):
        ends = tuple(a + b for a, b in zip(specs[0].stream_starts(epoch), specs[0].quotas(epoch), strict=True))
        assert ends == specs[1].stream_starts(epoch + 1)
    assert specs[1].quotas(7) == specs[0].quotas(7)
    assert (specs[0].quotas(3)[2], specs[0].quotas(4)[1]) == (0, 0)
