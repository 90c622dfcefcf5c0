"""How long a consumer has stood still for its engine."""

from __future__ import annotations


class Waiting:
    """A stopwatch that is told the state and the time. Pure.

    Args:
        now: when the consumer began, in seconds on any clock that only goes forward.
    """

    def __init__(self, now: float) -> None:
        self._begun = now
        self._since: float | None = None
        self._seconds = 0.0

    def __repr__(self) -> str:
        return f"Waiting({self._seconds:.3f} s, {'stands' if self._since is not None else 'moves'})"

    def tell(self, waits: bool, now: float) -> None:
        """From `now` on the consumer waits, or not."""
        if waits and self._since is None:
            self._since = now
        elif not waits and self._since is not None:
            self._seconds += now - self._since
            self._since = None

    def seconds(self, now: float) -> float:
        """All the time it has waited, up to now."""
        return self._seconds + (now - self._since if self._since is not None else 0.0)

    def age_seconds(self, now: float) -> float:
        """How long ago it began."""
        return now - self._begun
