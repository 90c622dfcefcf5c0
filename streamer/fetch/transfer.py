"""Repeats requests until they succeed or cannot: a range from the last good byte on, and other calls as a whole.

Used by `fetch/fetcher.py`: `RangeTransfer` for the ranges of chunks, `WholeCall` for listings and writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from typing import TYPE_CHECKING, TypeVar

import msgspec

from streamer.errors import AccessDeniedError, StoreError, StoreTimeoutError, StreamerError, ThrottledError
from streamer.fetch import hedge
from streamer.fetch.request import HedgedAttempt, MakeView, RequestSpec
from streamer.fetch.retry import (
    SILENT_TRIES,
    Failing,
    TryOutcomes,
    cap_to_deadline,
    describe_tries,
    gives_up,
    is_expiry,
    retryable,
)
from streamer.manifest.model import Extent
from streamer.store.addresses.urls import shown
from streamer.store.base import PIECE_BYTES

if TYPE_CHECKING:
    from streamer.fetch.endpoint import Endpoint
    from streamer.fetch.fair_gate import WaitQueue
    from streamer.fetch.hedge import Sampled
    from streamer.fetch.statistics import RequestTally

T = TypeVar("T")

# Fewer bytes than this are not progress. A body that always breaks may deliver half of the rest each time, at last
# single bytes: when these counted, the error came after 16 s instead of 9 (2026-11-22).
PROGRESS_BYTES = 64 << 10


class FetchContext(msgspec.Struct, frozen=True):
    """Holds the state shared by the ranges that one fetch requests from one endpoint.

    Attributes:
        queue: the queue in which they wait for a place in the window.
        make_view: returns the memory for all ranges of the fetch.
        group: runs their tasks, and those of duplicates.
        tally: counts their requests.
    """

    queue: WaitQueue
    make_view: MakeView
    group: asyncio.TaskGroup
    tally: RequestTally


class RangeTransfer:
    """Fetches one range, from the first try to the last: `await run()` once.

    Received bytes are kept over tries; a try asks only for the rest.

    Args:
        extent: the range.
        endpoint: the endpoint that serves it.
        context: the state shared with other ranges.
        at: offset of the range's first byte in the memory of the fetch.
    """

    def __init__(self, extent: Extent, endpoint: Endpoint, context: FetchContext, at: int) -> None:
        self._extent = extent
        self._endpoint = endpoint
        self._context = context
        self._offset = at - extent.start
        self._position = extent.start
        self._attempts = 0
        self._failed_tries = 0
        self._good = extent.start
        self._started = 0.0
        self._progressed = 0.0
        self._first_failure = 0.0
        self._outcomes = TryOutcomes()
        self._last_failure = 0.0
        self._sent = 0.0
        self._served = float("-inf")
        self._refreshed = False
        self._was_late = False
        self._fresh = False
        self._stalls = 0
        self._first_stall = 0.0

    async def run(self) -> None:
        """Fetches the range into the memory.

        Raises:
            StreamerError: the error of the last try. A StoreError names the number of tries and the time, and its
                details have url, attempts and elapsed_seconds.
        """
        clock = self._endpoint.clock
        watch = self._endpoint.watch
        self._started = self._progressed = clock.time()
        clock.begin()
        watch.begin()
        try:
            while self._position < self._extent.stop:
                pause = await self._try()
                if pause > 0.0:
                    await asyncio.sleep(pause)
        finally:
            watch.end()
            clock.end()

    async def _try(self) -> float:
        """Makes one try, once it has a place in the window; returns the seconds to wait before the next.

        Raises:
            StreamerError: there is no next try.
        """
        gate = self._endpoint.gate
        self._attempts += 1
        owner = await gate.acquire(self._context.queue)
        self._sent = self._endpoint.time()
        self._served = self._endpoint.newest_served
        try:
            attempt = HedgedAttempt(self._spec(), self._context.group)
            try:
                await attempt.run()
            finally:
                self._position += attempt.received
        except StreamerError as error:
            return await self._recover(error)
        finally:
            gate.release(owner=owner)
        self._endpoint.outcomes.served += self._attempts == 1
        return 0.0

    def _spec(self) -> RequestSpec:
        """Describes the next request: the rest of the range, and its timeouts."""
        extent = self._extent
        if self._position > extent.start:
            extent = Extent(extent.object, self._position, extent.stop)
        piece_bytes = PIECE_BYTES
        if self._was_late:
            # Pieces are smaller after a stall, so that a slow body shows its progress: 256 KiB within 1.5 s are
            # 175 kB/s, and a steady connection at the least rate was abandoned each time (2026-11-20).
            earned = int(self._endpoint.config.progress_floor_bytes_per_second * self._endpoint.config.progress_seconds)
            piece_bytes = max(1, min(PIECE_BYTES, earned // 2))
        first_byte = self._endpoint.first_byte(extent.length)
        return RequestSpec(
            extent=extent,
            endpoint=self._endpoint,
            tally=self._context.tally,
            first_byte=first_byte,
            first_byte_seconds=self._first_byte_timeout(first_byte),
            duplicate_seconds=self._endpoint.duplicate_after(first_byte),
            make_view=self._context.make_view,
            at=self._offset + extent.start,
            piece_bytes=piece_bytes,
            fresh=self._fresh,
        )

    def _first_byte_timeout(self, first_byte: Sampled) -> float:
        """Returns the timeout of the next try's first byte in seconds.

        It doubles with each failed try. It is cut to end at `failing_seconds` without progress, when the range may be
        given up, and at the end of `outage_seconds`, when the endpoint may be. If the next timeout is final anyway, it
        is that of a first try. The time without progress counts up to the last failure, not up to now: otherwise a
        range that had waited for the window had 9.8 s for a third try (2026-11-22).
        """
        known = self._endpoint.best_known(first_byte)
        max_seconds = self._endpoint.config.first_byte_seconds
        first = hedge.first_byte_timeout(known, max_seconds, 1)
        idle = self._last_failure - self._progressed
        # Another timeout is final if the time is over, and the endpoint served others since the last failure.
        has_served = self._endpoint.newest_served >= self._last_failure and not self._endpoint.congested
        is_last = has_served and idle >= self._endpoint.config.failing_seconds
        if not self._failed_tries or is_last:
            return first
        now = hedge.first_byte_timeout(known, max_seconds, self._failed_tries + 1)
        now = cap_to_deadline(now, self._endpoint.config.failing_seconds, idle, first)
        return cap_to_deadline(now, self._endpoint.config.outage_seconds, self._endpoint.watch.quiet_seconds(), first)

    async def _recover(self, error: StreamerError) -> float:
        """Decides after a failed try whether there is another; returns the seconds to wait before it.

        It tells the endpoint of the failure, and may renew credentials or send a probe.

        Raises:
            StreamerError: there is no other try.
        """
        self._endpoint.outcomes.failed += self._attempts == 1
        self._count_failure()
        self._count_stall(error)
        self._endpoint.record_failure(error, self._sent)
        self._context.tally.throttled += isinstance(error, ThrottledError)
        # The connection is used again after a refusal, because it works.
        self._fresh = not isinstance(error, ThrottledError)
        if is_expiry(error) and not self._refreshed:
            self._refreshed = True
            await self._endpoint.refresh()
            pause = 0.0
        elif await self._is_over(error):
            raise self._final(error) from error
        elif error.details.get("outpaced"):
            pause = 0.0
        else:
            idle = self._endpoint.time() - self._progressed
            pause = self._endpoint.pause(error, self._failed_tries, idle, early=self._endpoint.retries.take())
        self._context.tally.retries += 1
        return pause

    async def _is_over(self, error: StreamerError) -> bool:
        """Whether the failure of the last try is final. This may send a probe or renew the credentials."""
        if isinstance(error, AccessDeniedError):
            return await self._endpoint.is_denied_for_good(error, self._first_failure, self._context.tally)
        if not retryable(error):
            return True
        endpoint = self._endpoint
        failing = Failing(
            tries=self._failed_tries,
            idle_seconds=endpoint.time() - self._progressed,
            silent=self._is_silence(error),
            quiet_seconds=endpoint.watch.quiet_seconds(),
            stalls=self._stalls if endpoint.last_large > self._first_stall else 0,
            isolated=endpoint.concerns_one_request(error, self._first_failure, self._served, self._outcomes),
            permanent=endpoint.is_permanent(error),
        )
        # If no other request shows whether the object or the endpoint fails, a probe does.
        if not failing.isolated and failing.tries >= SILENT_TRIES:
            await endpoint.probe(self._context.tally)
        return gives_up(failing, self._endpoint.config)

    def _count_failure(self) -> None:
        """Counts a failed try; counts anew if at least `PROGRESS_BYTES` arrived since the first one that counts."""
        if self._position - self._good >= PROGRESS_BYTES or not self._failed_tries:
            self._good = self._position
            self._failed_tries = 0
            self._first_failure = self._endpoint.time()
            self._outcomes = copy(self._endpoint.outcomes)
            self._progressed = self._endpoint.time() if self._position > self._extent.start else self._started
        self._failed_tries += 1
        self._last_failure = self._endpoint.time()

    def _count_stall(self, error: StreamerError) -> None:
        """Counts a try that ended in silence; a body that was only slower than others is none."""
        if not isinstance(error, StoreTimeoutError) or error.details.get("outpaced"):
            return
        self._was_late = True
        if not self._is_silence(error):
            return
        if not self._stalls:
            self._first_stall = self._endpoint.time()
        self._stalls += 1

    def _is_silence(self, error: StreamerError) -> bool:
        """Whether a try timed out without an error of the store, although the link is not full."""
        unanswered = isinstance(error, StoreTimeoutError) and error.details.get("status") is None
        return unanswered and not self._endpoint.congested

    def _final(self, error: StreamerError) -> StreamerError:
        """Counts the range as failed; returns the error for the caller, to which a store's error adds the tries."""
        self._context.tally.failures += 1
        if not isinstance(error, StoreError):
            return error
        elapsed = self._endpoint.time() - self._started
        facts = {"url": shown(self._extent.object.url), **error.details}
        facts |= {"attempts": self._attempts, "elapsed_seconds": round(elapsed, 3)}
        tried = describe_tries(self._attempts, elapsed, self._endpoint.watch.quiet_seconds(), self._endpoint.config)
        return type(error)(error.message + tried, **facts)


class WholeCall:
    """Makes a listing or a write, and repeats it as a whole within the time limits of ranges: `await run(work)` once.

    Args:
        endpoint: the store's endpoint.
        tally: counts the retries.
        long: whether the answer may come only after minutes. The endpoint is not reported as silent meanwhile.
    """

    def __init__(self, endpoint: Endpoint, tally: RequestTally, *, long: bool = False) -> None:
        self._endpoint = endpoint
        self._is_watched = not long
        self._tally = tally
        self._tries = 0
        self._started = endpoint.time()
        self._refreshed = False
        self._first_failure = 0.0
        self._outcomes = TryOutcomes()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `work`, which is called once for each try and makes the whole call.

        Raises:
            StreamerError: the error of the last try. A StoreError after several tries names their number and the time.
        """
        endpoint = self._endpoint
        endpoint.clock.begin()
        if self._is_watched:
            endpoint.watch.begin()
        try:
            while True:
                self._tries += 1
                served = endpoint.newest_served
                try:
                    return await work()
                except StreamerError as error:
                    pause = await self._recover(error, served)
                await asyncio.sleep(pause)
        finally:
            if self._is_watched:
                endpoint.watch.end()
            endpoint.clock.end()

    def record_progress(self) -> None:
        """Records that a part of the answer has arrived, so that the endpoint does not count as silent."""
        self._endpoint.watch.record_progress(self._endpoint.time())

    async def _recover(self, error: StreamerError, served_at: float) -> float:
        """Decides after a failed try whether there is another; returns the seconds to wait before it.

        Args:
            error: the error of the try.
            served_at: the endpoint's `newest_served` when the try began.

        Raises:
            StreamerError: there is no other try.
        """
        self._endpoint.watch.record_failure(error)
        if self._tries == 1:
            self._first_failure = self._endpoint.time()
            self._outcomes = copy(self._endpoint.outcomes)
        if is_expiry(error) and not self._refreshed:
            self._refreshed = True
            await self._endpoint.refresh()
            return 0.0
        idle = self._endpoint.time() - self._started
        if await self._is_over(error, idle, served_at):
            raise self._final(error, idle) from error
        self._tally.retries += 1
        return self._endpoint.pause(error, self._tries, idle)

    async def _is_over(self, error: StreamerError, idle_seconds: float, served_at: float) -> bool:
        """Whether the failure of the last try is final. This may send a probe or renew the credentials."""
        if isinstance(error, AccessDeniedError):
            return await self._endpoint.is_denied_for_good(error, self._first_failure, self._tally)
        failing = Failing(
            tries=self._tries,
            idle_seconds=idle_seconds,
            silent=False,
            quiet_seconds=self._endpoint.watch.quiet_seconds(),
            isolated=self._endpoint.concerns_one_request(error, self._first_failure, served_at, self._outcomes),
            permanent=self._endpoint.is_permanent(error),
        )
        return not retryable(error) or gives_up(failing, self._endpoint.config)

    def _final(self, error: StreamerError, idle_seconds: float) -> StreamerError:
        if self._tries == 1 or not isinstance(error, StoreError):
            return error
        facts = {**error.details, "attempts": self._tries, "elapsed_seconds": round(idle_seconds, 3)}
        quiet = self._endpoint.watch.quiet_seconds()
        return type(error)(
            error.message + describe_tries(self._tries, idle_seconds, quiet, self._endpoint.config), **facts
        )
