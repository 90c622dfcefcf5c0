"""What the order costs and how well it mixes: start, resume, samples, schedule, memory, variance.

    python benchmarks/order.py [--quick]

Prints a table and keeps it in benchmarks/results/order-<date>.txt. The aims:
1e9 samples in 1e5 chunks start and resume in under 1 s and 10 MB; 1.5e6 chunks in under
0.5 s more and 64 MB; 3 us per sample; variance at most 1.05 x its bound.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from report import kept

from streamer.order import EpochOrder, OrderSpec, RankPlan, vif_bound


@dataclass(frozen=True)
class Shape:
    """A dataset and a global batch."""

    name: str
    chunks: int
    chunk_samples: int
    batch: int

    def sizes(self) -> np.ndarray:
        return np.full(self.chunks, self.chunk_samples, dtype=np.int64)

    def order(self) -> EpochOrder:
        sizes = self.sizes()
        return EpochOrder(OrderSpec.auto("0" * 32, sizes, self.batch, 17), sizes, 0)

    def plan(self) -> RankPlan:
        return RankPlan(self.order(), self.batch, 1, 0)


SHAPES = [
    Shape("ImageNet, 8 MiB chunks", 17_100, 75, 1024),
    Shape("1e9 samples, 1e5 chunks", 100_000, 10_000, 1024),
    Shape("1e9 samples, 1e5 chunks, B=256", 100_000, 10_000, 256),
    Shape("1.5e6 chunks, 1.5e10 samples", 1_500_000, 10_000, 1024),
    Shape("2 MB samples, 1e5 chunks of 4", 100_000, 4, 1024),
    Shape("one sample per chunk, 1e6", 1_000_000, 1, 1024),
]


def _cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _resume(shape: Shape) -> None:
    plan = shape.plan()
    plan.batch(plan.batches // 3)


def _first(shape: Shape) -> None:
    shape.plan().batch(0)


def _steady_microseconds(shape: Shape, samples: int) -> float:
    plan = shape.plan()
    plan.batch(0)
    batches = min(samples // shape.batch, plan.batches)
    seconds = _cpu_seconds(lambda: [plan.batch(g) for g in range(batches)])
    return seconds / (batches * shape.batch) * 1e6


def _cost_row(shape: Shape, samples: int) -> str:
    # The sizes themselves are the manifest's and are not counted.
    own = shape.chunks * 8
    spec = shape.order().spec
    plan = shape.plan()
    plan.batch(0)
    cells = [
        f"{shape.name:<32}",
        f"{spec.lanes:>4}",
        f"{spec.window:>5}",
        f"{_cpu_seconds(lambda: _first(shape)) * 1e3:>9.1f}",
        f"{_cpu_seconds(lambda: _resume(shape)) * 1e3:>9.1f}",
        f"{(_peak_bytes(lambda: _resume(shape)) - own) / 1e6:>8.1f}",
        f"{_steady_microseconds(shape, samples):>9.2f}",
        f"{_cpu_seconds(plan.schedule) * 1e3:>9.1f}",
        f"{_cpu_seconds(lambda: plan.schedule(plan.batches // 3, plan.batches // 3 + 50)) * 1e3:>9.1f}",
    ]
    return " ".join(cells)


def _measured_vif(spec: OrderSpec, sizes: np.ndarray, batch: int, epochs: int) -> float:
    """Expected variance of a batch's mean, times B, of a value drawn per chunk, of variance 1 over the samples.

    With n_c samples of chunk c in a batch it is (sum n_c**2 / B - B/M) / (1 - 1/M): no noise of drawn values.
    """
    chunks = len(sizes)
    chunk_of = np.repeat(np.arange(chunks), sizes)
    order = EpochOrder(spec, sizes, 0)
    batches = len(chunk_of) // batch
    row = np.repeat(np.arange(batches) * chunks, batch)
    squares = 0.0
    for epoch in range(epochs):
        drawn = order.open_epoch(epoch).ordinals(np.arange(batches * batch))
        counts = np.unique(row + chunk_of[drawn], return_counts=True)[1]
        squares += float((counts.astype(float) ** 2).sum()) / batches
    return (squares / epochs / batch - batch / chunks) / (1 - 1 / chunks)


def _quality_rows(epochs: int) -> Iterator[str]:
    for lanes, window, batch, size in [
        (8, 16, 128, 50),
        (8, 64, 128, 50),
        (8, 256, 128, 50),
        (8, 256, 512, 50),
        (1, 64, 128, 50),
        (1, 256, 128, 50),
        (16, 1024, 1024, 75),
        (8, 256, 256, 16),
        (8, 256, 256, 4),
        (8, 256, 256, 2),
    ]:
        spec = OrderSpec("0" * 32, 17, "block", lanes, window)
        # Windows as the automatic choice makes them: a 16th of the chunks.
        sizes = np.full(16 * window, size)
        bound = vif_bound(spec, sizes, batch)
        measured = _measured_vif(spec, sizes, batch, epochs)
        yield f"{lanes:>4} {window:>5} {batch:>5} {size:>8} {bound:>7.3f} {measured:>9.3f} {measured / bound:>6.3f}"


def _correlation_rows(epochs: int) -> Iterator[str]:
    for chunks in (1000, 10_000):
        order = EpochOrder(OrderSpec("0" * 32, 17, "block", 8, 64), np.full(chunks, 20), 0)
        means = np.empty((epochs, chunks))
        for epoch in range(epochs):
            position = np.argsort(order.open_epoch(epoch).ordinals(np.arange(chunks * 20)))
            means[epoch] = position.reshape(chunks, 20).mean(axis=1)
        off_diagonal = np.abs(np.atleast_2d(np.corrcoef(means))[np.triu_indices(epochs, 1)])
        yield f"{chunks:>6} {epochs:>6} {off_diagonal.max():>12.4f} {4 / np.sqrt(chunks):>11.4f}"


def _report(quick: bool) -> Iterator[str]:
    yield "CPU time and additional memory of one process with every lane (one rank)"
    yield (
        f"{'dataset':<32} {'L':>4} {'K':>5} {'first ms':>9} {'resume ms':>9} {'peak MB':>8} "
        f"{'us/sample':>9} {'sched. ms':>9} {'50 b. ms':>9}"
    )
    for shape in SHAPES:
        yield _cost_row(shape, 200_000 if quick else 4_000_000)
    yield ""
    yield "Expected variance of a batch's mean as a multiple of a full shuffle's: chunks sorted by label, M = 16 K,"
    yield "whole epochs with their start and end"
    yield f"{'L':>4} {'K':>5} {'B':>5} {'samples':>8} {'bound':>7} {'measured':>9} {'ratio':>6}"
    yield from _quality_rows(1 if quick else 8)
    yield ""
    yield "Correlation of a chunk's mean position between epochs, the largest of all pairs"
    yield f"{'chunks':>6} {'epochs':>6} {'correlation':>12} {'4/sqrt(M)':>11}"
    yield from _correlation_rows(4 if quick else 12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work; keeps no result")
    quick = parser.parse_args().quick
    with kept("order", f"numpy {np.__version__}", keep=not quick):
        for line in _report(quick):
            print(line)


if __name__ == "__main__":
    main()
