"""The feeder: the one thread of the rank that talks to the workers and to the engine.

It sleeps until something happens: a worker answers or dies, the engine has news, the trainer gives a slot back. So
batches are made, and dead workers replaced, while the trainer computes; what the trainer's thread does itself is to
take a finished batch from a queue.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from streamer.cgroup import usable_cores
from streamer.errors import BrokenError, StreamerError, WorkerError
from streamer.loader import failures
from streamer.loader.bell import Bell
from streamer.loader.causes import MADE, RING, START, WORK, Story
from streamer.loader.control import EARLY, Kind, Made, Note
from streamer.loader.counters import FeedCounters
from streamer.loader.keeper import RingKeeper, RingRules, release
from streamer.loader.maker import MakerRules, thaw_error
from streamer.loader.pool import Handle, Obituary, Pool, WorkerType
from streamer.loader.ring import Ring
from streamer.loader.runs import Failed, Finished, Run, Scene
from streamer.loader.source import PreparedStream
from streamer.loader.window import Pending

logger = logging.getLogger(__name__)

# Batches shorter than this are queued two deep at a worker, to hide the way there and back (0.1 ms, and up to the
# 5 ms that a busy trainer holds the GIL); longer ones one deep, so that none waits behind a straggler.
_SHORT_NANOSECONDS = 20_000_000
# Deaths in a row without a single batch made: something is wrong with all workers.
_DEATHS = 20
_BOOT_DEATHS = 3
# Workers that start at the same time: one for every two cores of this process.
_STARTING = max(1, usable_cores() // 2)
# Closing waits for workers at most this long; the thread goes on alone if one is in the kernel's hands.
_JOIN_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class FeedPlan:
    """How the feeder works.

    Attributes:
        workers: how many, at least one.
        worker_type: processes or threads.
        rules: how batches are made.
        span: batches that may be begun and not yet taken.
        ring: its budget, and what is done with it.
        planning: held while the prepared stream is used.
        timeout_seconds: a sample may take this long; 0: any time.
    """

    workers: int
    worker_type: WorkerType
    rules: MakerRules
    span: int
    ring: RingRules
    planning: threading.Lock
    timeout_seconds: float = 0.0


class Feeder:
    """See above. `start`, `run`, `took` and `close` are the trainer's; everything else happens on the thread.

    Args:
        prepared: the data set.
        plan: how.
    """

    def __init__(self, prepared: PreparedStream, plan: FeedPlan) -> None:
        self.counters = FeedCounters()
        self.broken: StreamerError | None = None
        self._plan = plan
        self._pool = Pool(prepared.recipe(), plan.rules, plan.workers, plan.worker_type)
        self._bell = Bell()
        self._keeper = RingKeeper(plan.ring, plan.span, self._bell.wake, self._bell.ring)
        self._asked: deque[Run] = deque()
        self._closing = False
        self._thread = threading.Thread(target=self._live, name="streamer-feeder", daemon=True)
        self._selector = selectors.DefaultSelector()
        self._scene = Scene(prepared, plan.span, plan.planning, self._selector)
        self._tasks = 0
        self._deaths = 0
        self._batch_nanoseconds = 0

    def __repr__(self) -> str:
        return f"Feeder({self._pool!r}, {self._keeper!r}, {self._scene!r})"

    @property
    def ring(self) -> Ring | None:
        """The ring in use, if there is one yet."""
        return self._keeper.ring

    @property
    def head(self) -> Story | None:
        """The story of the batch that the trainer gets next, while it is being made."""
        pending = self._scene.window.head
        return pending.story if pending is not None else None

    def engine_values(self, timeout_seconds: float) -> Mapping[str, object] | None:
        """What the engine counts, asked over a line of its own, on any thread; None: nobody answers."""
        return self._scene.engine_values(timeout_seconds)

    # ------------------------------------------------------------ the trainer's side

    def start(self) -> None:
        """Starts the thread, which starts the workers."""
        self._thread.start()

    def run(self, epoch: int, batch: int) -> Run:
        """Begins a new sequence of batches; the one before it ends."""
        run = Run(epoch, batch)
        self._asked.append(run)
        self._bell.ring()
        return run

    def took(self, run: Run, epoch: int) -> None:
        """The trainer has taken a batch of this epoch."""
        run.taken += 1
        run.epoch_taken = epoch
        self._bell.wake()

    def close(self) -> None:
        """Ends workers and thread."""
        self._closing = True
        self._bell.ring()
        # A garbage collection may run this on any thread, the feeder's included.
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    # ------------------------------------------------------------ the thread

    def _live(self) -> None:
        try:
            self._selector.register(self._bell, selectors.EVENT_READ, self._bell.clear)
            while not self._closing:
                self._turn()
        except BaseException as error:
            logger.debug("the feeder ends with an error", exc_info=True)
            self._collapse(error)
        finally:
            self._end()

    def _end(self) -> None:
        self._bell.hungry = False
        with contextlib.ExitStack() as stack:  # each of them, whatever another one raises
            stack.callback(self._keeper.close)
            stack.callback(self._pool.close)
            stack.callback(self._selector.close)
            self._scene.leave()

    def _collapse(self, error: BaseException) -> None:
        if isinstance(error, StreamerError):
            self.broken = error
        else:
            self.broken = BrokenError(f"the loader's feeder thread died: {type(error).__name__}: {error}")
            self.broken.__cause__ = error
        for run in (self._scene.run, *self._asked):
            if run is not None:
                run.outcomes.put(Failed(self.broken, final=True))

    def _turn(self) -> None:
        while self._asked:
            self._change_run(self._asked.popleft())
        self._announce(self._keeper.collect())
        # Set before looking: a slot freed after the look rings the bell.
        self._bell.hungry = True
        self._bell.hungry = self._dispatch()
        self._scene.deliver()
        for key, _ in self._selector.select(self._patience()):
            key.data()
        self._scene.deliver()
        self._punish_the_stuck()

    def _change_run(self, run: Run) -> None:
        self._scene.leave()
        try:
            self._scene.enter(run)
        except Exception as error:  # noqa: BLE001 - it goes to the trainer
            run.outcomes.put(Failed(error, final=True))
            return
        self._deaths = 0
        self._hire_missing()

    # ------------------------------------------------------------ giving out work

    def _dispatch(self) -> bool:
        """Gives out work. Returns whether a worker is left idle for want of something."""
        if not self._scene.open:
            return False
        while (handle := self._least_busy()) is not None:
            pending = self._scene.next(idle=not handle.tasks)
            if pending is None:
                return True
            if not self._keeper.place(pending, self._scene.starving(pending)):
                pending.story.become(RING)
                self._scene.window.repeat(pending)
                return True
            pending.story.become(WORK if handle.ready else START)
            self._send(handle, pending)
        return False

    def _least_busy(self) -> Handle | None:
        handle = min(self._pool.handles, key=lambda h: len(h.tasks), default=None)
        return handle if handle is not None and len(handle.tasks) < self._depth() else None

    def _depth(self) -> int:
        return 2 if 0 < self._batch_nanoseconds < _SHORT_NANOSECONDS else 1

    def _send(self, handle: Handle, pending: Pending) -> None:
        self._tasks += 1
        pending.task = self._tasks
        handle.tasks.append(pending)
        handle.tell(pending)

    # ------------------------------------------------------------ hearing from workers

    def _hire_missing(self) -> None:
        """Starts the workers that are not there: not more at a time than there is room to start at full speed.

        A start is 0.2 s of CPU. Four at once on two cores gave the first batch after 0.8 to 1.6 s, with other load.
        """
        if not self._scene.open:
            return
        missing = sorted({*range(self._plan.workers)} - {handle.row for handle in self._pool.handles})
        starting = sum(not handle.ready for handle in self._pool.handles)
        for row in missing[: max(0, _STARTING - starting)]:
            self._hire(row)

    def _hire(self, row: int) -> None:
        handle = self._pool.start(row)
        self._selector.register(handle.channel, selectors.EVENT_READ, lambda: self._hear(handle))
        if handle.pidfd >= 0:
            self._selector.register(handle.pidfd, selectors.EVENT_READ, lambda: self._lose(handle))
        if self.ring is not None:
            handle.give(self.ring)

    def _hear(self, handle: Handle) -> None:
        if handle not in self._pool.handles:  # buried by an earlier event of the same turn
            return
        for answer in handle.answers():
            if answer is None:
                self._lose(handle)
                return
            message, descriptor = answer
            if isinstance(message, Made):
                self._made(handle, message, descriptor)
            else:
                self._noted(handle, message)

    def _made(self, handle: Handle, made: Made, spill: int | None) -> None:
        pending = _finish_task(handle, made.number)
        finished = Finished(pending, made, spill)
        if spill is not None and pending.ring is not None:
            self._oversize_made(pending, made)
        if pending.abandoned:
            finished.discard()
            return
        pending.story.become(MADE)
        pending.story.row = handle.row
        self._deaths = 0
        self.counters.made(made)
        self.counters.spilled += spill is not None and pending.slot != EARLY
        spent = made.stages.load + made.stages.collate + made.stages.write
        self._batch_nanoseconds = (3 * (self._batch_nanoseconds or spent) + spent) // 4
        self._scene.window.finish(pending, finished)

    def _noted(self, handle: Handle, note: Note) -> None:
        if note.kind is Kind.READY:
            handle.ready = True
            self._hire_missing()
            for pending in handle.tasks:
                pending.story.become(WORK)
        elif note.kind is Kind.SKIPPED:
            _task_of(handle, note.number).skipped[note.value] = note.body.decode(errors="replace")
        elif note.number == 0:
            self._scene.stop(failures.unopened(thaw_error(note.body)))
        else:
            self._answered(handle, _finish_task(handle, note.number), note)

    def _answered(self, handle: Handle, pending: Pending, note: Note) -> None:
        if note.kind is Kind.NEED:
            self._grant(handle, pending, note.value)
        elif pending.abandoned:
            release(pending)
        elif note.kind is Kind.UNREADABLE:
            self._reread(pending, note.value, note.body.decode())
        else:
            self._fail(pending, failures.located(thaw_error(note.body), pending, note.value))

    def _reread(self, pending: Pending, chunk: int, reason: str) -> None:
        pending.rereads += 1
        self.counters.rereads += 1
        if pending.rereads > failures.REREADS:
            self._fail(pending, failures.unreadable(pending, chunk, reason))
            return
        self._scene.reject(chunk, reason)
        self._scene.window.repeat(pending)

    def _fail(self, pending: Pending, error: BaseException) -> None:
        release(pending)
        self._scene.window.finish(pending, Failed(error))

    # ------------------------------------------------------------ the ring

    def _grant(self, handle: Handle, pending: Pending, nbytes: int) -> None:
        """The worker holds a batch of this size: say where it goes, even if nobody waits for it any more."""
        self._announce(self._keeper.grant(pending, nbytes))
        self._send(handle, pending)

    def _oversize_made(self, pending: Pending, made: Made) -> None:
        self.counters.oversize += 1
        self._announce(self._keeper.oversize(pending, made.nbytes))

    def _announce(self, ring: Ring | None) -> None:
        if ring is not None:
            for handle in self._pool.handles:
                handle.give(ring)

    # ------------------------------------------------------------ death

    def _lose(self, handle: Handle) -> None:
        """A worker is gone: what it still said counts, the rest of its batches is made by others."""
        if handle not in self._pool.handles:
            return
        self._selector.unregister(handle.channel)
        if handle.pidfd >= 0:
            self._selector.unregister(handle.pidfd)
        for answer in handle.answers():
            if answer is not None and isinstance(answer[0], Made):
                self._made(handle, answer[0], answer[1])
            elif answer is not None and isinstance(answer[0], Note):
                self._noted(handle, answer[0])
        self._replace(handle, self._pool.bury(handle))

    def _replace(self, handle: Handle, obituary: Obituary) -> None:
        self._deaths += 1
        self.counters.respawns += 1
        logger.warning("worker %d is gone (%s); a new one takes its place", handle.row, obituary.cause)
        for pending in handle.tasks:
            self._bequeath(pending, obituary)
        # A SIGKILL comes from outside and may strike at any time; a worker that ends by itself at start always will.
        by_itself = not obituary.was_ready and obituary.signal != signal.SIGKILL
        limit = _BOOT_DEATHS if by_itself else _DEATHS
        if self._deaths >= limit:
            self._scene.stop(failures.hopeless(self._deaths, obituary))
        elif self._scene.open:
            self._hire(handle.row)

    def _bequeath(self, pending: Pending, obituary: Obituary) -> None:
        doing = obituary.doing
        pending.story.lose()
        if pending.abandoned:
            release(pending)
        elif doing.task != pending.task or pending.strike(doing.ordinal) < failures.STRIKES:
            self._scene.window.repeat(pending)
        elif doing.ordinal >= 0 and self._plan.rules.on_error == "skip":
            pending.left_out.add(doing.ordinal)
            pending.skipped[doing.ordinal] = str(failures.deadly(pending, obituary))
            self._scene.window.repeat(pending)
        else:
            self._fail(pending, failures.deadly(pending, obituary))

    def _patience(self) -> float | None:
        """Seconds until the first sample at work has had its time; None: wait for events only."""
        limit = self._plan.timeout_seconds
        busy = [handle for handle in self._pool.handles if handle.tasks] if limit > 0 else []
        if not busy:
            return None
        # One that has not yet begun what it was given is looked at again after a whole time.
        return max(0.0, limit - max(self._spent_seconds(handle) for handle in busy))

    def _punish_the_stuck(self) -> None:
        limit = self._plan.timeout_seconds
        for handle in list(self._pool.handles) if limit > 0 else []:
            if (spent := self._spent_seconds(handle)) >= limit:
                ordinal = self._pool.doing(handle).ordinal
                logger.warning(
                    "worker %d has been at sample %d for %.1f s (timeout=%g)", handle.row, ordinal, spent, limit
                )
                self._stuck(handle)

    def _spent_seconds(self, handle: Handle) -> float:
        """How long the worker has been at its sample."""
        doing = self._pool.doing(handle)
        return (time.monotonic_ns() - doing.since) / 1e9 if doing.task else 0.0

    def _stuck(self, handle: Handle) -> None:
        if handle.process is not None:
            handle.kill()
            self._lose(handle)
            return
        doing = self._pool.doing(handle)
        self._scene.stop(
            WorkerError(
                f"sample {doing.ordinal} has taken longer than timeout={self._plan.timeout_seconds:g} s in a worker "
                "thread, which cannot be killed; use worker_type='process' to have it replaced",
                ordinal=doing.ordinal,
            )
        )


def _finish_task(handle: Handle, number: int) -> Pending:
    pending = _task_of(handle, number)
    handle.tasks.remove(pending)
    return pending


def _task_of(handle: Handle, number: int) -> Pending:
    for pending in handle.tasks:
        if pending.task == number:
            return pending
    raise AssertionError(f"worker {handle.row} answered task {number}, which it was not given")
