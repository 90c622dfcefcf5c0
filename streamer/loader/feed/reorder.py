"""Chooses the batch that is made next and the batch that is delivered next. Pure: no thread, no process, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from streamer.batches.workers.handle import Pending

Result = TypeVar("Result")


class BatchCursor:
    """The batches of a run in order, epoch after epoch; `batches` maps an epoch to its number of batches."""

    def __init__(self, batches: Callable[[int], int], epoch: int, batch: int) -> None:
        self._batches = batches
        self.epoch = epoch
        self.batch = batch
        self._settle()

    def advance(self) -> tuple[int, int]:
        """The next batch: its epoch and number."""
        at = self.epoch, self.batch
        self.batch += 1
        self._settle()
        return at

    def _settle(self) -> None:
        if self.batch >= self._batches(self.epoch):
            self.epoch = self.epoch + 1
            self.batch = 0


class Window(Generic[Result]):
    """The batches from the first that is not delivered to the last that is begun.

    Args:
        cursor: the batches in order.
        span: batches that may be begun and not yet taken by the trainer.
    """

    def __init__(self, cursor: BatchCursor, span: int) -> None:
        self._cursor = cursor
        self._span = span
        self._begun = 0
        self._delivered = 0
        self._again: list[tuple[int, Pending]] = []
        self._at_work: dict[int, Pending] = {}
        self._finished: dict[int, Result] = {}

    def __repr__(self) -> str:
        return f"Window(delivered={self._delivered}, begun={self._begun}, at_work={len(self._at_work)})"

    @property
    def delivered(self) -> int:
        """Number of batches delivered, in order."""
        return self._delivered

    @property
    def head(self) -> Pending | None:
        """The next batch to be delivered, while it is being made."""
        return self._at_work.get(self._delivered)

    @property
    def unread(self) -> int:
        """The first step for which a worker may still read chunks."""
        return min(self._at_work, default=self._begun)

    def draw(self, taken: int, last_epoch: int) -> Pending | None:
        """Returns the batch to be made next, first those that are repeated, or None if there is none now.

        Args:
            taken: batches that the trainer has taken.
            last_epoch: batches of later epochs are not begun.
        """
        if self._again:
            return heapq.heappop(self._again)[1]
        if self._begun - taken >= self._span or self._cursor.epoch > last_epoch:
            return None
        pending = Pending(self._begun, *self._cursor.advance())
        self._begun += 1
        self._at_work[pending.step] = pending
        return pending

    def repeat(self, pending: Pending) -> None:
        """Queues the batch again, before all later ones."""
        heapq.heappush(self._again, (pending.step, pending))

    def finish(self, pending: Pending, result: Result) -> None:
        """Records that the batch is made or has finally failed."""
        del self._at_work[pending.step]
        self._finished[pending.step] = result

    def deliver(self) -> Iterator[Result]:
        """Yields the results that can be delivered now, in order."""
        while self._delivered in self._finished:
            result = self._finished.pop(self._delivered)
            self._delivered += 1
            yield result

    def abandon(self) -> Iterator[Result]:
        """Ends the run: marks the batches that are being made, and yields the finished results."""
        for pending in self._at_work.values():
            pending.abandoned = True
        self._again.clear()
        yield from self._finished.values()
        self._finished.clear()
