"""The handoff of batches: ours beside torch's DataLoader, in one run, by CPU time, page faults and pickled bytes.

    python benchmarks/loader.py [--only image,kinds,jpeg,complaint,straggler,wake-ups] [--rounds 5] [--batches 60]

image, kinds: workers hand batches over whose samples cost nothing to produce: they are there already. The images by
one worker, to which the bounds belong, and by two; the others by two.

    image   256 x (224, 224, 3) uint8, 38.5 MB       float   128 x (1000, 150) float64, 153.6 MB
    tokens  64 x (2048,) int64, 1 MB                 raw     256 x 110 KB bytes, decoded by nobody, 28 MB

Ways: `ring` is StreamingDataLoader without any code of the user's; in `ring+user` each sample is what a function of
the user's returns, so Python's and numpy's generators are seeded for each sample; in `ring+torch` its module has
imported torch, whose generator is seeded too. `bare` has no loader: so many processes call the same function and copy
each sample once into memory that is there already, which nobody can do without. `stock` is DataLoader with
default_collate; `stock+copy` makes one tensor first (apex, timm); `stock numpy` returns arrays. CPU is user + system
of the main process and of all workers; faults are minor page faults; both from when the ring is there and ten batches
have warmed it. The ways run in turn, `--rounds` times; medians are printed.

jpeg: see `loader_jpeg.py`. complaint, straggler, wake-ups: see `loader_steps.py`. Last, each bound and whether it was
met. A result is kept in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable

import numpy as np
import torch
from bounds import Bounds
from loader_jpeg import jpeg
from loader_steps import complaint, straggler, wake_ups
from loader_ways import TORCH, WAYS, Row, faults_of_each
from report import kept

Rows = dict[tuple[str, str], list[Row]]

FAULT_BATCHES = 500
_HEADS = ("CPU", "main", "workers", "faults main", "workers", "pickled B", "wall")
# Arrays only, and no ring: slow, and not in any bound.
_ARRAYS_ONLY = "stock+copy", "stock numpy", "spdl pool", TORCH
_LEFT_OUT = {("raw", way) for way in _ARRAYS_ONLY} | {("float", "stock numpy")}


def handoff(kinds: list[str], workers: int, options: argparse.Namespace) -> Rows:
    """Prints the table of these kinds."""
    found: Rows = {}
    for turn in range(options.rounds):
        for kind in kinds:
            for way, run in WAYS.items():
                if (kind, way) not in _LEFT_OUT:
                    found.setdefault((kind, way), []).append(run(kind, workers, options.batches))
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
    print(f"\nCPU and wall in ms per batch, workers: {workers}, medians of {options.rounds} in turn")
    print(f"{'batch':8}{'way':13}" + "".join(f"{head:>12}" for head in _HEADS))
    for (kind, way), rows in found.items():
        figures = (of(rows, get) for get in _COLUMNS)
        print(f"{kind:8}{way:13}" + "".join(f"{figure:12.2f}" for figure in figures))
    return found


CPU: Callable[[Row], float] = lambda row: row.cpu  # noqa: E731
_COLUMNS: tuple[Callable[[Row], float], ...] = (
    CPU,
    lambda row: row.main.cpu,
    lambda row: row.workers.cpu,
    lambda row: row.main.faults,
    lambda row: row.workers.faults,
    lambda row: row.pickled,
    lambda row: row.wall_milliseconds,
)


def of(rows: list[Row], get: Callable[[Row], float]) -> float:
    """The median of the rounds."""
    return statistics.median(map(get, rows))


def image(options: argparse.Namespace, bounds: Bounds) -> None:
    """Point 1: 38.5 MB."""
    image_by(2, options)
    cpu, pickled = image_by(1, options)
    faults = faults_of_each("image", 2, FAULT_BATCHES)
    bounds.add(f"page faults a batch, all processes, median of {FAULT_BATCHES}", statistics.median(faults), 0)
    bounds.add(f"page faults a batch, all processes, mean of {FAULT_BATCHES}", statistics.mean(faults), 1)
    bounds.add("pickled bytes a batch", pickled, 512)
    bounds.add("CPU of the stock loader's handoff, against ours", cpu["stock"] / cpu["ring+user"], 8, "x", least=True)


def image_by(workers: int, options: argparse.Namespace) -> tuple[dict[str, float], float]:
    """Prints the table; returns CPU by way, and pickled bytes."""
    rows = handoff(["image"], workers, options)
    cpu = {way: of(found, CPU) for (_, way), found in rows.items()}
    more = {way: cpu[way] - cpu["bare"] for way in ("ring", "ring+user", TORCH)}
    print(f"\nmore than one copy ({cpu['bare']:.2f} ms): the ring {more['ring']:.2f} ms, with Python's and numpy's")
    print(f"generators seeded for each sample {more['ring+user']:.2f} ms, with torch's too {more[TORCH]:.2f} ms")
    return cpu, of(rows["image", "ring+user"], lambda row: row.pickled)


def kinds(options: argparse.Namespace, bounds: Bounds) -> None:
    """Points 2 and 3: 153.6 MB of arrays; and two more kinds to look at."""
    rows = handoff(["float", "tokens", "raw"], 2, options)
    mine, stock = (of(rows["float", way], lambda row: row.wall_milliseconds) for way in ("ring+user", "stock"))
    bounds.add("handoff of 153.6 MB of float64, wall", mine, 10, " ms")
    bounds.add("rate of raw tensors, against stock", stock / mine, 5, "x", least=True)


SECTIONS: dict[str, Callable[[argparse.Namespace, Bounds], None]] = {
    "image": image,
    "kinds": kinds,
    "jpeg": lambda options, bounds: jpeg(options.rounds, bounds),
    "complaint": lambda options, bounds: complaint(24, bounds),
    "straggler": lambda options, bounds: straggler(options.rounds, bounds),
    "wake-ups": lambda options, bounds: wake_ups(options.rounds, 5000, bounds),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="what to run, of " + ", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5, help="turns of which the median counts")
    parser.add_argument("--batches", type=int, default=60, help="batches measured in a turn")
    parser.add_argument("--quick", action="store_true", help="the handoff of images once, ten batches")
    options = parser.parse_args()
    names = options.only.split(",")
    if options.quick:
        names, options.rounds, options.batches = ["image"], 1, 10
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    bounds = Bounds()
    name = "loader" if len(names) == len(SECTIONS) else "-".join(["loader", *names])
    with kept(name, f"torch {torch.__version__}", f"numpy {np.__version__}", keep=not options.quick):
        for section in names:
            SECTIONS[section](options, bounds)
        bounds.report()


if __name__ == "__main__":
    sys.exit(main())
