"""Putting together what ranks, engine and store counted."""

from __future__ import annotations

import pytest

from streamer.tools.demo.events import EpochEnd, Indexed, Step
from streamer.tools.demo.measured import Collector, Usage
from streamer.tools.demo.server import Counts


def _end(rank: int, **changes: object) -> EpochEnd:
    values = {
        "rank": rank, "epoch": 0, "samples": 100, "loss": 1.0, "right": 50, "seconds": 2.0, "wait_seconds": 0.5,
        "longest_wait_seconds": 0.1, "keys": f"keys of {rank}",
    }  # fmt: skip
    return EpochEnd(**{**values, **changes})  # type: ignore[arg-type]


def _collected(*ends: EpochEnd) -> Collector:
    collector = Collector(len(ends))
    for end in ends:
        collector.take(end)
    return collector


def test_an_epoch_is_complete_when_every_rank_reported_its_end() -> None:
    """Only the last rank's event completes it, whichever rank that is."""
    collector = Collector(2)
    assert not collector.take(Indexed(rank=1, batches=4))
    assert collector.take(Indexed(rank=0, batches=4))
    assert not collector.take(_end(1))
    assert collector.take(_end(0))


def test_a_row_adds_samples_and_takes_the_slowest_rank() -> None:
    """Samples add up, the slowest rank gives the seconds, waiting is a share of the time of all ranks."""
    row = _collected(_end(0, seconds=2.0, wait_seconds=1.0), _end(1, seconds=3.0, wait_seconds=0.5)).row(
        0, Usage(), Counts()
    )
    assert (row.samples, row.seconds) == (200, 3.0)
    assert row.samples_per_second == pytest.approx(200 / 3)
    assert row.wait_share == pytest.approx(1.5 / 5.0)


def test_accuracy_is_of_all_samples_and_loss_is_the_mean() -> None:
    """A rank with few samples counts less."""
    row = _collected(_end(0, samples=30, right=30, loss=2.0), _end(1, samples=10, right=0)).row(0, Usage(), Counts())
    assert (row.accuracy, row.loss) == (0.75, 1.5)


def test_keys_depend_on_ranks_and_order_of_epochs_but_not_on_who_reports_first() -> None:
    """The digest is the same however the ranks race, and another when a rank read other samples."""
    assert _collected(_end(0), _end(1)).keys() == _collected(_end(1), _end(0)).keys()
    assert _collected(_end(0), _end(1)).keys() != _collected(_end(0), _end(1, keys="others")).keys()


def test_steps_are_kept_and_complete_nothing() -> None:
    """A step is only noted."""
    collector = Collector(1)
    step = Step(rank=0, epoch=0, batch=0, samples=32, loss=1.0, wait_seconds=0.0, at_seconds=1.0)
    assert not collector.take(step)
    assert collector.steps == [step]


def test_usage_over_two_moments() -> None:
    """Hits are a share of bytes; no needs are no hits."""
    later, earlier = Usage(need_bytes=300, hit_bytes=150), Usage(need_bytes=100, hit_bytes=100)
    assert (later - earlier).hit_share == 0.25
    assert (later + earlier) == Usage(need_bytes=400, hit_bytes=250)
    assert Usage().hit_share == 0.0
