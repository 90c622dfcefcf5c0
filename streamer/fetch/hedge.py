"""Decides whether a slow request gets a duplicate, and when a slow body is abandoned. Pure functions.

The rule: a request without a first byte after 1.5 times the p95 of its size class is sent a second time, as long as
duplicates are at most 3 % of the requests and bytes, the link is not full and the store does not limit the rate. Half
above the p95 spends that share on the slow requests even if latencies vary widely: with 2 % of the requests 1 s slow
and 30 ms median, the simulated p99 is 0.10, 0.11, 0.15 and 0.25 s for sigma 0.2, 0.3, 0.5 and 0.8 (the worst of six
runs 0.27 s); at the p95 itself the budget is spent on ordinary requests at sigma 0.5 (worst 1.0 s), and a delay that
adapts to lost duplicates gains nothing over 1.5 (0.09, 0.10, 0.14, 0.25 s; 2026-11-23).

Source: Dean, Barroso, "The Tail at Scale", CACM 2013 (duplicate after the 95th percentile).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

# A p95 of fewer samples means nothing.
LEAST_SAMPLES = 20
# Enough for a p99 (5 samples of 512), few enough to follow the link within seconds.
MOST_SAMPLES = 512
REFRESH_SAMPLES = 32
# A duplicate is sent at this multiple of the p95.
LATE_FACTOR = 1.5
# Delay while the p95 is unknown: connections are made, names resolved and certificates checked within it.
COLD_SECONDS = 1.0
# Unused shares are saved up to this many duplicates and bytes.
BURST_REQUESTS = 4.0
BURST_BYTES = 32 << 20
# Bytes in flight on a connection that is dropped before its first byte was read: socket buffers.
ABANDONED_BYTES = 256 << 10
# Timeout of the first byte: FIRST_BYTE_FACTOR x p99, at least FIRST_BYTE_LEAST_SECONDS, doubled per try up to a factor
# of FIRST_BYTE_GROWTH.
FIRST_BYTE_LEAST_SECONDS = 2.0
FIRST_BYTE_FACTOR = 4.0
FIRST_BYTE_GROWTH = 8.0
# Timeout of a body: BODY_FACTOR x the time of the median connection, at least BODY_LEAST_SECONDS.
BODY_FACTOR = 4.0
BODY_LEAST_SECONDS = 0.3


class Quantiles(msgspec.Struct, frozen=True):
    """The median and the high quantiles of a quantity."""

    p50: float
    p95: float
    p99: float


def quantiles(values: Iterable[float]) -> Quantiles:
    """Computes quantiles; needs a few values at least."""
    ordered = sorted(values)
    p50, p95, p99 = (ordered[int(share * len(ordered))] for share in (0.5, 0.95, 0.99))
    return Quantiles(p50, p95, p99)


class Sampled(msgspec.Struct):
    """The last samples of one quantity.

    Attributes:
        values: the last 512 values.
        quantiles: recomputed at every 32nd sample, because sorting 512 for each request would cost as much as the
            request; None below 20 samples.
    """

    values: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    quantiles: Quantiles | None = None
    _fresh: int = 0

    def add(self, value: float) -> None:
        """Adds a sample."""
        self.values.append(value)
        self._fresh += 1
        if self._fresh >= REFRESH_SAMPLES or (self.quantiles is None and self._fresh >= LEAST_SAMPLES):
            self.quantiles = quantiles(self.values)
            self._fresh = 0


def duplicate_after(first_byte: Sampled) -> float:
    """Returns the seconds without a first byte after which a duplicate is worth its cost.

    Before the p95 is known, the first requests of a run, for which every reader waits, would have to wait 10 s for a
    lost answer (2026-11-20); the budget allows one duplicate of them.

    Args:
        first_byte: times to first byte of the same size class.
    """
    return COLD_SECONDS if first_byte.quantiles is None else LATE_FACTOR * first_byte.quantiles.p95


def first_byte_timeout(first_byte: Sampled, most_seconds: float, attempt: int) -> float:
    """Returns the seconds that a try waits for its first byte: four p99, at least 2 s, doubled at each `attempt`.

    Source: AWS, "Timeouts and retries for latency-sensitive applications": small requests again after 2 s, then 4.

    Args:
        first_byte: times to first byte of the same size class.
        most_seconds: limit for the first try, and value while nothing is known.
        attempt: number of the try, from 1.
    """
    first = most_seconds
    seen = first_byte.quantiles
    if seen is not None:
        first = min(max(FIRST_BYTE_LEAST_SECONDS, FIRST_BYTE_FACTOR * seen.p99), most_seconds)
    return float(first * min(FIRST_BYTE_GROWTH, 2.0 ** min(attempt - 1, 64)))


def body_seconds(remaining_bytes: int, rates: Sampled) -> float | None:
    """Returns the seconds that the rest of a body may take: four times the median's, at least 0.3 s; None if unknown.

    Args:
        remaining_bytes: bytes still to come.
        rates: bytes per second of other bodies.
    """
    if rates.quantiles is None:
        return None
    return max(BODY_LEAST_SECONDS, BODY_FACTOR * remaining_bytes / rates.quantiles.p50)


class HedgeBudget(msgspec.Struct):
    """Limits the cost of duplicates to a share of the requests and a share of the bytes.

    Args:
        requests_share: duplicates per request sent without hedging.
        bytes_share: bytes of duplicates per byte of such requests.
        requests: duplicates left; one at the start, so that n requests get at most 1 + n x requests_share.
        bytes: bytes left.
    """

    requests_share: float
    bytes_share: float
    requests: float = 1.0
    bytes: float = BURST_BYTES

    def earn(self, length: int) -> None:
        """Records that a first try of `length` bytes was sent."""
        self.requests = min(BURST_REQUESTS, self.requests + self.requests_share)
        self.bytes = min(float(BURST_BYTES), self.bytes + self.bytes_share * length)

    def take(self, length: int) -> bool:
        """Pays for a duplicate of `length` bytes; returns False if the budget does not suffice."""
        price = min(length, ABANDONED_BYTES)
        if self.requests < 1.0 or self.bytes < price:
            return False
        self.requests -= 1.0
        self.bytes -= price
        return True
