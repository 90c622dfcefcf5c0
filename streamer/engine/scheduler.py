"""Asks the policy for the chunks that sessions need, opens those that are local, and starts fetches of the others.

The engine has one `Scheduler` (`engine.py`). It is synchronous, on the engine's loop. Sessions record their progress
and `wake` it, as do finished fetches. Each wake schedules all sessions once, waiting ones first. Nothing polls.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable

import numpy as np

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy.answers import Admit, Freed, Hit
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.engine.bring import Fetch, Waiter
from streamer.engine.in_flight import InFlight
from streamer.engine.link_need import LinkNeed
from streamer.engine.session import EngineSession
from streamer.engine.session_progress import Use
from streamer.engine.windows import plan_windows, share_open_chunks
from streamer.errors import BrokenError, CacheError, CacheFullError, RecodeError, StreamerError

# The pause after a start ends this long after the last session was opened: eight clients were back within 40 ms of each
# other (two cores, 2026-11-20).
QUIET_SECONDS = 0.25


class Settling:
    """Times the pause after a start, in which nothing is evicted: clients of an earlier engine open sessions again.

    The pause ends `QUIET_SECONDS` after the last session was opened, and at the latest after `max_seconds`.

    Args:
        loop: the engine's loop.
        max_seconds: seconds from now on that the pause takes at most.
        settle: called once, at the end of the pause.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_seconds: float, settle: Callable[[], None]) -> None:
        self._loop = loop
        self._settle = settle
        self._settled = False
        self._at_latest = loop.time() + max_seconds
        self._timer = loop.call_at(self._at_latest, self._end)

    def end_soon(self) -> None:
        """Lets the pause end `QUIET_SECONDS` from now; the engine calls it for each session that opens."""
        if not self._settled:
            self._timer.cancel()
            self._timer = self._loop.call_at(min(self._at_latest, self._loop.time() + QUIET_SECONDS), self._end)

    def stop(self) -> None:
        """Stops the timer: `settle` is not called any more. Idempotent."""
        self._timer.cancel()

    def _end(self) -> None:
        self._settled = True
        self._settle()


class PageCache:
    """Advises the kernel about the pages of single chunks, in tasks on the engine's loop.

    A cache of up to half of the memory needs no advice: its pages stay. In a larger one, chunks that are needed soon
    are read ahead, and the pages of used chunks are dropped, because they are not needed before the next epoch.
    """

    def __init__(self, cache: ChunkCache, tasks: asyncio.TaskGroup) -> None:
        self._cache = cache
        self._tasks = tasks
        self._memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    @property
    def advises(self) -> bool:
        """Whether the chunks on the disk take more than `MEMORY_SHARE` of the machine's memory."""
        return self._cache.space.charged_bytes > MEMORY_SHARE * self._memory_bytes

    def prefetch_pages(self, key: bytes) -> None:
        """Advises that a chunk's file will be read soon, if `advises`."""
        if self.advises:
            self._tasks.create_task(self._cache.advise(key, "WILLNEED"))

    def drop_pages(self, key: bytes) -> None:
        """Advises that the pages of a chunk's file are not needed any more, if `advises`."""
        if self.advises:
            self._tasks.create_task(self._cache.advise(key, "DONTNEED"))


logger = logging.getLogger(__name__)

# A chunk that failed in look-ahead is tried again after this pause, or when its reader needs it.
LOOKAHEAD_RETRY_SECONDS = 2.0
# A chunk that the folder refused is tried again after this pause: by then victims are removed, or the disk has space.
REFUSED_SECONDS = 0.2
# A job may have this share of the limit open, or what was planned for it if that is more. So a trainer that asks for
# everything and reads nothing leaves room for the next one: chunks that are not open can be evicted.
OPEN_SHARE = 0.5
# Number of uses that are asked for, opened or released before other clients have their turn, which takes 0.15 s. Each
# turn looks at all sessions: with 2,048 uses a turn 1,000 sessions took twice the CPU (2026-11-28).
STEPS_PER_TURN = 16_384
# So many chunks that the policy is told of at the start of a pass count as one use. Each takes 0.1 us.
_CHUNKS_OF_A_STEP = 64
# Windows are planned anew when the link needs less or more than these shares of what they were planned with. A new plan
# may change what is kept, so it is made only then.
MIN_NEED = 0.6
MAX_NEED = 1.2
# Refusals in a row after which a reader that waits for the chunk gets the error.
MAX_REFUSALS = 10
# The kernel gets advice about pages if the chunks on the disk take more than this share of the memory.
MEMORY_SHARE = 0.5


class Scheduler:
    """Schedules all sessions. The engine has one, and sets `in_flight` before the first wake.

    Args:
        policy: decides what stays local. Only the scheduler asks it for the chunks of sessions.
        sessions: the engine's sessions by name, which the engine adds and removes.
        page_cache: gets advice about chunks that are read soon, or were read.
        loop: the engine's loop.

    Attributes:
        draining: whether no fetch is started any more; set by the engine.
    """

    in_flight: InFlight

    def __init__(
        self,
        policy: CachePolicy,
        sessions: dict[str, EngineSession],
        page_cache: PageCache,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.draining = False
        self._policy = policy
        self._sessions = sessions
        self._page_cache = page_cache
        self._loop = loop
        self._link = LinkNeed()
        # Need of the link with which the windows were planned, in bytes.
        self._planned_need: int | None = None
        self._look_again_at = 0.0
        self._several_jobs = False
        self._windows_changed = False
        self._wake_pending = False
        self._asking: set[str] = set()
        self._steps_left = STEPS_PER_TURN

    def __repr__(self) -> str:
        return f"Scheduler(sessions={len(self._sessions)}, in_flight={len(self.in_flight)}, draining={self.draining})"

    def wake(self) -> None:
        """Lets all sessions be scheduled once, in another turn of the loop, because something changed."""
        if not self._wake_pending:
            self._wake_pending = True
            self._loop.call_soon(self._schedule_all)

    def continue_passes(self, session: EngineSession) -> None:
        """Tells the policy the chunks of running passes again: another epoch's schedule has added some."""
        for part, number in enumerate(session.parts.running_pass):
            if number is not None:
                self._start_pass(session, part, number)

    def apply_evictions(self, freed: Freed) -> None:
        """Removes the files of chunks that the policy has evicted; sessions that hold one ask for it again."""
        self.ask_again_for(freed.victims)
        self.in_flight.unlink(freed.victims)
        if freed.victims or freed.promoted:
            self.wake()

    def end_fetch(self, fetch: Fetch, error: StreamerError | None) -> None:
        """Handles the end of a fetch: its waiters have the chunk, or, after an error, ask for it again or fail."""
        if fetch.limits is not None:
            self.apply_evictions(self._policy.set_limit(fetch.limits))
        self._link.end(fetch.key, self._loop.time(), 0 if error else int(fetch.dataset.file_bytes[fetch.chunk]))
        need = self._link.need_bytes
        planned = self._planned_need
        if need is not None and (planned is None or not MIN_NEED * planned <= need <= MAX_NEED * planned):
            self._plan_windows()
        if error is None:
            for waiter in fetch.waiters:
                waiter.session.mark_local(waiter.chunk)
            self.apply_evictions(self._policy.publish(fetch.key))
        else:
            self._policy.drop_fetch(fetch.key)
            for waiter in fetch.waiters:
                # Seconds until the next try even if a reader waits. None means that a reader that waits gets the error.
                # Each session counts for itself: one that begins after another has failed has as many tries.
                pause: float | None = None
                if isinstance(error, CacheError) and waiter.session.count_refusal(waiter.chunk) <= MAX_REFUSALS:
                    pause = REFUSED_SECONDS
                if pause is None and not waiter.shares_options(fetch):
                    # The fetch had the credentials of another job: the chunk is fetched with this session's own.
                    self._ask_again(waiter.session, waiter.chunk)
                else:
                    self._handle_failure(waiter, error, pause)
        self.wake()

    def change_windows(self) -> None:
        """Lets the next turn tell the policy what all sessions have open: another one is open, or one is closed."""
        self._windows_changed = True
        self.wake()

    def _plan_windows(self) -> None:
        """Tells the policy what sessions have open and in look-ahead at most, and what the link needs."""
        sessions = [session for session in self._sessions.values() if session.admitted]
        if self._windows_changed:
            self._windows_changed = False
            share_open_chunks(sessions)
        self._planned_need = self._link.need_bytes
        self.apply_evictions(self._policy.set_windows(plan_windows(sessions), self._planned_need))

    def resize_chunk(self, key: bytes, file_bytes: int) -> None:
        """Tells the policy the length (bytes) of a file that is about to be published; may evict other chunks."""
        self.apply_evictions(self._policy.resize(key, file_bytes))

    # ------------------------------------------------------------ one session

    def _schedule_all(self) -> None:
        """Releases the finished uses of all sessions, then schedules each unless these have spent the turn's uses."""
        self._wake_pending = False
        self._steps_left = STEPS_PER_TURN
        if self._windows_changed:
            self._plan_windows()
        live = [session for session in self._sessions.values() if session.admitted and session.failed is None]
        # Sessions that can progress count: a failed one keeps its requests until its reader closes it.
        self._several_jobs = len({session.owner for session in live}) > 1
        self._asking = {session.owner for session in live if session.progress.has_requests()}
        # First every finished use of every session: otherwise a blocked reader got the error that everything is open,
        # while finished uses of another were not released yet (2 in 11 runs with the smallest cache, 2026-11-20).
        for session in live:
            self._contain_errors(self._release_uses, session)
        if not self._may_go_on():  # otherwise a blocked reader would get the error of above
            return
        # Sessions that wait come first, then those that have the least of what was planned for them. How much a session
        # asks for does not count: one that asks for everything would always come first.
        for session in sorted(live, key=lambda one: (not one.waits, one.fill)):
            if session.failed is None:
                self._contain_errors(self._schedule, session)

    def _contain_errors(self, work: Callable[[EngineSession], None], session: EngineSession) -> None:
        """Runs work for a session; an error of the work fails this session only."""
        try:
            work(session)
        except StreamerError as error:
            session.fail(error)
        except Exception as error:
            logger.exception("session %s failed", session.name)
            session.fail(BrokenError(f"the engine failed over this session: {error!r}; see its log"))

    def _may_go_on(self) -> bool:
        """Whether there may be more work in this turn; if not, wakes, so that another turn follows."""
        if self._steps_left > 0:
            return True
        self.wake()
        return False

    def _schedule(self, session: EngineSession) -> None:
        """Opens what is local, asks for what is next, and announces what may be read."""
        # Local chunks are opened first: an open chunk is never evicted.
        self._open_local(session)
        self._ask_ahead(session)
        self._open_local(session)
        for chunk in session.find_due_retries():
            self._retry(session, chunk)
        session.announce()

    def _release_uses(self, session: EngineSession) -> None:
        """Ends the leases of the uses that the session has finished."""
        finished = session.progress.take_done(max(1, self._steps_left))
        self._steps_left -= len(finished)
        for use in finished:
            part, local = session.collection.locate(use.chunk)
            key = session.collection.datasets[part].key(local)
            if not session.progress.holds(use.chunk):
                session.forget(key, use.chunk)
            self.apply_evictions(self._policy.release(session.parts.names[part], local))
            self._page_cache.drop_pages(key)

    def _ask_ahead(self, session: EngineSession) -> None:
        """Asks the policy for what the session needs next, until it has enough ahead or there is no room."""
        progress = session.progress
        while not self.draining:
            if self._steps_left <= 0:
                self.wake()
                return
            if (request := progress.take_request()) is not None:
                if self._must_wait(session, request) or not self._ask(session, request):
                    progress.ask_later(request)
                    return
                self._steps_left -= 1
                continue
            use = progress.next_use()
            if use is None or (use.first > progress.want and progress.ahead_bytes >= session.lookahead_bytes):
                return
            if session.running_epoch is None:
                self._begin_epoch(session, use.epoch)
            part, local = session.collection.locate(use.chunk)
            if session.parts.running_pass[part] is None:
                self._start_pass(session, part, use.pass_number)
            self._policy.look_ahead(session.parts.names[part], local)
            progress.hold(use)
            self._steps_left -= 1
            # A chunk that is local by an earlier use, which is not finished yet, is a hit, and counted as one.
            if progress.is_local(use.chunk) and not self._ask(session, use):
                progress.ask_later(use)

    def _ask(self, session: EngineSession, use: Use) -> bool:
        """Asks the policy for one chunk, and starts or joins its fetch if it is not local.

        Returns False if it must be asked for again: there is no room now, or the chunk is just being removed. A session
        that could wait for ever for room fails.
        """
        progress = session.progress
        part, local = session.collection.locate(use.chunk)
        dataset = session.collection.datasets[part]
        key = dataset.key(local)
        dataset.check_key(local)
        session.remember(key, use.chunk)
        try:
            answer = self._policy.need(session.parts.names[part], local, blocking=progress.is_blocking(use))
        except CacheFullError as error:
            # All is open. Another reader with steps to read releases chunks after them.
            if not any(other is not session and other.can_progress for other in self._sessions.values()):
                session.fail(error)
            return False
        if isinstance(answer, Hit):
            session.mark_local(use.chunk)
            self._page_cache.prefetch_pages(key)
        else:
            # A hit needs no waiter: to find the first step of each took a fifth of the engine's time in a warm epoch
            # (2026-11-23).
            waiter = Waiter(session, use.chunk, progress.find_first_step(use.chunk))
            if isinstance(answer, Admit):
                self._link.begin(key, self._loop.time())
                self.ask_again_for(answer.victims)
                self.in_flight.start(key, waiter, answer.victims)
            elif not (answer.fetching and self.in_flight.join(key, waiter)):
                return False
        if use.number >= 0:
            session.count(use, hit=not isinstance(answer, Admit))
        return True

    def _must_wait(self, session: EngineSession, use: Use) -> bool:
        """Returns whether the session must ask for this use later; may start a probe of the link (`holds_back`).

        The session must wait if it has all that was planned for it while another job asks, unless its reader waits for
        this use. It must wait, too, if the link is being measured and the chunk is not local.
        """
        others_ask = bool(self._asking - {session.owner})
        if others_ask and session.fill >= 1.0 and not session.progress.is_blocking(use):
            return True
        if not self._policy.is_full:
            return False
        now = self._loop.time()
        # A full link carries what was asked for before: a job that is alone loses nothing by a probe, others would.
        urgent = self._several_jobs and session.progress.is_blocking(use)
        if not self._link.holds_back(now, urgent=urgent):
            return False
        if self._policy.is_local(session.collection.key(use.chunk)):
            return False
        if self._look_again_at <= now:
            # The end of a fetch wakes the scheduler, but all fetches may hang.
            self._look_again_at = self._link.probe_ends_at
            self._loop.call_later(self._look_again_at - now, self.wake)
        return True

    def _open_local(self, session: EngineSession) -> None:
        """Opens held uses that the reader wants and whose chunks are local; a chunk that is gone is asked for again."""
        for use in session.progress.openable(max(1, self._steps_left)):
            self._steps_left -= 1
            if not session.progress.is_blocking(use) and self._has_enough_open(session):
                return
            part, local = session.collection.locate(use.chunk)
            if use.epoch != session.running_epoch:
                self._begin_epoch(session, use.epoch)
            running = session.parts.running_pass[part]
            if running is None or use.pass_number > running:
                self._start_pass(session, part, use.pass_number)
            if self._policy.open(session.parts.names[part], local):
                session.progress.mark_open(use)
            else:
                session.progress.mark_absent(use.chunk)
                self.wake()
        self._may_go_on()

    def _has_enough_open(self, session: EngineSession) -> bool:
        """Whether the session has open what was planned for it, and its job as much as `OPEN_SHARE` says."""
        if session.open_bytes() < session.planned_bytes:
            return False
        job = [other for other in self._sessions.values() if other.owner == session.owner]
        max_open_bytes = max(sum(one.planned_bytes for one in job), OPEN_SHARE * self._policy.limit_bytes)
        return sum(one.open_bytes() for one in job) >= max_open_bytes

    def _begin_epoch(self, session: EngineSession, epoch: int) -> None:
        """Begins an epoch of a session, when its first use is held or opened; parts may have other values in it."""
        session.running_epoch = epoch
        if session.parts.begin_epoch(epoch):
            self.apply_evictions(self._policy.set_values(session.parts.relative_values()))

    def _start_pass(self, session: EngineSession, part: int, number: int) -> None:
        """Begins a pass over a part, and tells the policy, where it is an epoch, which chunks are still needed."""
        session.parts.running_pass[part] = number
        remaining = session.progress.find_chunks_ahead(session.collection.span(part), number)
        self._steps_left -= 1 + len(remaining) // _CHUNKS_OF_A_STEP
        self._policy.start_epoch(session.parts.names[part], remaining - np.uint32(session.collection.starts[part]))

    # ------------------------------------------------------------ failures

    def _handle_failure(self, waiter: Waiter, error: StreamerError, pause: float | None) -> None:
        """Fails a session whose reader waits for the chunk; otherwise, or if there is a `pause`, tries it again."""
        session = waiter.session
        chunk = waiter.chunk
        if pause is None and session.progress.is_wanted(chunk):
            session.fail(session.collection.name_error(chunk, error))
            return
        label = session.collection.label(chunk)
        logger.warning("%s of %s is tried again: %s", label, session.request.consumer, error)
        if pause is None:
            session.deferred.add(chunk)
            # A chunk that cannot be recoded now cannot be in 2 s: it is tried again only when its reader needs it.
            if not isinstance(error, RecodeError):
                self._loop.call_later(LOOKAHEAD_RETRY_SECONDS, self._retry, session, chunk)
        else:
            self._loop.call_later(pause, self._ask_again, session, chunk)

    def _retry(self, session: EngineSession, chunk: int) -> None:
        if chunk in session.deferred:
            session.deferred.discard(chunk)
            self._ask_again(session, chunk)

    def _ask_again(self, session: EngineSession, chunk: int) -> None:
        session.progress.mark_absent(chunk)
        self.wake()

    def ask_again_for(self, keys: Iterable[bytes]) -> None:
        """Records that chunks are not local any more: sessions that hold one ask for it again."""
        for key in keys:
            for session in self._sessions.values():
                for chunk in session.keys.pop(key, ()):
                    session.progress.mark_absent(chunk)
