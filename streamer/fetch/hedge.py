"""Whether a slow request gets a duplicate, and when a slow body is given up, as pure decisions.

Source: Dean, Barroso, "The Tail at Scale", CACM 2013 (duplicate after the 95th percentile); measured here with 2 % of
requests 1 s slow: p99 1,030 -> 132 ms for 2.2 % more requests. Never into a full link, never against pushback: a
duplicate then only adds to the queue that made the first one slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

# Below this many samples a p95 says nothing.
LEAST_SAMPLES = 20
# Enough for a p99 (5 samples of 512), few enough to follow the link within seconds.
MOST_SAMPLES = 512
REFRESH_SAMPLES = 32
# Duplicates in a row before the budget's share is felt.
BURST_REQUESTS = 4.0
# The p95 is not late enough where latencies are broad: at sigma 0.5 it is passed by 5 % that are not slow for long,
# which spent the whole budget (77 duplicates, 40 lost, p99 941 -> 712 ms). So each loss moves the next ones later, each
# win a little earlier: it settles where three of four win. A loss that also costs a second token leaves too few where
# the share is 3 % and the tail is broad (sigma 0.8: p99 1.0 instead of 0.3 s in one of six; simulated, 2026-11-20).
LOST_DELAY = 1.25
WON_DELAY = 0.9
MOST_DELAY = 8.0
BURST_BYTES = 32 << 20
# What is under way on a connection when it is dropped before its first byte was read: socket buffers.
ABANDONED_BYTES = 256 << 10
# Connections are made, names resolved and certificates checked within these.
COLD_SECONDS = 1.0
COLD_LEAST_SECONDS = 0.5
COLD_FACTOR = 4.0
FULL_INFLATION = 1.5
SOON_FACTOR = 2.0
PATIENCE_LEAST_SECONDS = 2.0
PATIENCE_FACTOR = 4.0
PATIENCE_GROWTH = 8.0
BODY_FACTOR = 4.0
BODY_LEAST_SECONDS = 0.3


class Quantiles(msgspec.Struct, frozen=True):
    """The middle and the high end of what was seen."""

    p50: float
    p95: float
    p99: float


def quantiles(values: Iterable[float]) -> Quantiles:
    """Of a few values at least."""
    ordered = sorted(values)
    p50, p95, p99 = (ordered[int(share * len(ordered))] for share in (0.5, 0.95, 0.99))
    return Quantiles(p50, p95, p99)


class Sampled(msgspec.Struct):
    """The last samples of one quantity.

    Attributes:
        values: the last 512.
        quantiles: computed with every 32nd sample: to sort 512 for each request would cost as much as the request.
            None below 20 samples.
    """

    values: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    quantiles: Quantiles | None = None
    _fresh: int = 0

    def add(self, value: float) -> None:
        """One more sample."""
        self.values.append(value)
        self._fresh += 1
        if self._fresh >= REFRESH_SAMPLES or (self.quantiles is None and self._fresh >= LEAST_SAMPLES):
            self.quantiles, self._fresh = quantiles(self.values), 0

    @property
    def middle(self) -> float:
        """The upper median of however few there are; there is one."""
        return sorted(self.values)[len(self.values) // 2]


def cold_duplicate_after(first_byte: Sampled) -> float:
    """Seconds until a duplicate while too few requests of the size class were seen for a p95.

    Without it the first requests of a run, when everybody waits for them, had no cure for a lost answer but the
    patience of 10 s (2026-11-20). The budget allows one of them.

    Args:
        first_byte: what is known: of the size class best known, or a few samples, or none.
    """
    if not first_byte.values:
        return COLD_SECONDS
    return max(COLD_LEAST_SECONDS, COLD_FACTOR * first_byte.middle)


def duplicate_after(first_byte: Sampled, *, soon: bool) -> float | None:
    """Seconds without a first byte until a duplicate is worth its price; None: not known yet.

    Args:
        first_byte: of the same size class.
        soon: the chunk is due within two p95; others wait for the p99.
    """
    if (seen := first_byte.quantiles) is None:
        return None
    return max(seen.p95 if soon else seen.p99, 2.0 * seen.p50)


def patience_seconds(first_byte: Sampled, most_seconds: float, attempt: int) -> float:
    """How long try number `attempt` waits for its first byte: four p99, at least 2 s, twice as long each time.

    Source: AWS, "Timeouts and retries for latency-sensitive applications": small requests again after 2 s, then 4.

    Args:
        first_byte: of the same size class.
        most_seconds: for the first try, and while nothing is known.
        attempt: 1, 2, ...
    """
    first, seen = most_seconds, first_byte.quantiles
    if seen is not None:
        first = min(max(PATIENCE_LEAST_SECONDS, PATIENCE_FACTOR * seen.p99), most_seconds)
    return float(first * min(PATIENCE_GROWTH, 2.0 ** (attempt - 1)))


def due_soon(seconds_left: float, first_byte: Sampled) -> bool:
    """Whether a chunk is needed within two p95 of a first byte."""
    return first_byte.quantiles is not None and seconds_left <= SOON_FACTOR * first_byte.quantiles.p95


def body_seconds(remaining_bytes: int, rates: Sampled) -> float | None:
    """How long the rest of a body may take: four times what the median takes, at least 0.3 s; None: not known yet.

    Args:
        remaining_bytes: still to come.
        rates: bytes per second of other bodies.
    """
    if rates.quantiles is None:
        return None
    return max(BODY_LEAST_SECONDS, BODY_FACTOR * remaining_bytes / rates.quantiles.p50)


class HedgeBudget(msgspec.Struct):
    """What duplicates may cost: a share of the requests and a share of the bytes.

    Args:
        requests_share: of the requests sent without hedging.
        bytes_share: of their bytes.
        delay: factor on the time until a duplicate; moved by what duplicates achieve.
        requests: tokens left. The first is lent: what is earned pays it back before it counts, so that
            n requests get max(1, n x requests_share) duplicates at most.
        bytes: tokens left.
    """

    requests_share: float
    bytes_share: float
    delay: float = 1.0
    requests: float = 1.0
    bytes: float = BURST_BYTES
    _lent: float = 1.0

    def earned(self, length: int) -> None:
        """A first try of `length` bytes was sent."""
        if self._lent > 0.0:
            self._lent -= self.requests_share
        else:
            self.requests = min(BURST_REQUESTS, self.requests + self.requests_share)
        self.bytes = min(float(BURST_BYTES), self.bytes + self.bytes_share * length)

    def take(self, length: int) -> bool:
        """Pays for a duplicate of `length` bytes; False when there is no budget."""
        price = min(length, ABANDONED_BYTES)
        if self.requests < 1.0 or self.bytes < price:
            return False
        self.requests -= 1.0
        self.bytes -= price
        return True

    def lost(self) -> None:
        """A duplicate came second."""
        self.delay = min(self.delay * LOST_DELAY, MOST_DELAY)

    def won(self) -> None:
        """A duplicate was first."""
        self.delay = max(self.delay * WON_DELAY, 1.0)


def worthwhile(*, inflation: float, limited: bool) -> bool:
    """Whether duplicates may help at all: the link has room and the store does not limit the rate of requests."""
    return inflation <= FULL_INFLATION and not limited
