"""The staff: workers started, listened to, and reaped when they are gone. On the feeder's thread only."""

from __future__ import annotations

import logging
import math
import selectors
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Protocol

from streamer.cgroup import usable_cores
from streamer.loader.control import Kind, Made, Note
from streamer.loader.handles import ExitReport, WorkerHandle
from streamer.loader.pool import Crew, Pool
from streamer.loader.ring import Ring

logger = logging.getLogger(__name__)

# Workers that start at the same time: one for every two cores of this process.
_STARTING = max(1, usable_cores() // 2)
# A first batch that takes longer is worth the help of others: raw bytes take 0.02 to 0.1 s.
_ALONE_SECONDS = 0.25


class Employer(Protocol):
    """Who the staff works for."""

    def made(self, handle: WorkerHandle, made: Made, spill: int | None) -> None:
        """A batch is made; `spill` is the descriptor of its own memory, if it is not in the ring."""
        ...

    def noted(self, handle: WorkerHandle, note: Note) -> None:
        """A worker says something else about a task."""
        ...

    def unopened(self, frozen: bytes) -> None:
        """A worker could not open the data set; the error, pickled."""
        ...

    def lost(self, handle: WorkerHandle, report: ExitReport) -> bool:
        """A worker has ended, with its tasks. Returns whether another one is started in its place."""
        ...


class Staff:
    """All workers and what they say.

    Args:
        crew: how many of what kind.
        selector: what the feeder waits on; each of its keys has a function of no arguments.
        employer: who hears of it.
        ring: the ring that new workers are given.
    """

    def __init__(
        self, crew: Crew, selector: selectors.BaseSelector, employer: Employer, ring: Callable[[], Ring | None]
    ) -> None:
        self.pool = Pool(crew)
        self._selector = selector
        self._employer = employer
        self._ring = ring
        # Until the trainer has its first batch, that is all there is to do.
        self._alone = True
        self._alone_until = math.inf
        # A process costs something to start.
        self._processes = crew.worker_type == "process"

    def __repr__(self) -> str:
        return f"Staff({self.pool!r})"

    def hire_missing(self) -> None:
        """Starts the workers that are not there: not more at a time than there is room to start at full speed.

        A start is 0.2 s of CPU. Four at once on two cores gave the first batch after 0.8 to 1.6 s, with other load. The
        first ones start beside the engine; the next would start beside the making of the first batch, which is one
        worker's.
        """
        if self._alone and self._processes and self.pool.workers:
            return
        starting = sum(not handle.up for handle in self.pool.workers.values())
        for number in self.pool.missing[: max(0, _STARTING - starting)]:
            self._hire(number)

    def begin(self) -> None:
        """There is work: the first batch is being made."""
        if self._alone and self._alone_until == math.inf:
            self._alone_until = time.monotonic() + _ALONE_SECONDS

    @property
    def patience_seconds(self) -> float | None:
        """How long the feeder may sleep before `hire_the_rest`, though nothing happens; None: as long as it likes."""
        waits = self._alone and self._alone_until < math.inf
        return max(0.0, self._alone_until - time.monotonic()) if waits else None

    def hire_the_rest(self, *, taken: bool) -> bool:
        """Whoever is missing may start, one after the other, once the first batch is taken or has had its time.

        Returns:
            Whether that is so.
        """
        if self._alone and (taken or time.monotonic() >= self._alone_until):
            self._alone = False
            self.hire_missing()
        return not self._alone

    def announce(self, ring: Ring | None) -> None:
        """Gives everybody a new ring."""
        if ring is not None:
            for handle in self.pool.workers.values():
                handle.send_ring(ring)

    def lose(self, handle: WorkerHandle) -> None:
        """Reaps a worker that has ended, or ends it; its last messages count."""
        if self.pool.workers.get(handle.number) is not handle:
            return
        if handle.pidfd >= 0:
            self._selector.unregister(handle.pidfd)
        self._selector.unregister(handle.channel)
        for answer in handle.answers():
            if answer is not None:
                self._take(handle, *answer)
        report = self.pool.reap(handle)
        logger.warning("worker %d is gone (%s)", handle.number, report.cause)
        if self._employer.lost(handle, report):
            self._hire(handle.number)

    def _hire(self, number: int) -> None:
        handle = self.pool.start(number)
        self._selector.register(handle.channel, selectors.EVENT_READ, partial(self._hear, handle))
        if (ring := self._ring()) is not None:
            handle.send_ring(ring)
        if handle.pidfd >= 0:
            self._selector.register(handle.pidfd, selectors.EVENT_READ, partial(self.lose, handle))

    def _hear(self, handle: WorkerHandle) -> None:
        # Reaped by an earlier event of the same turn?
        if self.pool.workers.get(handle.number) is not handle:
            return
        # One: the selector says so if there is another, and to ask takes as long as to hear.
        for answer in islice(handle.answers(), 1):
            if answer is None:
                self.lose(handle)
            else:
                self._take(handle, *answer)

    def _take(self, handle: WorkerHandle, message: Made | Note, descriptor: int | None) -> None:
        if isinstance(message, Made):
            self._employer.made(handle, message, descriptor)
        elif message.kind is Kind.UP:
            self._up(handle)
        elif message.kind is Kind.FAILED and message.number == 0:
            self._employer.unopened(message.body)
        else:
            if message.kind is Kind.READY:
                handle.ready = True
                self._up(handle)
            self._employer.noted(handle, message)

    def _up(self, handle: WorkerHandle) -> None:
        if not handle.up:
            handle.up = True
            self.hire_missing()
