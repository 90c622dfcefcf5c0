"""Whether a peer is asked, as a pure decision: down after a failure, up after an answer to a probe.

    up --failed, or the second lost race in a row--> down, for 1 s --probe fails--> down, for 2 s ... 60 s
    down --probe answered--> up

One outage counts once: what fails of requests that left before it changes nothing. In a prototype eight requests under
way made 1 s into 60 (2026-11-22).
"""

from __future__ import annotations

import msgspec

PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 60.0
_LOST_RACES = 2


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
    _lost: int = 0

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
        self.is_up, self.since, self.pause_seconds, self._lost = False, now, pause_seconds, 0
        return True

    def lost(self, asked_at: float, now: float) -> bool:
        """The store was faster, and the peer had sent no byte to any request meanwhile; returns as `failed`."""
        if not self.is_up or asked_at < self.since:
            return False
        self._lost += 1
        return self._lost >= _LOST_RACES and self.failed(asked_at, now)

    def sent(self) -> None:
        """It has sent a byte."""
        self._lost = 0

    def probed(self, answered: bool, now: float) -> None:
        """A probe has ended."""
        if answered:
            self.is_up, self.since, self.pause_seconds = True, now, PAUSE_SECONDS
        else:
            self.pause_seconds = min(MOST_PAUSE_SECONDS, 2 * self.pause_seconds)
