"""How many requests one endpoint gets at once: a pure state machine, time is an argument.

Sources: slow start x1.5 until three intervals bring less than 15 % more goodput, then additive increase of 5 %, and
x0.85 on latency above 2x base: 92-99 % of the capacity in simulation, before and after a fivefold drop; a window by
minimal latency (BBR) under-fills because request latency is heavy-tailed. Refusals (429, 503): see `_yield`; 85-97 % of
a permitted rate with 0.3-1 % refused, 99 % of a link that refuses a fifth of the requests by chance (simulated,
2026-11-20).
"""

from __future__ import annotations

from collections import deque
from statistics import median

import msgspec

INTERVAL_SECONDS = 0.25
INTERVAL_SAMPLES = 8
# A share of refusals and the effect of a smaller window on it are noise below this.
REFUSAL_SAMPLES = 24
SLOW_START_FACTOR = 1.5
SLOW_START_GAIN = 1.15
SLOW_START_PATIENCE = 3
INCREASE_SHARE = 0.05
INCREASE_LEAST = 2.0
LATENCY_INFLATION = 2.0
LATENCY_FACTOR = 0.85
REFUSED_SHARE = 0.01
# Little's law: what was served per second x how long it took is the window that the store serves. The window becomes
# this share of it, within these factors of what it was.
SERVED_SHARE = 0.97
REFUSED_FACTORS = (0.5, 0.95)
# Slow start meets a limit at full tilt, and what is sent until an interval is over is refused as well: so many refusals
# end it. Refused in all of 70 s at 100/s: 0.9 instead of 1.5 %. To halve the window then saves a third more and was
# rejected: where a fifth fails by chance 0.53 instead of 1.0 GB/s were left of a fast link (simulated, 2026-11-20).
EARLY_REFUSALS = 8
# What was sent before the window gave way says nothing about the new one; so many mean durations are not counted.
BLANK_FACTOR = 1.5
# After refusals the window stays below the size that met them for this long, then asks again, by stairs until it is
# twice as large: a store's allowance for bursts hides its limit, and what overshoots it meanwhile is refused (200/s
# with a burst of 200: 2.3 % refused with the usual steps, 0.2 % so; 600/s at 100 ms: 1.2 %; simulated, 2026-11-20).
CEILING_SECONDS = 15.0
STAIR_SECONDS = 5.0
STAIR_FACTOR = 1.2
CAREFUL_FACTOR = 2.0
# So many intervals in a row must give way before it is judged whether that helps: the first ones still see the burst
# that a store allows.
YIELDS_JUDGED = 4
# It was in vain when less than this share of the rate is left and more than this share of the refusals.
VAIN_RATE = 0.85
VAIN_SHARE = 0.5
# One more than the one that a link of any kind needs to be kept busy.
REFUSED_LEAST = 2.0
# Refusals that do not depend on the window are not fought for this long, twice as long each time it is found.
INDIFFERENT_SECONDS = 10.0
# An inflation says nothing of now when it was measured so long ago, and so many mean durations. That of a burst, after
# which nobody asked any more, made an object that never answers look like a full link: named after minutes instead of
# 10 s, one time in four (2026-11-22).
STALE_SECONDS = 5.0
STALE_FACTOR = 4.0
# The base is the least interval median of this long; a queue of our own making must drain within it once.
BASE_SECONDS = 20.0


class Interval(msgspec.Struct):
    """What happened between two decisions."""

    start: float
    received_bytes: int = 0
    refused: int = 0
    contended: int = 0
    samples: int = 0
    total_seconds: float = 0.0
    seconds: dict[int, list[float]] = msgspec.field(default_factory=dict)

    def add(self, seconds: float, length: int, *, contended: bool) -> None:
        """A request that ended well."""
        self.seconds.setdefault(size_class(length), []).append(seconds)
        self.samples += 1
        self.total_seconds += seconds
        self.received_bytes += length
        self.contended += contended

    @property
    def refused_share(self) -> float:
        """Of the answers."""
        return self.refused / max(1, self.refused + self.samples)

    def mean_seconds(self) -> float:
        """Of the requests that ended well."""
        return self.total_seconds / max(1, self.samples)

    def complete(self, now: float) -> bool:
        """Long enough and with enough answers to decide."""
        elapsed = now - self.start
        if elapsed < INTERVAL_SECONDS:
            return False
        needed = REFUSAL_SAMPLES if self.refused else INTERVAL_SAMPLES
        return elapsed >= 2 * self.mean_seconds() and self.samples + self.refused >= needed


class Yield(msgspec.Struct, frozen=True):
    """An interval in which the window gave way to refusals: requests at once, served per second, share refused."""

    size: float
    rate: float
    refused_share: float


class WindowControl:
    """The size of one endpoint's window.

    Args:
        start: requests at once in the beginning.
        least: refusals may take it below this, latency may not.
        most: never above this.
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
        self._ceiling = float(most)
        self._ceiling_until = 0.0
        self._met = 0.0
        self._carry = 0.0
        self._whole = round(self._size)
        self._blank_until = float("-inf")
        self._yields: list[Yield] = []
        self._indifferent_seconds = INDIFFERENT_SECONDS
        self._indifferent_until = 0.0
        self.inflation = 1.0
        self._known_until = float("inf")

    def __repr__(self) -> str:
        phase = "slow start" if self._slow_start else "steady"
        return f"WindowControl({self.size}, {phase}, inflation={self.inflation:.2f})"

    @property
    def size(self) -> int:
        """Requests at once. Fractions count in turn: 6.3 is 7 in three intervals of ten."""
        return self._whole

    def inflation_at(self, now: float) -> float:
        """By how much requests take longer than on an idle link, as far as it is known; 1: not at all."""
        return self.inflation if now < self._known_until else 1.0

    def finished(self, now: float, seconds: float, length: int, *, contended: bool) -> None:
        """A request of `length` bytes took `seconds`; `contended`: others waited for its place."""
        if now >= self._blank_until:
            self._current(max(now - seconds, self._blank_until)).add(seconds, length, contended=contended)
            self._turn(now)

    def refused(self, now: float) -> None:
        """The store answered 429 or 503."""
        if now < self._blank_until:
            return
        interval = self._current(now)
        interval.refused += 1
        if self._slow_start and interval.refused >= EARLY_REFUSALS and interval.refused_share > REFUSED_SHARE:
            self._end(interval, now)
        else:
            self._turn(now)

    def _current(self, now: float) -> Interval:
        if self._interval is None:
            self._interval = Interval(now)
        return self._interval

    def _turn(self, now: float) -> None:
        interval = self._interval
        if interval is not None and interval.complete(now):
            self._end(interval, now)

    def _end(self, interval: Interval, now: float) -> None:
        self._decide(interval, now)
        self._whole = self._next_whole()
        self._interval = Interval(max(now, self._blank_until))

    def _next_whole(self) -> int:
        whole, part = divmod(self._size, 1.0)
        carried, self._carry = divmod(self._carry + part, 1.0)
        return min(int(whole + carried), self._most)

    def _decide(self, interval: Interval, now: float) -> None:
        if interval.samples:
            self.inflation = self._measure(interval, now)
            self._known_until = now + max(STALE_SECONDS, STALE_FACTOR * interval.mean_seconds())
        if interval.refused_share > REFUSED_SHARE and now >= self._indifferent_until:
            self._yield(interval, now)
            return
        self._yields.clear()
        if interval.contended * 2 < interval.samples:
            return  # the readers were the limit: nothing was learnt about the link
        if self._slow_start:
            self._climb(interval.received_bytes / (now - interval.start), now)
        elif self.inflation > LATENCY_INFLATION:
            self._resize(max(self._size * LATENCY_FACTOR, min(self._size, self._least)), now)
        else:
            self._resize(self._grown(now), now)

    def _grown(self, now: float) -> float:
        """The next size; near the size that met refusals by stairs."""
        grown = self._size + max(INCREASE_LEAST, INCREASE_SHARE * self._size)
        if self._met <= REFUSED_LEAST or self._size >= CAREFUL_FACTOR * self._met:
            return grown
        stairs = 1 + max(0.0, now - self._ceiling_until) // STAIR_SECONDS
        highest = max(self._met * float(STAIR_FACTOR**stairs), self._size)
        return min(self._size * (1 + INCREASE_SHARE), highest)

    def _climb(self, rate: float, now: float) -> None:
        """Slow start; at the end the window goes back to where the plateau began."""
        if rate > SLOW_START_GAIN * self._best_rate:
            self._best_rate, self._plateau, self._plateau_size = rate, 0, self._size
        else:
            self._plateau += 1
        if self._plateau >= SLOW_START_PATIENCE:
            self._slow_start = False
            self._resize(self._plateau_size, now)
        else:
            self._resize(self._size * SLOW_START_FACTOR, now)

    def _yield(self, interval: Interval, now: float) -> None:
        """Gives way to refusals, as long as that costs no goodput.

        Where the store limits the rate, a smaller window gets as much through. Where less gets through and as many are
        refused, they have another cause, and giving way only slows us down: the steps are taken back.
        """
        self._slow_start = False
        rate = interval.samples / max(now - interval.start, 1e-3)
        self._yields.append(Yield(self._size, rate, interval.refused_share))
        if len(self._yields) >= YIELDS_JUDGED and self._is_in_vain():
            self._indifferent_until = now + self._indifferent_seconds
            self._indifferent_seconds *= 2
            self._ceiling_until, self._met = now, 0.0
            self._resize(self._yields[0].size, now)
            self._yields.clear()
            return
        mean = interval.mean_seconds()
        served = rate * mean * SERVED_SHARE
        lowest, highest = REFUSED_FACTORS
        self._ceiling = min(max(served, self._size * lowest), self._size * highest)
        self._ceiling_until, self._met = now + CEILING_SECONDS, self._ceiling
        self._blank_until = now + BLANK_FACTOR * mean
        self._resize(self._ceiling, now)

    def _is_in_vain(self) -> bool:
        """Whether giving way cost goodput and hardly fewer were refused, since the second interval that gave way."""
        first, *_, last = self._yields[1:]
        best = max(step.rate for step in self._yields[1:])
        return last.rate < VAIN_RATE * best and last.refused_share > VAIN_SHARE * first.refused_share

    def _resize(self, size: float, now: float) -> None:
        most = min(self._ceiling, self._most) if now < self._ceiling_until else self._most
        self._size = min(max(size, REFUSED_LEAST), max(most, REFUSED_LEAST))

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
