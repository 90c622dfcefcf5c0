"""A run: one uninterrupted sequence of batches, its window, and its session with the engine."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from streamer.batches.batch.buffers import Bytes
from streamer.batches.causes import NETWORK, WINDOW, Stages
from streamer.batches.ring.ring import Ring
from streamer.batches.workers.handle import Pending
from streamer.batches.workers.protocol import Made
from streamer.errors import StreamerError
from streamer.loader.feed.reorder import BatchCursor, Window
from streamer.loader.kinds.step_session import StepSession
from streamer.loader.rank.rank_stream import RankStream
from streamer.loader.stall.stats import PackingStats


class Finished(msgspec.Struct):
    """A finished batch that the trainer can open.

    Attributes:
        pending: the batch.
        made: the worker's report.
        own_memory: descriptor of its memory if it is in no slot, else -1.
        held: its memory once the trainer has opened it: the slot is then released with that.
    """

    pending: Pending
    made: Made
    own_memory: int = -1
    held: Bytes | None = None

    def discard(self, ring: Ring) -> None:
        """Releases its memory unread."""
        if self.own_memory >= 0:
            os.close(self.own_memory)
        elif self.pending.slot is not None and self.pending.slot.view is None:
            ring.put_back(self.pending.slot)


class FailedBatch(msgspec.Struct, frozen=True):
    """A batch that could not be made.

    Attributes:
        error: the reason.
        final: no further outcome follows.
    """

    error: BaseException
    final: bool = False

    def discard(self, ring: Ring) -> None:
        """Does nothing: there is no memory to release."""


Outcome = Finished | FailedBatch


class Outcomes:
    """Finished batches on their way to the trainer, in order.

    The first one stays until it is removed: a Ctrl-C between a `get` and the assignment of its result would lose it.
    """

    def __init__(self) -> None:
        self._items: deque[Outcome] = deque()
        # One for each put; only woken by. More or fewer of them do no harm.
        self._signals: SimpleQueue[None] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, outcome: Outcome) -> None:
        """Adds one; any thread."""
        self._items.append(outcome)
        self._signals.put(None)

    def first(self, timeout_seconds: float | None = None) -> Outcome:
        """Waits for the first one, and leaves it where it is.

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
        """Removes it if it is still the first."""
        if self._items and self._items[0] is outcome:
            del self._items[0]
            with contextlib.suppress(Empty):
                self._signals.get_nowait()


class FeedCounters(msgspec.Struct):
    """Counted by the feeder's thread (or inline); read by any thread. The names are those of `LoaderStats`."""

    spilled_batches: int = 0
    oversize_batches: int = 0
    worker_faults: int = 0
    pickled_bytes: int = 0
    respawns: int = 0
    rereads: int = 0
    packing: PackingStats | None = None
    nanoseconds: list[int] = msgspec.field(default_factory=lambda: [0] * 6)

    def made(self, made: Made) -> None:
        """Counts a finished batch."""
        self.worker_faults += made.faults
        self.pickled_bytes += made.description[1]
        if made.packed is not None:
            self.packing = (self.packing or PackingStats()).with_batch(made.samples, made.packed)
        for at, spent in enumerate(msgspec.structs.astuple(made.stages)):
            self.nanoseconds[at] += spent

    def values(self) -> dict[str, Any]:
        """The counts and the seconds by stage, as `LoaderStats` has them."""
        counts = msgspec.structs.asdict(self)
        stages = zip(Stages.__struct_fields__, counts.pop("nanoseconds"), strict=True)
        return {**counts, **{f"{stage}_seconds": spent / 1e9 for stage, spent in stages}}


class Run:
    """One uninterrupted sequence of batches, as the trainer reads it.

    `outcomes` is the only channel from the feeder's thread to the trainer's.

    Attributes:
        prepared: the dataset.
        epoch, batch: the first batch.
        taken: batches that the trainer has taken; written by the trainer only.
        epoch_taken: the epoch of the last of them; written by the trainer only.
    """

    def __init__(self, prepared: RankStream, epoch: int, batch: int) -> None:
        self.prepared = prepared
        self.epoch = epoch
        self.batch = batch
        self.outcomes = Outcomes()
        self.taken = 0
        self.epoch_taken = epoch


class RunState:
    """The current run, its window and its engine session. Used on the feeder's thread only."""

    def __init__(self, span: int, planning: threading.Lock, selector: selectors.BaseSelector, ring: Ring) -> None:
        # A prepared stream is for one thread at a time, and the trainer's thread uses it, too.
        self._planning = planning
        self._selector = selector
        self._span = span
        self._ring = ring
        self.run: Run | None = None
        self.window: Window[Outcome] = Window(BatchCursor(lambda epoch: 1, 0, 0), span)
        self._session: StepSession | None = None
        self._listening = -1
        self._stopped = True
        self._wanted = -1
        # Time since which a worker is idle because the window is full; 0: none is.
        self._full_since = 0

    def __repr__(self) -> str:
        return f"{self.window!r}, session={self._session!r}"

    @property
    def open(self) -> bool:
        """Whether the run may begin further batches."""
        return not self._stopped

    @property
    def poll_seconds(self) -> float | None:
        """See `StepSession.poll_seconds`."""
        return None if self._session is None else self._session.poll_seconds

    def enter(self, run: Run) -> None:
        """Begins a run, and opens its session."""
        self.run = run
        self.window = Window(BatchCursor(self._batches, run.epoch, run.batch), self._span)
        with self._planning:
            self._session = run.prepared.session(run.epoch, run.batch)
        self._stopped = False
        self._wanted = -1
        self._full_since = 0
        self._listen()

    def leave(self) -> None:
        """Ends the run, and releases the slots of batches that were not taken."""
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
        """Ends the session."""
        self._stopped = True
        self._unlisten()
        if self._session is not None:
            self._session.close()
            self._session = None

    def stop(self, error: BaseException) -> None:
        """Ends the run with an error, after the batches that are finished."""
        if self.run is not None and not self._stopped:
            self._stopped = True
            self._deliver(self.run)
            self.run.outcomes.put(FailedBatch(error, final=True))

    def next(self, idle: bool) -> Pending | None:
        """Returns the batch to be made next, its chunks local, or None if there is none now.

        Args:
            idle: the worker that gets it has no other batch.
        """
        pending = self._draw(idle)
        if pending is None:
            return None
        try:
            with self._planning:
                local = self._is_local(pending)
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
        """Whether the trainer has taken everything before this batch."""
        assert self.run is not None
        return self.run.taken >= pending.step

    def reject(self, chunk: int, reason: str) -> None:
        """Rejects a chunk, so that it is leased again."""
        assert self._session is not None
        try:
            self._session.reject(chunk, reason)
        except StreamerError as error:
            self.stop(error)

    def note_read(self) -> None:
        """Records consumed steps; they are sent to the engine with the next request."""
        self._done(flush=False)

    def deliver(self) -> None:
        """Delivers finished batches, and sends the consumed steps to the engine."""
        if self.run is not None:
            self._deliver(self.run)
            self._done(flush=True)

    def _deliver(self, run: Run) -> None:
        for outcome in self.window.deliver():
            run.outcomes.put(outcome)

    def _done(self, *, flush: bool) -> None:
        if self._session is None:
            return
        try:
            self._session.done(self.window.unread, flush=flush)
        except StreamerError as error:
            self.stop(error)

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """Returns the engine's counters, over a separate connection, on any thread, or None without an answer."""
        session = self._session
        return None if session is None else session.engine_values(timeout_seconds)

    def _draw(self, idle: bool) -> Pending | None:
        assert self.run is not None
        pending = self.window.draw(self.run.taken, self.run.epoch_taken + 1)
        if pending is None:
            if idle and not self._full_since:
                self._full_since = time.perf_counter_ns()
        elif self._full_since:
            pending.timeline.add(WINDOW, time.perf_counter_ns() - self._full_since)
            self._full_since = 0
        return pending

    def _batches(self, epoch: int) -> int:
        assert self.run is not None
        with self._planning:
            return self.run.prepared.plan(epoch).batches

    def _is_local(self, pending: Pending) -> bool:
        assert self._session is not None
        step = self._session.step_of(pending.epoch, pending.batch)
        if step + self._span > self._wanted:
            self._wanted = step + self._span
            self._session.want(self._wanted)
        if self._session.ready < step:
            return False
        pending.rounds = self._session.rounds(step)
        return True

    def _listen(self) -> None:
        assert self._session is not None
        descriptor = self._session.fileno()
        if descriptor != self._listening:
            self._unlisten()
            self._selector.register(descriptor, selectors.EVENT_READ, self._on_message)
            self._listening = descriptor

    def _unlisten(self) -> None:
        if self._listening >= 0:
            self._selector.unregister(self._listening)
            self._listening = -1

    def _on_message(self) -> None:
        if self._session is None:
            return
        try:
            self._session.pump(0.0)
            self._listen()
        except StreamerError as error:
            self.stop(error)
