"""Tests of the split of a batch: which positions each rank takes."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.order.rank_split import RankSplit


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 8, 30])
@pytest.mark.parametrize(("batch", "world"), [(1, 1), (12, 3), (12, 4), (24, 24), (10, 2)])
def test_ranks_get_the_sorted_batch_in_equal_runs(lanes: int, batch: int, world: int) -> None:
    """Ranks take equal runs of a batch sorted by (lane, position): the i-th goes to rank i R div B, from any start."""
    for start in (0, 7, 12, 1000):
        wanted = sorted(range(start, start + batch), key=lambda p: (p % lanes, p))
        seated = [RankSplit(lanes, batch, world, r).positions(np.array([start]))[0] for r in range(world)]
        assert np.concatenate(seated).tolist() == wanted
        assert {len(s) for s in seated} == {batch // world}


@pytest.mark.parametrize("lanes", [1, 3, 8, 30])
def test_many_batches_are_split_at_once(lanes: int) -> None:
    """Many batches are split at once, a row for each, as if asked alone."""
    rank_split = RankSplit(lanes, 24, 4, 2)
    starts = np.array([0, 24, 5, 480])
    rows = rank_split.positions(starts)
    assert rows.shape == (4, 6)
    for row, start in zip(rows, starts, strict=True):
        assert row.tolist() == rank_split.positions(np.array([start]))[0].tolist()


@pytest.mark.parametrize(("lanes", "batch", "world"), [(8, 64, 4), (8, 64, 16), (8, 20, 5), (7, 24, 3), (30, 12, 3)])
def test_the_lanes_of_a_rank_are_those_it_draws_from(lanes: int, batch: int, world: int) -> None:
    """`rank_lanes` has exactly the lanes that a rank draws from over a whole period of batches."""
    for rank in range(world):
        rank_split = RankSplit(lanes, batch, world, rank)
        drawn = rank_split.positions(5 + np.arange(lanes) * batch) % lanes
        assert rank_split.rank_lanes(5).tolist() == sorted(set(drawn.ravel().tolist()))


@pytest.mark.parametrize(("batch", "world"), [(10, 3), (0, 1), (8, 0), (2, 4)])
def test_a_batch_that_cannot_be_shared_equally_is_refused(batch: int, world: int) -> None:
    """A batch that the number of ranks does not divide is refused with both numbers."""
    with pytest.raises(ConfigError, match=f"global_batch={batch} cannot be shared equally by {world} ranks"):
        RankSplit(8, batch, world, 0)


def test_a_rank_outside_the_world_is_refused() -> None:
    """A rank outside of the world is refused, as ranks count from 0."""
    with pytest.raises(ConfigError, match=r"rank=4 is not in 0\.\.3"):
        RankSplit(8, 16, 4, 4)
