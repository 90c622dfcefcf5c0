"""A link that is slower than the trainer: what growing datasets, strict epochs and scripts do about it.

    python benchmarks/growing.py                                    the simulated table, two minutes
    python benchmarks/growing.py --real [--s3sim path/to/s3sim]     the loader over a limited link, a few minutes

The table simulates link, cache and trainer; which samples a round trains is the real code's. A chunk is a sample here.
By hand: train on all files that are there, in turns, while others arrive and the oldest leave.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from s3sim import simulator

from streamer import Order
from streamer.order.growing import AdmissionLog, Cohorts, GrowingOrder
from streamer.order.spec import OrderSpec

LANES, WINDOW = 8, 64
# Passes of the link over the data.
PASSES = 6.2


@dataclass(frozen=True)
class Case:
    """One link, trainer and cache; sizes in chunks, rates in chunks per second."""

    data: int
    cache: int
    link: float
    trainer: float

    @property
    def seconds(self) -> float:
        """Simulated time."""
        return PASSES * self.data / self.link


class Uses:
    """Counts uses of chunks, their spread, and the time between two uses of one."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._marks = deque([case.data / case.link, 6 * case.data / case.link])
        self._last = np.full(case.data, -1.0)
        self._gaps: list[np.ndarray] = []
        self.counts = np.zeros(case.data, int)
        self.worst = 0
        self.at_marks: list[np.ndarray] = []
        self.waited = 0.0
        self.full_after = math.nan

    def train(self, chunks: np.ndarray, begin: float) -> float:
        """A turn over chunks, in this order; returns when it ends."""
        when = begin + np.arange(len(chunks)) / self._case.trainer
        np.add.at(self.counts, chunks, 1)
        again = self._last[chunks] >= 0
        self._gaps.append((when - self._last[chunks])[again])
        self._last[chunks] = when
        self.worst = max(self.worst, int(np.ptp(self.counts)))
        end = begin + len(chunks) / self._case.trainer
        while self._marks and end >= self._marks[0]:
            self._marks.popleft()
            self.at_marks.append(self.counts.copy())
        return end

    def row(self, name: str) -> str:
        """A row of the table."""
        early, late = self.at_marks
        gaps = np.concatenate(self._gaps)
        unseen = np.mean(early == 0)
        cells = [
            name,
            f"{self.waited / self._case.seconds:.3f}",
            f"{early.mean():.1f}, {early.min()}-{early.max()}, {unseen:.2f}",
            f"{late.mean():.0f}, {late.min()}-{late.max()}",
            str(self.worst),
            f"{np.median(gaps):.0f} s / {np.quantile(gaps, 0.01):.0f} s",
            "" if math.isnan(self.full_after) else f"{self.full_after:.0f} s",
        ]
        return f"| {' | '.join(cells)} |"


def growing(case: Case, reuse: int) -> Uses:
    """The real order; arrivals as the link brings them, the window as the cache has room."""
    cohorts = Cohorts(OrderSpec("x" * 32, 1, "block", LANES, WINDOW), np.ones(case.data, np.int64))
    log = AdmissionLog(cohorts, reuse, cohorts.enough(WINDOW))
    found, now, arrived, size = Uses(case), 0.0, 0.0, cohorts.size * LANES
    room = case.cache / size
    while now < case.seconds:
        of = log[len(log) - 1]
        if arrived < of.end:
            wait = (of.end - arrived) * size / case.link
            now, found.waited, arrived = now + wait, found.waited + wait, float(of.end)
        order = GrowingOrder(log, np.arange(LANES), of.stop, 0)
        codes = order.ordinals(np.arange(of.start, of.stop))
        end = found.train(codes % cohorts.samples, now)
        # What is used up leaves when its last round ends.
        arrived = min(arrived + case.link * (end - now) / size, max(arrived, of.begin + room))
        now = end
        if math.isnan(found.full_after) and arrived - of.begin > 0.95 * room:
            found.full_after = now
        log.admit(min(int(arrived), int(log.next_begin + room) - log.least) - of.end)
    return found


def by_hand(case: Case, *, in_turn: bool, seed: int = 0) -> Uses:
    """Files that are there, in turns; new ones at random or each in turn, the oldest leave."""
    rng, found, now = np.random.default_rng(seed), Uses(case), 0.0
    queue, local, here = deque(rng.permutation(case.data).tolist()), deque[int](), np.zeros(case.data, bool)

    def fetch(count: int) -> None:
        while count:
            if in_turn:
                queue.extend(rng.permutation(case.data).tolist() if not queue else ())
                chunk = queue.popleft()
            else:
                chunk = int(rng.integers(case.data))
            if not here[chunk]:
                local.append(chunk)
                here[chunk] = True
                count -= 1
            if len(local) > case.cache:
                here[local.popleft()] = False

    fetch(WINDOW)
    now = found.waited = WINDOW / case.link
    carried = 0.0
    while now < case.seconds:
        end = found.train(rng.permutation(np.array(local)), now)
        whole = int(carried + case.link * (end - now))
        carried += case.link * (end - now) - whole
        fetch(whole)
        now = end
    return found


def strict(case: Case) -> str:
    """Each sample once per epoch: the trainer waits for what is not cached."""
    missing = 1 - case.cache / case.data
    first, later = 1 - case.link / case.trainer, max(0.0, 1 - case.link / (case.trainer * missing))
    return f"| strict epochs | {first:.2f} first, {later:.2f} later | | | 1 | an epoch | |"


def table() -> None:
    """The simulated cases."""
    for ratio, cache in ((4, 4000), (8, 4000), (2.5, 10_000)):
        case = Case(20_000, cache, 20.0, 20.0 * ratio)
        print(f"\ntrainer / link = {ratio}, a cache of {cache / case.data:.0%} of the data\n")
        print(
            "| | waits | uses after a pass of the link: mean, min-max, unseen | after six | ever max - min | ", end=""
        )
        print("two uses apart: median / 1 % | full cache after |\n| --- | --- | --- | --- | --- | --- | --- |")
        print(strict(case))
        print(by_hand(case, in_turn=False).row("by hand, files at random"))
        print(by_hand(case, in_turn=True).row("by hand, each file in turn"))
        for reuse in sorted({math.ceil(ratio), math.ceil(1.25 * ratio), math.ceil(1.5 * ratio), int(2 * ratio)}):
            print(growing(case, reuse).row(f"growing, reuse {reuse}"), flush=True)


def real(command: str | None) -> None:
    """The loader over a link of a quarter of what the trainer reads, with a cache of a fifth of the data."""
    from streamer import Growing, StreamingDataLoader, StreamingDataset
    from streamer.decode import ArrayDecoder

    blocks, length, batch, rate, reuse = 2400, 1 << 16, 16, 20e6, 5
    data_bytes, step = blocks * length * 4, batch * length * 4 / (4 * rate)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        os.environ["STREAMER_RUNTIME_DIR"] = str(root / "run")
        (root / "data" / "runs").mkdir(parents=True)
        for number in range(blocks):
            np.full(length, number, "<f4").tofile(root / "data" / "runs" / f"{number:04}.bin")
        limit = ("--total-mbps", str(rate / 1e6))
        with simulator(root / "data", *limit, command=command) as server:
            # Small chunks, as many in the cache as a large one has of 8 MiB.
            options = ["--storage-options", json.dumps(server.options), "--chunk-bytes", "256KiB"]
            index = ["index", "s3://runs/", "--out", str(root / "manifest"), "--cache-dir", str(root / "index")]
            subprocess.run([sys.executable, "-m", "streamer", *index, *options], check=True, stdout=subprocess.DEVNULL)
            dataset = StreamingDataset(
                "s3://runs/",
                storage_options=server.options,
                cache_dir=root / "cache",
                cache_bytes=data_bytes // 5,
                decode={"bin": ArrayDecoder("<f4", (length,))},
                growing=Growing(reuse, blocks),
                manifest=str(root / "manifest"),
                order=Order(lanes=LANES, shuffle_window=WINDOW),
            )
            len(dataset)
            server.statistics(reset=True)
            with StreamingDataLoader(dataset, batch, 1, report_every=None) as loader:
                uses, began, first = np.zeros(blocks, int), time.monotonic(), 0.0
                for epoch in range(12):
                    for content in loader:
                        first = first or time.monotonic() - began
                        np.add.at(uses, content["bin"][:, 0].numpy().astype(int), 1)
                        time.sleep(step)
                    stats, report = loader.stats(), loader.report()
                    sent = float(str(server.statistics()["bytes_sent"]))
                    assert stats.growing is not None
                    print(
                        f"epoch {epoch}: {time.monotonic() - began:.0f} s, waited {stats.wait_seconds:.2f} s in all, "
                        f"first batch {first:.2f} s, round {stats.growing.round} of "
                        f"{stats.growing.live_bytes / (data_bytes / 5):.2f} caches, uses {uses.min()}-{uses.max()}, "
                        f"store bytes / trained {sent / (uses.sum() * length * 4):.3f} | {report.headline}",
                        flush=True,
                    )
            dataset.close()


def main() -> None:
    """Prints the table, or the figures of the real loader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--s3sim", help="path of the simulator's command; default $S3SIM")
    given = parser.parse_args()
    if given.real:
        real(given.s3sim)
    else:
        table()


if __name__ == "__main__":
    sys.exit(main())
