"""Measures time that passes only while this process runs, with alarms and deadlines on it.

Time during which this process did not run does not count as silence of the store. A process that was stopped (SIGSTOP,
a suspended job, a paused machine) or whose loop was starved finds all its deadlines past when it continues, although
the answers are in its sockets. Abandoning every request in flight would discard them and send all requests again at
once. The fetcher's durations therefore count only while the loop runs. A periodic timer (the beat) shows this: the time
by which it is late counts as absence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

# The period of the beat, and the lateness that counts as absence. At most the sum of both is
# counted of an absence; the shortest default timeout is 1.5 s. The timer runs only while ranges are fetched: 20 timers
# a second are 0.01 % of a core (2026-11-20).
BEAT_SECONDS = 0.05
LATE_SECONDS = 0.05
# Timers of a loop may be early by this: uvloop's have a resolution of milliseconds.
_EARLY_SECONDS = 0.002
_LOGGED_SECONDS = 1.0


class PresenceClock:
    """Seconds during which this process attended to its event loop; never goes back. Lives on that loop.

    Attributes:
        loop: the running loop; its own clock never stops.
        absent_seconds: seconds by which this clock is behind the loop's.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.absent_seconds = 0.0
        self._listeners = 0
        self._latest = float("inf")
        self._beating = False

    def __repr__(self) -> str:
        return f"PresenceClock({self.time():.3f}, absent_seconds={self.absent_seconds:.3f})"

    def time(self) -> float:
        """Returns the time now. While a beat is overdue the clock stops until the loop runs it."""
        now = self.loop.time()
        if now > self._latest:
            self.absent_seconds += now - self._latest
            self._latest = now
        return now - self.absent_seconds

    def begin(self) -> None:
        """Begins a request that waits for its answer."""
        self._listeners += 1
        if not self._beating:
            self._beating = True
            self._expect_beat()

    def end(self) -> None:
        """Ends a request; the beat stops with the last one."""
        self._listeners -= 1

    def _expect_beat(self) -> None:
        due = self.loop.time() + BEAT_SECONDS
        self._latest = due + LATE_SECONDS
        self.loop.call_at(due, self._beat, self.absent_seconds)

    def _beat(self, absent_seconds_before: float) -> None:
        self.time()
        if (away := self.absent_seconds - absent_seconds_before) >= _LOGGED_SECONDS:
            logger.info("this process did not run for %.1f s: no store is blamed for that time", away)
        if self._listeners:
            self._expect_beat()
        else:
            self._beating = False
            self._latest = float("inf")


class Alarm:
    """Calls back once at a moment of a clock. It may be moved; its owner must cancel it in the end.

    Args:
        clock: the clock of the moment.
        due: time of the call on that clock.
        callback: the function to call.

    Attributes:
        due: time of the call.
    """

    __slots__ = ("_absent_before", "_callback", "_clock", "_timer", "due")

    def __init__(self, clock: PresenceClock, due: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self.due = due
        self._absent_before = absent = clock.absent_seconds
        self._timer = clock.loop.call_at(due + absent, self._fire)

    def move(self, due: float) -> None:
        """Sets another moment, also after the call."""
        self._timer.cancel()
        self.due = due
        self._absent_before = absent = self._clock.absent_seconds
        self._timer = self._clock.loop.call_at(due + absent, self._fire)

    def cancel(self) -> None:
        """Cancels the call; idempotent. Drops the callback, which breaks a reference cycle with the owner."""
        self._timer.cancel()
        self._callback = lambda: None

    def _fire(self) -> None:
        left = self.due - self._clock.time()
        if left <= _EARLY_SECONDS:
            if self._clock.absent_seconds <= self._absent_before:
                self._callback()
                return
            # Answers that arrived meanwhile go first, but only once: on a loop that is always late the alarm fires as
            # well.
            left = BEAT_SECONDS
            self._absent_before = float("inf")
        self._timer = self._clock.loop.call_later(left, self._fire)


def _none() -> float:
    return 0.0


class TaskDeadline(Alarm):
    """Cancels its task when the time is up, as asyncio.timeout does, at half the cost (3.5 us of 33, 2026-11-20).

    Args:
        clock: a clock that stops while this process does not run.
        due: the time on it.
        more: called when the time is up; returns the seconds to add, 0 to expire.

    Attributes:
        expired: whether the time was up.
    """

    __slots__ = ("_cancelling", "_more", "_task", "expired")

    def __init__(self, clock: PresenceClock, due: float, more: Callable[[], float] = _none) -> None:
        task = asyncio.current_task(clock.loop)
        assert task is not None, "made inside the task it may cancel"
        super().__init__(clock, due, self._expire)
        self._task = task
        self._more = more
        self._cancelling = task.cancelling()
        self.expired = False

    def move(self, due: float) -> None:
        """Sets another time on the clock; has no effect after it has expired."""
        if not self.expired:
            super().move(due)

    def cancel(self) -> None:
        """Cancels the alarm (see `Alarm.cancel`) and drops `more`."""
        super().cancel()
        self._more = _none

    def take_back(self) -> bool:
        """Whether the cancellation just caught came from here, and only from here; it is undone then."""
        return self.expired and self._task.uncancel() <= self._cancelling

    def _expire(self) -> None:
        if (more := self._more()) > 0.0:
            self.move(self._clock.time() + more)
            return
        self.expired = True
        self._task.cancel()
