"""What the fetcher counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# Enough for a p99 (1 % of 512 is 5 samples), few enough to follow the link within seconds.
_SAMPLES = 512


@dataclass(frozen=True, slots=True)
class FetchStatistics:
    """Counts since the fetcher was opened, and gauges now.

    Attributes:
        requests: ranged GETs sent, with retries and hedges.
        received_bytes: of bodies, including bytes of abandoned answers.
        retries: tries after a failure; hedges, hedge_wins: duplicates sent, and those that were first.
        throttled: 429 and 503 answers; stalled: bodies abandoned for lack of progress.
        failures: ranges given up.
        window, in_flight, waiting: requests over all endpoints; reserved_bytes, reserved_peak_bytes: of memory.
        first_byte_p50_seconds, first_byte_p95_seconds, first_byte_p99_seconds: of the last 512 requests.
    """

    requests: int
    received_bytes: int
    retries: int
    hedges: int
    hedge_wins: int
    throttled: int
    stalled: int
    failures: int
    window: int
    in_flight: int
    waiting: int
    reserved_bytes: int
    reserved_peak_bytes: int
    first_byte_p50_seconds: float
    first_byte_p95_seconds: float
    first_byte_p99_seconds: float


@dataclass(slots=True)
class Latencies:
    """The last times to first byte, and their quantiles."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def add(self, seconds: float) -> None:
        """One more."""
        self.seconds.append(seconds)

    def quantiles(self, *shares: float) -> tuple[float, ...]:
        """The quantiles; zeros while nothing was measured."""
        ordered = sorted(self.seconds)
        if not ordered:
            return tuple(0.0 for _ in shares)
        return tuple(ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in shares)


@dataclass(slots=True)
class Tally:
    """Mutable counts; one owner, one loop."""

    requests: int = 0
    received_bytes: int = 0
    retries: int = 0
    hedges: int = 0
    hedge_wins: int = 0
    throttled: int = 0
    stalled: int = 0
    failures: int = 0
    first_byte: Latencies = field(default_factory=Latencies)
