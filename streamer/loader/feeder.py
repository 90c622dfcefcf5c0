"""The feeder: the one thread of the rank that talks to the workers and to the engine.

It sleeps until something happens: a worker answers or dies, the engine has news, the trainer gives a slot back. So
batches are made, and dead workers replaced, while the trainer computes; what the trainer's thread does itself is to
take a finished batch from a queue. Worker processes start with the feeder, while the trainer's thread still looks for
the engine and the manifest.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import threading
from collections import deque
from collections.abc import Mapping

from streamer.errors import BrokenError, StreamerError
from streamer.loader import failures
from streamer.loader.bell import Bell
from streamer.loader.causes import MADE, RING, START, WORK, Story
from streamer.loader.control import EARLY, Kind, Made, Note
from streamer.loader.counters import FeedCounters
from streamer.loader.feed_plan import FeedPlan
from streamer.loader.handles import ExitReport, WorkerHandle
from streamer.loader.keeper import RingKeeper, release
from streamer.loader.maker import MakerRules
from streamer.loader.overtime import Overtime
from streamer.loader.remote_errors import thaw_error
from streamer.loader.ring import Ring
from streamer.loader.runs import Failed, Finished, Run, Scene
from streamer.loader.source import PreparedStream
from streamer.loader.staff import Staff
from streamer.loader.window import Pending

logger = logging.getLogger(__name__)

# Batches shorter than this are queued two deep at a worker, to hide the way there and back (0.1 ms, and up to the
# 5 ms that a busy trainer holds the GIL); longer ones one deep, so that none waits behind a straggler. Large ones, too,
# as they are written past the CPU's caches: 38.5 MB take 2.1 instead of 2.4 ms wall and no more CPU (2026-11-22).
_SHORT_NANOSECONDS = 20_000_000
# Closing waits for workers at most this long; the thread goes on alone if one is in the kernel's hands.
_JOIN_SECONDS = 10.0


class Feeder:
    """See above. `start`, `equip`, `run`, `took` and `close` are the trainer's; everything else is on the thread.

    Args:
        plan: how.
    """

    def __init__(self, plan: FeedPlan) -> None:
        self.counters = FeedCounters()
        self.broken: StreamerError | None = None
        self._plan = plan
        self._bell = Bell()
        self._keeper = RingKeeper(plan.ring, plan.span, self._bell.wake, self._bell.ring)
        self._selector = selectors.DefaultSelector()
        self._staff = Staff(plan.crew, self._selector, self, lambda: self.ring)
        self._pool = self._staff.pool
        self._overtime = Overtime(self._pool, plan.timeout_seconds)
        self._asked: deque[Run] = deque()
        self._equipped: tuple[PreparedStream, MakerRules] | None = None
        self._closing = False
        # Whether the trainer has had a batch; written by it. Nothing is begun before that could wait: to build the ring
        # and to start a worker when the first batch was made kept it from the trainer for 5 to 19 ms (2026-11-22).
        self._taken = False
        self._thread = threading.Thread(target=self._live, name="streamer-feeder", daemon=True)
        self._scene = Scene(plan.span, plan.planning, self._selector)
        self._tasks = 0
        self._deaths = failures.Deaths()
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
        """Starts the thread, which starts the worker processes; idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def equip(self, prepared: PreparedStream, rules: MakerRules) -> None:
        """Says what all runs are of. Once, before the first.

        Raises:
            ConfigError: the transform or collate function cannot be sent to the workers.
        """
        self._pool.equip(prepared.recipe(), rules)
        self._equipped = prepared, rules

    def run(self, epoch: int, batch: int) -> Run:
        """Begins a new sequence of batches; the one before it ends."""
        assert self._equipped is not None
        run = Run(self._equipped[0], epoch, batch)
        self._asked.append(run)
        self._bell.ring()
        return run

    def took(self, run: Run, epoch: int) -> None:
        """The trainer has taken a batch of this epoch."""
        run.taken += 1
        run.epoch_taken = epoch
        if self._taken:
            self._bell.wake()
        else:
            self._taken = True
            self._bell.ring()

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
            if self._plan.crew.worker_type == "process":
                self._staff.hire_missing()
            while not self._closing:
                self._turn()
        except BaseException as error:
            logger.debug("the feeder ends with an error", exc_info=True)
            with contextlib.ExitStack() as stack:
                # Last: to leave the scene empties the queue on which the trainer waits.
                stack.callback(self._collapse, error)
                self._end()
        else:
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
        self._staff.announce(self._keeper.collect())
        # What follows mostly asks for a batch: one message for both.
        self._scene.note_read()
        # Set before looking: a slot freed after the look rings the bell.
        self._bell.hungry = True
        self._bell.hungry = self._dispatch()
        # After it: a trainer that is woken before asks for the GIL whenever this thread asks the kernel for something.
        self._scene.deliver()
        if self._staff.hire_the_rest(taken=self._taken):
            self._keeper.build()
        for key, _ in self._selector.select(self._patience_seconds):
            key.data()
        for handle in self._overtime.stuck() if self._scene.open else ():
            self._end_stuck(handle)

    @property
    def _patience_seconds(self) -> float | None:
        """How long to sleep though nothing happens; None: for ever."""
        stuck = self._overtime.patience_seconds if self._scene.open else None
        return min((s for s in (stuck, self._staff.patience_seconds) if s is not None), default=None)

    def _change_run(self, run: Run) -> None:
        if self._scene.run is None:
            self._pool.supply()
        self._scene.leave()
        try:
            self._scene.enter(run)
        except Exception as error:  # noqa: BLE001 - it goes to the trainer
            run.outcomes.put(Failed(error, final=True))
            return
        self._deaths.forget()
        self._staff.hire_missing()

    # ------------------------------------------------------------ giving out work

    def _dispatch(self) -> bool:
        """Gives out work. Returns whether a worker is left idle for want of something."""
        if not self._scene.open:
            return False
        if not any(handle.ready for handle in self._pool.workers.values()):
            self._prepare()
            return False
        while (handle := self._least_busy()) is not None:
            pending = self._scene.next(idle=not handle.tasks)
            if pending is None:
                return True
            if not self._keeper.place(pending, self._scene.starving(pending)):
                pending.story.become(RING)
                self._scene.window.repeat(pending)
                return True
            pending.story.become(WORK)
            self._send(handle, pending)
        return False

    def _prepare(self) -> None:
        """Nobody can work yet: what the next batches need is asked for."""
        if (pending := self._scene.next(idle=True)) is not None:
            pending.story.become(START)
            self._scene.window.repeat(pending)

    def _least_busy(self) -> WorkerHandle | None:
        # Who still starts gets nothing: it would wait for the start, 0.2 s of CPU, while others could make it at once.
        free = (handle for handle in self._pool.workers.values() if handle.ready)
        handle = min(free, key=lambda h: len(h.tasks), default=None)
        return handle if handle is not None and len(handle.tasks) < self._depth() else None

    def _depth(self) -> int:
        return 2 if 0 < self._batch_nanoseconds < _SHORT_NANOSECONDS else 1

    def _send(self, handle: WorkerHandle, pending: Pending) -> None:
        self._tasks += 1
        pending.task = self._tasks
        handle.tasks.append(pending)
        handle.send_task(pending)
        self._staff.begin()

    # ------------------------------------------------------------ what the workers say

    def made(self, handle: WorkerHandle, made: Made, spill: int | None) -> None:
        """See `Employer`."""
        pending = _finish_task(handle, made.number)
        finished = Finished(pending, made, spill)
        if spill is not None and pending.ring is not None:
            self._oversize_made(pending, made)
        if pending.abandoned:
            finished.discard()
            return
        pending.story.become(MADE)
        pending.story.worker = handle.number
        self._deaths.forget()
        self.counters.made(made)
        self.counters.spilled += spill is not None and pending.slot != EARLY
        spent = made.stages.load + made.stages.collate + made.stages.write
        self._batch_nanoseconds = (3 * (self._batch_nanoseconds or spent) + spent) // 4
        self._scene.window.finish(pending, finished)

    def noted(self, handle: WorkerHandle, note: Note) -> None:
        """See `Employer`."""
        if note.kind is Kind.SKIPPED:
            _task_of(handle, note.number).skipped[note.value] = note.body.decode(errors="replace")
        elif note.kind is not Kind.READY:
            self._answered(handle, _finish_task(handle, note.number), note)

    def unopened(self, frozen: bytes) -> None:
        """See `Employer`."""
        self._scene.stop(failures.unopened(thaw_error(frozen)))

    def lost(self, handle: WorkerHandle, report: ExitReport) -> bool:
        """See `Employer`: its batches are made by others."""
        self.counters.respawns += 1
        for pending in handle.tasks:
            self._requeue(pending, report)
        if (error := self._deaths.another(report)) is not None:
            self._scene.stop(error)
        return self._scene.open

    def _requeue(self, pending: Pending, report: ExitReport) -> None:
        pending.story.lose()
        if pending.abandoned:
            release(pending)
        elif (error := failures.requeue(pending, report, self._skips)) is not None:
            self._fail(pending, error)
        else:
            self._scene.window.repeat(pending)

    @property
    def _skips(self) -> bool:
        assert self._equipped is not None
        return self._equipped[1].on_error == "skip"

    def _end_stuck(self, handle: WorkerHandle) -> None:
        if handle.process is None:
            self._scene.stop(failures.overdue(self._overtime.ordinal(handle), self._plan.timeout_seconds))
            return
        handle.kill()
        self._staff.lose(handle)

    def _answered(self, handle: WorkerHandle, pending: Pending, note: Note) -> None:
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

    def _grant(self, handle: WorkerHandle, pending: Pending, nbytes: int) -> None:
        """The worker holds a batch of this size: say where it goes, even if nobody waits for it any more."""
        self._staff.announce(self._keeper.grant(pending, nbytes))
        self._send(handle, pending)

    def _oversize_made(self, pending: Pending, made: Made) -> None:
        self.counters.oversize += 1
        self._staff.announce(self._keeper.oversize(pending, made.nbytes))


def _finish_task(handle: WorkerHandle, number: int) -> Pending:
    pending = _task_of(handle, number)
    handle.tasks.remove(pending)
    return pending


def _task_of(handle: WorkerHandle, number: int) -> Pending:
    for pending in handle.tasks:
        if pending.task == number:
            return pending
    raise AssertionError(f"worker {handle.number} answered task {number}, which it was not given")
