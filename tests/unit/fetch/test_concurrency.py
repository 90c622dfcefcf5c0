"""The window of concurrent requests against simulated links, in virtual time."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from streamer.fetch.concurrency import WindowControl, size_class

MiB = 1 << 20


class Link:
    """Stands for a store behind a shared link, with a first-byte latency and a rate per connection.

    Each request takes latency + max(its own transfer, its turn on the link), first come, first served. Nothing fails or
    stalls.
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
        """Draws a latency around 30 ms, log-normal with sigma 0.5."""
        return 0.03 * self._draw.lognormvariate(0.0, 0.5)

    def run(self, until: float, window: int | None = None) -> None:
        """Keeps the window, or fewer requests, full until a moment."""
        while self.now < until:
            while len(self._running) < min(self.control.size, window or 1_000_000):
                self._start()
            ends, began = heapq.heappop(self._running)
            self.now = ends
            self.received.append((ends, self.length))
            self.control.record_request(ends, ends - began, self.length, contended=window is None)

    def _start(self) -> None:
        first_byte = self.now + self.latency()
        self._link_free = max(self._link_free, first_byte) + self.length / self.capacity(self.now)
        ends = max(first_byte + self.length / 90e6, self._link_free)
        heapq.heappush(self._running, (ends, self.now))

    def rate(self, start: float, stop: float) -> float:
        """Returns the bytes per second received between two moments."""
        return sum(length for moment, length in self.received if start <= moment < stop) / (stop - start)


def control(start: int = 16, least: int = 4, most: int = 256) -> WindowControl:
    """Makes the default window."""
    return WindowControl(start, least, most)


@pytest.mark.parametrize("capacity", [125e6, 312e6, 1.25e9])
def test_fills_the_link(capacity: float) -> None:
    """The window fills at least 95 % of a link of 1, 2.5 or 10 Gbit/s from the 8th second on."""
    link = Link(control(), lambda now: capacity)
    link.run(30.0)
    assert link.rate(8.0, 28.0) >= 0.95 * capacity


def test_recovers_after_a_fivefold_drop() -> None:
    """The window fills at least 90 % of the link again within 10 s after a fivefold drop of 20 s."""
    link = Link(control(), lambda now: 250e6 if 20.0 <= now < 40.0 else 1.25e9)
    link.run(70.0)
    assert link.rate(10.0, 20.0) >= 0.95 * 1.25e9
    assert link.rate(25.0, 40.0) >= 0.95 * 250e6
    assert link.rate(50.0, 68.0) >= 0.9 * 1.25e9


def test_does_not_queue_for_ever() -> None:
    """The window stays small on a slow link, so that an urgent request does not wait behind a long queue."""
    link = Link(control(), lambda now: 125e6)
    link.run(60.0)
    assert link.control.size <= 64


def test_does_not_grow_while_the_readers_are_the_limit() -> None:
    """The window does not grow while fewer requests than it allows are under way."""
    link = Link(control(), lambda now: 1.25e9)
    link.run(20.0, window=2)
    assert link.control.size == 16


def test_never_leaves_its_bounds() -> None:
    """The window stays between its minimum and its maximum on a link of any speed."""
    slow = Link(control(), lambda now: 1e6 if now > 5.0 else 125e6)
    slow.run(400.0)
    assert slow.control.size >= 4
    free = Link(control(most=40), lambda now: 1e12)
    free.run(30.0)
    assert free.control.size <= 40


def test_size_classes_are_powers_of_two() -> None:
    """Latencies are compared only between requests of similar size: 100 KB and 8 MiB are in different classes."""
    assert size_class(8 * MiB) == size_class(9 * MiB)
    assert size_class(100_000) != size_class(8 * MiB)


def test_an_inflation_is_known_for_a_while() -> None:
    """The inflation of latencies is forgotten, and is 1 again, once it is older than an interval of such requests."""
    control, now = WindowControl(8, 4, 64), 0.0
    while now < 1.0:
        now += 0.02
        control.record_request(now, 0.1, 1000, contended=True)
    while now < 15.0:
        now += 0.5
        control.record_request(now, 2.0, 1000, contended=True)
    assert control.inflation_at(20.0) > 2.0
    assert control.inflation_at(24.0) == 1.0
