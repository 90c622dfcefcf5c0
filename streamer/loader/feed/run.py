"""Keeps one run of a loader: an uninterrupted sequence of batches, its window, and its session with the engine.

`feeder.py` works on a run on its thread. `supply.py` takes the outcomes of the run on the trainer's thread.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from streamer.batches.batch.buffers import Bytes
from streamer.batches.causes import NETWORK, WINDOW, Stages
from streamer.batches.ring.ring import Ring
from streamer.batches.workers.handle import Pending
from streamer.batches.workers.protocol import Made
from streamer.errors import StreamerError
from streamer.loader.kinds.step_session import StepSession
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.stats import PackingStats

Result = TypeVar("Result")


class BatchCursor:
    """Counts through the batches of a run, epoch after epoch; `batches` returns the number of batches of an epoch."""

    def __init__(self, batches: Callable[[int], int], epoch: int, batch: int) -> None:
        self._batches = batches
        self.epoch = epoch
        self.batch = batch
        self._settle()

    def advance(self) -> tuple[int, int]:
        """Returns the epoch and the number of the next batch, and goes on to the batch after it."""
        at = self.epoch, self.batch
        self.batch += 1
        self._settle()
        return at

    def _settle(self) -> None:
        if self.batch >= self._batches(self.epoch):
            self.epoch = self.epoch + 1
            self.batch = 0


class BatchWindow(Generic[Result]):
    """Keeps the batches from the first that is not delivered to the last that is begun.

    A batch is begun when it is drawn, at work until it is finished, and delivered in order. Its number in the run is
    its step.

    Args:
        cursor: Cursor over the batches in order.
        span: Number of batches that may be begun and not yet taken by the trainer.
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
        return f"BatchWindow(delivered={self._delivered}, begun={self._begun}, at_work={len(self._at_work)})"

    @property
    def delivered(self) -> int:
        """Number of batches delivered, in order."""
        return self._delivered

    @property
    def head(self) -> Pending | None:
        """The next batch to be delivered, or None if it is not at work."""
        return self._at_work.get(self._delivered)

    @property
    def unread(self) -> int:
        """The first step for which a worker may still read chunks."""
        return min(self._at_work, default=self._begun)

    def draw(self, taken: int, last_epoch: int) -> Pending | None:
        """Returns the batch to be made next, or None if there is none now. Batches that are queued again come first.

        Args:
            taken: Number of batches that the trainer has taken.
            last_epoch: Epoch after which no batch is begun.
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
        """Queues a batch that was drawn, so that it is drawn again before all later ones."""
        heapq.heappush(self._again, (pending.step, pending))

    def finish(self, pending: Pending, result: Result) -> None:
        """Records the result of a batch: it is made, or has finally failed."""
        del self._at_work[pending.step]
        self._finished[pending.step] = result

    def deliver(self) -> Iterator[Result]:
        """Yields the results that can be delivered now, in order."""
        while self._delivered in self._finished:
            result = self._finished.pop(self._delivered)
            self._delivered += 1
            yield result

    def abandon(self) -> Iterator[Result]:
        """Ends the run: marks the batches at work as abandoned, and yields the results that were not delivered."""
        for pending in self._at_work.values():
            pending.abandoned = True
        self._again.clear()
        yield from self._finished.values()
        self._finished.clear()


class Finished(msgspec.Struct):
    """Describes a finished batch that the trainer can open.

    Attributes:
        pending: The batch, with its slot if it is in one.
        made: Report of the worker.
        own_memory: Descriptor of the batch's memory if it is in no slot, else -1.
        held: Memory of the batch once the trainer has opened it, else None; the slot is free when it is dropped.
    """

    pending: Pending
    made: Made
    own_memory: int = -1
    held: Bytes | None = None

    def discard(self, ring: Ring) -> None:
        """Releases the memory of the batch, if the trainer has not opened it."""
        if self.own_memory >= 0:
            os.close(self.own_memory)
        elif self.pending.slot is not None and self.pending.slot.view is None:
            ring.put_back(self.pending.slot)


class FailedBatch(msgspec.Struct, frozen=True):
    """Says that a batch could not be made.

    Attributes:
        error: Reason of the failure.
        final: Whether no further outcome follows.
    """

    error: BaseException
    final: bool = False

    def discard(self, ring: Ring) -> None:
        """Does nothing, since there is no memory to release."""


Outcome = Finished | FailedBatch


class BatchOutcomes:
    """Queues outcomes from the feeder's thread to the trainer's, in order.

    The first one stays until it is removed: a Ctrl-C between a `get` and the assignment of its result would lose it.
    """

    def __init__(self) -> None:
        self._items: deque[Outcome] = deque()
        # There is one for each outcome, to wake the trainer. More or fewer of them do no harm.
        self._signals: SimpleQueue[None] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, outcome: Outcome) -> None:
        """Adds an outcome; any thread."""
        self._items.append(outcome)
        self._signals.put(None)

    def first(self, timeout_seconds: float | None = None) -> Outcome:
        """Returns the first outcome, which stays the first; waits for it, without a limit if the timeout is None.

        Raises:
            TimeoutError: there is none in time.
        """
        while not self._items:
            try:
                self._signals.get(timeout=timeout_seconds)
            except Empty:
                raise TimeoutError from None
        return self._items[0]

    def remove(self, outcome: Outcome) -> None:
        """Removes an outcome if it is still the first."""
        if self._items and self._items[0] is outcome:
            del self._items[0]
            with contextlib.suppress(Empty):
                self._signals.get_nowait()


class FeedCounters(msgspec.Struct):
    """Counts batches, bytes and times of a supply; the fields are named as in `LoaderStats`.

    One thread counts, any thread may read. `nanoseconds` are those of the workers for each stage of `causes.Stages`.
    """

    spilled_batches: int = 0
    oversize_batches: int = 0
    worker_faults: int = 0
    pickled_bytes: int = 0
    respawns: int = 0
    rereads: int = 0
    packing: PackingStats | None = None
    nanoseconds: list[int] = msgspec.field(default_factory=lambda: [0] * 6)

    def count(self, made: Made) -> None:
        """Counts a finished batch."""
        self.worker_faults += made.faults
        self.pickled_bytes += made.description[1]
        if made.packed is not None:
            self.packing = (self.packing or PackingStats()).add_batch(made.samples, made.packed)
        for at, spent in enumerate(msgspec.structs.astuple(made.stages)):
            self.nanoseconds[at] += spent

    def values(self) -> dict[str, Any]:
        """Returns the counts and the seconds by stage, as `LoaderStats` has them."""
        counts = msgspec.structs.asdict(self)
        stages = zip(Stages.__struct_fields__, counts.pop("nanoseconds"), strict=True)
        return {**counts, **{f"{stage}_seconds": spent / 1e9 for stage, spent in stages}}


class BatchRun:
    """Holds what the feeder's thread and the trainer's thread share of a run.

    Attributes:
        prepared: The stream that is read.
        epoch, batch: The first batch.
        outcomes: Queue of finished batches, the only way from the feeder's thread to the trainer's.
        taken: Number of batches that the trainer has taken; written by the trainer only.
        epoch_taken: Epoch of the last of them; written by the trainer only.
    """

    def __init__(self, prepared: RankStream, epoch: int, batch: int) -> None:
        self.prepared = prepared
        self.epoch = epoch
        self.batch = batch
        self.outcomes = BatchOutcomes()
        self.taken = 0
        self.epoch_taken = epoch


class RunState:
    """Keeps the current run, its window and its engine session. Used on the feeder's thread only.

    Args:
        span: Number of batches that may be begun and not yet taken by the trainer.
        planning: Lock that is held while the prepared stream is used.
        selector: Selector of the feeder, by which messages of the engine arrive.
        ring: Slots of the batches.

    Attributes:
        run, window: Current run, or None before the first one, and its window.
    """

    def __init__(self, span: int, planning: threading.Lock, selector: selectors.BaseSelector, ring: Ring) -> None:
        # A prepared stream is for one thread at a time, and the trainer's thread uses it, too.
        self._planning = planning
        self._selector = selector
        self._span = span
        self._ring = ring
        self.run: BatchRun | None = None
        self.window: BatchWindow[Outcome] = BatchWindow(BatchCursor(lambda epoch: 1, 0, 0), span)
        self._session: StepSession | None = None
        self._listening = -1
        self._stopped = True
        self._wanted = -1
        # Time since which a worker is idle because the window is full, or 0 if none is.
        self._full_since = 0

    def __repr__(self) -> str:
        return f"{self.window!r}, session={self._session!r}"

    @property
    def open(self) -> bool:
        """Whether the run may begin further batches."""
        return not self._stopped

    @property
    def poll_seconds(self) -> float | None:
        """Seconds after which `next` may have another answer without an event, or None if it cannot."""
        return None if self._session is None else self._session.poll_seconds

    def enter(self, run: BatchRun) -> None:
        """Begins a run, and opens its session; raises the StreamerError of the engine."""
        self.run = run
        self.window = BatchWindow(BatchCursor(self._batches, run.epoch, run.batch), self._span)
        with self._planning:
            self._session = run.prepared.session(run.epoch, run.batch)
        self._stopped = False
        self._wanted = -1
        self._full_since = 0
        self._listen()

    def leave(self) -> None:
        """Ends the run and its session, and releases the slots of batches that were not taken."""
        if self.run is None:
            return
        for outcome in self.window.abandon():
            outcome.discard(self._ring)
        while self.run.outcomes:
            outcome = self.run.outcomes.first()
            self.run.outcomes.remove(outcome)
            outcome.discard(self._ring)
        self.close()

    def close(self) -> None:
        """Ends the session; no further batch is begun. Idempotent."""
        self._stopped = True
        self._unlisten()
        if self._session is not None:
            self._session.close()
            self._session = None

    def stop(self, error: BaseException) -> None:
        """Delivers the finished batches and then an error, the final outcome; no further batch is begun."""
        if self.run is not None and not self._stopped:
            self._stopped = True
            self._deliver(self.run)
            self.run.outcomes.put(FailedBatch(error, final=True))

    def next(self, idle: bool) -> Pending | None:
        """Returns the batch to be made next, whose chunks are local, or None if there is none now.

        Requests the chunks of `span` batches after it. An error of the engine becomes its outcome, the final one.

        Args:
            idle: Whether the worker that gets it has no other batch.
        """
        assert self.run is not None
        pending = self.window.draw(self.run.taken, self.run.epoch_taken + 1)
        if pending is None:
            if idle and not self._full_since:
                self._full_since = time.perf_counter_ns()
            return None
        if self._full_since:
            pending.timeline.add(WINDOW, time.perf_counter_ns() - self._full_since)
            self._full_since = 0
        assert self._session is not None
        try:
            with self._planning:
                step = self._session.step_of(pending.epoch, pending.batch)
                if step + self._span > self._wanted:
                    self._wanted = step + self._span
                    self._session.want(self._wanted)
                local = self._session.ready >= step
                if local:
                    pending.rounds = self._session.rounds(step)
        except StreamerError as error:
            # The batches before this one are still delivered.
            self.window.finish(pending, FailedBatch(error, final=True))
            self._stopped = True
            return None
        if not local:
            pending.timeline.enter(NETWORK)
            self.window.repeat(pending)
            return None
        return pending

    def trainer_waits_for(self, pending: Pending) -> bool:
        """Returns whether the trainer has taken everything before this batch."""
        assert self.run is not None
        return self.run.taken >= pending.step

    def reject(self, chunk: int, reason: str) -> None:
        """Rejects a chunk that a worker could not read, so that it is leased again; an error ends the run."""
        assert self._session is not None
        try:
            self._session.reject(chunk, reason)
        except StreamerError as error:
            self.stop(error)

    def note_read(self) -> None:
        """Records the steps that no worker reads any more; the engine is told with the next request."""
        self._send_progress(flush=False)

    def deliver(self) -> None:
        """Delivers finished batches to the trainer, and tells the engine at once which steps are consumed."""
        if self.run is not None:
            self._deliver(self.run)
            self._send_progress(flush=True)

    def _deliver(self, run: BatchRun) -> None:
        for outcome in self.window.deliver():
            run.outcomes.put(outcome)

    def _send_progress(self, *, flush: bool) -> None:
        if self._session is None:
            return
        try:
            self._session.finish(self.window.unread, flush=flush)
        except StreamerError as error:
            self.stop(error)

    @property
    def session(self) -> StepSession | None:
        """The session with the engine, or None if none is open; any thread may ask it."""
        return self._session

    def _batches(self, epoch: int) -> int:
        assert self.run is not None
        with self._planning:
            return self.run.prepared.plan(epoch).batches

    def _listen(self) -> None:
        assert self._session is not None
        descriptor = self._session.fileno()
        if descriptor != self._listening:
            self._unlisten()
            self._selector.register(descriptor, selectors.EVENT_READ, self._receive_message)
            self._listening = descriptor

    def _unlisten(self) -> None:
        if self._listening >= 0:
            self._selector.unregister(self._listening)
            self._listening = -1

    def _receive_message(self) -> None:
        if self._session is None:
            return
        try:
            self._session.pump(0.0)
            self._listen()
        except StreamerError as error:
            self.stop(error)
