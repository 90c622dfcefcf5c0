"""The window against simulated links, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from streamer.fetch.window import WindowControl, size_class

MiB = 1 << 20


class Link:
    """A store with a first-byte latency, a rate per connection and a shared link, first come, first served.

    Each request takes latency + max(its own transfer, its turn on the link).
    """

    def __init__(self, control: WindowControl, capacity: Callable[[float], float], length: int = 8 * MiB) -> None:
        self.control = control
        self.capacity = capacity
        self.length = length
        self.now = 0.0
        self.received: list[tuple[float, int]] = []
        self.refusals = 0
        self._link_free = 0.0
        self._running: list[tuple[float, float]] = []
        self._draw = random.Random(17)

    def latency(self) -> float:
        """30 ms, log-normal with sigma 0.5."""
        return 0.03 * self._draw.lognormvariate(0.0, 0.5)

    def run(self, until: float, window: int | None = None) -> None:
        """Keeps the window (or fewer) full until a moment."""
        while self.now < until:
            while len(self._running) < min(self.control.size, window or 1_000_000):
                self._start()
            ends, began = heapq.heappop(self._running)
            self.now = ends
            self.received.append((ends, self.length))
            self.control.finished(ends, ends - began, self.length, contended=window is None)

    def _start(self) -> None:
        first_byte = self.now + self.latency()
        self._link_free = max(self._link_free, first_byte) + self.length / self.capacity(self.now)
        ends = max(first_byte + self.length / 90e6, self._link_free)
        heapq.heappush(self._running, (ends, self.now))

    def rate(self, start: float, stop: float) -> float:
        """Bytes per second received between two moments."""
        return sum(length for moment, length in self.received if start <= moment < stop) / (stop - start)


def control(start: int = 16, least: int = 4, most: int = 256) -> WindowControl:
    """The default window."""
    return WindowControl(start, least, most)


@pytest.mark.parametrize("capacity", [125e6, 312e6, 1.25e9])
def test_fills_the_link(capacity: float) -> None:
    """1, 2.5 and 10 Gbit/s: at least 95 % of it from the 8th second on."""
    link = Link(control(), lambda now: capacity)
    link.run(30.0)
    assert link.rate(8.0, 28.0) >= 0.95 * capacity


def test_recovers_after_a_fivefold_drop() -> None:
    """Drop at 20 s, back at 40 s: at least 90 % again within 10 s."""
    link = Link(control(), lambda now: 250e6 if 20.0 <= now < 40.0 else 1.25e9)
    link.run(70.0)
    assert link.rate(10.0, 20.0) >= 0.95 * 1.25e9
    assert link.rate(25.0, 40.0) >= 0.95 * 250e6
    assert link.rate(50.0, 68.0) >= 0.9 * 1.25e9


def test_does_not_queue_for_ever() -> None:
    """On a slow link the window stays near what it needs, so that an urgent request is not behind a long queue."""
    link = Link(control(), lambda now: 125e6)
    link.run(60.0)
    assert link.control.size <= 64


def test_does_not_grow_while_the_readers_are_the_limit() -> None:
    """With two requests at a time nothing is learnt about the link."""
    link = Link(control(), lambda now: 1.25e9)
    link.run(20.0, window=2)
    assert link.control.size == 16


class Limited(Link):
    """A store that serves so many requests per second, with a burst of some seconds' worth, and refuses the rest."""

    def __init__(self, control: WindowControl, per_second: float, latency_seconds: float, burst_seconds: float) -> None:
        super().__init__(control, lambda now: 1e12, length=MiB)
        self.per_second = per_second
        self.latency_seconds = latency_seconds
        self.tokens = self.burst = burst_seconds * per_second
        self.refused_at: list[float] = []

    def run(self, until: float, window: int | None = None) -> None:
        """Keeps the window full; a refused request keeps its place for its back-off."""
        refilled, running = self.now, list[tuple[float, float, bool]]()
        while self.now < until:
            while len(running) < self.control.size:
                self.tokens = min(self.burst, self.tokens + (self.now - refilled) * self.per_second)
                refilled = self.now
                served = self.tokens >= 1.0
                self.tokens -= served
                seconds = self.latency_seconds * self._draw.lognormvariate(0, 0.5) if served else 0.01 + self._pause()
                heapq.heappush(running, (self.now + seconds, self.now, served))
            self.now, began, served = heapq.heappop(running)
            self._account(began, served)

    def _pause(self) -> float:
        return 0.1 * self._draw.random()

    def _account(self, began: float, served: bool) -> None:
        if served:
            self.received.append((self.now, 1))
            self.control.finished(self.now, self.now - began, self.length, contended=True)
        else:
            self.refused_at.append(self.now)
            self.control.refused(self.now)


@pytest.mark.parametrize(
    ("per_second", "latency", "share", "burst"),
    [
        (600.0, 0.03, 0.9, 0.1),
        (600.0, 0.1, 0.88, 0.1),
        (2000.0, 0.05, 0.9, 0.1),
        (100.0, 0.03, 0.8, 0.1),
        (200.0, 0.03, 0.9, 1.0),
        (2000.0, 0.05, 0.9, 1.0),
    ],
)
def test_rate_limited_store(per_second: float, latency: float, share: float, burst: float) -> None:
    """About 90 % of the permitted rate with at most 1 % refused, once it knows the limit."""
    link = Limited(control(), per_second, latency, burst)
    link.run(120.0)
    refused = sum(moment > 10.0 for moment in link.refused_at)
    served = sum(moment > 10.0 for moment, _ in link.received)
    assert link.rate(10.0, 120.0) >= share * per_second
    assert refused <= 0.01 * served


def test_slow_start_ends_with_the_first_refusals() -> None:
    """100/s: hardly 1 % are refused in all, the start included."""
    link = Limited(control(), 100.0, 0.03, 0.1)
    link.run(70.0)
    assert len(link.refused_at) <= 0.012 * (len(link.received) + len(link.refused_at))
    assert link.rate(0.0, 70.0) >= 0.8 * 100.0


def test_eight_refusals_end_an_interval_of_slow_start() -> None:
    """The window gives way at the eighth, whatever the time; one in two hundred is no sign of a limit."""
    window = control(start=64)
    for step in range(8):
        assert window.size == 64
        window.refused(0.001 * step)
    assert window.size < 64
    well = control(start=64)
    for step in range(2000):
        well.finished(0.0001 * step, 0.0001, MiB, contended=True)
        if step % 200 == 199:
            well.refused(0.0001 * step)
    assert well.size == 64


class Flaky(Link):
    """A store that refuses a fifth of the requests whatever the window is."""

    def run(self, until: float, window: int | None = None) -> None:
        """Keeps the window full."""
        while self.now < until:
            while len(self._running) < self.control.size:
                self._start()
            ends, began = heapq.heappop(self._running)
            self.now = ends
            if self._draw.random() < 0.2:
                self.control.refused(self.now)
            else:
                self.received.append((ends, self.length))
                self.control.finished(ends, ends - began, self.length, contended=True)


@pytest.mark.parametrize("capacity", [125e6, 500e6, 1.25e9])
def test_refusals_that_do_not_depend_on_it(capacity: float) -> None:
    """20 % of 503 from the weather: the window does not collapse; what is served is nearly all the link can carry."""
    link = Flaky(control(), lambda now: capacity)
    link.run(60.0)
    assert link.rate(5.0, 60.0) >= 0.8 * 0.9 * capacity


def test_never_leaves_its_bounds() -> None:
    """However much is refused, two requests stay; however well it goes, never more than the most."""
    window = control()
    for step in range(3000):
        window.refused(0.01 * step)
    assert window.size == 2
    free = Link(control(most=40), lambda now: 1e12)
    free.run(30.0)
    assert free.control.size <= 40


def test_recovers_after_pushback() -> None:
    """A minute after a storm of refusals the link is full again."""
    link = Link(control(), lambda now: 1.25e9)
    link.run(5.0)
    for step in range(200):
        link.control.refused(link.now + step * 0.01)
    low = link.control.size
    link.now += 2.0
    link.run(40.0)
    assert low < 16
    assert link.rate(28.0, 38.0) >= 0.9 * 1.25e9


def test_size_classes_are_powers_of_two() -> None:
    """Latencies of 100 KB and of 8 MiB are not compared with each other."""
    assert size_class(8 * MiB) == size_class(9 * MiB)
    assert size_class(100_000) != size_class(8 * MiB)


def test_an_inflation_is_known_for_a_while() -> None:
    """As long as intervals of such requests may take; then it says nothing of now."""
    control, now = WindowControl(8, 4, 64), 0.0
    while now < 1.0:
        now += 0.02
        control.finished(now, 0.1, 1000, contended=True)
    while now < 15.0:
        now += 0.5
        control.finished(now, 2.0, 1000, contended=True)
    assert control.inflation_at(20.0) > 2.0
    assert control.inflation_at(24.0) == 1.0
