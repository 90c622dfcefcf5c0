"""The hand-over of batches: ours beside torch's DataLoader, in one run, by CPU time, page faults and pickled bytes.

    python benchmarks/loader.py [--batches 60] [--quick]

Four kinds of batches, two workers everywhere:

    image   256 x (224, 224, 3) uint8, 38.5 MB       float   128 x (1000, 150) float64, 153.6 MB
    tokens  64 x (2048,) int64, 1 MB                 raw     256 x 110 KB bytes, decoded by nobody, 28 MB

Ways: `ring` is StreamingDataLoader; `stock` DataLoader with default_collate; `stock+copy` makes one tensor first (apex,
timm); `stock numpy` returns arrays; `stock+ring` is DataLoader with our `RingCollate`. CPU is user + system of the main
process and of all workers; faults are minor page faults; both after ten batches of warm-up. Producing a sample costs
nothing (it is there already), so this is the hand-over. `ring+seeds` is `ring` for samples that may draw from Python's
and numpy's generators, as a transform of a user's may: both are seeded for each sample (5.5 us).

Then the script of a user's complaint: 128 arrays (1000, 150) float64 a batch, each produced in 3 ms (sleeping, as I/O
does), a step of 50 ms, 0 to 10 workers. Then one slow item in 20, and the main thread's wake-up delay while a loader
feeds. Last, each bound and whether it was met.
Results are kept in benchmarks/results/loader-<date>.txt.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from loader_jpeg import jpeg
from loader_ways import KINDS, WARM_UP, WAYS, WORKERS, Mapped, Row
from report import kept
from torch.utils.data import DataLoader

from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.testing import FakeDataset

Report = Callable[[str], None]


class Bounds:
    """What was to be shown, and what was found."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, what: str, found: float, bound: float, unit: str = "", *, least: bool = False) -> None:
        met = found >= bound if least else found <= bound
        sign = ">=" if least else "<="
        self._lines.append(f"{'ok  ' if met else 'MISS'} {what}: {found:.4g}{unit} ({sign} {bound:g}{unit})")

    def report(self, report: Report) -> None:
        report("\nbounds")
        for line in self._lines:
            report(line)


def hand_over(count: int, report: Report, bounds: Bounds) -> None:
    heads = ("CPU", "main", "workers", "faults main", "workers", "pickled B", "wall")
    report(f"{'batch':8}{'way':13}" + "".join(f"{head:>12}" for head in heads))
    rows: dict[tuple[str, str], Row] = {}
    for kind, (make, batch_size) in KINDS.items():
        for way, run in WAYS.items():
            if kind == "raw" and way in {"stock+copy", "stock numpy", "spdl pool"}:
                continue
            row = rows[kind, way] = run(make, batch_size, count)
            main, workers = row.main, row.workers
            figures = (main.cpu + workers.cpu, main.cpu, workers.cpu, main.faults, workers.faults)
            columns = "".join(f"{figure:12.2f}" for figure in figures)
            report(f"{kind:8}{way:13}{columns}{row.pickled:>12}{row.wall_milliseconds:12.1f}")
    image, stock = rows["image", "ring"], rows["image", "stock"]
    bounds.add("hand-over of 38.5 MB, CPU of all processes", image.cpu, 2.5, " ms")
    bounds.add("page faults a batch, trainer and workers", image.main.faults + image.workers.faults, 1)
    bounds.add("pickled bytes a batch", float(image.pickled), 512)
    bounds.add("CPU of the stock loader's hand-over, against ours", stock.cpu / image.cpu, 8, "x", least=True)
    if ("float", "ring") in rows:
        mine, theirs = rows["float", "ring"], rows["float", "stock"]
        bounds.add("hand-over of 153.6 MB of float64, wall", mine.wall_milliseconds, 10, " ms")
        bounds.add(
            "rate of raw tensors, against stock", theirs.wall_milliseconds / mine.wall_milliseconds, 5, "x", least=True
        )


def slow_array(epoch: int, ordinal: int) -> object:
    time.sleep(0.003)
    return np.full((1000, 150), ordinal, np.float64)


def complaint(report: Report, bounds: Bounds, epochs_of: int) -> None:
    report("\nseconds per batch of 128 x (1000, 150) float64, 3 ms each, 50 ms step (the stock loader forks)")
    report(f"{'workers':10}{'ring':>8}{'waited':>9}{'stock':>8}")
    for workers in (0, 2, 4, 10):
        # Until every worker has started and made a batch or two.
        warm_up = 2 + 2 * workers
        samples = 128 * (epochs_of + warm_up)
        with StreamingDataLoader(FakeDataset(samples, slow_array), 128, workers) as loader:
            mine, waited = steps(iter(loader), warm_up)
        theirs, _ = steps(iter(DataLoader(Mapped(slow_array, samples), 128, num_workers=workers)), warm_up)
        report(f"{workers:<10}{mine:8.3f}{waited:9.3f}{theirs:8.3f}")
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


def straggler(report: Report, bounds: Bounds) -> None:
    """One item in 20 takes 16 times as long; 4 workers, batch 1, a step of 20 ms."""
    with StreamingDataLoader(FakeDataset(120, slow_item), 1, 4, prefetch_batches=48) as loader:
        mine = waiting(iter(loader))
    theirs = waiting(iter(DataLoader(Mapped(slow_item, 120), 1, num_workers=4)))
    report(f"\none slow item in 20: share of time waiting after the first batch: ring {mine:.0%}, stock {theirs:.0%}")
    bounds.add("one slow item in 20: waiting", mine * 100, 30, " %")


def waiting(batches: Iterator[object]) -> float:
    next(batches)
    started, stepped = time.perf_counter(), 0.0
    for _ in batches:
        began = time.perf_counter()
        time.sleep(0.02)
        stepped += time.perf_counter() - began
    return 1 - stepped / (time.perf_counter() - started)


def wake_ups(report: Report, bounds: Bounds, count: int) -> None:
    """How late the main thread is when it asks to be woken after 0.2 ms, with nothing and with a loader behind it."""
    quiet = delays(count)
    with StreamingDataLoader(FakeDataset(10**8, KINDS["image"][0]), 256, 1) as loader:
        batches = iter(loader)
        for _ in range(WARM_UP):
            next(batches)
        feeding = delays(count, lambda: next(batches))
    report("\nmain thread's wake-up delay, microseconds: p50, p99")
    for name, found in (("nothing behind it", quiet), ("ring feeding 38.5 MB batches", feeding)):
        p50, p99 = np.quantile(found, [0.5, 0.99]) * 1e6
        report(f"{name:30}{p50:8.0f}{p99:8.0f}")
    bounds.add("main thread's wake-up delay while feeding, p99", float(np.quantile(feeding, 0.99)) * 1e3, 0.5, " ms")


def delays(count: int, between: Callable[[], object] | None = None) -> list[float]:
    found = []
    for turn in range(count):
        if between is not None and turn % 20 == 0:
            between()
        asked = time.perf_counter()
        time.sleep(0.0002)
        found.append(time.perf_counter() - asked - 0.0002)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=60, help="batches measured for each line")
    parser.add_argument("--quick", action="store_true", help="only the hand-over of images and tokens, ten batches")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    with kept("loader", f"torch {torch.__version__}", f"numpy {np.__version__}", keep=not options.quick):
        print(f"CPU and wall in ms per batch, {WORKERS} workers")
        scenes(options, print)


def scenes(options: argparse.Namespace, report: Callable[[str], None]) -> None:
    """Everything that is measured, one after the other."""
    bounds = Bounds()
    if options.quick:
        for kind in ("float", "raw"):
            del KINDS[kind]
        hand_over(10, report, bounds)
        bounds.report(report)
        return
    hand_over(options.batches, report, bounds)
    bounds.add("JPEG to 224 x 224: CPU an image, against the best stock loader", jpeg(report), 0.88, "x")
    complaint(report, bounds, 24)
    straggler(report, bounds)
    wake_ups(report, bounds, 5000)
    bounds.report(report)


if __name__ == "__main__":
    sys.exit(main())
