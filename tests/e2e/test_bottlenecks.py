"""The stall report of a real loader, its workers and feeder, over a fake dataset in which one part is slow on purpose.

All bottlenecks, without threads and sleeps, are in tests/unit/loader/stall/test_bottlenecks.py; here are those that
depend on the feeder's reports. A process that is stopped for a second in the middle is reported as a slow sample.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import cloudpickle
import numpy as np
import pytest

from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.stall.advice import Bottleneck
from streamer.loader.stall.report import StallReport
from streamer.order.plan import LastBatch
from tests.fake_dataset import FakeDataset, FakePrepared, FakeRecipe, FakeSource

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.timing

# Of a sample's stage that is slow.
SLOW = 0.004
BATCH = 4


@dataclass(frozen=True)
class StagedRecipe(FakeRecipe):
    """A fake dataset's recipe whose samples sleep in read, decode and transform, and report the time of each.

    Attributes:
        stages: Function from an ordinal to the seconds of each stage.
    """

    stages: Callable[[int], tuple[float, float, float]] = lambda ordinal: (0, 0, 0)

    def open(self) -> StagedSource:
        return StagedSource(self)


class StagedSource(FakeSource):
    """Loads fake samples as slowly as the recipe says, and counts the time of each stage."""

    def __init__(self, recipe: StagedRecipe) -> None:
        super().__init__(recipe)
        self.stages, self.spent = recipe.stages, [0, 0, 0]

    def load(self, epoch: int, ordinal: int) -> object:
        for stage, seconds in enumerate(self.stages(ordinal)):
            began = time.perf_counter_ns()
            if seconds:
                time.sleep(seconds)
            self.spent[stage] += time.perf_counter_ns() - began
        return super().load(epoch, ordinal)

    def stage_nanoseconds(self) -> tuple[int, int, int]:
        return tuple(self.spent)


class StagedDataset(FakeDataset):
    """A fake dataset of 400 batches whose engine's counters are set by the test; nothing is fetched or read."""

    def __init__(self, stages, batches: int = 400, make=lambda e, o: np.full(64, o, np.float32), **more) -> None:
        super().__init__(batches * BATCH, make, **more)
        self.stages, self.engine = stages, None

    def prepare(self, batch_size: int, last_batch: LastBatch | None) -> FakePrepared:
        recipe = StagedRecipe(self._samples, batch_size, self._make, last_batch, stages=self.stages)
        self.prepared = FakePrepared(recipe, held_back=self._held_back, engine_values=self.engine)
        return self.prepared


def quick(ordinal: int) -> tuple[float, float, float]:
    return 0, 0, 0


def run(
    dataset: StagedDataset, workers: int = 2, *, batches: int = 40, step: float = 0.001, warm: int = 6, **options
) -> StallReport:
    """Trains for some batches, and returns the report on those after the first."""
    kind = options.pop("worker_type", "thread")
    keep = options.pop("keep", 1)
    with StreamingDataLoader(dataset, BATCH, workers, worker_type=kind, report_every=None, **options) as loader:
        kept, source = [], iter(loader)
        for number in range(batches):
            if number == warm > 0:
                loader.report()
            kept = [*kept, next(source)][-keep:]
            time.sleep(step)
        found = loader.report()
        kept.clear()
    print(found)
    return found


def test_slow_decoding():
    """A report names the stage that takes most of a sample's time as the bottleneck, with its share."""
    found = run(StagedDataset(lambda ordinal: (SLOW / 3, SLOW, 0)))
    assert found.bottleneck is Bottleneck.DECODE
    assert 0.1 < found.waiting["read"] < found.waiting["decode"]
    assert found.share > 0.4


def test_full_ring():
    """A trainer that keeps more batches than the ring has slots makes workers wait: the ring is the bottleneck."""
    found = run(StagedDataset(lambda o: (0, SLOW, 0)), workers=4, ring_bytes=4 * 4096, keep=40, step=0.001)
    assert found.bottleneck is Bottleneck.RING
    assert found.spilled > 0


def test_a_window_too_small():
    """prefetch_batches=1 with four workers gets the window as its bottleneck: three workers have nothing to do."""
    found = run(StagedDataset(lambda o: (0, SLOW, 0)), workers=4, prefetch_batches=1, batches=30)
    assert found.bottleneck is Bottleneck.WINDOW


def test_starting_workers():
    """A report on the first batches names the start of the worker processes as the bottleneck."""
    found = run(StagedDataset(quick), workers=1, worker_type="process", batches=3, warm=0, step=0)
    assert found.bottleneck is Bottleneck.START


def deliver_slowly(dataset: StagedDataset, seconds: float = 0.02, batches: int = 400) -> threading.Thread:
    """Stands for the engine's deliveries: one step becomes local every `seconds`; nothing is fetched."""

    def go() -> None:
        for step in range(batches):
            time.sleep(seconds)
            session = dataset.prepared.sessions[-1] if dataset.prepared and dataset.prepared.sessions else None
            if session is not None and session.closed:
                return
            if session is not None:
                session.allow(step)

    thread = threading.Thread(target=go)
    thread.start()
    return thread


ENGINE = {"in_flight": 8, "flights": 8, "needs": 100, "hits": 10, "store_bytes": 10**9, "hit_bound": 0.5}


def test_chunks_come_late():
    """Chunks that come late because the store throttles are reported as throttling, not as slow decoding."""
    found = starve(StagedDataset(lambda o: (0, 0.001, 0), held_back=True), {**ENGINE, "throttled": 5}, workers=2)
    assert found.bottleneck is Bottleneck.THROTTLED
    assert found.waiting["network"] > 0.5


def starve(dataset: StagedDataset, engine: dict[str, object] | None, workers: int) -> StallReport:
    dataset.engine = engine
    thread = deliver_slowly(dataset)
    try:
        return run(dataset, workers, batches=16, step=0.002, warm=0)
    finally:
        thread.join()


@pytest.mark.slow
def test_workers_that_die():
    """Workers that die again and again are reported as the bottleneck: time lost with them, or their new start."""
    marks = f"/dev/shm/streamer-bottleneck-{os.getpid()}-"
    try:
        found = run(
            StagedDataset(quick, batches=8, make=Deadly(marks)), workers=1, worker_type="process", batches=8, warm=1
        )
    finally:
        for ordinal in range(8 * BATCH):
            if os.path.exists(f"{marks}{ordinal}"):
                os.unlink(f"{marks}{ordinal}")
    assert found.bottleneck in (Bottleneck.LOST, Bottleneck.START)
    assert found.respawns >= 3


@dataclass(frozen=True)
class Deadly:
    """Makes a sample once its worker was killed for it; the first sample of each batch kills once."""

    marks: str

    def __call__(self, epoch: int, ordinal: int) -> object:
        if ordinal % BATCH == 0 and not os.path.exists(f"{self.marks}{ordinal}"):
            open(f"{self.marks}{ordinal}", "x").close()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(8)
