"""Tests of the timeout of samples: a worker that takes too long is found in time, and none after a stop of the job."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import cast

import pytest

from streamer.batches.workers.pool import WorkerPool
from streamer.batches.workers.protocol import Doing
from streamer.batches.workers.supervisor import LATE_SECONDS, SampleTimeouts

LIMIT_SECONDS = 10.0


class Workers:
    """Stands for a pool whose workers have been at their samples for so long, -1 for an idle one; no process runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seconds: float) -> None:
        self.now = 1000.0
        self.workers = {n: SimpleNamespace(number=n, tasks=[1] if s >= 0 else []) for n, s in enumerate(seconds)}
        self._begun = [self.now - s if s >= 0 else None for s in seconds]
        monkeypatch.setattr(time, "monotonic_ns", lambda: round(self.now * 1e9))

    def find_status(self, handle: SimpleNamespace) -> Doing:
        begun = self._begun[handle.number]
        return Doing(0, -1, 0) if begun is None else Doing(1, 100 + handle.number, round(begun * 1e9))

    def begin(self, number: int) -> None:
        """Lets a worker begin another sample."""
        self._begun[number] = self.now


def looked_at(workers: Workers) -> SampleTimeouts:
    return SampleTimeouts(cast(WorkerPool, workers), LIMIT_SECONDS)


def test_the_one_whose_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker whose time for a sample is over is found at the next look, and no other."""
    workers = Workers(monkeypatch, 2.0, -1, 7.0)
    overtime = looked_at(workers)
    assert (overtime.remaining_seconds, overtime.find_stuck()) == (pytest.approx(3.0), [])
    workers.now += 3.0
    assert [handle.number for handle in overtime.find_stuck()] == [2]
    assert overtime.ordinal(overtime.find_stuck()[0]) == 102


def test_a_job_that_was_stopped_gives_its_workers_their_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in which the whole job was stopped, as by Ctrl-Z, counts for no sample.

    A worker that then takes a whole time more is stuck.
    """
    workers = Workers(monkeypatch, 2.0, 7.0)
    overtime = looked_at(workers)
    workers.now += 3600.0
    assert (overtime.find_stuck(), overtime.remaining_seconds) == ([], pytest.approx(LIMIT_SECONDS))
    workers.now += 4.0
    workers.begin(0)
    assert (overtime.find_stuck(), overtime.remaining_seconds) == ([], pytest.approx(6.0))
    workers.now += 6.0
    assert [handle.number for handle in overtime.find_stuck()] == [1]


def test_one_who_always_looks_late_finds_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stuck is found by late looks, too, as its time is given anew only once."""
    workers = Workers(monkeypatch, 7.0)
    overtime = looked_at(workers)
    found = []
    for _ in range(2):
        workers.now += LIMIT_SECONDS + 2 * LATE_SECONDS
        found += overtime.find_stuck()
    assert [handle.number for handle in found] == [0]
