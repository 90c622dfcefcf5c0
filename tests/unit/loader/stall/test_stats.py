"""Tests of what the loader counts: waits, steps, stages and shares, with a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import asdict

from streamer.batches.causes import Stages
from streamer.batches.workers.protocol import Made
from streamer.loader.feed.run import FeedCounters
from streamer.loader.stall import stats as counters
from streamer.loader.stall.stats import LoaderStats, TrainerClock


class Time:
    """Stands for `time.perf_counter_ns`, and is moved by hand."""

    def __init__(self, monkeypatch) -> None:
        self.now = 1
        monkeypatch.setattr(counters.time, "perf_counter_ns", lambda: self.now)

    def pass_seconds(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


def test_waits_and_steps(monkeypatch):
    """Waiting lasts from request to arrival, a handoff from arrival to delivery, a step to the next request."""
    time, clock = Time(monkeypatch), TrainerClock()
    for wait, step in ((1, 2), (3, 4), (0.5, 0)):
        clock.ask(ready=2)
        time.pass_seconds(wait)
        clock.arrive()
        time.pass_seconds(0.25)
        clock.leave(8, 100)
        time.pass_seconds(step)
    found = asdict(clock.stats())
    assert found["wait_seconds"] == 4.5
    assert found["step_seconds"] == 6
    assert found["handoff_seconds"] == 0.75
    assert found["wait_median_seconds"] == 1
    assert found["wait_p99_seconds"] == 3
    assert found["occupancy"] == 2
    assert [taken / 1e9 for taken in clock.takes.tail().values] == [1.25, 3.25, 0.75]
    assert (clock.batches, clock.samples, clock.nbytes) == (3, 24, 300)


def test_time_between_epochs_is_no_step(monkeypatch):
    """Time between two epochs, as for validation, is not counted as a step."""
    time, clock = Time(monkeypatch), TrainerClock()
    clock.ask(0)
    clock.arrive()
    clock.leave(1, 1)
    clock.pause()
    time.pass_seconds(100)
    clock.ask(0)
    assert clock.stats().step_seconds == 0


def test_stages_add_up():
    """The nanoseconds of each stage, the faults and the pickled bytes of all batches are summed."""
    counted = FeedCounters()
    for _ in range(2):
        counted.count(Made(1, 10, (0, 150), Stages(9, 1, 2, 3, 4, 5), 7, 8))
    assert counted.nanoseconds == [18, 2, 4, 6, 8, 10]
    assert (counted.worker_faults, counted.pickled_bytes) == (14, 300)


def test_wait_share():
    """`wait_share` is waiting by waiting and steps together, and 0 where nothing was measured."""
    assert LoaderStats(wait_seconds=1, step_seconds=3).wait_share == 0.25
    assert LoaderStats().wait_share == 0
