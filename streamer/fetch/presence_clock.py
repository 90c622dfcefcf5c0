"""A clock that stands still while this process does not run, and alarms set by it.

Whoever did not listen cannot say that the other was silent. A process that was stopped (SIGSTOP, a suspended job, a
paused machine) or whose loop was starved wakes up with all its deadlines past, while the answers lie in its sockets:
abandoning every request in flight would throw them away and burst upon the store. So the fetcher's durations are those
of its own presence, known by a beat: what the loop is late for it was away for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

# Beats are due so often, and one that is late by more was missed. An absence counts as presence for the sum of both at
# most; the least patience of a default is 1.5 s. While ranges are fetched only: 20 timers a second are 0.01 % of a
# core (2026-11-20).
BEAT_SECONDS = 0.05
LATE_SECONDS = 0.05
# What loops' timers come early by: uvloop's have milliseconds.
_EARLY_SECONDS = 0.002
_WORTH_A_WORD_SECONDS = 1.0


class Clock:
    """Seconds during which this process attended to its event loop; never goes back. Lives on that loop.

    Attributes:
        loop: the running loop, whose own clock goes on always.
        absent_seconds: what this clock is behind that one.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.absent_seconds = 0.0
        self._listeners = 0
        self._latest = float("inf")
        self._beating = False

    def __repr__(self) -> str:
        return f"Clock({self.time():.3f}, absent_seconds={self.absent_seconds:.3f})"

    def time(self) -> float:
        """Now. Between two beats that are late it stands still, until the loop comes round to the second."""
        now = self.loop.time()
        if now > self._latest:
            self.absent_seconds += now - self._latest
            self._latest = now
        return now - self.absent_seconds

    def begin(self) -> None:
        """Somebody listens for answers from now on."""
        self._listeners += 1
        if not self._beating:
            self._beating = True
            self._expect_beat()

    def end(self) -> None:
        """One who listened does so no more; the beat ends with the last one."""
        self._listeners -= 1

    def _expect_beat(self) -> None:
        due = self.loop.time() + BEAT_SECONDS
        self._latest = due + LATE_SECONDS
        self.loop.call_at(due, self._beat, self.absent_seconds)

    def _beat(self, absent_before: float) -> None:
        self.time()
        if (away := self.absent_seconds - absent_before) >= _WORTH_A_WORD_SECONDS:
            logger.info("this process did not run for %.1f s: no store is blamed for that time", away)
        if self._listeners:
            self._expect_beat()
        else:
            self._beating, self._latest = False, float("inf")


def _nothing() -> None:
    """What a cancelled alarm would call."""


class Alarm:
    """Calls back once at a moment of a clock; until then it may be moved. Its owner cancels it in the end.

    Args:
        clock: whose moment.
        moment: on it.
        ring: what is called then.

    Attributes:
        moment: when it rings.
    """

    __slots__ = ("_absent_before", "_clock", "_ring", "_timer", "moment")

    def __init__(self, clock: Clock, moment: float, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self.moment = moment
        self._absent_before = absent = clock.absent_seconds
        self._timer = clock.loop.call_at(moment + absent, self._fire)

    def move(self, moment: float) -> None:
        """Another moment, also after it rang."""
        self._timer.cancel()
        self.moment = moment
        self._absent_before = absent = self._clock.absent_seconds
        self._timer = self._clock.loop.call_at(moment + absent, self._fire)

    def cancel(self) -> None:
        """It will never ring; idempotent. What it would have called is forgotten: the owner goes without a cycle."""
        self._timer.cancel()
        self._ring = _nothing

    def _fire(self) -> None:
        left = self.moment - self._clock.time()
        if left <= _EARLY_SECONDS:
            if self._clock.absent_seconds <= self._absent_before:
                self._ring()
                return
            # What came meanwhile is heard first. Once: a loop that is late at every beat must hear it ring as well.
            left, self._absent_before = BEAT_SECONDS, float("inf")
        self._timer = self._clock.loop.call_later(left, self._fire)
