"""The hand-over of batches: ours beside torch's DataLoader, in one run, by CPU time, page faults and pickled bytes.

    python benchmarks/loader.py [--batches 60] [--quick]

Four kinds of batches, two workers everywhere:

    image   256 x (224, 224, 3) uint8, 38.5 MB       float   128 x (1000, 150) float64, 153.6 MB
    tokens  64 x (2048,) int64, 1 MB                 raw     256 x 110 KB bytes, decoded by nobody, 28 MB

Ways: `ring` is StreamingDataLoader; `stock` DataLoader with default_collate; `stock+copy` makes one tensor first (apex,
timm); `stock numpy` returns arrays; `stock+ring` is DataLoader with our `RingCollate`. CPU is user + system of the main
process and of all workers; faults are minor page faults; both after ten batches of warm-up. Producing a sample costs
nothing (it is there already), so this is the hand-over, and for `ring` also the seeding of the generators for each
sample (7 us).

Then the script of a user's complaint: 128 arrays (1000, 150) float64 a batch, each produced in 3 ms (sleeping, as I/O
does), a step of 50 ms, 0 to 10 workers. Then one slow item in 20, and the main thread's wake-up delay while a loader
feeds.
Results are kept in benchmarks/results/loader-<date>.txt.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from streamer.loader.dataloader import StreamingDataLoader
from streamer.loader.stock import RingCollate
from streamer.loader.testing import FakeDataset

RESULTS = Path(__file__).parent / "results"
WORKERS = 2
WARM_UP = 10

Make = Callable[[int, int], object]


class Ready:
    """Samples that cost nothing to produce: what remains is the hand-over."""

    def __init__(self, samples: list[object]) -> None:
        self.samples = samples

    def __call__(self, epoch: int, ordinal: int) -> object:
        return self.samples[ordinal % len(self.samples)]


def constant(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 100, shape).astype(dtype)


# name -> how a sample is made, samples a batch
KINDS: dict[str, tuple[Make, int]] = {
    "image": (Ready([{"x": constant((224, 224, 3), "u1"), "y": 5}]), 256),
    "float": (Ready([{"x": constant((1000, 150), "f8"), "y": 5}]), 128),
    "tokens": (Ready([{"x": constant((2048,), "i8")}]), 64),
    "raw": (Ready([{"jpg": os.urandom(110_000), "__key__": f"{n:08}", "cls": 5} for n in range(256)]), 256),
}


class Mapped(Dataset[object]):
    """The same samples for a stock DataLoader."""

    def __init__(self, make: Make, samples: int) -> None:
        self.make, self.samples = make, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, ordinal: int) -> object:
        return self.make(0, ordinal)


def collate_copy(samples: list[object]) -> object:
    """As apex and timm do: an empty tensor, filled row by row."""
    fields = {}
    for name, first in samples[0].items():  # type: ignore[attr-defined]
        if isinstance(first, np.ndarray):
            out = torch.empty((len(samples), *first.shape), dtype=torch.from_numpy(first).dtype)
            for row, sample in enumerate(samples):
                out[row] = torch.from_numpy(sample[name])  # type: ignore[index]
            fields[name] = out
        else:
            fields[name] = default_collate([sample[name] for sample in samples])  # type: ignore[index]
    return fields


def collate_numpy(samples: list[object]) -> object:
    """Arrays, as much code does to keep torch out of its transforms."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}  # type: ignore[index, attr-defined]
    return {name: np.stack(c) if isinstance(c[0], np.ndarray) else c for name, c in columns.items()}


@dataclass(frozen=True)
class Usage:
    """CPU milliseconds and minor faults of a process so far."""

    cpu: float
    faults: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Reads a process: nanoseconds of CPU from its threads' schedstat, faults from its stat."""
        folder = Path(f"/proc/{pid}")
        cpu = sum(int((task / "schedstat").read_text().split()[0]) for task in (folder / "task").iterdir())
        return cls(cpu / 1e6, int((folder / "stat").read_text().rsplit(")", 1)[1].split()[7]))

    def since(self, before: Usage, batches: int) -> Usage:
        """The mean of a batch."""
        return Usage((self.cpu - before.cpu) / batches, round((self.faults - before.faults) / batches, 2))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Row:
    """One line of the table, per batch."""

    main: Usage
    workers: Usage
    wall_milliseconds: float
    pickled: str


def measure(batches: Iterator[object], pids: Callable[[], list[int]], count: int) -> tuple[Usage, Usage, float]:
    for _ in range(WARM_UP):
        next(batches)
    workers = pids()
    before = [Usage.of(pid) for pid in [os.getpid(), *workers]]
    started = time.perf_counter()
    for _ in range(count):
        batch = next(batches)
    wall = (time.perf_counter() - started) / count * 1e3
    after = [Usage.of(pid) for pid in [os.getpid(), *workers]]
    del batch
    main, *others = [now.since(then, count) for now, then in zip(after, before, strict=True)]
    return main, Usage(sum(u.cpu for u in others), round(sum(u.faults for u in others), 2)), wall  # type: ignore[arg-type]


def ours(make: Make, batch_size: int, count: int) -> Row:
    samples = batch_size * (WARM_UP + count + 200)
    with StreamingDataLoader(FakeDataset(samples, make), batch_size, WORKERS) as loader:
        feeder = lambda: loader._supply.feeder  # type: ignore[union-attr]  # noqa: E731
        measured = measure(iter(loader), lambda: [h.process.pid for h in feeder()._pool.handles], count)
        stats = loader.stats()
        return Row(*measured, f"{stats.pickled_bytes / max(stats.batches, 1):.0f}")


def ring_collate(make: Make, batch_size: int, count: int) -> Row:
    return stock(RingCollate(), make, batch_size, count)


def stock(collate: Callable[[list[object]], object], make: Make, batch_size: int, count: int) -> Row:
    samples = batch_size * (WARM_UP + count + 20)
    loader = DataLoader(
        Mapped(make, samples), batch_size, num_workers=WORKERS, collate_fn=collate, multiprocessing_context="forkserver"
    )
    batches = iter(loader)
    return Row(*measure(batches, lambda: [w.pid for w in batches._workers], count), "-")  # type: ignore[attr-defined]


WAYS: dict[str, Callable[[Make, int, int], Row]] = {
    "ring": ours,
    "stock+ring": ring_collate,
    "stock": partial(stock, default_collate),
    "stock+copy": partial(stock, collate_copy),
    "stock numpy": partial(stock, collate_numpy),
}


def hand_over(count: int, report: Callable[[str], None]) -> None:
    heads = ("CPU", "main", "workers", "faults main", "workers", "pickled B", "wall")
    report(f"{'batch':8}{'way':13}" + "".join(f"{head:>12}" for head in heads))
    for kind, (make, batch_size) in KINDS.items():
        for way, run in WAYS.items():
            if kind == "raw" and way in {"stock+copy", "stock numpy"}:
                continue
            row = run(make, batch_size, count)
            main, workers = row.main, row.workers
            figures = (main.cpu + workers.cpu, main.cpu, workers.cpu, main.faults, workers.faults)
            columns = "".join(f"{figure:12.2f}" for figure in figures)
            report(f"{kind:8}{way:13}{columns}{row.pickled:>12}{row.wall_milliseconds:12.1f}")


def slow_array(epoch: int, ordinal: int) -> object:
    time.sleep(0.003)
    return np.full((1000, 150), ordinal, np.float64)


def complaint(report: Callable[[str], None], epochs_of: int) -> None:
    report("\nseconds per batch of 128 x (1000, 150) float64, 3 ms each, 50 ms step (the stock loader forks)")
    report(f"{'workers':10}{'ring':>8}{'waited':>9}{'stock':>8}")
    for workers in (0, 2, 4, 10):
        with StreamingDataLoader(FakeDataset(128 * epochs_of, slow_array), 128, workers) as loader:
            mine = steps(iter(loader))
            waited = loader.stats().wait_median_seconds
        theirs = steps(iter(DataLoader(Mapped(slow_array, 128 * epochs_of), 128, num_workers=workers)))
        report(f"{workers:<10}{mine:8.3f}{waited:9.3f}{theirs:8.3f}")


def steps(batches: Iterator[object]) -> float:
    """Seconds per batch after the first two."""
    next(batches), next(batches)
    started, count = time.perf_counter(), 0
    for _ in batches:
        time.sleep(0.05)
        count += 1
    return (time.perf_counter() - started) / count


def slow_item(epoch: int, ordinal: int) -> object:
    time.sleep(0.8 if ordinal % 20 == 10 else 0.05)
    return ordinal


def straggler(report: Callable[[str], None]) -> None:
    """One item in 20 takes 16 times as long; 4 workers, batch 1, a step of 20 ms."""
    with StreamingDataLoader(FakeDataset(120, slow_item), 1, 4, prefetch_batches=48) as loader:
        mine = waiting(iter(loader))
    theirs = waiting(iter(DataLoader(Mapped(slow_item, 120), 1, num_workers=4)))
    report(f"\none slow item in 20: share of time waiting after the first batch: ring {mine:.0%}, stock {theirs:.0%}")


def waiting(batches: Iterator[object]) -> float:
    next(batches)
    started, stepped = time.perf_counter(), 0.0
    for _ in batches:
        began = time.perf_counter()
        time.sleep(0.02)
        stepped += time.perf_counter() - began
    return 1 - stepped / (time.perf_counter() - started)


def wake_ups(report: Callable[[str], None], count: int) -> None:
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
    lines: list[str] = []
    warnings.filterwarnings("ignore", message="This DataLoader will create")

    def report(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    report(
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores, Python {platform.python_version()}, torch "
        f"{torch.__version__}, numpy {np.__version__}; CPU and wall in ms per batch, {WORKERS} workers"
    )
    if options.quick:
        for kind in ("float", "raw"):
            del KINDS[kind]
        hand_over(10, report)
        return
    hand_over(options.batches, report)
    complaint(report, 24)
    straggler(report)
    wake_ups(report, 5000)
    (RESULTS / f"loader-{datetime.now(UTC):%Y-%m-%d}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
