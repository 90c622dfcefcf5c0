"""Decides how many requests one endpoint gets at once: its window. It has no clock of its own and does no I/O.

The window is never above `FetchLimits`, of which each fetch process of an engine has a share (`engine/processes/`).

Each endpoint has a `WindowControl` (`fetch/endpoint.py`). It decides after each interval in which at least half of the
requests ended while others waited for a place. The window grows by half until the latency first exceeds twice that of
an idle link (slow start). From then on it shrinks by 15 % while the latency is above that, and grows by 10 % otherwise.
The idle latency is the least median of an interval within 20 s, for each size class of requests.

Simulated links of 1 to 40 Gbit/s are filled to 99 % from the 8th second on, to 100 % 5 s after a fivefold drop, and to
95 % over the ten seconds after its end (2026-11-23). A window by minimal latency (BBR) under-fills because request
latency is heavy-tailed. Refusals (429, 503) do not move the window: they may limit the rate (`fetch/pacing.py`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, replace
from statistics import median

import msgspec

from streamer.config import FetchConfig

# An interval ends when it is this long, has this many served requests and lasted two mean durations of a request.
INTERVAL_SECONDS = 0.25
INTERVAL_SAMPLES = 8
SLOW_START_FACTOR = 1.5
INCREASE_FACTOR = 1.1
DECREASE_FACTOR = 0.85
LATENCY_INFLATION = 2.0
# A measured inflation expires after `STALE_SECONDS`, or after `STALE_FACTOR` mean durations of a request if that is
# longer. When it never expired, the inflation of a last burst made an object that never answers look like a full link:
# in one case of four the object was reported after minutes instead of 10 s (2026-11-22).
STALE_SECONDS = 5.0
STALE_FACTOR = 4.0
# The idle latency is the least one within this many seconds: a queue that our own requests cause must drain within them
# at least once.
BASE_SECONDS = 20.0


@dataclass(frozen=True)
class FetchLimits:
    """Limits what one fetcher takes; the fields are those of `FetchConfig`. Fetch processes have a share each.

    Attributes:
        window_max: number of requests at once, of each endpoint.
        memory_bytes: bytes of the fetcher's buffers.
    """

    window_max: int
    memory_bytes: int

    def scale(self, request_share: float, memory_share: float) -> FetchLimits:
        """Returns a share of what stores are asked for, and a share of the memory; at least 1 of each."""
        return FetchLimits(
            window_max=max(1, int(self.window_max * request_share)),
            memory_bytes=max(1, int(self.memory_bytes * memory_share)),
        )

    def apply(self, config: FetchConfig) -> FetchConfig:
        """Returns these settings with the limits in place of their own."""
        return replace(config, **asdict(self))


class Interval(msgspec.Struct):
    """Collects the requests that were served between two decisions.

    Attributes:
        start: when the interval began, in seconds.
        contended: number of requests that ended while others waited for a place.
        samples: number of requests.
        total_seconds: sum of their durations.
        seconds: their durations by size class (`size_class`).
    """

    start: float
    contended: int = 0
    samples: int = 0
    total_seconds: float = 0.0
    seconds: dict[int, list[float]] = msgspec.field(default_factory=dict)

    def add(self, seconds: float, length: int, *, contended: bool) -> None:
        """Adds a request that was served.

        Args:
            seconds: its duration.
            length: number of bytes that it asked for.
            contended: whether others waited for a place when it ended.
        """
        self.seconds.setdefault(size_class(length), []).append(seconds)
        self.samples += 1
        self.total_seconds += seconds
        self.contended += contended

    @property
    def mean_seconds(self) -> float:
        """Mean duration of the requests, 0 if there are none."""
        return self.total_seconds / max(1, self.samples)

    def complete(self, now: float) -> bool:
        """Whether the interval is long enough at `now`, and has enough requests, to decide."""
        elapsed = now - self.start
        return elapsed >= INTERVAL_SECONDS and self.samples >= INTERVAL_SAMPLES and elapsed >= 2 * self.mean_seconds


class WindowControl:
    """Computes the size of one endpoint's window from the durations of its requests.

    Args:
        start: size of the window in the beginning: requests at once.
        min_window: size below which the window does not shrink.
        max_window: size above which it does not grow.

    Attributes:
        climbing: whether the window is in slow start and grew after the last interval. True before the first one.
        inflation: last measured ratio of the duration of requests to that on an idle link, 1 before the first one;
            `inflation_at` forgets it in time.
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
        """Number of requests that the endpoint may get at once."""
        return round(self._size)

    def limit(self, max_window: int) -> None:
        """Sets another upper bound; a larger window shrinks to it at once."""
        self._max_window = max_window
        self._size = min(self._size, float(max_window))

    def inflation_at(self, now: float) -> float:
        """Returns how many times as long as on an idle link requests take; 1 if that is unknown or too long ago."""
        return self.inflation if now < self._known_until else 1.0

    def record_request(self, now: float, seconds: float, length: int, *, contended: bool) -> None:
        """Records a request that was served at `now`; at the end of an interval decides on the window's size.

        Args:
            now: seconds of a monotonic clock.
            seconds: duration of the request.
            length: number of bytes that it asked for.
            contended: whether others waited for a place in the window when it ended.
        """
        if self._interval is None:
            self._interval = Interval(now - seconds)
        self._interval.add(seconds, length, contended=contended)
        if self._interval.complete(now):
            self._decide(self._interval, now)
            self._interval = Interval(now)

    def _decide(self, interval: Interval, now: float) -> None:
        """Sets `inflation`, `climbing` and the size from an interval, by the rule in the module's docstring."""
        # Durations relative to the idle latency of their size class.
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
            return  # the window was seldom full, so the durations tell nothing about a larger one
        if self.inflation > LATENCY_INFLATION:
            self._slow_start = False
            size = max(self._size * DECREASE_FACTOR, min(self._size, self._min_window))
        else:
            self.climbing = self._slow_start and self._size < self._max_window
            size = self._size * (SLOW_START_FACTOR if self._slow_start else INCREASE_FACTOR)
        self._size = min(size, float(self._max_window))


def size_class(length: int) -> int:
    """Returns the class of requests of about `length` bytes, whose durations are compared: a power of two each."""
    return length.bit_length()
