"""What the order of a mix costs and how even it is: start, resume, samples, schedule, memory, deviations.

    python benchmarks/mix_order.py [--quick]

Prints a table and keeps it in benchmarks/results/mix_order-<date>.txt. The aims: a state loaded and the first batch of
5 members of 1e7 samples in 50 ms, anywhere; 1e9 samples in 1e6 chunks in 0.3 s and 24 MB; 2.5 us per own sample up to
100 members; a schedule of 1e5 pieces in 50 ms; every stratified batch within 2 samples of the shares.
"""

from __future__ import annotations

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from report import kept

from streamer import Weights
from streamer.order import RankPlan
from streamer.order.mix import MemberChunks, MixOrder, MixRequest, MixSource, MixSpec, Shares
from streamer.order.state import State


@dataclass(frozen=True)
class Mix:
    """Members of equal chunks, and a global batch that some ranks share."""

    name: str
    samples: tuple[int, ...]
    chunk: int
    weights: tuple[float, ...]
    batch: int
    world: int = 1

    def members(self) -> list[MixSource]:
        sizes = [np.full(samples // self.chunk, self.chunk, dtype=np.int64) for samples in self.samples]
        return [MixSource(f"m{i}", f"{i:032x}", chunks, 17 + i) for i, chunks in enumerate(sizes)]

    def request(self) -> MixRequest:
        names = [f"m{i}" for i in range(len(self.samples))]
        return MixRequest(Shares.from_arguments(names, weights=dict(zip(names, self.weights, strict=True))), 17)

    def spec(self) -> MixSpec:
        return self.request().spec(self.members(), self.batch)

    def chunks(self) -> list[MemberChunks]:
        found, base = [], 0
        for source in self.members():
            first = np.concatenate([np.zeros(1, np.int64), np.cumsum(source.chunk_samples)])
            found.append(MemberChunks(source.chunk_samples, first, base))
            base += len(source.chunk_samples)
        return found

    def plan(self, chunks: list[MemberChunks], spec: MixSpec) -> RankPlan:
        return RankPlan(MixOrder(spec, chunks, 0), self.batch, self.world, 0)


def _zipf(members: int) -> tuple[float, ...]:
    return tuple(1 / number for number in range(1, members + 1))


FIVE = (0.5, 0.25, 0.15, 0.09, 0.01)
MIXES = [
    Mix("5 members, 1e7 samples", (2_000_000,) * 5, 100, FIVE, 256),
    Mix("the same, one of 8 ranks", (2_000_000,) * 5, 100, FIVE, 256, 8),
    Mix("3 members, 1e9 samples, 1e6 chunks", (500_000_000, 300_000_000, 200_000_000), 1000, (6, 3, 1), 4096),
    Mix("the same, one of 16 ranks", (500_000_000, 300_000_000, 200_000_000), 1000, (6, 3, 1), 4096, 16),
    Mix("20 members", (100_000,) * 20, 100, _zipf(20), 1024),
    Mix("100 members", (100_000,) * 100, 100, _zipf(100), 1024),
    Mix("100 members, 64 lanes", (100_000,) * 100, 100, _zipf(100), 4096),
    Mix("the same, one of 8 ranks", (100_000,) * 100, 100, _zipf(100), 4096, 8),
    Mix("a member of 100 samples at a third", (100, 50_000, 1_000_000), 100, (1, 1, 1), 256),
]


def _cpu_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _held_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        result = work()
        held = tracemalloc.get_traced_memory()[0]
        del result
        return held
    finally:
        tracemalloc.stop()


def _resume(mix: Mix, chunks: list[MemberChunks], members: list[MixSource], saved: str) -> RankPlan:
    """From the text of a checkpoint to the first batch."""
    state = State.from_dict(json.loads(saved))
    spec = mix.request().spec(members, mix.batch, like=state.spec)
    state.check(spec)
    point = state.resume(state.spec.samples(state.epoch), mix.batch)
    plan = mix.plan(chunks, spec)
    plan.batch(point.batch)
    return plan


def _steady_microseconds(plan: RankPlan, samples: int) -> float:
    own = plan.rank_split.per_rank
    batches = min(samples // own, plan.batches)
    seconds = _cpu_seconds(lambda: [plan.batch(batch) for batch in range(batches)])
    return seconds / (batches * own) * 1e6


def _cost_row(mix: Mix, samples: int) -> str:
    chunks, members, spec = mix.chunks(), mix.members(), mix.spec()
    batches = mix.plan(chunks, spec).batches
    saved = [json.dumps(State(spec, 0, at * mix.batch, mix.batch).to_dict()) for at in (0, batches // 2)]
    plan = mix.plan(chunks, spec)
    plan.batch(0)
    schedule = plan.schedule()
    cells = [
        f"{mix.name:<35}",
        f"{spec.lanes:>4}",
        *(f"{_cpu_seconds(lambda text=text: _resume(mix, chunks, members, text)) * 1e3:>9.1f}" for text in saved),  # type: ignore[misc]
        f"{_held_bytes(lambda: _resume(mix, chunks, members, saved[1])) / 1e6:>8.1f}",
        f"{_steady_microseconds(mix.plan(chunks, spec), samples):>9.2f}",
        f"{len(schedule):>9}",
        f"{_cpu_seconds(plan.schedule) * 1e3:>9.1f}",
    ]
    return " ".join(cells)


def _deviation_row(name: str, weights: tuple[float, ...], lanes: int, batch: int, windows: int) -> str:
    names = [f"m{i}" for i in range(len(weights))]
    shares = Shares.from_arguments(
        names, weights=Weights(dict(zip(names, weights, strict=True)), epoch_samples=batch * 16 * windows)
    )
    sources = [MixSource(name, "0" * 32, np.full(1000, 1000), 17) for name in names]
    mix = Mix(name, (1_000_000,) * len(names), 1000, weights, batch)
    worst, spread = 0.0, 0.0
    for seed in range(3):
        order = MixOrder(MixRequest(shares, seed, lanes=lanes).spec(sources, batch), mix.chunks(), 0)
        counts = [order.count_drawn(at * batch) for at in range(16 * windows + 1)]
        strayed = np.diff(counts, axis=0) - batch * np.array(weights) / sum(weights)
        worst, spread = max(worst, float(np.abs(strayed).max())), max(spread, float(strayed.std(axis=0).max()))
    return f"{name:<20} {lanes:>5} {batch:>6} {worst:>8.2f} {spread:>6.2f}"


def _report(quick: bool) -> Iterator[str]:
    yield "CPU time and held memory of one rank; `state`: from a checkpoint's text to the first batch there"
    yield (
        f"{'mix':<35} {'L':>4} {'state ms':>9} {'half ms':>9} {'held MB':>8} "
        f"{'us/sample':>9} {'entries':>9} {'sched. ms':>9}"
    )
    for mix in MIXES:
        yield _cost_row(mix, 100_000 if quick else 1_000_000)
    yield ""
    yield "The largest deviation of a batch from its members' shares, and the largest standard deviation of a member"
    yield f"{'weights':<20} {'lanes':>5} {'batch':>6} {'largest':>8} {'sd':>6}"
    for lanes, batch in ((8, 256), (16, 1024), (64, 4096)):
        yield _deviation_row("70, 20, 9, 1", (70, 20, 9, 1), lanes, batch, 3 if quick else 10)
        yield _deviation_row("20 Zipf", _zipf(20), lanes, batch, 3 if quick else 10)
        yield _deviation_row("100 Zipf", _zipf(100), lanes, batch, 3 if quick else 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work; keeps no result")
    quick = parser.parse_args().quick
    with kept("mix_order", f"numpy {np.__version__}", keep=not quick):
        for line in _report(quick):
            print(line)


if __name__ == "__main__":
    main()
