"""Starts workers, receives their messages, and replaces those that have ended. Finds samples that take too long.

The feeder uses it (`loader/feed/feeder.py`), on its own thread only.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable
from functools import partial
from itertools import islice

from streamer.base.cgroup import usable_cores
from streamer.batches.workers.handle import ExitReport, WorkerHandle
from streamer.batches.workers.pool import WorkerConfig, WorkerPool
from streamer.batches.workers.protocol import Message, WorkerReady

logger = logging.getLogger(__name__)

# Largest number of workers that start at the same time: one for every two cores. A new interpreter takes 0.2 s of CPU
# until it is ready, a fork 10 ms.
_STARTING = max(1, usable_cores() // 2)


class Supervisor:
    """Starts the workers of one rank, gives their messages to the feeder, and replaces workers that have ended.

    Workers start when there is work for them: the first one immediately, another when a batch could be made and all are
    busy. So the first batch does not share the cores with starting workers, and there are no more workers than needed.

    Args:
        config: number and kind of the workers.
        selector: selector of the feeder. The data of each key is a function without arguments, which handles its event.
        received: called with each message of a worker except `WorkerReady`, and with its descriptor, or -1.
        ended: called when a worker has ended, whose handle still has its tasks. It returns whether another worker must
            be started in its place.

    Attributes:
        pool: the workers.

    Raises:
        ConfigError: there is no shared memory for the status page.
    """

    def __init__(
        self,
        config: WorkerConfig,
        selector: selectors.BaseSelector,
        received: Callable[[WorkerHandle, Message, int], None],
        ended: Callable[[WorkerHandle, ExitReport], bool],
    ) -> None:
        self.pool = WorkerPool(config)
        self._selector = selector
        self._received = received
        self._handle_end = ended

    def __repr__(self) -> str:
        return f"Supervisor({self.pool!r})"

    def start_first(self) -> None:
        """Starts worker 0, unless there is a worker.

        Raises:
            ConfigError, OSError: the fork server or the worker cannot be started.
        """
        if not self.pool.workers:
            self._start(0)

    def start_another(self) -> None:
        """Starts one more worker, unless all are there or too many are starting; errors as of `start_first`."""
        missing = self.pool.missing
        starting = sum(not handle.ready for handle in self.pool.workers.values())
        if missing and starting < _STARTING:
            self._start(missing[0])

    def forget_slot(self, slot: int, owner: WorkerHandle) -> None:
        """Makes all workers unmap the old memory of a slot, except `owner`, which has made new memory for it."""
        for handle in self.pool.workers.values():
            if handle is not owner:
                handle.forget_slot(slot)
        owner.has_slot(slot)

    def replace(self, handle: WorkerHandle) -> None:
        """Ends and reaps a worker, receives its last messages, and starts another one if `ended` asks for it.

        Does nothing if the worker has been replaced already. If the fork server refused to fork the worker, it is
        started as a new interpreter, and so are all later ones. Errors as of `start_first`.
        """
        if not self._is_current(handle):
            return
        if handle.process is not None and handle.process.exit_descriptor >= 0:
            self._selector.unregister(handle.process.exit_descriptor)
        self._selector.unregister(handle.channel)
        for answer in handle.answers():
            if answer is not None:
                self._take(handle, *answer)
        report = self.pool.reap(handle)
        if handle.process is not None and handle.process.refused:
            self.pool.use_spawn(handle.process.refused)
            self._start(handle.number)
        else:
            logger.warning("worker %d has ended (%s)", handle.number, report.cause)
            if self._handle_end(handle, report):
                self._start(handle.number)
        self._replace_workers()

    def _start(self, number: int) -> None:
        """Starts a worker, and registers its channel and its end with the selector."""
        self._drop_server()
        if (forked := self.pool.connect()) is not None:
            self._selector.register(forked, selectors.EVENT_READ, self._handle_fork_server)
        handle = self.pool.start(number)
        self._selector.register(handle.channel, selectors.EVENT_READ, partial(self._receive, handle))
        if handle.process is not None and handle.process.exit_descriptor >= 0:
            self._selector.register(handle.process.exit_descriptor, selectors.EVENT_READ, partial(self.replace, handle))

    def _is_current(self, handle: WorkerHandle) -> bool:
        """Whether a worker was not replaced by an earlier event of the same call of `select`."""
        return self.pool.workers.get(handle.number) is handle

    def _handle_fork_server(self) -> None:
        if self.pool.forked is not None:
            self.pool.forked.pump()
            self._replace_workers()

    def _replace_workers(self) -> None:
        """Replaces all workers whose end the fork server has reported."""
        if (forked := self.pool.forked) is None:
            return
        self._drop_server()
        for process in forked.take_exits():
            for handle in [handle for handle in self.pool.workers.values() if handle.process is process]:
                self.replace(handle)

    def _drop_server(self) -> None:
        """Closes the pool of a fork server that has ended, so that the next start opens one of another server."""
        forked = self.pool.forked
        if forked is not None and forked.gone:
            self._selector.unregister(forked)
            forked.close()
            self.pool.forked = None

    def _receive(self, handle: WorkerHandle) -> None:
        """Takes the next message of a worker, or replaces the worker if its end of the channel is closed."""
        if not self._is_current(handle):
            return
        # A single message is taken: to ask for another one takes as long as the selector, which reports it.
        for answer in islice(handle.answers(), 1):
            if answer is None:
                self.replace(handle)
            else:
                self._take(handle, *answer)

    def _take(self, handle: WorkerHandle, message: Message, descriptor: int) -> None:
        if isinstance(message, WorkerReady):
            handle.ready = True
        else:
            self._received(handle, message, descriptor)


# `find_stuck` runs when the first timeout expires. If it runs later than by this time, this process was stopped, and
# most likely the workers too (Ctrl-Z, or a job suspended by its scheduler). The samples then get their full time again,
# once.
LATE_SECONDS = 0.1


class SampleTimeouts:
    """Compares the times of the workers' samples with the loader's `timeout=`.

    Args:
        pool: the workers.
        limit_seconds: time that a sample may take, or 0 for any time.
    """

    def __init__(self, pool: WorkerPool, limit_seconds: float) -> None:
        self._pool = pool
        self.limit_seconds = limit_seconds
        self._resumed_at = 0

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the first timeout expires, or None if no worker has a task or there is no timeout."""
        busy = [handle for handle in self._pool.workers.values() if handle.tasks] if self.limit_seconds > 0 else []
        if not busy:
            return None
        # A worker that has not yet begun its task is checked again after a full timeout.
        return max(0.0, self.limit_seconds - max(self._spent_seconds(handle) for handle in busy))

    def find_stuck(self) -> list[WorkerHandle]:
        """Returns the workers whose sample, or collation, has exceeded the timeout, and logs a warning for each.

        The list is empty once where this check itself comes late (`LATE_SECONDS`).
        """
        found: list[WorkerHandle] = []
        now = time.monotonic_ns()
        begun = [doing.since for doing in map(self._pool.find_status, self._pool.workers.values()) if doing.task]
        oldest = min(begun, default=now)
        # This check itself may have come late, which is taken into account once for the current samples.
        is_late = oldest > self._resumed_at and (now - oldest) / 1e9 > self.limit_seconds + LATE_SECONDS
        if is_late and self.limit_seconds > 0:
            self._resumed_at = now
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
        """Returns the code of the worker's current sample, or -1 between samples."""
        return self._pool.find_status(handle).ordinal

    def _spent_seconds(self, handle: WorkerHandle) -> float:
        doing = self._pool.find_status(handle)
        return (time.monotonic_ns() - max(doing.since, self._resumed_at)) / 1e9 if doing.task else 0.0
