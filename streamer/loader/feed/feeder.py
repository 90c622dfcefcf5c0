"""Feeds a loader: one thread of the rank communicates with the workers and the engine.

`loader/epoch.py` makes a `Feeder` for a loader with workers, and `supply.py` takes its batches. The thread sleeps until
an event: a worker reports or ends, the engine sends a message, the trainer frees a slot. So batches are made and
workers are replaced while the trainer computes; the trainer's thread only takes finished batches from a queue. The
first worker starts with the feeder, while the trainer's thread still waits for the engine and the manifest.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import threading
from collections import deque

import msgspec

from streamer.base import linux
from streamer.base.system_limits import limit_error
from streamer.batches.causes import MADE, RING, START, WORK, BatchTimeline
from streamer.batches.ring.pinning import Pinner
from streamer.batches.ring.ring import Limits, Ring
from streamer.batches.samples.cached_bytes import REREADS
from streamer.batches.workers import failures
from streamer.batches.workers.batch_maker import MakerRules
from streamer.batches.workers.handle import ExitReport, Pending, WorkerHandle
from streamer.batches.workers.pool import WorkerConfig
from streamer.batches.workers.protocol import (
    FailedTask,
    Made,
    Message,
    NotOpened,
    SkippedSample,
    Unreadable,
    deserialize_error,
)
from streamer.batches.workers.supervisor import SampleTimeouts, Supervisor
from streamer.errors import BrokenError, ClosedError, ManifestCorruptError, StreamerError
from streamer.loader.feed.run import BatchRun, FailedBatch, FeedCounters, Finished, RunState
from streamer.loader.feed.waits import describe_wait, describe_work
from streamer.loader.kinds.step_session import StepSession
from streamer.loader.rank.rank_stream import RankStream

logger = logging.getLogger(__name__)


class FeederWakeup(linux.Wakeup):
    """Wakes the feeder's thread from other threads.

    Attributes:
        wants_work: Whether the feeder has an idle worker, and waits for a free slot or for space in the window.
    """

    def __init__(self) -> None:
        super().__init__()
        self.wants_work = False

    def signal_on_demand(self) -> None:
        """Wakes the feeder if it waits for a slot or for space in the window."""
        if self.wants_work:
            self.wants_work = False
            self.signal()


# So many workers in a row may find files of the dataset removed; the next one ends the run.
REOPENINGS = 3

# Batches shorter than this are queued two deep at a worker, to hide the round trip (0.1 ms, and up to the
# 5 ms that a busy trainer holds the GIL); longer ones one deep, so that none waits behind a slow one.
_SHORT_NANOSECONDS = 20_000_000
# Closing waits for workers at most this long; the thread continues if a worker is blocked in the kernel.
_JOIN_SECONDS = 10.0


class FeedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the settings of a feeder.

    Attributes:
        workers: Number and kind of the workers.
        span: Number of batches that may be begun and not yet taken by the trainer.
        limits: Limits of the ring.
        planning: Lock that is held while the prepared stream is used.
        pinner: Registers slots with the device, or None if that is not needed.
        timeout_seconds: Longest time that a sample may take; 0 means no limit.
        poison: Whether freed slots are overwritten, to find views that outlive them; for tests.
    """

    workers: WorkerConfig
    span: int
    limits: Limits
    planning: threading.Lock
    pinner: Pinner | None = None
    timeout_seconds: float = 0.0
    poison: bool = False


class Feeder:
    """Owns the thread, the workers and the ring of one rank; see above.

    The trainer calls `start`, `configure`, `run`, `note_taken`, `look_again` and `close`. All other changes are made on
    the thread.

    Attributes:
        ring: Slots in shared memory for finished batches.
        counters: Counts of batches, bytes and times.
        broken: Error that ended the thread, a ClosedError after `close`, or None while it runs.

    Raises:
        ConfigError: see `Supervisor`.
    """

    def __init__(self, plan: FeedPlan) -> None:
        self.counters = FeedCounters()
        self.broken: StreamerError | None = None
        self._plan = plan
        self._wakeup = FeederWakeup()
        self.ring = Ring(plan.limits, self._wakeup.signal_on_demand, plan.pinner, poison=plan.poison)
        self._selector = selectors.DefaultSelector()
        self._supervisor = Supervisor(plan.workers, self._selector, self._handle_message, self._handle_exit)
        self._pool = self._supervisor.pool
        self._timeouts = SampleTimeouts(self._pool, plan.timeout_seconds)
        self._asked: deque[BatchRun] = deque()
        self._configured: tuple[RankStream, MakerRules] | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="streamer-feeder", daemon=True)
        self._run_state = RunState(plan.span, plan.planning, self._selector, self.ring)
        self._tasks = 0
        self._crashes = failures.CrashStreak()
        self._failed_openings = 0
        self._batch_nanoseconds = 0

    def __repr__(self) -> str:
        return f"Feeder({self._pool!r}, {self.ring!r}, {self._run_state!r})"

    @property
    def head(self) -> BatchTimeline | None:
        """The timeline of the batch that the trainer gets next, or None while it is not being made."""
        return None if (pending := self._run_state.window.head) is None else pending.timeline

    @property
    def session(self) -> StepSession | None:
        """The session with the engine, or None if none is open; any thread may ask it."""
        return self._run_state.session

    def describe_wait(self) -> str:
        """Describes what the next batch of the trainer waits for; any thread."""
        return describe_wait(self._run_state.window.head, self._pool, self._plan.workers.modules, self._describe_work)

    # ------------------------------------------------------------ the trainer's side

    def start(self) -> None:
        """Starts the thread, and with it the first worker if workers are processes; idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def configure(self, prepared: RankStream, rules: MakerRules) -> None:
        """Sets the stream and the rules of all runs. Called once, before the first run.

        Args:
            prepared: Stream that is read.
            rules: Rules by which workers make batches.

        Raises:
            ConfigError: the transform or collate function cannot be sent to the workers, or there is no memory for it.
        """
        self._pool.configure(prepared.recipe(), rules)
        self._configured = prepared, rules

    def run(self, epoch: int, batch: int) -> BatchRun:
        """Asks the thread to begin a run at a batch, and to end the previous run; returns the new one at once."""
        assert self._configured is not None
        run = BatchRun(self._configured[0], epoch, batch)
        self._asked.append(run)
        self._wakeup.signal()
        return run

    def note_taken(self, run: BatchRun, taken: int, epoch: int) -> None:
        """Records progress of the trainer, so that further batches may be begun.

        Args:
            run: Run whose batches are taken.
            taken: Number of its batches that the trainer has taken.
            epoch: Epoch of the last of them.
        """
        run.taken = taken
        run.epoch_taken = epoch
        self.look_again()

    def look_again(self) -> None:
        """Lets the thread look for slots that the trainer has released, if it waits for one."""
        self._wakeup.signal_on_demand()

    def close(self) -> None:
        """Ends workers and thread, for which it waits 10 s at most. Idempotent.

        Taking another batch raises a ClosedError from then on.
        """
        self._closing = True
        if self.broken is None:
            # At the interpreter's end loaders are closed before functions of the user that `atexit` calls later.
            self.broken = ClosedError("the workers of this loader have ended: it was closed, or the interpreter ends")
        self._wakeup.signal()
        # A garbage collection may call this on any thread, including the feeder's.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    # ------------------------------------------------------------ the thread

    def _serve(self) -> None:
        """Runs the thread until `close`, or until an error, which the trainer gets."""
        try:
            self._selector.register(self._wakeup, selectors.EVENT_READ, self._wakeup.clear)
            if self._plan.workers.worker_type == "process":
                self._supervisor.start_first()
            while not self._closing:
                self._run_once()
        except BaseException as error:
            logger.debug("the feeder ends with an error", exc_info=True)
            with contextlib.ExitStack() as stack:
                # This is called last, since `_end` empties the queue on which the trainer waits.
                stack.callback(self._fail_runs, error)
                self._end()
        else:
            self._end()

    def _end(self) -> None:
        """Ends the run, and closes the selector, the workers and the ring."""
        self._wakeup.wants_work = False
        with contextlib.ExitStack() as stack:  # each of them, even if another one raises
            stack.callback(self.ring.close)
            stack.callback(self._pool.close)
            stack.callback(self._selector.close)
            self._run_state.leave()

    def _fail_runs(self, error: BaseException) -> None:
        """Stores the error that has ended the thread, and delivers it to the runs whose trainers wait."""
        text = f"the loader's feeder thread failed: {type(error).__name__}: {error}"
        self.broken = error if isinstance(error, StreamerError) else limit_error(error) or BrokenError(text)
        if self.broken is not error:
            self.broken.__cause__ = error
        for run in (self._run_state.run, *self._asked):
            if run is not None:
                run.outcomes.put(FailedBatch(self.broken, final=True))

    def _run_once(self) -> None:
        """Begins runs that are asked for, sends and delivers batches, then waits for an event and handles it."""
        while self._asked:
            run = self._asked[0]  # It stays in the queue until it has begun: if the thread fails, its trainer is told.
            if self._run_state.run is None:
                self._pool.open_sources()
            self._run_state.leave()
            try:
                self._run_state.enter(run)
            except Exception as error:  # noqa: BLE001 - raised in the trainer
                run.outcomes.put(FailedBatch(limit_error(error) or error, final=True))
            else:
                self._crashes.reset()
                self._supervisor.start_first()
            self._asked.popleft()
        # It is sent with the next request for a chunk, which mostly follows: one message carries both.
        self._run_state.note_read()
        # It is set before dispatching, so that whatever the trainer takes from now on wakes this thread.
        self._wakeup.wants_work = True
        self._wakeup.wants_work = self._dispatch()
        # It delivers after dispatching: a trainer that is awake takes the GIL at each system call of this thread.
        self._run_state.deliver()
        waits = (self._timeouts.remaining_seconds, self._run_state.poll_seconds) if self._run_state.open else ()
        for key, _ in self._selector.select(min((wait for wait in waits if wait is not None), default=None)):
            key.data()
        for handle in self._timeouts.find_stuck() if self._run_state.open else ():
            if handle.process is None:
                ordinal = self._timeouts.ordinal(handle)
                what = self._describe_work(ordinal)
                self._run_state.stop(failures.explain_overdue(what, ordinal, self._plan.timeout_seconds))
            else:
                handle.timed_out = True
                handle.kill()
                self._supervisor.replace(handle)

    # ------------------------------------------------------------ dispatching

    def _dispatch(self) -> bool:
        """Sends batches to workers. Returns whether a worker stays idle because there is no batch or no slot for it."""
        if not self._run_state.open:
            return False
        if not any(handle.ready for handle in self._pool.workers.values()):
            self._look_ahead(START)
            return False
        while (handle := self._least_busy()) is not None:
            pending = self._run_state.next(idle=not handle.tasks or bool(self._pool.missing))
            if pending is None:
                return True
            if pending.slot is None:
                pending.slot = self.ring.take(late=self._run_state.window.head is not None)
            # If the trainer holds all slots and waits, the batch gets memory of its own.
            if pending.slot is None and not self._run_state.trainer_waits_for(pending):
                pending.timeline.enter(RING)
                self._run_state.window.repeat(pending)
                return True
            pending.timeline.enter(WORK)
            self._send(handle, pending)
        if self._pool.missing and self._look_ahead():
            self._supervisor.start_another()
        return False

    def _look_ahead(self, cause: str = "") -> bool:
        """Requests the chunks of the next batches from the engine. Returns whether a batch could be made now.

        Args:
            cause: Cause that the waiting of that batch is charged to, or "" for no change.
        """
        pending = self._run_state.next(idle=True)
        if pending is None:
            return False
        if cause:
            pending.timeline.enter(cause)
        self._run_state.window.repeat(pending)
        return True

    def _least_busy(self) -> WorkerHandle | None:
        """Returns the ready worker with the fewest batches, or None if all have enough."""
        # A worker that still starts gets no batch: the batch would wait, although another worker could make it now.
        ready = (handle for handle in self._pool.workers.values() if handle.ready)
        handle = min(ready, key=lambda handle: len(handle.tasks), default=None)
        depth = 2 if 0 < self._batch_nanoseconds < _SHORT_NANOSECONDS else 1
        return handle if handle is not None and len(handle.tasks) < depth else None

    def _send(self, handle: WorkerHandle, pending: Pending) -> None:
        self._tasks += 1
        pending.task = self._tasks
        handle.tasks.append(pending)
        handle.send_task(pending)

    # ------------------------------------------------------------ what the workers report

    def _handle_message(self, handle: WorkerHandle, message: Message, descriptor: int) -> None:
        """Handles a message of a worker; `descriptor` is that of memory which came with it, or -1."""
        if isinstance(message, Made):
            self._handle_made(handle, message, descriptor)
        elif isinstance(message, SkippedSample):
            _task_of(handle, message.number).skipped[message.ordinal] = message.cause
        elif isinstance(message, NotOpened):
            opening = deserialize_error(message.error)
            self._failed_openings += 1
            # The next worker opens the dataset, if another program has removed its files meanwhile.
            if isinstance(opening, ManifestCorruptError | FileNotFoundError) and self._failed_openings <= REOPENINGS:
                logger.warning("a worker could not open the dataset, whose files are written again: %s", opening)
                handle.has_reported = True
            else:
                self._run_state.stop(failures.add_open_hint(opening))
        elif isinstance(message, (FailedTask, Unreadable)):
            pending = _finish_task(handle, message.number)
            if pending.abandoned:
                self._release(pending)
            elif isinstance(message, Unreadable):
                self.counters.rereads += 1
                if pending.count_reread(message.chunk) > REREADS:
                    self._fail(pending, failures.explain_unreadable(pending, message.chunk, message.reason))
                else:
                    self._run_state.reject(message.chunk, message.reason)
                    self._run_state.window.repeat(pending)
            else:
                error = deserialize_error(message.error)
                self._fail(pending, failures.add_place(error, pending, message.ordinal))

    def _handle_made(self, handle: WorkerHandle, made: Made, descriptor: int) -> None:
        """Takes a finished batch: gives its slot new memory if it came with some, counts it, and queues it."""
        pending = _finish_task(handle, made.number)
        slot = pending.slot
        if descriptor >= 0 and slot is not None:
            # The slot gets the new memory. If the ring has no space for it, it is the batch's own.
            self.counters.oversize_batches += slot.nbytes > 0
            adopted = self.ring.adopt(slot, descriptor, made.memory_bytes)
            self._supervisor.forget_slot(slot.number, handle)
            if adopted:
                descriptor = -1
            else:
                handle.forget_slot(slot.number)
                pending.slot = None
        finished = Finished(pending, made, descriptor)
        if pending.abandoned:
            finished.discard(self.ring)
            return
        pending.timeline.enter(MADE)
        pending.timeline.worker = handle.number
        self._crashes.reset()
        self._failed_openings = 0
        self.counters.count(made)
        self.counters.spilled_batches += finished.own_memory >= 0
        spent = made.stages.total
        self._batch_nanoseconds = (3 * (self._batch_nanoseconds or spent) + spent) // 4
        self._run_state.window.finish(pending, finished)

    def _handle_exit(self, handle: WorkerHandle, report: ExitReport) -> bool:
        """Lets other workers make the batches of a worker that has ended. Returns whether to start another worker."""
        self.counters.respawns += 1
        for pending in handle.tasks:
            pending.timeline.record_crash()
            if pending.abandoned:
                self._release(pending)
            elif failures.count_crash(pending, report):
                # The batch fails for the sample that ends every worker, or the sample is left out.
                assert self._configured is not None
                ordinal = report.doing.ordinal
                what = self._describe_work(ordinal)
                failure = failures.explain_crashes(pending, what, report, self._plan.timeout_seconds)
                if ordinal < 0 or self._configured[1].on_error != "skip":
                    self._fail(pending, failure)
                    continue
                pending.left_out.add(ordinal)
                pending.skipped[ordinal] = str(failure)
                self._run_state.window.repeat(pending)
            else:
                self._run_state.window.repeat(pending)
        if not handle.has_reported and (error := self._crashes.add(report)) is not None:
            self._run_state.stop(error)
        return self._run_state.open

    def _describe_work(self, ordinal: int) -> str:
        """Describes what a worker was doing; `ordinal` is the number of its sample, or below 0 for the whole batch."""
        assert self._configured is not None
        return describe_work(ordinal, self._configured[0])

    def _fail(self, pending: Pending, error: BaseException) -> None:
        self._release(pending)
        self._run_state.window.finish(pending, FailedBatch(error))

    def _release(self, pending: Pending) -> None:
        """Gives the slot of a batch back to the ring, unused."""
        if pending.slot is not None:
            self.ring.put_back(pending.slot)
            pending.slot = None


def _finish_task(handle: WorkerHandle, number: int) -> Pending:
    pending = _task_of(handle, number)
    handle.tasks.remove(pending)
    return pending


def _task_of(handle: WorkerHandle, number: int) -> Pending:
    for pending in handle.tasks:
        if pending.task == number:
            return pending
    raise AssertionError(f"worker {handle.number} reported task {number}, which it was not sent")
