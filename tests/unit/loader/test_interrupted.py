"""Tests of a Ctrl-C inside of `next()`: the following `next()` gives that batch, and no slot stays taken."""

from __future__ import annotations

import gc
import linecache
import sys
from collections import Counter
from types import FrameType

import numpy as np
import pytest

from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset

SAMPLES, BATCH = 24, 3
# The files through which a batch comes to the trainer.
PLACES = ("epoch_iterator.py", "lifecycle.py", "supply.py", "run.py", "ring.py", "prefetcher.py", "dataloader.py")


class InterruptAt:
    """Stands for Ctrl-C: raises KeyboardInterrupt before the n-th line that runs in the files of PLACES, once.

    A real one may come between any two instructions.
    """

    def __init__(self, line: int) -> None:
        self.left = line
        self.raised = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> object:
        if not frame.f_code.co_filename.endswith(PLACES):
            return None
        # A signal comes after a call: not between the last assignment and `return`, nor between the body of a `with`
        # and its end, which has the line of its beginning (a lock would stay locked).
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        unsafe = text in ("return content", "return batch") or text.startswith("with ")
        if event == "line" and not self.raised and not unsafe:
            self.left -= 1
            if self.left < 0:
                self.raised = True
                raise KeyboardInterrupt
        return self


def make(epoch: int, ordinal: int) -> dict[str, object]:
    return {"x": np.full(50, ordinal, np.int64)}


def read(loader: StreamingDataLoader, line: int) -> tuple[list[int], bool]:
    """Returns all samples of one iterator whose third `next()` is interrupted at a line, and whether it was."""
    batches, seen = iter(loader), []
    for step in range(SAMPLES // BATCH):
        trace = InterruptAt(line)
        if step == 2:
            sys.settrace(trace)
        try:
            batch = next(batches)
        except KeyboardInterrupt:
            sys.settrace(None)
            batch = next(batches)
        finally:
            sys.settrace(None)
        seen += batch["x"][:, 0].tolist()
        if step == 2:
            interrupted = trace.raised
        del batch
    assert next(batches, None) is None
    return seen, interrupted


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transformed", [False, True])
def test_the_next_call_gives_the_interrupted_batch(workers: int, transformed: bool) -> None:
    """After an interrupt at any line of `next()` the next call gives that batch, and every slot is used again."""
    options = {"device_transform": lambda batch: {"x": batch["x"].clone()}} if transformed else {}
    dataset = FakeDataset(SAMPLES, make)
    with StreamingDataLoader(dataset, BATCH, workers, worker_type="thread", report_every=None, **options) as loader:
        line, interrupted = 0, True
        while interrupted:
            seen, interrupted = read(loader, line)
            assert Counter(seen) == Counter(range(SAMPLES)), f"interrupted at line {line}"
            line += 1
        # All lines of the call were tried.
        assert line > 20
        if workers:
            gc.collect()
            stats = loader.stats()
            assert stats.ring_slots <= 2 * 8 + 8
            assert [read(loader, 10**9)[1] for _ in range(3)] == [False] * 3
            assert loader.stats().spilled_batches <= stats.spilled_batches + 2


class TooLateError(Exception):
    """Stands for the error that a handler of SIGALRM raises."""


def test_a_signal_handler_that_raises_costs_no_batch() -> None:
    """A signal handler that raises inside of `next()`, as a limit of time does, costs no batch.

    Regression: each alarm ended the epoch a batch earlier, without a word.
    """
    signals = iter([True] * 5 + [False] * 1000)
    with StreamingDataLoader(FakeDataset(SAMPLES, make), BATCH, 2, worker_type="thread", report_every=None) as loader:
        batches = iter(loader)
        seen = next(batches)["x"][:, 0].tolist()
        take = loader._supply_owner.take

        def alarmed(clock: object) -> object:
            if next(signals):
                raise TooLateError
            return take(clock)

        loader._supply_owner.take = alarmed
        for _ in range(5):
            with pytest.raises(TooLateError):
                next(batches)
        seen += [number for batch in batches for number in batch["x"][:, 0].tolist()]
    assert seen == list(range(SAMPLES))


def test_the_state_after_an_interrupt_is_that_of_the_last_batch_given() -> None:
    """The state after an interrupt is that of the last batch given, so that a run that goes on misses nothing."""
    with StreamingDataLoader(FakeDataset(SAMPLES, make), BATCH, report_every=None) as loader:
        batches = iter(loader)
        next(batches)
        sys.settrace(InterruptAt(6))
        try:
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        finally:
            sys.settrace(None)
        assert loader.state_dict()["batch"] == 1
