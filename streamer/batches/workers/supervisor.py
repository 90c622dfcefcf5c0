"""Starts workers, receives their messages, and replaces those that have ended. On the feeder's thread only."""

from __future__ import annotations

import logging
import selectors
from collections.abc import Callable
from functools import partial
from itertools import islice

from streamer.base.cgroup import usable_cores
from streamer.batches.workers.handle import ExitReport, WorkerHandle
from streamer.batches.workers.pool import WorkerConfig, WorkerPool
from streamer.batches.workers.protocol import Message, WorkerReady

logger = logging.getLogger(__name__)

# Workers that start at the same time: one for every two cores. A new interpreter takes 0.2 s of CPU until it is ready,
# a fork 10 ms.
_STARTING = max(1, usable_cores() // 2)


class Supervisor:
    """Starts, observes and replaces the workers.

    Workers start when there is work for them: the first one immediately, another when a batch could be made and all are
    busy. So the first batch does not share the cores with starting workers, and there are no more workers than needed.

    Args:
        config: number and kind of the workers.
        selector: of the feeder; the data of each key is a function without arguments.
        received: called with each message of a worker but the first, and with its descriptor, or -1.
        ended: called when a worker has ended, with its tasks; returns whether to start another one in its place.
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
        self._finish = ended

    def __repr__(self) -> str:
        return f"Supervisor({self.pool!r})"

    def start_first(self) -> None:
        """Starts a worker, unless there is one."""
        if not self.pool.workers:
            self._start(0)

    def start_another(self) -> None:
        """Starts another worker, if one is missing and not too many are starting."""
        missing = self.pool.missing
        starting = sum(not handle.ready for handle in self.pool.workers.values())
        if missing and starting < _STARTING:
            self._start(missing[0])

    def forget_slot(self, slot: int, owner: WorkerHandle) -> None:
        """Makes all workers unmap the memory of a slot, except the worker that has made it new."""
        for handle in self.pool.workers.values():
            if handle is not owner:
                handle.forget_slot(slot)
        owner.has_slot(slot)

    def replace(self, handle: WorkerHandle) -> None:
        """Ends and reaps a worker, receives its last messages, and starts another one if needed."""
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
            self.pool.stop_forking(handle.process.refused)
            self._start(handle.number)
        else:
            logger.warning("worker %d has ended (%s)", handle.number, report.cause)
            if self._finish(handle, report):
                self._start(handle.number)
        self._replace_ended()

    def _start(self, number: int) -> None:
        self._drop_ended_server()
        if (forked := self.pool.connect()) is not None:
            self._selector.register(forked, selectors.EVENT_READ, self._on_fork_server)
        handle = self.pool.start(number)
        self._selector.register(handle.channel, selectors.EVENT_READ, partial(self._receive, handle))
        if handle.process is not None and handle.process.exit_descriptor >= 0:
            self._selector.register(handle.process.exit_descriptor, selectors.EVENT_READ, partial(self.replace, handle))

    def _is_current(self, handle: WorkerHandle) -> bool:
        """Whether it was not reaped by an earlier event of the same round."""
        return self.pool.workers.get(handle.number) is handle

    def _on_fork_server(self) -> None:
        if self.pool.forked is not None:
            self.pool.forked.pump()
            self._replace_ended()

    def _replace_ended(self) -> None:
        """Replaces all workers whose end the fork server has reported."""
        if (forked := self.pool.forked) is None:
            return
        self._drop_ended_server()
        for process in forked.take_ended():
            for handle in [handle for handle in self.pool.workers.values() if handle.process is process]:
                self.replace(handle)

    def _drop_ended_server(self) -> None:
        """Closes the connection to a fork server that has ended; the next start connects to another one."""
        forked = self.pool.forked
        if forked is not None and forked.gone:
            self._selector.unregister(forked)
            forked.close()
            self.pool.forked = None

    def _receive(self, handle: WorkerHandle) -> None:
        if not self._is_current(handle):
            return
        # A single message is taken: the selector reports the next one, and a check for it takes as long.
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
