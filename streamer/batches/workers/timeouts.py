"""Finds workers whose current sample exceeds the timeout."""

from __future__ import annotations

import logging
import time

from streamer.batches.workers.handle import WorkerHandle
from streamer.batches.workers.pool import WorkerPool

logger = logging.getLogger(__name__)

# The check runs when the first timeout expires. If it runs later than this, this process was stopped, and most likely
# the workers too (Ctrl-Z, or a job suspended by its scheduler). The samples then get their full time again, once.
LATE_SECONDS = 0.1


class SampleTimeouts:
    """Compares the times of the workers' samples with the timeout.

    Args:
        pool: the workers.
        limit_seconds: a sample may take this long; 0: any time.
    """

    def __init__(self, pool: WorkerPool, limit_seconds: float) -> None:
        self._pool = pool
        self.limit_seconds = limit_seconds
        self._resumed_at = 0

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the first timeout expires, or None if there is none."""
        busy = [handle for handle in self._pool.workers.values() if handle.tasks] if self.limit_seconds > 0 else []
        if not busy:
            return None
        # A worker that has not yet begun its task is checked again after a full timeout.
        return max(0.0, self.limit_seconds - max(self._spent_seconds(handle) for handle in busy))

    def find_stuck(self) -> list[WorkerHandle]:
        """The workers whose sample has exceeded the timeout."""
        found: list[WorkerHandle] = []
        if self._was_stopped():
            self._resumed_at = time.monotonic_ns()
            return found
        for handle in self._pool.workers.values() if self.limit_seconds > 0 else []:
            if (spent := self._spent_seconds(handle)) >= self.limit_seconds:
                at = self.ordinal(handle)
                limit = self.limit_seconds
                logger.warning(
                    "worker %d has been at sample %d for %.1f s (timeout=%g)", handle.number, at, spent, limit
                )
                found.append(handle)
        return found

    def ordinal(self, handle: WorkerHandle) -> int:
        """The ordinal of the worker's current sample."""
        return self._pool.find_doing(handle).ordinal

    def _was_stopped(self) -> bool:
        """Whether this check is late, for the first time for the current samples."""
        begun = [doing.since for doing in map(self._pool.find_doing, self._pool.workers.values()) if doing.task]
        if not begun or self.limit_seconds <= 0 or min(begun) <= self._resumed_at:
            return False
        return (time.monotonic_ns() - min(begun)) / 1e9 > self.limit_seconds + LATE_SECONDS

    def _spent_seconds(self, handle: WorkerHandle) -> float:
        doing = self._pool.find_doing(handle)
        return (time.monotonic_ns() - max(doing.since, self._resumed_at)) / 1e9 if doing.task else 0.0
