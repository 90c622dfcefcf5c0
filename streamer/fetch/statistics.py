"""Counts what fetchers do (requests, bytes, failures, times to first byte), and adds up the counts of several.

Each fetcher fills a `RequestTally`. Fetch processes send the counts to the engine (`engine/processes/`), which shows
them in its statistics, metrics and curves (`engine/statistics.py`, `service/history/`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import msgspec

from streamer.fetch.hedge import LEAST_SAMPLES, MOST_SAMPLES, Quantiles, quantiles


@dataclass(frozen=True, slots=True)
class FetchStatistics:
    """Holds the counts of a fetcher since it was made, and its levels of now (from `window` on).

    Attributes:
        requests: ranged GETs sent, including retries, duplicates and probes.
        received_bytes: bytes of bodies, including those of abandoned requests.
        retries: tries after a failure.
        hedges: duplicates sent because no first byte came.
        hedge_wins: duplicates that had the first byte.
        throttled: tries of ranges that were answered 429 or 503.
        stalled: requests abandoned because no first byte or too little of the body came in time.
        outpaced: requests abandoned because the body took four times as long as others.
        failures: ranges given up.
        window: requests allowed at once, over all endpoints.
        limited_per_second: sum of the rates of the endpoints whose rate is limited, or 0 if there are none.
        in_flight: requests sent and not ended.
        waiting: requests that wait for the window, and chunks that wait for memory.
        reserved_bytes: memory reserved for chunks that are being fetched or not closed yet.
        reserved_peak_bytes: maximum of `reserved_bytes` so far.
        first_byte_p50_seconds: median of the times to first byte of the last 512 requests. It and the following are 0
            while fewer than 20 were measured.
        first_byte_p95_seconds: their 95th percentile.
        first_byte_p99_seconds: their 99th percentile.
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


# Upper bounds of the histogram's buckets in seconds: those of Prometheus' client libraries, which dashboards expect.
FIRST_BYTE_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram(msgspec.Struct):
    """Counts times to first byte by buckets.

    Attributes:
        counts: number of times in each bucket of `FIRST_BYTE_BOUNDS` (above the bound before, up to its own). The last
            number is that of the times above all bounds.
        sum_seconds: sum of all times.
    """

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(FIRST_BYTE_BOUNDS) + 1))
    sum_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Adds one time in seconds."""
        self.counts[bisect_left(FIRST_BYTE_BOUNDS, seconds)] += 1
        self.sum_seconds += seconds

    def plus(self, other: Histogram) -> Histogram:
        """Returns a histogram of the times of both; changes neither."""
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Histogram(counts, self.sum_seconds + other.sum_seconds)


class RequestTally(msgspec.Struct):
    """Counts what one fetcher does, on one event loop. The counts are those of `FetchStatistics`.

    Attributes:
        recent_first_byte_seconds: the last 512 times to first byte.
        first_byte_histogram: all times to first byte.
    """

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
        """Records that the first byte of a request came after this many seconds."""
        self.recent_first_byte_seconds.append(seconds)
        self.first_byte_histogram.add(seconds)

    def count_discarded(self, piece: bytes | memoryview) -> None:
        """Adds a piece of a body that the caller discards to `received_bytes`."""
        self.received_bytes += len(piece)

    def first_byte_seconds(self) -> Quantiles:
        """Returns the quantiles of the last times to first byte, in seconds; all 0 while fewer than 20 are known."""
        enough = len(self.recent_first_byte_seconds) >= LEAST_SAMPLES
        return quantiles(self.recent_first_byte_seconds) if enough else Quantiles(0.0, 0.0, 0.0)


# Names of the fields that count since the start, also over fetchers and processes that have ended. The other fields of
# `FetchStatistics` are levels of now.
COUNTS = (
    *("requests", "received_bytes", "retries", "hedges", "hedge_wins"),
    *("throttled", "stalled", "outpaced", "failures"),
)


def counts_of(tally: RequestTally) -> dict[str, int]:
    """Returns the counts of a tally by the names of `COUNTS`."""
    return {name: getattr(tally, name) for name in COUNTS}


def sum_statistics(every: Iterable[Mapping[str, int | float]]) -> dict[str, int | float]:
    """Merges the statistics of several fetchers, each by the names of `FetchStatistics`.

    Returns:
        The sum of each value, but the largest of those whose names end in `_seconds` (latencies). All 0 for none.
    """
    total: dict[str, int | float] = {field.name: 0 for field in fields(FetchStatistics)}
    for found in every:
        for name, value in found.items():
            total[name] = max(total[name], value) if name.endswith("_seconds") else total[name] + value
    return total
