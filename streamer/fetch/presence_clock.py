"""Measures time that passes only while this process runs, and sets alarms and deadlines on it.

Used for requests to stores (`fetch/endpoint.py`, `fetch/request.py`) and to peers (`peers/client.py`,
`peers/watch.py`). A process that was stopped (SIGSTOP, a suspended job, a paused machine), or whose event loop was
blocked, finds all its deadlines past when it continues, although the answers are in its sockets. Abandoning every
request in flight would discard these answers and send all requests again at once. Therefore durations count only while
the loop runs. A periodic timer (the beat) shows this: the time by which it is late counts as absence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

# The period of the beat, and the lateness from which on it counts as absence. At most the sum of both passes on the
# clock during an absence; the shortest times that are set on it are 0.25 s. The timer runs only while requests wait:
# 20 timers a second are 0.01 % of a core (2026-11-20).
BEAT_SECONDS = 0.05
LATE_SECONDS = 0.05
# Timers of an event loop may be early by this: uvloop's have a resolution of milliseconds.
_EARLY_SECONDS = 0.002
_LOGGED_SECONDS = 1.0


class PresenceClock:
    """Counts the seconds during which this process ran its event loop. Made on that loop; never goes back.

    Attributes:
        loop: the running loop, whose own clock never stops.
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
        """Returns the time now in seconds. The clock stands still while the beat is overdue, until the loop runs it."""
        now = self.loop.time()
        if now > self._latest:
            self.absent_seconds += now - self._latest
            self._latest = now
        return now - self.absent_seconds

    def begin(self) -> None:
        """Counts a request that waits for its answer, so that absence is measured; the caller calls `end` once."""
        self._listeners += 1
        if not self._beating:
            self._beating = True
            self._expect_beat()

    def end(self) -> None:
        """Ends the wait of one request. The beat stops after the last one."""
        self._listeners -= 1

    def _expect_beat(self) -> None:
        due = self.loop.time() + BEAT_SECONDS
        self._latest = due + LATE_SECONDS
        self.loop.call_at(due, self._beat, self.absent_seconds)

    def _beat(self, absent_seconds_before: float) -> None:
        """Counts the lateness of the beat as absence, logs a long one, and sets the next beat while requests wait."""
        self.time()
        if (away := self.absent_seconds - absent_seconds_before) >= _LOGGED_SECONDS:
            logger.info("this process did not run for %.1f s: no store is blamed for that time", away)
        if self._listeners:
            self._expect_beat()
        else:
            self._beating = False
            self._latest = float("inf")


class Alarm:
    """Calls a function once at a time of a clock. It may be moved; its owner must cancel it in the end.

    After an absence the call comes a beat later, so that answers that arrived meanwhile are handled first.

    Args:
        clock: the clock.
        due: time of the call on that clock, in seconds.
        callback: the function to call.

    Attributes:
        due: time of the call on that clock.
    """

    __slots__ = ("_absent_before", "_callback", "_clock", "_timer", "due")

    def __init__(self, clock: PresenceClock, due: float, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self.due = due
        self._absent_before = absent = clock.absent_seconds
        self._timer = clock.loop.call_at(due + absent, self._fire)

    def move(self, due: float) -> None:
        """Sets another time of the call. After a call this sets up a second one."""
        self._timer.cancel()
        self.due = due
        self._absent_before = absent = self._clock.absent_seconds
        self._timer = self._clock.loop.call_at(due + absent, self._fire)

    def cancel(self) -> None:
        """Cancels the call for good; idempotent. Drops the function, which breaks a reference cycle with the owner."""
        self._timer.cancel()
        self._callback = lambda: None

    def _fire(self) -> None:
        """Calls the function if the time has come by the clock; else waits for the rest."""
        left = self.due - self._clock.time()
        if left <= _EARLY_SECONDS:
            if self._clock.absent_seconds <= self._absent_before:
                self._callback()
                return
            # Answers that arrived during the absence go first, but only once: on a loop that is always late the
            # function must be called, too.
            left = BEAT_SECONDS
            self._absent_before = float("inf")
        self._timer = self._clock.loop.call_later(left, self._fire)


def _none() -> float:
    return 0.0


class TaskDeadline(Alarm):
    """Cancels the task in which it is made when the time is up, as asyncio.timeout does at twice the cost.

    (A request for a small object takes 33 us; this saves 3.5 us of them, 2026-11-20.)

    Args:
        clock: a clock that stops while this process does not run.
        due: time of the cancellation on that clock, in seconds.
        more: called when the time is up. It returns the seconds to add, or 0 to expire now.

    Attributes:
        expired: whether the task has been cancelled by this deadline.
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
        """Sets another time; has no effect on a deadline that has expired."""
        if not self.expired:
            super().move(due)

    def cancel(self) -> None:
        """Ends the deadline: the task is not cancelled by it any more. Idempotent."""
        super().cancel()
        self._more = _none

    def take_back(self) -> bool:
        """Whether the CancelledError that the caller has caught comes from this deadline alone; it is undone then.

        Called once, in the task. The caller then raises an error of its own instead of the CancelledError.
        """
        return self.expired and self._task.uncancel() <= self._cancelling

    def _expire(self) -> None:
        if (more := self._more()) > 0.0:
            self.move(self._clock.time() + more)
            return
        self.expired = True
        self._task.cancel()
