"""Finds which `reuse` of a growing dataset suits the measured rates of its link and its trainer. No I/O, no clock.

`loader/kinds/growing/growth.py` makes the statistics, and `report.py` asks for the advice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# The advised `reuse` is larger by this factor than what the trainer reads, so that the samples in use grow to the whole
# cache, in about three times the time in which the link fills a cache (simulated, benchmarks/growing.py).
SURPLUS = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingStats:
    """Holds the statistics of a growing dataset, over all ranks.

    Attributes:
        reuse: Number of uses of each admitted sample.
        round: Number of the running round, from 0.
        passes: Number of passes over the dataset that are admitted so far; a part of a pass is a fraction.
        least_uses, most_uses: Bounds of the number of uses of any sample before the running round.
        live_bytes: Bytes of the samples that the running round trains.
        data_bytes: Bytes of all samples.
        sample_bytes: Mean bytes of a sample.
        ranks, nodes: Number of ranks, and of machines.
    """

    reuse: int
    round: int
    passes: float
    least_uses: int
    most_uses: int
    live_bytes: int
    data_bytes: int
    sample_bytes: float
    ranks: int = 1
    nodes: int = 1


def advise_growth(
    growing: GrowingStats, *, samples_per_second: float, store_bytes_per_second: float, cache_bytes: int, waits: bool
) -> str:
    """Returns a sentence on what to change, with the measured rates, or "" if nothing is to be changed or was measured.

    Args:
        growing: Statistics of the dataset.
        samples_per_second: Samples that the trainer of one rank reads while it does not wait.
        store_bytes_per_second: Bytes that the engine of this machine receives from the store.
        cache_bytes: Limit of the engine's cache.
        waits: Whether the trainer waits for chunks from the store.
    """
    trained = samples_per_second * growing.sample_bytes * growing.ranks
    brought = store_bytes_per_second * growing.nodes
    if not trained or not brought:
        return ""
    cached = min(1.0, cache_bytes * growing.nodes / max(1, growing.data_bytes))
    figures = f"the trainer reads {trained / 1e6:.3g} MB/s, the link brings {brought / 1e6:.3g} MB/s"
    # Epochs without growing= would find nothing in the cache, either, before the end of the first pass.
    if brought >= trained * (1.0 - cached if growing.passes >= 1 else 1.0):
        return f"{figures} and the cache holds {cached:.0%} of the data: without growing= no epoch would wait"
    needed = math.ceil(SURPLUS * trained / brought)
    if waits and needed > growing.reuse:
        return f"{figures}: Growing(reuse={needed}) instead of {growing.reuse} would not wait"
    return ""
