"""What rounds of a growing dataset would cost in waits if they were planned from the rates of the first one.

    python benchmarks/planned_rounds.py         five seconds

The plan is the rule of the log, with the link and the trainer that the first round measured in place of what arrives:
it needs no agreement of ranks, and no log. Link, cache and trainer are simulated, the order is the real one; a chunk is
a sample here. A cell is the share of the time that the trainer waits after its first batch, and the time until the
cache is full.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from streamer.order.growing import AdmissionLog, Cohorts
from streamer.order.spec import OrderSpec

LANES, WINDOW, DATA, RATE = 8, 64, 20_000, 20.0
# Passes of the link over the data, and pieces of a second in which its rate is constant.
PASSES, PIECES = 6.2, 4
SECONDS = PASSES * DATA / RATE
# Of the measured link, what the plan counts on.
SAFETY = (1.0, 0.9, 0.75)


class Link:
    """A link whose rate changes; it brings chunks."""

    def __init__(self, rates: np.ndarray) -> None:
        self._chunks = np.concatenate([np.zeros(1), np.cumsum(rates) / PIECES])
        self._times = np.arange(len(self._chunks)) / PIECES

    def brought(self, begin: float, end: float) -> float:
        """The chunks that arrive between two times."""
        before, after = np.interp((begin, end), self._times, self._chunks)
        return float(after - before)

    def end(self, begin: float, chunks: float) -> float:
        """The time at which so many have arrived."""
        return float(np.interp(np.interp(begin, self._times, self._chunks) + chunks, self._chunks, self._times))


def links() -> dict[str, Link]:
    """Links that bring 20 chunks per second on average, or did before they changed."""
    times = np.arange(int(4 * SECONDS * PIECES)) / PIECES
    steady, rng = np.full(len(times), RATE), np.random.default_rng(1)

    def noisy(seconds: int) -> np.ndarray:
        factors = np.exp(rng.normal(0, 0.3, len(times) // (seconds * PIECES) + 1))
        return steady * np.repeat(factors / factors.mean(), seconds * PIECES)[: len(times)]

    third = times > SECONDS / 3
    return {
        "steady": Link(steady),
        "other rate every 10 s, sd 0.3": Link(noisy(10)),
        "other rate every 60 s, sd 0.3": Link(noisy(60)),
        "15 % slower after a third": Link(np.where(third, 0.85 * RATE, steady)),
        "half for a tenth of the time": Link(np.where(third & (times < SECONDS * (1 / 3 + 0.1)), RATE / 2, steady)),
        "gone for 60 s every 20 minutes": Link(np.where((times > 600) & ((times - 600) % 1200 < 60), 0, steady)),
        "half for the first 3 s": Link(np.where(times < 3, RATE / 2, steady)),
        "1.5 times for the first 10 s": Link(np.where(times < 10, 1.5 * RATE, steady)),
    }


def simulated(link: Link, ratio: float, cache: int, safety: float | None, *, first_round: float) -> str:
    """The share of the time that a trainer waits, and when the cache is full.

    Args:
        link: brings the chunks.
        ratio: rate of the trainer / mean rate of the link.
        cache: chunks that it holds.
        safety: of the measured link, what the plan counts on; None: the log.
        first_round: rate of the trainer in the first round / later.
    """
    cohorts = Cohorts(OrderSpec("x" * 32, 1, "block", LANES, WINDOW), np.ones(DATA, np.int64))
    log = AdmissionLog(cohorts, math.ceil(1.25 * ratio), cohorts.enough(WINDOW))
    size = cohorts.size * LANES
    room, now, waits, arrived, counted, measured, full = cache / size, 0.0, 0.0, 0.0, 0.0, 0.0, math.inf
    while now < SECONDS:
        of = log.last
        if arrived < of.end:
            ready = link.end(now, (of.end - arrived) * size)
            waits += ready - now if of.number else 0.0
            now, arrived = ready, float(of.end)
        seconds = (of.stop - of.start) / (RATE * ratio * (1.0 if of.number else first_round))
        arrived = min(arrived + link.brought(now, now + seconds) / size, max(arrived, of.begin + room))
        if of.number == 0:
            measured = link.brought(0, now + seconds) / (now + seconds) * seconds / (of.stop - of.start)
        now += seconds
        full = min(full, now if arrived - of.begin > 0.95 * room else math.inf)
        here = arrived
        if safety is not None:
            counted = max(counted, float(of.end))
            brought = safety * measured * (of.stop - of.start) / size
            here = counted = min(counted + brought, max(counted, of.begin + room))
        log.admit(min(int(here), int(log.next_begin + room) - log.least) - of.end)
    return f"{waits / SECONDS:.3f}, {full:.0f} s"


def main() -> None:
    """Prints a table for each trainer."""
    for ratio, cache in ((4, 4000), (8, 4000), (2.5, 10_000)):
        print(f"\ntrainer / link = {ratio}, a cache of {cache / DATA:.0%} of the data\n")
        plans = "".join(f" plan{f' on {safety:.2f} of the link' if safety < 1 else ''} |" for safety in SAFETY)
        print(f"| link | log |{plans}\n| --- | --- |{' --- |' * len(SAFETY)}")
        cases = [(name, link, 1.0) for name, link in links().items()]
        cases.append(("steady, the trainer's first round at half its rate", cases[0][1], 0.5))
        for name, link, first_round in cases:
            row = [simulated(link, ratio, cache, safety, first_round=first_round) for safety in (None, *SAFETY)]
            print(f"| {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
