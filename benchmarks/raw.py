"""Raw arrays from a warm cache into the training loop, beside `dd` of the same bytes and a stock DataLoader.

    python benchmarks/raw.py [--megabytes 1024] [--kilobytes 1200] [--batch-size 32] [--rounds 5] [--quick]

Float32 arrays in `.npy` files, in the cache (and in the page cache, as a data set that fits into memory is; `--cold`
drops it before each run; then the rest of the memory is filled with page cache, see `memory.py`). In turn, `--rounds`
times: `dd` reads the chunk files, joined to one, in pieces of 1 MiB; our loader with 1 and 2 workers delivers two
epochs, shuffled, in order, and of a growing dataset (`reuse` 4); torch's DataLoader with 2 workers and
`default_collate` loads the files by `numpy.load`. The medians are printed: CPU seconds per GB of trainer and workers
together, GB/s, its ratio to dd's and to the stock loader's, the workers' page faults a batch. Results are kept in
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bounds import Bounds
from loader_ways import all_ready
from memory import PageCache, drop
from report import kept
from torch.utils.data import DataLoader, Dataset

from streamer import Growing, StreamingDataLoader, StreamingDataset


class Files(Dataset[torch.Tensor]):
    """The same files for a stock DataLoader."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self.paths[number]))


@dataclass(frozen=True)
class Row:
    """One epoch."""

    nbytes: int
    wall_seconds: float
    cpu_seconds: float
    faults: float = 0.0


def cpu_of(pid: int) -> float:
    """User and system seconds of a process and of its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def make_data(folder: Path, megabytes: int, kilobytes: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(megabytes * 1000 // kilobytes):
        np.save(folder / f"{number:06}.npy", rng.standard_normal((kilobytes * 250 // 100, 100), np.float32))


def dd(joined: Path) -> Row:
    before, started = os.times(), time.perf_counter()
    subprocess.run(["dd", f"if={joined}", "of=/dev/null", "bs=1M"], check=True, capture_output=True)
    wall, after = time.perf_counter() - started, os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Row(joined.stat().st_size, wall, spent)


def epoch(batches: Iterator[torch.Tensor], pids: Callable[[], list[int]]) -> Row:
    """One epoch after the first batch, which waits for workers to start."""
    next(batches)
    known = [os.getpid(), *pids()]
    before, started, nbytes = sum(map(cpu_of, known)), time.perf_counter(), 0
    batch = None
    for batch in batches:
        nbytes += batch.nbytes
    wall = time.perf_counter() - started
    del batch
    return Row(nbytes, wall, sum(map(cpu_of, known)) - before)


def ours(
    folder: Path, cache: Path, workers: int, batch_size: int, *, order: dict[str, Any], prepare: Callable[[], None]
) -> Row:
    dataset = StreamingDataset(folder, cache_dir=cache, cache_bytes="16GB", **order)
    with StreamingDataLoader(dataset, batch_size, workers, report_every=None) as loader:
        # Until everything is in the cache, all workers have started, and the ring is there.
        while loader.stats().ring_slots == 0 or not all_ready(loader):
            for batch in loader:
                del batch
        prepare()
        stats, pids = loader.stats(), children()
        before, started, nbytes = sum(map(cpu_of, [os.getpid(), *pids])), time.perf_counter(), 0
        for _ in range(2):
            for batch in loader:
                nbytes += batch["npy"].nbytes
            del batch
        wall = time.perf_counter() - started
        spent = sum(map(cpu_of, [os.getpid(), *pids])) - before
        after = loader.stats()
        faults = (after.worker_faults - stats.worker_faults) / (after.batches - stats.batches)
    dataset.close()
    return Row(nbytes, wall, spent, faults)


def stock(folder: Path, batch_size: int, prepare: Callable[[], None]) -> Row:
    prepare()
    loader = DataLoader(
        Files(folder),
        batch_size,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="forkserver",
        persistent_workers=True,
    )
    batches = iter(loader)
    return epoch(batches, lambda: [worker.pid for worker in batches._workers])  # type: ignore[attr-defined]


def measure(root: Path, options: argparse.Namespace, bounds: Bounds) -> None:
    folder, cache, joined = root / "data", root / "cache", root / "joined"
    make_data(folder, options.megabytes, options.kilobytes)
    warm = StreamingDataset(folder, cache_dir=cache, cache_bytes="16GB")
    with StreamingDataLoader(warm, options.batch_size, 1, report_every=None) as loader:
        for batch in loader:
            del batch
    warm.close()
    chunks = sorted(cache.rglob("*.chunk"))
    with joined.open("wb") as out:
        for chunk in chunks:
            out.write(chunk.read_bytes())

    def prepare() -> None:
        if options.cold:
            drop([*chunks, joined, *folder.iterdir()])

    def run_dd() -> Row:
        prepare()
        return dd(joined)

    growing = Growing(4, len(list(folder.iterdir())))
    orders: dict[str, dict[str, Any]] = {
        "shuffled": {},
        "in order": {"shuffle": False},
        "growing": {"growing": growing},
    }
    ways: dict[str, Callable[[], Row]] = {"dd bs=1M": run_dd}
    for workers in (1, 2):
        for order, chosen in orders.items():
            ways[f"ours, {workers} workers, {order}"] = lambda w=workers, o=chosen: ours(  # type: ignore[misc]
                folder, cache, w, options.batch_size, order=o, prepare=prepare
            )
    ways["stock, 2 workers"] = lambda: stock(folder, options.batch_size, prepare)
    found: dict[str, list[Row]] = {name: [] for name in ways}
    with PageCache(root) as pages:
        pages.fill()
        # What that has pushed out comes back.
        for path in () if options.cold else (*chunks, joined, *folder.iterdir()):
            path.read_bytes()
        for _ in range(options.rounds):
            for name, run in ways.items():
                found[name].append(run())
    table(found, bounds)


def table(found: dict[str, list[Row]], bounds: Bounds) -> None:
    def rate(rows: list[Row]) -> float:
        return statistics.median(row.nbytes / row.wall_seconds / 1e9 for row in rows)

    def cost(rows: list[Row]) -> float:
        return statistics.median(row.cpu_seconds / row.nbytes * 1e9 for row in rows)

    base, plain = rate(found["dd bs=1M"]), rate(found["stock, 2 workers"])
    print(f"{'':30}{'CPU s/GB':>10}{'GB/s':>8}{'of dd':>8}{'of stock':>10}{'faults/batch':>14}")
    for name, rows in found.items():
        figures = f"{cost(rows):10.3f}{rate(rows):8.2f}{rate(rows) / base:8.0%}{rate(rows) / plain:9.1f}x"
        print(f"{name:30}{figures}{statistics.median(row.faults for row in rows):14.2f}")

    def best_of(order: str) -> float:
        return max(rate(rows) for name, rows in found.items() if name.startswith("ours") and name.endswith(order))

    best = best_of("")
    bounds.add("raw arrays from a warm cache, of dd's rate, the best way", 100 * best / base, 70, " %", least=True)
    bounds.add(
        "a growing dataset, of a shuffled one, the best ways", best_of("growing") / best_of("shuffled"), 0.9, least=True
    )
    bounds.add("raw arrays, rate against the stock loader on the same files", best / plain, 5, "x", least=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the data set")
    parser.add_argument("--kilobytes", type=int, default=1200, help="size of an array")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="drop the page cache of the files before each run")
    parser.add_argument("--quick", action="store_true", help="256 MB, one round, nothing is kept")
    options = parser.parse_args()
    if options.quick:
        options.megabytes, options.rounds = 256, 1
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    name, bounds = "raw-cold" if options.cold else "raw", Bounds()
    with (
        kept(name, f"torch {torch.__version__}", keep=not options.quick),
        tempfile.TemporaryDirectory(dir="/var/tmp") as root,
    ):
        print(f"{options.megabytes} MB in arrays of {options.kilobytes} KB, batch {options.batch_size}, ", end="")
        print(f"page cache {'cold' if options.cold else 'warm'}")
        measure(Path(root), options, bounds)
        bounds.report()


if __name__ == "__main__":
    sys.exit(main())
