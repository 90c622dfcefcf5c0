"""Tests of the feeder's thread: errors that end it, and the batches that it gives to workers.

Workers are real threads, the dataset is a fake one.
"""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import dataclass, field

import pytest

from streamer.batches.ring.ring import Limits
from streamer.batches.workers.batch_maker import MakerRules
from streamer.batches.workers.pool import WorkerConfig
from streamer.errors import BrokenError
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.feed import feeder as feeder_module
from streamer.loader.feed.feeder import Feeder, FeedPlan
from streamer.loader.feed.run import FailedBatch, Finished
from streamer.loader.feed.supply import FedSupply
from tests.fake_dataset import FakeDataset, FakeRecipe


def plan_of(threads: int, span: int) -> FeedPlan:
    return FeedPlan(
        workers=WorkerConfig("thread", threads),
        span=span,
        limits=Limits(2 * span, 2 * span, 1 << 20),
        planning=threading.Lock(),
    )


def broken(timeout_seconds: float = 0.0) -> None:
    """Stands for a step of the feeder that fails for a reason of its own."""
    raise ZeroDivisionError("no such number")


def test_a_trainer_that_waits_gets_the_error_that_ended_the_feeder():
    """A trainer that waits gets the error that ended the feeder.

    The end of the run empties the queue and comes first, so that the error is the last in it.
    """
    feeder = Feeder(plan_of(1, 2))
    prepared = FakeDataset(12, lambda epoch, ordinal: {"x": ordinal}, held_back=True).prepare(3, last_batch=None)
    feeder.configure(prepared, MakerRules(prepared.seed))
    run = feeder.run(0, 0)
    feeder.start()
    deadline = time.monotonic() + 60
    session = prepared.first_session()
    session.pump = broken
    session.allow(0)
    while feeder.broken is None and time.monotonic() < deadline:
        time.sleep(0.001)
    feeder.close()
    outcome = run.outcomes.first(0)
    assert isinstance(outcome, FailedBatch)
    assert outcome.final
    assert isinstance(outcome.error, BrokenError)
    assert "no such number" in str(outcome.error)


def test_a_feeder_that_fails_between_two_runs_tells_the_trainer_of_the_next_one():
    """A feeder that fails between two runs ends the next run with its error.

    Regression: the run was in neither place where the thread's end looks, and its trainer waited for ever.
    """
    feeder = Feeder(plan_of(1, 2))
    prepared = FakeDataset(12, lambda epoch, ordinal: {"x": ordinal}).prepare(3, last_batch=None)
    feeder.configure(prepared, MakerRules(prepared.seed))
    feeder._pool.open_sources = broken
    run = feeder.run(0, 0)
    feeder.start()
    outcome = run.outcomes.first(60)
    feeder.close()
    assert isinstance(outcome, FailedBatch)
    assert outcome.final
    assert "no such number" in str(outcome.error)


@pytest.mark.parametrize("where", ["pump", "session"])
@pytest.mark.parametrize("kind", [BrokenError, ZeroDivisionError])
def test_an_error_that_is_raised_again_keeps_its_traceback(where, kind):
    """An error that ended the feeder has the same traceback at each `next()`.

    That of an error of streamer begins where it was made.
    """

    def fails(*arguments: object) -> None:
        raise kind("no such number")

    feeder = Feeder(plan_of(1, 2))
    prepared = FakeDataset(12, lambda epoch, ordinal: {"x": ordinal}).prepare(3, last_batch=None)
    feeder.configure(prepared, MakerRules(prepared.seed))
    if where == "session":
        prepared.session = fails
    else:
        feeder._run_once = fails
    supply = FedSupply(feeder)
    supply.begin(0, 0)
    seen = []
    for _ in range(4):
        with pytest.raises((kind, BrokenError), match="no such number") as caught:
            supply.take(lambda: None)
        seen.append([frame.name for frame in traceback.extract_tb(caught.value.__traceback__)])
    supply.close()
    assert len({len(names) for names in seen}) == 1
    assert kind is not BrokenError or all("fails" in names for names in seen)


@dataclass(frozen=True)
class Late(FakeRecipe):
    """Stands for a recipe that only one worker can open; every other worker waits until the test ends."""

    first: threading.Lock = field(default_factory=threading.Lock)
    others: threading.Event = field(default_factory=threading.Event)

    def open(self):
        if not self.first.acquire(blocking=False):
            self.others.wait()
        return super().open()


def test_a_worker_that_still_starts_is_given_nothing():
    """A worker that is not ready is given no batch: of two workers the one that is up makes every batch."""
    feeder = Feeder(plan_of(2, 4))
    prepared = FakeDataset(12, lambda epoch, ordinal: {"x": ordinal}).prepare(3, last_batch=None)
    prepared.made = Late(12, 3, lambda epoch, ordinal: {"x": ordinal})
    feeder.configure(prepared, MakerRules(prepared.seed))
    run = feeder.run(0, 0)
    feeder.start()
    try:
        for step in range(4):
            outcome = run.outcomes.first(60)
            assert isinstance(outcome, Finished)
            assert outcome.pending.step == step
            run.outcomes.remove(outcome)
            outcome.discard(feeder.ring)
            feeder.note_taken(run, step + 1, 0)
        assert sorted(handle.ready for handle in feeder._pool.workers.values()) == [False, True]
    finally:
        prepared.made.others.set()
        feeder.close()


@pytest.mark.parametrize(("short_nanoseconds", "depth"), [(0, 1), (1 << 60, 2)])
def test_short_batches_are_queued(monkeypatch, short_nanoseconds, depth):
    """A second batch is queued at a busy worker where batches are short, and not where they take long."""
    deepest = []
    send = Feeder._send

    def watched(self, handle, pending):
        send(self, handle, pending)
        if self.ring.free:
            deepest.append(len(handle.tasks))

    monkeypatch.setattr(Feeder, "_send", watched)
    monkeypatch.setattr(feeder_module, "_SHORT_NANOSECONDS", short_nanoseconds)
    dataset = FakeDataset(10_000, lambda epoch, ordinal: {"x": ordinal})
    with StreamingDataLoader(dataset, 10, 1, worker_type="thread") as loader:
        batches = iter(loader)
        for _ in range(300):
            next(batches)
    assert max(deepest[20:]) == depth
