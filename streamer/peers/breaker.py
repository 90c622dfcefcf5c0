"""Whether a peer is asked, as a pure decision: down after a failure, up after an answer to a probe.

    up --failed, or races lost in a row for 1 s--> down, for 1 s --probe fails--> down, for 2 s ... 60 s
    down --probe answered--> up

One outage counts once: what fails of requests that left before it changes nothing. In a prototype eight requests under
way made 1 s into 60 (2026-11-22).
"""

from __future__ import annotations

from math import inf

import msgspec

PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 60.0
# On a machine whose cores are all busy a peer is silent for 0.3 s now and then. Where two lost races took it down, the
# first epoch of four jobs read a third of the dataset more, in its pauses (load 15 on two cores, 2026-11-23).
_LOST_SECONDS = 1.0


class Breaker(msgspec.Struct):
    """The state of one peer. Times are of one clock.

    Attributes:
        is_up: whether it is asked for chunks.
        since: when that changed last.
        pause_seconds: until the next probe, counted from the last failure.
    """

    is_up: bool = True
    since: float = 0.0
    pause_seconds: float = PAUSE_SECONDS
    _lost_since: float = inf

    def failed(self, asked_at: float, now: float, *, pause_seconds: float = PAUSE_SECONDS) -> bool:
        """A connection was refused, reset, or not made in time.

        Args:
            asked_at: when the request left.
            now: the time.
            pause_seconds: until the first probe.

        Returns:
            Whether it is down now and was not before.
        """
        if not self.is_up or asked_at < self.since:
            return False
        self.is_up, self.since, self.pause_seconds, self._lost_since = False, now, pause_seconds, inf
        return True

    def lost(self, asked_at: float, now: float) -> bool:
        """The store was faster, and the peer had sent next to nothing to any request meanwhile; returns as `failed`."""
        if not self.is_up or asked_at < self.since:
            return False
        self._lost_since = min(self._lost_since, asked_at)
        return now - self._lost_since >= _LOST_SECONDS and self.failed(asked_at, now)

    def answered(self) -> None:
        """It has answered a request to its end."""
        self._lost_since = inf

    def probed(self, answered: bool, now: float) -> None:
        """A probe has ended."""
        if answered:
            self.is_up, self.since, self.pause_seconds = True, now, PAUSE_SECONDS
        else:
            self.pause_seconds = min(MOST_PAUSE_SECONDS, 2 * self.pause_seconds)
