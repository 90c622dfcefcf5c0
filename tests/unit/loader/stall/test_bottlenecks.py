"""Tests of the report on bottlenecks that are put into a simulated loader: it names each.

There is no thread and no sleep; the clock is moved by hand. What the loader reports of a batch is written as the feeder
writes it; the ledger, the comparison and the diagnosis are the real ones. `tests/e2e/test_bottlenecks.py` shows with
real loaders and real time that the feeder does report it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from streamer.batches.causes import LOST, MADE, NETWORK, RING, START, WINDOW, WORK, BatchTimeline, Stages, Trace
from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.stall.advice import Bottleneck
from streamer.loader.stall.report import Snapshot, StallReport, compare
from streamer.loader.stall.stats import EngineView, LoaderStats, TrainerClock
from streamer.order.plan import LastBatch
from tests.fake_dataset import FakeDataset, FakePrepared, FakeRecipe, FakeSource

MS = 1_000_000
BATCH = 4


class Time:
    """Stands for `time.perf_counter_ns`, and is moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def stages(read: float = 0, decode: float = 0, transform: float = 0, other: float = 0, collate: float = 0) -> Stages:
    """Returns the stages of a batch, given in milliseconds."""
    r, d, t, o, c = (int(ms * MS) for ms in (read, decode, transform, other, collate))
    return Stages(load=r + d + t + o, read=r, decode=d, transform=t, collate=c, write=0)


@dataclass
class Simulation:
    """A loader as a timetable: when each batch can begin, is made and is taken follows from the ones before it.

    Attributes:
        made: (batch, worker) -> its stages.
        sample: batch -> milliseconds of its slowest sample.
        workers, window, slots: how many; batches drawn and not taken; slots of the ring.
        step: milliseconds of the trainer's step. device: of the copy to the device. hold: batches the trainer keeps.
        local: batch -> milliseconds at which its chunks are there. start: at which the workers are ready.
        lost: batch -> milliseconds of work that a dead worker took with it.
    """

    time: Time
    made: Callable[[int, int], Stages] = lambda batch, worker: stages()
    sample: Callable[[int], float] = lambda batch: 0.0
    workers: int = 2
    window: int = 8
    slots: int = 1000
    step: float = 1.0
    device: float = 0.0
    hold: int = 1
    local: Callable[[int], float] = lambda batch: 0.0
    start: float = 0.0
    lost: Callable[[int], float] = lambda batch: 0.0
    free: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    def run(
        self, batches: int = 40, warm: int = 6, engine: tuple[EngineView | None, EngineView | None] = (None, None)
    ) -> StallReport:
        """Trains; reports on what came after the first batches."""
        trainer, self.free = TrainerClock(), [0] * self.workers
        before, now = self._snapshot(trainer, engine[0]), 1
        for number in range(batches):
            if number == warm > 0:
                before = self._snapshot(trainer, engine[0])
            trace, done = self._make(number)
            self.time.now = now
            trainer.ask(0)
            trainer.begin()
            self.time.now = max(now, done)
            trainer.arrive()
            trainer.note_content(trace)
            self.time.now += int(self.device * MS)
            trainer.leave(BATCH, 0)
            self.taken.append(self.time.now)
            now = self.time.now + int(self.step * MS)
        return compare(before, self._snapshot(trainer, engine[1]))

    def _make(self, number: int) -> tuple[Trace, int]:
        """What one batch goes through, and when it is made."""
        worker = min(range(self.workers), key=self.free.__getitem__)
        idle = self.free[worker]
        drawn = max(idle, self._taken_at(number - self.window))
        local = max(drawn, int(self.local(number) * MS))
        ready = max(local, int(self.start * MS))
        slot = max(ready, self._taken_at(number - self.slots + self.hold))
        story, s = BatchTimeline(), self.made(number, worker)
        if drawn > idle:
            story.add(WINDOW, drawn - idle)
        moments = [(NETWORK, drawn), (START, local), (RING, ready), (WORK, slot)]
        if lost := int(self.lost(number) * MS):
            moments += [(LOST, slot + lost), (WORK, slot + lost)]
        done = moments[-1][1] + s.load + s.collate
        for state, at in [*moments, (MADE, done)]:
            self.time.now = at
            story.record_crash() if state == LOST else story.enter(state)
        story.worker, self.free[worker] = worker, done
        return Trace(story, s, (number * BATCH, int(self.sample(number) * MS))), done

    def _taken_at(self, number: int) -> int:
        return self.taken[number] if number >= 0 else 0

    def _snapshot(self, trainer: TrainerClock, engine: EngineView | None) -> Snapshot:
        return Snapshot(
            stats=replace(trainer.stats(), engine=engine),
            waits=trainer.takes.tail(),
            steps=trainer.steps.tail(),
            timings=trainer.ledger.timings.tail(),
            workers=self.workers,
            cores=16,
        )


@pytest.mark.parametrize(
    ("slow", "cause", "bottleneck"),
    [
        ("read", "read", Bottleneck.SSD),
        ("decode", "decode", Bottleneck.DECODE),
        ("transform", "transform", Bottleneck.TRANSFORM),
        ("other", "load", Bottleneck.LOAD),
        ("collate", "collate", Bottleneck.COLLATE),
    ],
)
def test_a_slow_stage(clock, slow, cause, bottleneck):
    """The stage that takes the time is named, with its share; a source that does not tell its stages is loading."""
    found = Simulation(clock, lambda batch, worker: stages(**{slow: 16})).run()
    assert found.bottleneck is bottleneck
    assert found.waiting[cause] > 0.9
    # Two workers make a batch in 8 ms, of which the step hides 1.
    assert found.share == pytest.approx(7 / 8, abs=0.02)


def test_decode_beside_a_little_reading(clock):
    """The larger of two slow stages is named as the bottleneck, and the smaller has its share of the waiting."""
    found = Simulation(clock, lambda batch, worker: stages(read=4, decode=12)).run()
    assert found.bottleneck is Bottleneck.DECODE
    assert found.waiting["read"] == pytest.approx(0.25, abs=0.02)


def test_few_workers(clock):
    """With one worker and idle cores the report advises more workers, by number."""
    found = Simulation(clock, lambda batch, worker: stages(decode=4), workers=1, step=3).run()
    assert found.bottleneck is Bottleneck.DECODE
    assert "1 more worker (num_workers=2; " in found.advice


def test_slow_step(clock):
    """A step that takes longer than the data is not bound by input, and nothing is advised."""
    found = Simulation(clock, lambda batch, worker: stages(decode=4), step=120).run()
    assert found.bottleneck is Bottleneck.NOT_BOUND
    assert found.advice == ""
    assert found.step.median == pytest.approx(0.12)


def test_one_slow_worker(clock):
    """A worker whose batches take far longer than the others' is named, with its time and theirs."""
    found = Simulation(
        clock, lambda batch, worker: stages(decode=160 if worker == 1 else 4), workers=3, window=12
    ).run()
    assert found.bottleneck is Bottleneck.SLOW_WORKER
    assert found.slowest_worker is not None
    assert found.slowest_worker.number == 1
    assert found.slowest_worker.seconds == pytest.approx(40 * found.slowest_worker.others_seconds)


def test_single_slow_samples(clock):
    """A sample in 40 that takes 60 times as long as the others is the bottleneck, and its ordinal is named."""
    found = Simulation(
        clock,
        lambda batch, worker: stages(decode=126 if batch % 10 == 0 else 8),
        sample=lambda batch: 120 if batch % 10 == 0 else 2,
    ).run(batches=70)
    assert found.bottleneck is Bottleneck.SLOW_SAMPLE
    assert found.slowest_sample is not None
    assert found.slowest_sample.ordinal % 40 == 0


def test_full_ring(clock):
    """A trainer that keeps as many batches as the ring has slots is the bottleneck, as workers wait for one.

    One that keeps one batch is not.
    """
    busy = Simulation(clock, lambda batch, worker: stages(decode=4), workers=4, slots=8, hold=7).run()
    assert busy.bottleneck is Bottleneck.RING
    calm = Simulation(clock, lambda batch, worker: stages(decode=4), workers=4, slots=8, step=2).run()
    assert calm.bottleneck is Bottleneck.NOT_BOUND


def test_a_window_too_small(clock):
    """A window of one batch for four workers is the bottleneck, as three of them have nothing to do."""
    found = Simulation(clock, lambda batch, worker: stages(decode=16), workers=4, window=1).run()
    assert found.bottleneck is Bottleneck.WINDOW


def test_starting_workers(clock):
    """Workers that start are the bottleneck of the first batches."""
    found = Simulation(clock, start=900).run(batches=3, warm=0)
    assert found.bottleneck is Bottleneck.START


def test_workers_that_die(clock):
    """Work that was lost with dead workers is the bottleneck where it takes the time."""
    found = Simulation(clock, lambda batch, worker: stages(decode=4), workers=1, lost=lambda batch: 300).run(batches=8)
    assert found.bottleneck is Bottleneck.LOST


def test_copy_to_the_device(clock):
    """A copy in the trainer's thread that takes longer than the batch takes to make is the bottleneck."""
    assert Simulation(clock, device=10).run().bottleneck is Bottleneck.DEVICE


VIEW = EngineView(in_flight=8, fetches=8, needs=100, hits=10, store_bytes=10**9, hit_bound=0.5)


@pytest.mark.parametrize(
    ("engine", "bottleneck"),
    [
        (None, Bottleneck.STORE),
        (VIEW, Bottleneck.STORE),
        (replace(VIEW, throttled=5), Bottleneck.THROTTLED),
        (replace(VIEW, most_recoders=2, recode_busy_seconds=10**6), Bottleneck.RECODING),
        (replace(VIEW, most_recoders=2, recode_busy_seconds=0.01), Bottleneck.STORE),
        (replace(VIEW, loop_cpu_seconds=10**6), Bottleneck.ENGINE_LOOP),
        (replace(VIEW, loop_cpu_seconds=0.01, fetch_processes=2), Bottleneck.STORE),
        (replace(VIEW, in_flight=0, peer_bytes=2 * 10**9), Bottleneck.PEERS),
        (replace(VIEW, peer_bytes=10**8), Bottleneck.STORE),
        (replace(VIEW, in_flight=0), Bottleneck.CACHE_DISK),
        (replace(VIEW, in_flight=0, fetches=0), Bottleneck.CACHE_ROOM),
        (replace(VIEW, in_flight=0, retries=5), Bottleneck.STORE),
        (replace(VIEW, in_flight=0, fetches=0, retries=5), Bottleneck.STORE),
    ],
    ids=[
        "no engine",
        "slow",
        "throttled",
        "recoding",
        "seldom recoding",
        "busy loop",
        "idle loop",
        "from peers",
        "seldom from peers",
        "writing",
        "no room",
        "between tries",
        "between tries of one",
    ],
)
def test_chunks_come_late(clock, engine, bottleneck):
    """Chunks that are late are explained by what the engine says, and decoding is not to blame."""
    late = Simulation(clock, lambda batch, worker: stages(decode=4), local=lambda batch: 20 * batch)
    found = late.run(engine=(None, engine))
    assert found.bottleneck is bottleneck
    assert found.waiting["network"] > 0.7
    # The loop is one thread.
    assert engine is None or engine.loop_cpu_seconds < 1 or "100% of a core" in found.advice
    # An outage is no reason for another disk.
    assert ("requests failed and were sent again" in found.advice) == (engine is not None and engine.retries > 0)


@dataclass(frozen=True)
class TimedRecipe(FakeRecipe):
    """Stands for a recipe whose samples are decoded for 4 ms of the test's time."""

    time: Time | None = None

    def open(self) -> TimedSource:
        return TimedSource(self)


class TimedSource(FakeSource):
    """Stands for a source that decodes: moves the clock by 4 ms for each sample and reports them as decoding."""

    def __init__(self, recipe: TimedRecipe) -> None:
        super().__init__(recipe)
        self.time, self.spent = recipe.time, 0

    def load(self, epoch: int, ordinal: int) -> object:
        self.time.now += 4 * MS
        self.spent += 4 * MS
        return super().load(epoch, ordinal)

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        return 0, self.spent, 0


class TimedDataset(FakeDataset):
    """Stands for a dataset of 40 batches whose samples take 4 ms of the test's time."""

    def __init__(self, time: Time, **more: object) -> None:
        super().__init__(40 * BATCH, lambda epoch, ordinal: np.full(64, ordinal, np.float32), **more)
        self.time = time

    def prepare(self, batch_size: int, last_batch: LastBatch | None) -> FakePrepared:
        recipe = TimedRecipe(self._samples, batch_size, self._make, last_batch, time=self.time)
        self.prepared = FakePrepared(recipe, held_back=self._held_back)
        return self.prepared


def trained(clock: Time, dataset: TimedDataset, **options: object) -> StallReport:
    """Returns the report of a real loader in the trainer's own thread."""
    with StreamingDataLoader(dataset, BATCH, 0, report_every=None, **options) as loader:
        for _ in loader:
            clock.now += MS
        return loader.report()


def test_no_workers(clock):
    """With `num_workers=0` the bottleneck is that there are no workers, whatever takes long."""
    found = trained(clock, TimedDataset(clock))
    assert found.bottleneck is Bottleneck.NO_WORKERS
    assert "num_workers" in found.advice
    assert found.waiting == {**dict.fromkeys(found.waiting, 0.0), "decode": 1.0}
    assert found.share == pytest.approx(16 / 17, abs=0.002)


def test_chunks_come_late_without_workers(clock, monkeypatch):
    """With `num_workers=0` late chunks are the bottleneck, as more workers would not help."""
    dataset = TimedDataset(clock, held_back=True)

    def wait(session, step: int, timeout_seconds: float | None = None) -> None:
        clock.now += 40 * MS
        session.want(step)
        session.allow(step)

    monkeypatch.setattr("tests.fake_dataset.FakeSession.wait", wait)
    found = trained(clock, dataset)
    assert found.bottleneck is Bottleneck.STORE
    assert found.waiting["network"] == pytest.approx(40 / 56)


def test_a_slow_device_transform(clock):
    """A slow `device_transform` is charged to the device, as the trainer's thread runs it."""

    def slow(batch: object) -> object:
        clock.now += 50 * MS
        return batch

    assert trained(clock, TimedDataset(clock), device_transform=slow).bottleneck is Bottleneck.DEVICE


def test_nothing_is_measured_where_nothing_passed(clock):
    """A loader that has delivered nothing reports that nothing was measured, with no waiting."""
    assert Simulation(clock).run(batches=0).bottleneck is Bottleneck.NOTHING
    assert LoaderStats().wait_share == 0
