"""The window against simulated links, in virtual time."""

from __future__ import annotations

import heapq
import itertools
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


def test_pushback_lowers_it_and_bounds_it() -> None:
    """A refusal lowers the window at once; however many come, it never leaves its bounds."""
    window = control()
    window.refused(1.0)
    assert window.size == 11
    for moment in itertools.count(2):
        window.refused(float(moment))
        if moment == 40:
            break
    assert window.size == 4


def test_recovers_after_pushback() -> None:
    """After a storm of refusals the window grows again by itself."""
    link = Link(control(), lambda now: 1.25e9)
    link.run(5.0)
    for _ in range(20):
        link.control.refused(link.now)
    assert link.control.size < 16
    link.run(30.0)
    assert link.rate(20.0, 30.0) >= 0.9 * 1.25e9


def test_size_classes_are_powers_of_two() -> None:
    """Latencies of 100 KB and of 8 MiB are not compared with each other."""
    assert size_class(8 * MiB) == size_class(9 * MiB)
    assert size_class(100_000) != size_class(8 * MiB)
