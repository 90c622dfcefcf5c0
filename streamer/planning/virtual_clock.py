"""A clock that jumps from one event to the next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial


class VirtualClock:
    """Events in order of their time, and of their making where that is equal."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"VirtualClock({self._now:.3f} s, {len(self._events)} events)"

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: object) -> None:
        """Calls it after what is due now."""
        self.call_later(0.0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., object], *args: object) -> None:
        """Calls it in so many seconds."""
        event: Callable[[], object] = partial(callback, *args)
        heapq.heappush(self._events, (self._now + delay, next(self._numbers), event))

    def run(self, over: Callable[[], bool]) -> bool:
        """Runs events until it is over; False: there are none left."""
        while not over():
            if not self._events:
                return False
            self._now, _, event = heapq.heappop(self._events)
            event()
        return True
