"""The cache: hit rates of the real policy beside the bound, and what files and decisions cost.

    python benchmarks/cache.py [--chunks 4000] [--quick]

Prints tables and keeps them in benchmarks/results/cache-<date>.txt, with the curves in cache-<date>.png. The first
table plays a job of four epochs against the policy, without a byte: hit rate and the warm look-ahead are of the last
epoch, what was written to kept chunks (or became one, by a flag) of the worst warm epoch, the rest of the whole run.
`bound` is (C - S) / D. The second has the last epoch of a cache that evicts the least recently used chunk; it writes
what it misses. `formula` is f + (1 - f) ln(1 - f). The third is about mixes of several datasets (see cache_mixes.py).
Costs are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import checkout  # noqa: F401
import numpy as np
from cache_mixes import HEADER as MIX_HEADER
from cache_mixes import outcomes as mix_outcomes
from cache_mixes import verdict as mix_verdict
from numpy.typing import NDArray
from report import kept, result

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.chunk_files import ChunkBytes
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge_each
from streamer.config import CacheConfig
from streamer.order import EpochOrder, OrderSpec, RankPlan
from tests.simulation.cache import JobPlan, Order, Simulation, lru_hit_rates

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
EPOCHS, OPEN, AHEAD = 4, 24, 12
MiB = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """One simulated run; shares are of the data, `tenths` the worst distance of a tenth of the last epoch from it."""

    share: float
    order: str
    hit_rate: float
    bound: float
    tenths: float
    fetched: float
    staging: float
    kept_written: float
    waited: float
    ahead_cold: float
    ahead_warm: float

    def row(self) -> str:
        """A line of the table."""
        return (
            f"{self.share:5.2f}  {self.order:9}  {self.hit_rate:7.3f}  {self.bound:7.3f}  {self.tenths:6.2f}"
            f"  {self.fetched:7.2f}  {self.kept_written:7.3f}  {self.waited:6.3f}  {self.ahead_cold:5.1f}"
            f"  {self.ahead_warm:5.1f}"
        )


HEADER = (
    "share  order      hit      bound    tenths  fetched  to kept  waited  cold   warm\n"
    "  f               rate     (C-S)/D  off by  x data   x data   share   ahead  ahead"
)


@dataclass(frozen=True)
class Control:
    """The last epoch of a simulated cache that evicts the least recently used chunk."""

    share: float
    order: str
    hit_rate: float

    @property
    def formula(self) -> float:
        """What it hits when every epoch has a fresh permutation."""
        return self.share + (1 - self.share) * math.log(1 - self.share)

    def row(self) -> str:
        """A line of the table."""
        return f"{self.share:5.2f}  {self.order:9}  {self.hit_rate:7.3f}  {self.formula:7.3f}"


CONTROL_HEADER = "least recently used:\nshare  order      hit      formula\n  f               rate"


def orders(chunks: int) -> dict[str, Order]:
    """The first uses of the real block order, fresh permutations, one permutation for ever."""
    samples = np.full(chunks, 16, np.int64)
    spec = OrderSpec.auto("0" * 32, samples, 64, 17, True)

    def block(epoch: int) -> NDArray[np.int64]:
        schedule = RankPlan(EpochOrder(spec, samples, epoch), 64, 1, 0).schedule()
        _, first = np.unique(schedule.chunk, return_index=True)
        return schedule.chunk[np.sort(first)].astype(np.int64)

    return {
        "block": block,
        "fresh": lambda epoch: np.random.default_rng([2, epoch]).permutation(chunks),
        "identical": lambda epoch: np.random.default_rng(3).permutation(chunks),
    }


def lengths_of(chunks: int) -> NDArray[np.int64]:
    """Of the chunks' files."""
    return np.random.default_rng(1).integers(MiB // 2, 3 * MiB // 2, chunks)


def simulate(share: float, name: str, order: Order, chunks: int) -> Outcome:
    """Plays one job of four epochs."""
    lengths = lengths_of(chunks)
    cost = charge_each(lengths)
    policy = CachePolicy(int(share * cost.sum()))
    policy.add_dataset("train", lengths, np.random.default_rng(0).integers(0, 256, (chunks, 16), dtype=np.uint8))
    written = [0.0] * (EPOCHS + 1)

    def watch() -> None:
        now, place = policy.statistics(), simulation.jobs[0].place
        written[-(-place // chunks)] = now.promoted_chunks / chunks + now.admitted_kept_bytes / float(cost.sum())

    plan = JobPlan("job", "train", order, EPOCHS, OPEN, AHEAD, int(cost.mean()))
    simulation = Simulation(policy, [plan], on_tick=watch)
    (job,) = simulation.run()
    now = policy.statistics()
    rates = job.hit_rates(cost)
    return Outcome(
        share=share,
        order=name,
        hit_rate=rates[-1],
        bound=(now.limit_bytes - now.staging_bytes) / float(cost.sum()),
        staging=now.staging_bytes / now.limit_bytes,
        tenths=float(np.abs(job.tenths(EPOCHS - 1) - rates[-1]).max()),
        fetched=now.admitted_bytes / float(cost.sum()),
        kept_written=float(np.diff(written[1:]).max()),
        waited=job.waited_ticks / (job.waited_ticks + len(job.uses)),
        ahead_cold=float(job.depth[AHEAD : chunks - AHEAD].mean()),
        ahead_warm=float(job.depth[(EPOCHS - 1) * chunks : -AHEAD].mean()),
    )


def hit_rates(chunks: int) -> Iterator[Outcome]:
    """Every order at every share."""
    for name, order in orders(chunks).items():
        yield from (simulate(share, name, order, chunks) for share in SHARES)


def controls(chunks: int) -> Iterator[Control]:
    """The same orders and shares in a cache that evicts the least recently used chunk."""
    cost = charge_each(lengths_of(chunks))
    for name, order in orders(chunks).items():
        for share in SHARES:
            yield Control(share, name, lru_hit_rates(order, EPOCHS, cost, int(share * cost.sum()))[-1])


def verdicts(ours: list[Outcome], control: list[Control]) -> list[str]:
    """The worst figure of all shares and orders beside its bound."""
    rates = min(one.hit_rate / one.bound for one in ours)
    tenths, staging = max(one.tenths for one in ours), max(one.staging for one in ours)
    apart = max(abs(one.hit_rate - one.formula) for one in control if one.order != "identical")
    moved = max(one.kept_written for one in ours)
    return [
        "The worst over all shares and orders:",
        f"  hit rate / ((C - S)/D)        {rates:7.3f}   at least 0.98   {reached(rates >= 0.98)}",
        f"  S / C                         {staging:7.3f}   at most 0.10    {reached(staging <= 0.1)}",
        f"  a tenth of an epoch off by    {tenths:7.3f}   at most 0.15    {reached(tenths <= 0.15)}",
        f"  plain LRU off its formula by  {apart:7.3f}   at most 0.03    {reached(apart <= 0.03)}",
        f"  written to kept               {moved:7.3f}   at most 0.01    {reached(moved <= 0.01)}",
    ]


def reached(yes: bool) -> str:
    """Beside a bound."""
    return "reached" if yes else "MISSED"


def cpu_seconds() -> float:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cost_of(work: Callable[[], None]) -> tuple[float, float]:
    """CPU and wall seconds of some work."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    work()
    return cpu_seconds() - cpu, time.perf_counter() - wall


def decisions(chunks: int) -> str:
    """What the policy costs with many chunks: knowing them, opening a session, one use."""
    lengths = np.full(chunks, 8 * MiB)
    keys = np.random.default_rng(0).integers(0, 256, (chunks, 16), dtype=np.uint8)
    policy = CachePolicy(int(0.5 * charge_each(lengths).sum()))
    add, _ = cost_of(lambda: policy.add_dataset("d", lengths, keys))
    begin, _ = cost_of(lambda: (policy.open_session("s", "j", "d", 64 * MiB, 64 * MiB), None)[1])
    epoch, _ = cost_of(lambda: policy.start_epoch("s", np.arange(chunks)))
    uses = min(chunks, 200_000)

    def use() -> None:
        for chunk in range(uses):
            policy.look_ahead("s", chunk)
            answer = policy.need("s", chunk, blocking=True)
            policy.publish(answer.key)
            policy.open("s", chunk)
            policy.release("s", chunk)

    used, _ = cost_of(use)
    return (
        f"policy with {chunks:,} chunks, CPU: add_dataset {add:.2f} s, open_session {begin * 1e3:.0f} ms,"
        f" start_epoch {epoch * 1e3:.0f} ms, one use from look-ahead to release {used / uses * 1e6:.1f} us"
    )


async def files(folder: Path, count: int) -> list[str]:
    """What publishing, verifying, evicting and starting cost on this disk."""
    config = CacheConfig(directory=folder, limit_bytes=1 << 40, free_floor_bytes=0)
    body = os.urandom(8 * MiB)
    offsets = np.linspace(0, len(body), 81).astype(np.int64)  # samples of 100 KB
    keys = [index.to_bytes(16, "little") for index in range(count)]
    lines = []

    async def measure(what: str, cache: ChunkCache, work: Callable[[bytes], object]) -> None:
        cpu, wall = cpu_seconds(), time.perf_counter()
        for key in keys:
            await work(key)  # type: ignore[misc]
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
        gigabytes = count * len(body) / 1e9
        lines.append(f"{what:24} {cpu / gigabytes:6.3f} CPU s/GB  {gigabytes / wall:6.2f} GB/s")

    async with ChunkCache(config) as cache:
        # Twice: in a virtual machine the first touch of a page of memory costs more than all the rest together.
        for what in ("publish, fresh memory", "publish, memory reused"):
            await measure(what, cache, lambda key: cache.publish(key, [body], offsets, dataset="d"))
            await measure("verify", cache, cache.verify)
            await measure("evict", cache, lambda key: cache.evict([key]))
    return lines


def checksums_alone(count: int) -> str:
    """The part of publishing that is CRC-32, for comparison."""
    body = os.urandom(8 * MiB)
    chunk = ChunkBytes(bytes(16), [body], np.linspace(0, len(body), 81).astype(np.int64))
    from streamer.cache.chunk_files import compute_checksums

    def work() -> None:
        for _ in range(count):
            compute_checksums(chunk.parts, chunk.sample_offsets)

    cpu, _ = cost_of(work)
    return f"{'checksums alone':24} {cpu / (count * len(body) / 1e9):6.3f} CPU s/GB  (both kinds, part of publish)"


def plot(outcomes: list[Outcome], control: list[Control], path: Path) -> None:
    """Hit rate over the cache's share, the bound and LRU's formula beside it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 5))
    f = np.linspace(0.001, 0.999, 200)
    axes.plot(f, f, color="0.6", linestyle=":", label="no policy can do more: f")
    axes.plot(f, f + (1 - f) * np.log(1 - f), color="tab:red", linestyle=":", label="LRU's formula: f + (1-f) ln(1-f)")
    runs = (("this policy", "o", outcomes), ("least recently used", "x", control))
    for label, mark, found in runs:
        chosen = [one for one in found if one.order == "block"]
        axes.plot([one.share for one in chosen], [one.hit_rate for one in chosen], mark, label=label)
    axes.set_xlabel("cache / data")
    axes.set_ylabel("hit rate of a warm epoch, in bytes")
    axes.set_title("The policy, simulated: block order, look-ahead and open chunks included")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="500 chunks, small files")
    parser.add_argument("--folder", type=Path, default=None, help="where the files of the second part go")
    arguments = parser.parse_args()
    chunks = 500 if arguments.quick else arguments.chunks
    with kept("cache", keep=not arguments.quick):
        print(
            f"{chunks} chunks of 0.5 to 1.5 MiB, {EPOCHS} epochs, {OPEN} open, {AHEAD} ahead, a fetch takes 4 ticks\n"
        )
        print(f"\n{HEADER}")
        outcomes = list(hit_rates(chunks))
        control = list(controls(chunks))
        print(*(one.row() for one in outcomes), "", CONTROL_HEADER, *(one.row() for one in control), sep="\n")
        print("", *verdicts(outcomes, control), "", sep="\n")
        mixes = list(mix_outcomes())
        print(MIX_HEADER, *(one.row() for one in mixes), "", mix_verdict(mixes), "", sep="\n")
        print(decisions(50_000 if arguments.quick else 1_500_000))
        count = 8 if arguments.quick else 96
        print(f"\n{count} chunks of 8 MiB (page cache included):")
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            print(checksums_alone(count), *asyncio.run(files(Path(folder) / "cache", count)), sep="\n")
    if not arguments.quick:
        plot(outcomes, control, result("cache", "png"))


if __name__ == "__main__":
    main()
