"""Decides how many requests one endpoint gets at once: its window. A pure state machine; time is an argument.

The rule: in every interval in which requests waited for a place, the window grows by half until the latency first
exceeds twice that of an idle link (slow start); from then on it shrinks by 15 % while the latency is above that, and
grows by 10 % otherwise. The idle latency is the least median of an interval within 20 s, per size class of requests.

Simulated links of 1 to 40 Gbit/s are filled to 99 % from the 8th second on, to 100 % 5 s after a fivefold drop, and to
95 % over the ten seconds after its end (2026-11-23). A window by minimal latency (BBR) under-fills because request
latency is heavy-tailed. Refusals (429, 503) do not move the window: they limit the rate of requests, if anything
(`pacing`).
"""

from __future__ import annotations

from collections import deque
from statistics import median

import msgspec

# An interval ends when it is this long, has this many answers and lasted two mean durations of a request.
INTERVAL_SECONDS = 0.25
INTERVAL_SAMPLES = 8
SLOW_START_FACTOR = 1.5
INCREASE_FACTOR = 1.1
DECREASE_FACTOR = 0.85
LATENCY_INFLATION = 2.0
# A measured inflation is valid for this long, and for this many mean durations of a request. Without an end, that of a
# burst after which no request followed made an object that never answers look like a full link: it was reported after
# minutes instead of 10 s, one time in four (2026-11-22).
STALE_SECONDS = 5.0
STALE_FACTOR = 4.0
# A queue that our own requests cause must drain within this at least once.
BASE_SECONDS = 20.0


class Interval(msgspec.Struct):
    """The requests between two decisions."""

    start: float
    contended: int = 0
    samples: int = 0
    total_seconds: float = 0.0
    seconds: dict[int, list[float]] = msgspec.field(default_factory=dict)

    def add(self, seconds: float, length: int, *, contended: bool) -> None:
        """Adds a request that ended well."""
        self.seconds.setdefault(size_class(length), []).append(seconds)
        self.samples += 1
        self.total_seconds += seconds
        self.contended += contended

    @property
    def mean_seconds(self) -> float:
        """Mean duration of the requests."""
        return self.total_seconds / max(1, self.samples)

    def complete(self, now: float) -> bool:
        """Whether it is long enough, and has enough answers, to decide."""
        elapsed = now - self.start
        return elapsed >= INTERVAL_SECONDS and self.samples >= INTERVAL_SAMPLES and elapsed >= 2 * self.mean_seconds


class WindowControl:
    """The size of one endpoint's window.

    Args:
        start: number of requests at once in the beginning.
        min_window: lower bound of the window.
        max_window: upper bound of the window.

    Attributes:
        climbing: whether it grew in slow start after the last interval.
        inflation: last measured ratio of the duration of requests to that on an idle link.
    """

    def __init__(self, start: int, min_window: int, max_window: int) -> None:
        self._min_window = min_window
        self._max_window = max_window
        self._size = float(min(max(start, min_window), max_window))
        self._interval: Interval | None = None
        self._slow_start = self.climbing = True
        self._base: dict[int, deque[tuple[float, float]]] = {}
        self.inflation = 1.0
        self._known_until = float("inf")

    def __repr__(self) -> str:
        phase = "slow start" if self._slow_start else "steady"
        return f"WindowControl({self.size}, {phase}, inflation={self.inflation:.2f})"

    @property
    def size(self) -> int:
        """Number of requests at once."""
        return round(self._size)

    def limit(self, max_window: int) -> None:
        """Keeps the window from growing above this from now on."""
        self._max_window = max_window
        self._size = min(self._size, float(max_window))

    def inflation_at(self, now: float) -> float:
        """Returns the duration of requests relative to that on an idle link; 1 if not slower, or if it is unknown."""
        return self.inflation if now < self._known_until else 1.0

    def record_request(self, now: float, seconds: float, length: int, *, contended: bool) -> None:
        """A request of `length` bytes took `seconds`; `contended`: others waited for its place."""
        if self._interval is None:
            self._interval = Interval(now - seconds)
        self._interval.add(seconds, length, contended=contended)
        if self._interval.complete(now):
            self._decide(self._interval, now)
            self._interval = Interval(now)

    def _decide(self, interval: Interval, now: float) -> None:
        # Durations relative to the base of their size class.
        ratios: list[float] = []
        for kind, values in interval.seconds.items():
            history = self._base.setdefault(kind, deque())
            history.append((now, median(values)))
            while history[0][0] < now - BASE_SECONDS:
                history.popleft()
            base = max(min(value for _, value in history), 1e-6)
            ratios.extend(value / base for value in values)
        self.inflation = median(ratios)
        self._known_until = now + max(STALE_SECONDS, STALE_FACTOR * interval.mean_seconds)
        self.climbing = False
        if interval.contended * 2 < interval.samples:
            return  # the readers were the limit, so the link showed nothing
        if self.inflation > LATENCY_INFLATION:
            self._slow_start = False
            size = max(self._size * DECREASE_FACTOR, min(self._size, self._min_window))
        else:
            self.climbing = self._slow_start and self._size < self._max_window
            size = self._size * (SLOW_START_FACTOR if self._slow_start else INCREASE_FACTOR)
        self._size = min(size, float(self._max_window))


def size_class(length: int) -> int:
    """Class of requests of about one size, which are compared with each other: powers of two of bytes."""
    return length.bit_length()
