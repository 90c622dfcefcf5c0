"""How many requests one endpoint gets at once: a pure state machine, time is an argument.

Source: additive increase of 5 %, x0.85 on latency above 2x base, x0.7 on more than 1 % of 503, slow start x1.5 until
three intervals bring less than 15 % more goodput: 92-99 % of the capacity in simulation, before and after a
fivefold drop; a window by minimal latency (BBR) under-fills because request latency is heavy-tailed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

INTERVAL_SECONDS = 0.25
INTERVAL_SAMPLES = 8
SLOW_START_FACTOR = 1.5
SLOW_START_GAIN = 1.15
SLOW_START_PATIENCE = 3
INCREASE_SHARE = 0.05
INCREASE_LEAST = 2.0
LATENCY_INFLATION = 2.0
LATENCY_FACTOR = 0.85
REFUSED_SHARE = 0.01
REFUSED_FACTOR = 0.7
# The base is the least interval median of this long; a queue of our own making must drain within it once.
BASE_SECONDS = 20.0


@dataclass(slots=True)
class Interval:
    """What happened between two decisions."""

    start: float
    received_bytes: int = 0
    refused: int = 0
    contended: int = 0
    seconds: dict[int, list[float]] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Requests that ended well."""
        return sum(len(values) for values in self.seconds.values())

    def mean_seconds(self) -> float:
        """Mean duration of a request."""
        return sum(map(sum, self.seconds.values())) / max(1, self.samples)


class WindowControl:
    """The size of one endpoint's window.

    Args:
        start, least, most: requests.
    """

    def __init__(self, start: int, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._size = float(min(max(start, least), most))
        self._interval: Interval | None = None
        self._slow_start = True
        self._plateau = 0
        self._plateau_size = self._size
        self._best_rate = 0.0
        self._base: dict[int, deque[tuple[float, float]]] = {}
        self.inflation = 1.0

    def __repr__(self) -> str:
        phase = "slow start" if self._slow_start else "steady"
        return f"WindowControl({self.size}, {phase}, inflation={self.inflation:.2f})"

    @property
    def size(self) -> int:
        """Requests at once."""
        return int(self._size)

    def finished(self, now: float, seconds: float, length: int, *, contended: bool) -> None:
        """A request of `length` bytes took `seconds`; `contended`: others waited for its place."""
        interval = self._current(now - seconds)
        interval.seconds.setdefault(size_class(length), []).append(seconds)
        interval.received_bytes += length
        interval.contended += contended
        if self._complete(interval, now):
            self._decide(interval, now)
            self._interval = Interval(now)

    def refused(self, now: float) -> None:
        """The store answered 429 or 503."""
        interval = self._current(now)
        interval.refused += 1
        if interval.refused == 1 or interval.refused > REFUSED_SHARE * interval.samples:
            self._shrink(now)

    def _current(self, now: float) -> Interval:
        if self._interval is None:
            self._interval = Interval(now)
        return self._interval

    def _complete(self, interval: Interval, now: float) -> bool:
        length = max(INTERVAL_SECONDS, 2 * interval.mean_seconds())
        return now - interval.start >= length and interval.samples >= INTERVAL_SAMPLES

    def _decide(self, interval: Interval, now: float) -> None:
        self.inflation = self._measure(interval, now)
        rate = interval.received_bytes / (now - interval.start)
        if interval.contended * 2 < interval.samples:
            return  # the readers were the limit: nothing was learnt about the link
        if self._slow_start:
            self._double(rate)
        elif self.inflation > LATENCY_INFLATION:
            self._resize(self._size * LATENCY_FACTOR)
        elif not interval.refused:
            self._resize(self._size + max(INCREASE_LEAST, INCREASE_SHARE * self._size))

    def _double(self, rate: float) -> None:
        """Slow start; at the end the window goes back to where the plateau began."""
        if rate > SLOW_START_GAIN * self._best_rate:
            self._best_rate, self._plateau, self._plateau_size = rate, 0, self._size
        else:
            self._plateau += 1
        if self._plateau >= SLOW_START_PATIENCE:
            self._slow_start = False
            self._resize(self._plateau_size)
        else:
            self._resize(self._size * SLOW_START_FACTOR)

    def _shrink(self, now: float) -> None:
        self._slow_start = False
        self._resize(self._size * REFUSED_FACTOR)
        self._interval = Interval(now)

    def _resize(self, size: float) -> None:
        self._size = min(max(size, float(self._least)), float(self._most))

    def _measure(self, interval: Interval, now: float) -> float:
        """Median over the requests of duration / base of their size class."""
        ratios: list[float] = []
        for kind, values in interval.seconds.items():
            base = self._base_of(kind, median(values), now)
            ratios.extend(value / base for value in values)
        return median(ratios)

    def _base_of(self, kind: int, middle: float, now: float) -> float:
        history = self._base.setdefault(kind, deque())
        history.append((now, middle))
        while history[0][0] < now - BASE_SECONDS:
            history.popleft()
        return max(min(value for _, value in history), 1e-6)


def size_class(length: int) -> int:
    """Requests of about one size, compared with each other: powers of two of bytes."""
    return length.bit_length()
