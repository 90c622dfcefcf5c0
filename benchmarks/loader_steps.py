"""A trainer's steps behind a loader: how long they wait, and how late its thread wakes up.

complaint: the script of a user's complaint: 128 arrays (1000, 150) float64 a batch, each produced in 3 ms (sleeping,
as I/O does), a step of 50 ms, 0 to 10 workers. straggler: one item in 20 takes 16 times as long, 4 workers, batch 1, a
step of 20 ms; share of the time that the step waits, in 120 batches after 80 to warm up. wake-ups: how late the main
thread is when it asks to be woken after 0.2 ms, with nothing and with a loader behind it that feeds batches of 38.5 MB.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import checkout  # noqa: F401
import numpy as np
from bounds import Bounds
from loader_samples import KINDS
from loader_ways import Mapped, warmed_up
from torch.utils.data import DataLoader

from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset


def slow_array(epoch: int, ordinal: int) -> object:
    time.sleep(0.003)
    return np.full((1000, 150), ordinal, np.float64)


def complaint(batches: int, bounds: Bounds) -> None:
    print("\nseconds per batch of 128 x (1000, 150) float64, 3 ms each, 50 ms step (the stock loader forks)")
    print(f"{'workers':10}{'ring':>8}{'waited':>9}{'stock':>8}")
    for workers in (0, 2, 4, 10):
        # Until every worker has started and made a batch or two.
        warm_up = 2 + 2 * workers
        samples = 128 * (batches + warm_up)
        with StreamingDataLoader(FakeDataset(samples, slow_array), 128, workers) as loader:
            mine, waited = steps(iter(loader), warm_up)
        theirs, _ = steps(iter(DataLoader(Mapped(slow_array, samples), 128, num_workers=workers)), warm_up)
        print(f"{workers:<10}{mine:8.3f}{waited:9.3f}{theirs:8.3f}")
    bounds.add("complaint: the step's wait for a batch, 10 workers, median", waited * 1e3, 2, " ms")


def steps(batches: Iterator[object], warm_up: int) -> tuple[float, float]:
    """Seconds per batch, and the median of those that the step waited for it, after the warm-up."""
    for _ in range(warm_up):
        next(batches)
    started, waits = time.perf_counter(), []
    while True:
        asked = time.perf_counter()
        if next(batches, None) is None:
            break
        waits.append(time.perf_counter() - asked)
        time.sleep(0.05)
    return (time.perf_counter() - started) / len(waits), statistics.median(waits)


def slow_item(epoch: int, ordinal: int) -> object:
    time.sleep(0.8 if ordinal % 20 == 10 else 0.05)
    return ordinal


def straggler(rounds: int, bounds: Bounds) -> None:
    mine, theirs = [], []
    for _ in range(rounds):
        with StreamingDataLoader(FakeDataset(200, slow_item), 1, 4, prefetch_batches=48) as loader:
            mine.append(waiting(iter(loader)))
        theirs.append(waiting(iter(DataLoader(Mapped(slow_item, 200), 1, num_workers=4))))
    ring, stock = statistics.median(mine), statistics.median(theirs)
    print(
        f"\none slow item in 20: share of time waiting, medians of {rounds} in turn: ring {ring:.0%}, stock {stock:.0%}"
    )
    bounds.add("one slow item in 20: waiting", ring * 100, 30, " %")


def waiting(batches: Iterator[object]) -> float:
    for _ in range(80):
        # The same pace: what was made ahead while workers started is not what is measured.
        next(batches)
        time.sleep(0.02)
    started, stepped = time.perf_counter(), 0.0
    for _ in batches:
        began = time.perf_counter()
        time.sleep(0.02)
        stepped += time.perf_counter() - began
    return 1 - stepped / (time.perf_counter() - started)


def wake_ups(rounds: int, count: int, bounds: Bounds) -> None:
    quiet, feeding = [], []
    for _ in range(rounds):
        quiet.append(np.quantile(delays(count), [0.5, 0.99]) * 1e6)
        with StreamingDataLoader(FakeDataset(10**8, KINDS["image"][0]), 256, 1) as loader:
            batches = warmed_up(loader)
            feeding.append(np.quantile(delays(count, batches.__next__), [0.5, 0.99]) * 1e6)
    print(f"\nmain thread's wake-up delay, microseconds, medians of {rounds} in turn: p50, p99")
    for name, found in (("nothing behind it", quiet), ("ring feeding 38.5 MB batches", feeding)):
        p50, p99 = np.median(found, axis=0)
        print(f"{name:30}{p50:8.0f}{p99:8.0f}")
    p99 = float(np.median(feeding, axis=0)[1])
    bounds.add("main thread's wake-up delay while feeding, p99", p99 / 1e3, 0.5, " ms")


def delays(count: int, between: Callable[[], object] | None = None) -> list[float]:
    found = []
    for turn in range(count):
        if between is not None and turn % 20 == 0:
            between()
        asked = time.perf_counter()
        time.sleep(0.0002)
        found.append(time.perf_counter() - asked - 0.0002)
    return found
