"""Decides after which time a slow request gets a duplicate or is abandoned, and how many duplicates. No clock, no I/O.

Used by `fetch/endpoint.py`, `fetch/request.py` and `fetch/transfer.py`, and for requests to peers by `peers/peer.py`.
`fetch/statistics.py` computes percentiles with it.

A request without a first byte after 1.5 times the p95 of its size class is sent a second time, as long as duplicates
are at most 3 % of the requests and bytes, the link is not full and the store does not limit the rate. The factor 1.5
spends that share on the slow requests even if latencies vary widely. It was simulated with 2 % of the requests 1 s
slow, the others log-normal with a median of 30 ms (2026-11-23). For a sigma of 0.2, 0.3, 0.5 and 0.8 the p99 is 0.10,
0.11, 0.15 and 0.25 s, in the worst of six runs 0.27 s. At the p95 itself the share is spent on ordinary requests (sigma
0.5, worst run 1.0 s). A delay that adapts to lost duplicates gains nothing over 1.5 (0.09, 0.10, 0.14 and 0.25 s).

Source: Dean, Barroso, "The Tail at Scale", CACM 2013 (duplicate after the 95th percentile).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

# Quantiles of fewer samples mean nothing.
LEAST_SAMPLES = 20
# So many samples are kept: enough for a p99 (5 of 512), few enough to follow the link within seconds.
MOST_SAMPLES = 512
REFRESH_SAMPLES = 32
# A duplicate is sent after this multiple of the p95.
LATE_FACTOR = 1.5
# A duplicate is sent after this time while the p95 is unknown. Within it names are resolved, connections made and
# certificates checked.
COLD_SECONDS = 1.0
# The budget saves up to this many duplicates and bytes.
BURST_REQUESTS = 4.0
BURST_BYTES = 32 << 20
# A duplicate costs at most this many bytes, because its connection is dropped before more than the socket's buffer was
# sent.
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
    """Holds the median, the 95th and the 99th percentile of a quantity, in its unit."""

    p50: float
    p95: float
    p99: float


def quantiles(values: Iterable[float]) -> Quantiles:
    """Computes the quantiles of at least one value; IndexError if there is none."""
    ordered = sorted(values)
    p50, p95, p99 = (ordered[int(share * len(ordered))] for share in (0.5, 0.95, 0.99))
    return Quantiles(p50, p95, p99)


class Sampled(msgspec.Struct):
    """Keeps the last samples of one quantity, and their quantiles.

    Attributes:
        values: the last `MOST_SAMPLES` values.
        quantiles: their quantiles, or None below `LEAST_SAMPLES` values. They are computed at the 20th sample, then
            at each 32nd, because sorting 512 values costs as much as a request.
    """

    values: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    quantiles: Quantiles | None = None
    _fresh: int = 0

    def add(self, value: float) -> None:
        """Adds a sample; may compute `quantiles` anew."""
        self.values.append(value)
        self._fresh += 1
        if self._fresh >= REFRESH_SAMPLES or (self.quantiles is None and self._fresh >= LEAST_SAMPLES):
            self.quantiles = quantiles(self.values)
            self._fresh = 0


def duplicate_after(first_byte: Sampled) -> float:
    """Returns the seconds without a first byte after which a duplicate is sent: 1.5 times the p95, or 1 s if unknown.

    Every reader waits for the first requests of a run. Without a duplicate of these a lost answer took 10 s
    (2026-11-20); the budget allows one.

    Args:
        first_byte: times to first byte of the same size class.
    """
    return COLD_SECONDS if first_byte.quantiles is None else LATE_FACTOR * first_byte.quantiles.p95


def first_byte_timeout(first_byte: Sampled, most_seconds: float, attempt: int) -> float:
    """Returns the seconds that a try waits for its first byte: four times the p99, at least 2 s, doubled at each try.

    Source: AWS, "Timeouts and retries for latency-sensitive applications": small requests again after 2 s, then 4.

    Args:
        first_byte: times to first byte of the same size class.
        most_seconds: upper bound for the first try, and its timeout while the p99 is unknown.
        attempt: number of the try, from 1. From the fourth on the timeout stays at eight times that of the first.
    """
    first = most_seconds
    seen = first_byte.quantiles
    if seen is not None:
        first = min(max(FIRST_BYTE_LEAST_SECONDS, FIRST_BYTE_FACTOR * seen.p99), most_seconds)
    return float(first * min(FIRST_BYTE_GROWTH, 2.0 ** min(attempt - 1, 64)))


def body_seconds(remaining_bytes: int, rates: Sampled) -> float | None:
    """Returns the seconds that the rest of a body may take: four times as long as on the median connection.

    At least 0.3 s; None while the rates of too few bodies are known.

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
        requests_share: number of duplicates allowed for each request that would be sent without them.
        bytes_share: bytes of duplicates allowed for each byte of such requests.
        requests: duplicates left. One at the start, so that n requests get at most 1 + n x requests_share.
        bytes: bytes left for duplicates.
    """

    requests_share: float
    bytes_share: float
    requests: float = 1.0
    bytes: float = BURST_BYTES

    def earn(self, length: int) -> None:
        """Adds to the budget for a request of `length` bytes that is no duplicate."""
        self.requests = min(BURST_REQUESTS, self.requests + self.requests_share)
        self.bytes = min(float(BURST_BYTES), self.bytes + self.bytes_share * length)

    def take(self, length: int) -> bool:
        """Takes the cost of a duplicate of `length` bytes; returns False, and takes nothing, if too little is left."""
        price = min(length, ABANDONED_BYTES)
        if self.requests < 1.0 or self.bytes < price:
            return False
        self.requests -= 1.0
        self.bytes -= price
        return True
