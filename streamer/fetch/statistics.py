"""The fetcher's counts."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import msgspec

from streamer.fetch.hedge import LEAST_SAMPLES, MOST_SAMPLES, Quantiles, quantiles


@dataclass(frozen=True, slots=True)
class FetchStatistics:
    """Counts since the fetcher was opened, and gauges now.

    Attributes:
        requests: ranged GETs sent, with retries and hedges.
        received_bytes: bytes of bodies, including those of abandoned answers.
        retries: tries after a failure.
        hedges: duplicates sent because no first byte came.
        hedge_wins: duplicates that had the first byte.
        throttled: answers 429 and 503.
        stalled: bodies abandoned for lack of progress.
        outpaced: bodies abandoned for being four times slower than the others.
        failures: ranges given up.
        window: requests allowed at once, over all endpoints.
        limited_per_second: total rate of the endpoints that limit their requests; 0 if none does.
        in_flight: requests sent and not ended.
        waiting: requests and chunks that wait for the window or for memory.
        reserved_bytes: memory given to chunks that are fetched or not yet closed.
        reserved_peak_bytes: maximum of `reserved_bytes` so far.
        first_byte_p50_seconds: median of the last 512 requests; 0 while fewer than 20 were measured.
        first_byte_p95_seconds: 95th percentile, as above.
        first_byte_p99_seconds: 99th percentile, as above.
    """

    requests: int
    received_bytes: int
    retries: int
    hedges: int
    hedge_wins: int
    throttled: int
    stalled: int
    outpaced: int
    failures: int
    window: int
    limited_per_second: float
    in_flight: int
    waiting: int
    reserved_bytes: int
    reserved_peak_bytes: int
    first_byte_p50_seconds: float
    first_byte_p95_seconds: float
    first_byte_p99_seconds: float


# Bounds of a histogram in seconds: the buckets of Prometheus' client libraries, which most dashboards expect.
FIRST_BYTE_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram(msgspec.Struct):
    """Times to first byte since the start: the number up to each bound, the number in all, and their sum."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(FIRST_BYTE_BOUNDS) + 1))
    sum_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Adds one time."""
        self.counts[bisect_left(FIRST_BYTE_BOUNDS, seconds)] += 1
        self.sum_seconds += seconds

    def plus(self, other: Histogram) -> Histogram:
        """Returns the sum of both."""
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.sum_seconds + other.sum_seconds)


class RequestTally(msgspec.Struct):
    """Mutable counts; one owner, one loop."""

    requests: int = 0
    received_bytes: int = 0
    retries: int = 0
    hedges: int = 0
    hedge_wins: int = 0
    throttled: int = 0
    stalled: int = 0
    outpaced: int = 0
    failures: int = 0
    recent_first_byte_seconds: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    first_byte_histogram: Histogram = msgspec.field(default_factory=Histogram)

    def record_first_byte(self, seconds: float) -> None:
        """Counts a request whose first byte came after this time."""
        self.recent_first_byte_seconds.append(seconds)
        self.first_byte_histogram.add(seconds)

    def count_discarded(self, piece: bytes | memoryview) -> None:
        """Counts bytes that are discarded."""
        self.received_bytes += len(piece)

    def first_byte_seconds(self) -> Quantiles:
        """Quantiles of the time to first byte; 0 while unknown."""
        enough = len(self.recent_first_byte_seconds) >= LEAST_SAMPLES
        return quantiles(self.recent_first_byte_seconds) if enough else Quantiles(0.0, 0.0, 0.0)


# These go on counting after a fetcher, or its process, is gone; everything else is a level of now.
COUNTS = (
    *("requests", "received_bytes", "retries", "hedges", "hedge_wins"),
    *("throttled", "stalled", "outpaced", "failures"),
)


def counts_of(tally: RequestTally) -> dict[str, int]:
    """Returns the counts of a tally by the names of `COUNTS`."""
    return {name: getattr(tally, name) for name in COUNTS}


def sum_statistics(every: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
    """Merges the statistics of several fetchers: sums, and the worst of the latencies."""
    total: dict[str, int | float] = {field.name: 0 for field in fields(FetchStatistics)}
    for found in every:
        for name, value in found.items():
            total[name] = max(total[name], value) if name.endswith("_seconds") else total[name] + value
    return total
