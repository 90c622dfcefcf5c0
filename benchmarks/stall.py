"""What the stall report costs per batch: on the trainer's thread, on the feeder's, and in a worker per sample.

    python benchmarks/stall.py [--rounds 20000]

CPU nanoseconds of the very calls that a batch makes, less an empty loop; and a whole report, which happens every 30 s.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from report import kept

from streamer.batches.causes import MADE, WORK, BatchTimeline, Stages, Trace
from streamer.loader.stall.report import Snapshot, compare
from streamer.loader.stall.stats import TrainerClock

STAGES = Stages(load=80_000_000, read=20_000_000, decode=60_000_000, collate=1_000_000, write=10_000_000)


def cost(call: Callable[[], object], rounds: int) -> float:
    """CPU microseconds of one call, best of five."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time_ns()
        for _ in range(rounds):
            call()
        spent = time.thread_time_ns() - began
        began = time.thread_time_ns()
        for _ in range(rounds):
            pass
        best = min(best, (spent - (time.thread_time_ns() - began)) / rounds / 1e3)
    return best


def tell() -> BatchTimeline:
    """What the feeder notes of a batch that goes straight to a worker."""
    timeline = BatchTimeline()
    timeline.enter(WORK)
    timeline.enter(MADE)
    return timeline


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    rounds = parser.parse_args().rounds
    clock, timeline = TrainerClock(), tell()

    def timing() -> None:
        clock.ask(3)
        clock.begin()
        clock.arrive()
        clock.note_content(Trace(timeline, STAGES, (7, 5_000_000)))
        clock.leave(8, 100)

    trainer, feeder, sample = cost(timing, rounds), cost(tell, rounds), cost(time.perf_counter_ns, rounds)
    after = Snapshot(
        stats=clock.stats(), waits=clock.takes.tail(), steps=clock.steps.tail(), timings=clock.ledger.timings.tail()
    )
    with kept("stall", keep=rounds >= 20_000):
        print(f"trainer's thread, per batch   {trainer:8.2f} us CPU")
        print(f"feeder's thread, per batch    {feeder:8.2f} us CPU")
        print(f"worker, per sample            {2 * sample:8.2f} us CPU")
        print(f"trainer + feeder, per batch   {trainer + feeder:8.2f} us CPU  (bound: 10)")
        print(f"a whole report                {cost(lambda: compare(Snapshot(), after), 20) / 1e3:8.2f} ms CPU")


if __name__ == "__main__":
    main()
