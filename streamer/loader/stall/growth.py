"""Whether a growing dataset suits its link: the `reuse` that the measured rates ask for. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Above what the trainer reads, so that the samples in use grow to the whole cache: in about three times the time that
# the link needs to bring a cache (simulated, benchmarks/growing.py).
SURPLUS = 1.25


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingStats:
    """The statistics of a growing dataset, over all ranks.

    Attributes:
        reuse: how often each admitted sample is used.
        round: number of the running round.
        passes: admitted samples, in passes over the dataset.
        least_uses, most_uses: bounds of how often any sample was used before the running round.
        live_bytes: of the samples that the running round trains.
        data_bytes: of all samples.
        sample_bytes: of a sample on average.
        ranks, nodes: their numbers.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured on one rank.

    Attributes:
        samples_per_second: that the trainer takes while it does not wait.
        store_bytes_per_second: that the engine of this machine has received.
        cache_bytes: limit of its cache.
        waits: the trainer waits for chunks from the store.
    """

    samples_per_second: float
    store_bytes_per_second: float
    cache_bytes: int
    waits: bool


def needed_reuse(growing: GrowingStats, rates: Rates) -> int:
    """The `reuse` with which the trainer would not wait; 0: unknown, because nothing was measured."""
    trained, brought = _totals(growing, rates)
    return math.ceil(SURPLUS * trained / brought) if trained and brought else 0


def sentence(growing: GrowingStats, rates: Rates) -> str:
    """What to change, with the rates that say so; "" where nothing is to be changed."""
    trained, brought = _totals(growing, rates)
    if not trained or not brought:
        return ""
    cached = min(1.0, rates.cache_bytes * growing.nodes / max(1, growing.data_bytes))
    figures = f"the trainer reads {trained / 1e6:.3g} MB/s, the link brings {brought / 1e6:.3g} MB/s"
    # Before the end of the first pass nothing of the data is cached for strict epochs, either.
    if brought >= trained * (1.0 - cached if growing.passes >= 1 else 1.0):
        return f"{figures} and the cache holds {cached:.0%} of the data: without growing= no epoch would wait"
    needed = needed_reuse(growing, rates)
    if rates.waits and needed > growing.reuse:
        return f"{figures}: Growing(reuse={needed}) instead of {growing.reuse} would not wait"
    return ""


def _totals(growing: GrowingStats, rates: Rates) -> tuple[float, float]:
    """Bytes per second that all trainers read, and that all links bring."""
    trained = rates.samples_per_second * growing.sample_bytes * growing.ranks
    return trained, rates.store_bytes_per_second * growing.nodes
