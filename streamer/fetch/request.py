"""Sends one GET with deadlines for its first byte and its progress, and a duplicate of it if the first byte is late.

`fetch/transfer.py` makes each try of a range with it (`HedgedAttempt`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import msgspec

from streamer.errors import StoreError, StoreTimeoutError, StreamerError
from streamer.fetch import hedge
from streamer.fetch.endpoint import QUEUED_SECONDS, RATE_LEAST_BYTES, Endpoint
from streamer.fetch.hedge import Sampled
from streamer.fetch.presence_clock import Alarm, TaskDeadline
from streamer.fetch.statistics import RequestTally
from streamer.manifest.model import Extent
from streamer.store.addresses.urls import shown
from streamer.store.base import PIECE_BYTES, Get

# Returns the memory for all ranges of a chunk; called at the first byte of each request.
MakeView = Callable[[], memoryview]


class RequestSpec(msgspec.Struct, frozen=True):
    """Describes a request and its limits.

    Attributes:
        extent: the part of a range that is still missing.
        endpoint: the endpoint that serves it.
        tally: counts the request and its bytes.
        first_byte: recent times to first byte of requests of this size class, to which that of the request is added.
        first_byte_seconds: seconds after which a request without a first byte is given up.
        duplicate_seconds: seconds without a first byte after which a duplicate is due. None means that none is sent.
        make_view: returns the memory that the bytes are copied to.
        at: offset of the extent's first byte in that memory.
        piece_bytes: number of bytes that the store should pass on at once.
        fresh: whether to use a new connection.
    """

    extent: Extent
    endpoint: Endpoint
    tally: RequestTally
    first_byte: Sampled
    first_byte_seconds: float
    duplicate_seconds: float | None
    make_view: MakeView
    at: int
    piece_bytes: int = PIECE_BYTES
    fresh: bool = False


class Request:
    """Sends one GET and copies its body to the memory of the fetch. `await receive()` once.

    Args:
        spec: the request and its limits.
        claim: called at the first byte. It returns False if another request delivers the body instead.
        late: called once when a duplicate is due. None means that no duplicate is sent.

    Attributes:
        received: number of bytes of the extent that are in the memory, from its beginning on.
    """

    def __init__(
        self, spec: RequestSpec, claim: Callable[[Request], bool], late: Callable[[], None] | None = None
    ) -> None:
        self._spec = spec
        self._claim = claim
        self._late = late
        self._into: memoryview | None = None
        self._lost = False
        self._deadline: TaskDeadline | None = None
        self._counted = 0
        self.received = 0
        self._outpaced = False
        self._started = 0.0
        self._first_byte_at = 0.0
        self._due = 0.0
        self._pace: Alarm | None = None

    async def receive(self) -> None:
        """Receives the body, and tells the endpoint how long it took.

        A request that `claim` refuses stores nothing and tells the endpoint nothing; its caller cancels it.

        Raises:
            StoreTimeoutError: no first byte or too little progress in time.
            StreamerError: the store's own error (`ObjectStore.get`). A StoreError, too, if it sent more bytes than were
                asked for.
        """
        spec = self._spec
        self._started = spec.endpoint.time()
        spec.tally.requests += 1
        extent = spec.extent
        deadline = TaskDeadline(spec.endpoint.clock, self._started + self._first_look(), self._more_seconds)
        self._deadline = deadline
        try:
            asked = Get(extent.object, extent.start, extent.stop, spec.piece_bytes, spec.fresh)
            await spec.endpoint.store.get(asked, self._take)
        except asyncio.CancelledError as error:
            if deadline.take_back():
                raise self._make_timeout() from error
            raise
        finally:
            deadline.cancel()
            if self._pace is not None:
                self._pace.cancel()
            self._into = self._late = None
            self._claim = lambda request: False  # breaks the reference cycle of attempt and request
            self._count()
        if not self._lost:
            endpoint = spec.endpoint
            now = endpoint.time()
            length = extent.length
            if length >= RATE_LEAST_BYTES and now > self._first_byte_at:
                endpoint.rates.add(length / (now - self._first_byte_at))
                endpoint.last_large = now
            endpoint.last_good = extent
            endpoint.record_success(now, now - self._started, length)

    def _first_look(self) -> float:
        """Returns the seconds until the deadline is looked at first: a duplicate is due, or the request is given up."""
        timeout = self._spec.first_byte_seconds
        late = self._spec.duplicate_seconds
        if self._late is None or late is None or late >= timeout:
            self._late = None
            return timeout
        return late

    def _more_seconds(self) -> float:
        """Returns the seconds to add to a deadline that is over; 0 gives the request up.

        More time is left for a body that made progress, and for a first byte that was late only for a duplicate
        (which is sent now) or that the store may have queued.
        """
        spec = self._spec
        if self.received:
            return 0.0 if self._outpaced else self._due - spec.endpoint.time()
        if self._late is not None:
            late, self._late = self._late, None
            late()
            if (left := self._started + spec.first_byte_seconds - spec.endpoint.time()) > 0.0:
                return left
        return QUEUED_SECONDS if spec.endpoint.may_be_in_queue(self._started, spec.first_byte_seconds) else 0.0

    def _take(self, piece: bytes | memoryview) -> None:
        """Copies a piece to the memory. The usual store passes pieces of 16 KiB, so the common case comes first."""
        at = self.received
        stop = at + len(piece)
        if (into := self._into) is None and (into := self._begin_body()) is None:
            return
        if stop > len(into):
            url = shown(self._spec.extent.object.url)
            raise StoreError(f"{url}: more bytes than the {len(into)} that were asked for", url=url)
        into[at:stop] = piece
        self.received = stop
        if stop - self._counted >= self._spec.piece_bytes and stop < len(into):
            self._watch()

    def _begin_body(self) -> memoryview | None:
        """Handles the first byte: returns the memory for the extent; None if another request delivers the body."""
        spec = self._spec
        if self._lost or not self._claim(self):
            self._lost = True
            return None
        now = spec.endpoint.time()
        self._first_byte_at = now
        spec.endpoint.watch.record_progress(now)
        spec.endpoint.newest_answered = max(spec.endpoint.newest_answered, self._started)
        spec.first_byte.add(now - self._started)
        spec.tally.record_first_byte(now - self._started)
        self._into = spec.make_view()[spec.at : spec.at + spec.extent.length]
        # The deadline watches progress from the first byte on.
        deadline = self._deadline
        assert deadline is not None, "set before the body begins"
        self._due = now + spec.endpoint.config.progress_seconds
        if self._due < deadline.due:  # a later time is set when the deadline is over (`_more_seconds`)
            deadline.move(self._due)
        if spec.extent.length >= RATE_LEAST_BYTES:
            allowed = hedge.body_seconds(spec.extent.length, spec.endpoint.rates)
            if allowed is not None:
                self._pace = Alarm(spec.endpoint.clock, now + allowed, partial(self._check_pace, deadline))
        return self._into

    def _count(self) -> int:
        """Counts in the tally the bytes that arrived since the last call; returns their number."""
        new = self.received - self._counted
        self._counted = self.received
        self._spec.tally.received_bytes += new
        return new

    def _watch(self) -> None:
        """Allows a body more time for the bytes that arrived: their time at the least rate that is accepted.

        The deadline is at most `progress_seconds` from now.
        """
        config = self._spec.endpoint.config
        deadline = self._deadline
        assert deadline is not None, "set before the body begins"
        earned = self._count() / max(1, config.progress_floor_bytes_per_second)
        now = self._spec.endpoint.time()
        self._spec.endpoint.watch.record_progress(now)
        self._due = min(now + config.progress_seconds, self._due + earned)
        if self._due < deadline.due and not self._outpaced:
            deadline.move(self._due)

    def _check_pace(self, deadline: TaskDeadline) -> None:
        """Ends a body that takes four times as long as others, if enough is left and the budget of duplicates allows.

        The next try asks for the rest on another connection.
        """
        left = self._spec.extent.length - self.received
        if left >= RATE_LEAST_BYTES and not deadline.expired and self._spec.endpoint.may_duplicate(left):
            self._outpaced = True
            deadline.move(self._spec.endpoint.time())

    def _make_timeout(self) -> StoreTimeoutError:
        """Returns the error of a request that was given up, and counts it as outpaced or stalled."""
        spec = self._spec
        elapsed = self._spec.endpoint.time() - self._started
        spec.tally.outpaced += self._outpaced
        spec.tally.stalled += not self._outpaced
        extent = spec.extent
        url = shown(spec.extent.object.url)
        return StoreTimeoutError(
            f"{url}: {self.received} of {extent.length} bytes of [{extent.start}, {extent.stop}) after "
            f"{elapsed:.1f} s; abandoned for lack of progress",
            url=url,
            outpaced=self._outpaced,
        )


class HedgedAttempt:
    """Makes one try of a range: a request and perhaps a duplicate, of which the first with a byte delivers the body.

    `await run()` once; the caller holds a place in the endpoint's window. The first request runs in the caller's task.
    A duplicate runs in a task of `group`. If it has the first byte, it cancels the first request, and the caller's task
    waits for it instead. So the common case costs neither a task nor a group (3 us of 40 for a small object,
    2026-11-20).

    Args:
        spec: the request and its limits.
        group: group in which a duplicate runs. The caller's task belongs to it, too.
    """

    def __init__(self, spec: RequestSpec, group: asyncio.TaskGroup) -> None:
        self._spec = spec
        self._group = group
        self._first = Request(spec, self._claim, self._start_duplicate)
        self._task: asyncio.Task[object] | None = None
        self._winner: Request | None = None
        self._duplicate: asyncio.Task[None] | None = None
        self._failure: StreamerError | None = None

    @property
    def received(self) -> int:
        """Number of bytes in the memory, received by the request that delivers the body."""
        return self._winner.received if self._winner is not None else 0

    async def run(self) -> None:
        """Receives the extent. When this returns or raises, none of its requests is left.

        Raises:
            StreamerError: this try failed. The `received` bytes are good, and another try may ask for the rest only.
        """
        self._task = asyncio.current_task(self._spec.endpoint.clock.loop)
        self._spec.endpoint.budget.earn(self._spec.extent.length)
        try:
            await self._first.receive()
        except StreamerError as error:
            self._failure = error
        except asyncio.CancelledError:
            # If only the duplicate has cancelled this task, the duplicate delivers the body.
            if not (self._leads() and self._task is not None and self._task.uncancel() == 0):
                raise
            await self._wait_for_duplicate()
        finally:
            self._drop_duplicate()
            await self._wait_for_duplicate()
        if self._failure is not None:
            raise self._failure

    def _claim(self, request: Request) -> bool:
        """Whether `request`, which has a byte, delivers the body. The first one to ask does, and cancels the other."""
        if self._winner is not None:
            return self._winner is request
        self._winner = request
        if request is self._first:
            self._drop_duplicate()
        elif self._task is not None:
            self._spec.tally.hedge_wins += 1
            self._task.cancel()
        return True

    def _drop_duplicate(self) -> None:
        if self._duplicate is not None:
            self._duplicate.cancel()

    def _start_duplicate(self) -> None:
        """Sends a duplicate because the first byte is late, if the budget allows one."""
        if self._task is None or self._task.cancelling():  # the group accepts no more tasks
            return
        if self._winner is None and self._spec.endpoint.may_duplicate(self._spec.extent.length):
            self._spec.tally.hedges += 1
            self._duplicate = self._group.create_task(self._run_duplicate())

    async def _run_duplicate(self) -> None:
        """Makes the duplicate, beyond the limit of the window; keeps its error if it delivered the body."""
        endpoint = self._spec.endpoint
        endpoint.gate.force()
        try:
            await Request(self._spec, self._claim).receive()
        except StreamerError as error:
            if self._leads():  # the try fails with it; otherwise the first request goes on alone
                self._failure = error
        finally:
            endpoint.gate.release()

    def _leads(self) -> bool:
        """Whether the duplicate delivers the body."""
        return self._winner is not None and self._winner is not self._first

    async def _wait_for_duplicate(self) -> None:
        if self._duplicate is not None and not self._duplicate.done():
            await asyncio.wait([self._duplicate])
