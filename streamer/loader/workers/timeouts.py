"""Which worker has been at a sample for longer than it may."""

from __future__ import annotations

import logging
import time

from streamer.loader.workers.handle import WorkerHandle
from streamer.loader.workers.pool import Pool

logger = logging.getLogger(__name__)

# It is looked when the first time is over. Who looks later than this did not run, and most likely the workers did not
# either: a job stopped by Ctrl-Z or suspended by its scheduler. They get their time anew, once.
LATE_SECONDS = 0.1


class SampleTimeouts:
    """Looks at the clocks of the workers.

    Args:
        pool: the workers.
        limit_seconds: a sample may take this long; 0: any time.
    """

    def __init__(self, pool: Pool, limit_seconds: float) -> None:
        self._pool = pool
        self.limit_seconds = limit_seconds
        self._back_at = 0

    @property
    def patience_seconds(self) -> float | None:
        """Until the first sample at work has had its time; None: wait for events only."""
        busy = [handle for handle in self._pool.workers.values() if handle.tasks] if self.limit_seconds > 0 else []
        if not busy:
            return None
        # One that has not yet begun what it was given is looked at again after a whole time.
        return max(0.0, self.limit_seconds - max(self._spent_seconds(handle) for handle in busy))

    def stuck(self) -> list[WorkerHandle]:
        """Those whose time is over."""
        found: list[WorkerHandle] = []
        if self._was_away():
            self._back_at = time.monotonic_ns()
            return found
        for handle in self._pool.workers.values() if self.limit_seconds > 0 else []:
            if (spent := self._spent_seconds(handle)) >= self.limit_seconds:
                at, limit = self.ordinal(handle), self.limit_seconds
                logger.warning(
                    "worker %d has been at sample %d for %.1f s (timeout=%g)", handle.number, at, spent, limit
                )
                found.append(handle)
        return found

    def ordinal(self, handle: WorkerHandle) -> int:
        """The sample that it is at."""
        return self._pool.doing(handle).ordinal

    def _was_away(self) -> bool:
        """Whether this look comes too late, the first time for the samples at work."""
        begun = [doing.since for doing in map(self._pool.doing, self._pool.workers.values()) if doing.task]
        if not begun or self.limit_seconds <= 0 or min(begun) <= self._back_at:
            return False
        return (time.monotonic_ns() - min(begun)) / 1e9 > self.limit_seconds + LATE_SECONDS

    def _spent_seconds(self, handle: WorkerHandle) -> float:
        doing = self._pool.doing(handle)
        return (time.monotonic_ns() - max(doing.since, self._back_at)) / 1e9 if doing.task else 0.0
