"""Limits how often a client starts another engine when engines crash. Pure; has no clock of its own."""

from __future__ import annotations

# An engine that was killed is replaced at once. One that crashes at each request is not: without a bound a client
# started 69 engines in 20 s (two cores, 2026-11-23).
MOST_RESTARTS = 5
_FIRST_PAUSE_SECONDS = 0.2
# An engine that ran for this long did not crash because of its client's request.
STEADY_SECONDS = 600.0


class Restarts:
    """Counts the crashes since an engine last made progress for its client.

    Progress is an answer, or a step that is ready for the first time. A connection alone is not progress: an engine
    that crashes when a session is opened has accepted the connection before.

    Attributes:
        crashes: engines that ended, or could not be connected to after their start, since the last progress.
    """

    def __init__(self) -> None:
        self.crashes = 0
        self._connected_at: float | None = None

    def __repr__(self) -> str:
        return f"Restarts(crashes={self.crashes})"

    def connected(self, now: float) -> None:
        """Records that an engine accepted the connection at `now`, in seconds of a monotonic clock."""
        self._connected_at = now

    def progressed(self) -> None:
        """Records that the engine did something that no engine had done for this client before."""
        self.crashes = 0

    def crashed(self, now: float) -> float | None:
        """Counts a crash.

        Returns:
            Seconds to wait before the next start, or None if there were too many crashes for another one.
        """
        if self._connected_at is not None and now - self._connected_at >= STEADY_SECONDS:
            self.crashes = 0
        self._connected_at = None
        self.crashes += 1
        if self.crashes > MOST_RESTARTS:
            return None
        return 0.0 if self.crashes == 1 else _FIRST_PAUSE_SECONDS * 2 ** (self.crashes - 2)
