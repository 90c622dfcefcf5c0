"""The pause after a start, in which nothing is evicted: clients of an earlier engine open their sessions again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Eight clients were back within 40 ms of each other (two cores, 2026-11-20).
QUIET_SECONDS = 0.25


class Settling:
    """Ends when no session has been opened for a quarter of a second, and at the latest after `most_seconds`.

    Args:
        loop: the engine's.
        most_seconds: how long clients may take to come back.
        settle: called once, at the end of the pause.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most_seconds: float, settle: Callable[[], None]) -> None:
        self._loop = loop
        self._settle = settle
        self._settled = False
        self._at_latest = loop.time() + most_seconds
        self._timer = loop.call_at(self._at_latest, self._end)

    def session_opened(self) -> None:
        """Lets the pause end soon: all clients of an engine that died come back at once."""
        if not self._settled:
            self._timer.cancel()
            self._timer = self._loop.call_at(min(self._at_latest, self._loop.time() + QUIET_SECONDS), self._end)

    def stop(self) -> None:
        """Stops the timer: `settle` is not called any more. Idempotent."""
        self._timer.cancel()

    def _end(self) -> None:
        self._settled = True
        self._settle()
