"""Keeps what the requests to one endpoint share: its store, limits and measurements, and whether it serves at all.

Each fetcher (`fetch/fetcher.py`) has an endpoint for each bucket or host; `fetch/request.py` and `fetch/transfer.py`
report to it what becomes of requests, and ask it whether to duplicate, wait or give up. `engine/processes/pool.py` uses
its `AGAIN_SECONDS`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from streamer.config import FetchConfig
from streamer.errors import AccessDeniedError, StreamerError, ThrottledError
from streamer.fetch import hedge
from streamer.fetch.concurrency import LATENCY_INFLATION, FetchLimits, WindowControl, size_class
from streamer.fetch.fair_gate import FairGate
from streamer.fetch.hedge import HedgeBudget, Sampled
from streamer.fetch.pacing import Pacing
from streamer.fetch.presence_clock import Alarm, PresenceClock
from streamer.fetch.retry import (
    RetryBudget,
    TryOutcomes,
    cap_to_deadline,
    is_credential_error,
    is_expiry,
    max_denial_seconds,
    pause_seconds,
    read_retry_after,
)
from streamer.fetch.statistics import RequestTally
from streamer.manifest.model import Extent
from streamer.store.addresses.urls import shown
from streamer.store.base import Get, ObjectStore

logger = logging.getLogger(__name__)

# Takes a sentence for the users whose jobs wait for the endpoint.
Notify = Callable[[str], None]

# An endpoint that has served nothing for this long is reported, because users take longer pauses for a hang.
QUIET_SECONDS = 1.5
# An endpoint is reported at most once in this time, also if each of its answers takes longer than `QUIET_SECONDS`.
AGAIN_SECONDS = 60.0


class OutageWatch:
    """Measures how long an endpoint has served nothing while requests wait for it, and reports this to users.

    Args:
        clock: the endpoint's clock, which stops while this process does not run.
        root: the endpoint's root, without secrets, for messages.
        outage_seconds: seconds for which requests wait for the endpoint; only the report names them.
        notify: called with a sentence when nothing was served for `QUIET_SECONDS`, at most once in `AGAIN_SECONDS`.
    """

    def __init__(self, clock: PresenceClock, root: str, outage_seconds: float, notify: Notify) -> None:
        self._clock = clock
        self._root = root
        self._outage_seconds = outage_seconds
        self._notify = notify
        self._waiters = 0
        self._progressed = 0.0
        self._why = ""
        self._alarm: Alarm | None = None
        self._announced_since: float | None = None
        self._announced_last = float("-inf")

    def __repr__(self) -> str:
        return f"OutageWatch({self._root!r}, waiters={self._waiters}, {'quiet' if self._announced_since else 'serves'})"

    def begin(self) -> None:
        """Counts a request that waits for its answer; the caller calls `end` once when it no longer does."""
        self._waiters += 1
        if self._waiters == 1:
            self._progressed = self._clock.time()
            self._why = ""
            self._alarm = Alarm(self._clock, self._progressed + QUIET_SECONDS, self._look)

    def end(self) -> None:
        """Ends the wait of one request, which has its answer or its error."""
        self._waiters -= 1
        if not self._waiters and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = self._announced_since = None

    def record_progress(self, now: float) -> None:
        """Records that the endpoint sent bytes of an object, or an answer other than a refusal."""
        self._progressed = now
        if self._announced_since is not None:
            logger.info("%s serves again, after %.1f s", self._root, now - self._announced_since)
            self._announced_since = None

    def quiet_seconds(self) -> float:
        """Returns the seconds for which the endpoint has served nothing while requests waited; 0 if none waits."""
        return self._clock.time() - self._progressed if self._waiters else 0.0

    def record_failure(self, error: StreamerError) -> None:
        """Keeps the text of a failure, which the next report names as the reason."""
        url = error.details.get("url")
        self._why = error.message.removeprefix(f"{url}: ")

    def _look(self) -> None:
        """Reports the endpoint if it has been quiet for long enough, and sets the alarm for the next look."""
        assert self._alarm is not None, "it is the alarm that calls"
        now = self._clock.time()
        quiet = self.quiet_seconds()
        if self._announced_since is None and quiet >= QUIET_SECONDS and now - self._announced_last >= AGAIN_SECONDS:
            self._announced_since = self._progressed
            self._announced_last = now
            text = (
                f"waiting for {self._root}, which has served nothing for {quiet:.1f} s "
                f"({self._why or 'no answer yet'}); "
                f"requests that fail are repeated for {self._outage_seconds:.0f} s, then this is an error"
            )
            logger.warning("%s", text)
            self._notify(text)
        self._alarm.move(max(self._progressed, now - QUIET_SECONDS / 2) + QUIET_SECONDS)


# Credentials are renewed at most once in this time, for all requests that were refused together.
_REFRESH_SECONDS = 1.0
_PROBE_SECONDS = 1.0
# A request that the store may have queued is given this much more time, as often as `Endpoint.may_be_in_queue` says so.
QUEUED_SECONDS = 0.5
# Requests sent within this time of each other may be answered in any order, because they use several threads and
# connections. Without this, four of eight requests of one burst counted as overtaken by microseconds (2026-11-20).
ORDER_SECONDS = 0.25
_PROBE_TIMEOUT_SECONDS = 2.0
# Bodies of fewer bytes do not show the rate of a connection, because they fit the first packets.
RATE_LEAST_BYTES = 1 << 20


def ignore_notice(text: str) -> None:
    """Ignores a notice: the default of `notify`, for endpoints for which no job waits. The log has it, too."""


class Endpoint:
    """Holds the state shared by the requests of one fetcher to one bucket or host, with one set of storage options.

    It is made on the event loop that it lives on. `gate` enforces the window and the rate for tries of ranges.
    Duplicate requests, probes, listings and writes do not wait there.

    Args:
        root: root of the urls, such as "s3://bucket".
        store: the store that serves them. The fetcher closes it.
        config: bounds and budgets.
        notify: called with a sentence when the endpoint has served nothing for a while (`OutageWatch`).

    Attributes:
        config: tries, pauses and times, which its requests look up here. The window is that of `control`.
        clock: stands still while this process does not run. It stores the loop, because `get_running_loop()`
            calls getpid() each time in Python 3.11: 16 system calls for a small object were 7 % of its scheduling
            (2026-11-20).
        time: returns the clock's time in seconds. All moments here are of this clock, except when a chunk is due.
        watch: whether the endpoint serves at all.
        control, pacing: they decide the window and the rate.
        gate: where requests wait for their turn.
        retries, budget: how many early retries and duplicates are left.
        outcomes: counts of first tries and probes, by `RangeTransfer` and `probe`.
        rates: bytes per second of the last large bodies.
        last_success: when a request was served last, or None before the first one.
        last_good: range that was served last. `probe` reads its first byte again.
    """

    def __init__(self, root: str, store: ObjectStore, config: FetchConfig, notify: Notify = ignore_notice) -> None:
        self.root = root
        self.clock = PresenceClock()
        self.time = self.clock.time
        self.watch = OutageWatch(self.clock, shown(root), config.outage_seconds, notify)
        self.store = store
        self.control = WindowControl(config.window_start, config.window_min, config.window_max)
        self.pacing = self._make_pacing()
        self.gate = FairGate(self.control.size)
        self.retries = RetryBudget()
        self.outcomes = TryOutcomes()
        self.budget = HedgeBudget(config.hedge_requests_share, config.hedge_bytes_share)
        self.rates = Sampled()
        self.last_success: float | None = None
        self.last_good: Extent | None = None
        # Time of the last whole body of at least `RATE_LEAST_BYTES`.
        self.last_large = float("-inf")
        # Send time of the youngest request that has had a first byte.
        self.newest_answered = float("-inf")
        # Send time of the youngest request that was served.
        self.newest_served = float("-inf")
        self._limit_logged = False
        self.config = config
        self._hedging = config.hedge
        self._first_byte: dict[int, Sampled] = {}
        self._refreshed = float("-inf")
        self._probed = float("-inf")

    def __repr__(self) -> str:
        return f"Endpoint({shown(self.root)!r}, {self.control}, {self.gate})"

    def first_byte(self, length: int) -> Sampled:
        """Returns the last times to first byte of requests of about `length` bytes; the caller may add to them."""
        kind = size_class(length)
        if (sampled := self._first_byte.get(kind)) is None:
            sampled = self._first_byte[kind] = Sampled()
        return sampled

    def best_known(self, own: Sampled) -> Sampled:
        """Returns `own`, the times of a size class; while they are too few, those of the class that has the most."""
        if own.quantiles is not None:
            return own
        return max(self._first_byte.values(), key=lambda sampled: len(sampled.values))

    def record_success(self, now: float, seconds: float, length: int) -> None:
        """Records that a request for `length` bytes was served at `now`, after `seconds`; adapts window and rate."""
        self.last_success = now
        self.watch.record_progress(now)
        self.newest_served = max(self.newest_served, now - seconds)
        self.retries.give_back()
        self.control.record_request(now, seconds, length, contended=self.gate.contended)
        self.pacing.record_success(now - seconds, now)
        self._apply()

    def record_failure(self, error: StreamerError, sent_at: float) -> None:
        """Records that a request sent at `sent_at` failed.

        A refusal (429, 503) may lower the rate; one with Retry-After closes the gate for that time.
        """
        self.watch.record_failure(error)
        if not isinstance(error, ThrottledError):
            return
        self.pacing.record_refusal(sent_at, self.time())
        if pause := read_retry_after(error):
            self.gate.close_until(self.clock.loop.time() + pause)
        self._apply()

    def may_duplicate(self, length: int) -> bool:
        """Whether a duplicate for `length` bytes may be sent, or a slow body with that many left be abandoned.

        If it may, this takes the cost from the budget. It may not if hedging is off, the link is full, the rate is
        limited, or the budget is used up.
        """
        return self._hedging and not self.congested and not self.pacing.limited and self.budget.take(length)

    def duplicate_after(self, first_byte: Sampled) -> float | None:
        """Returns the seconds after which a request without a first byte gets a duplicate; None if hedging is off.

        Args:
            first_byte: times to first byte of its size class.
        """
        return hedge.duplicate_after(first_byte) if self._hedging else None

    @property
    def congested(self) -> bool:
        """Whether the link is full: requests take more than twice as long as on an idle link."""
        return self.control.inflation_at(self.time()) > LATENCY_INFLATION

    def may_be_in_queue(self, started_at: float, within_seconds: float) -> bool:
        """Whether the store may have queued a request without a first byte: it serves others, none sent 0.25 s later.

        If such a request were given up, it would be sent again to the end of the queue, and its answer would still fill
        the link: after a fivefold drop that took half of the link (2026-11-20). False after `outage_seconds`.

        Args:
            started_at: when the request was sent.
            within_seconds: another request must have been served within this many seconds before now.
        """
        now = self.time()
        served = self.last_success
        if self.newest_answered > started_at + ORDER_SECONDS or now - started_at >= self.config.outage_seconds:
            return False
        return served is not None and served > max(started_at, now - within_seconds)

    def is_permanent(self, error: StreamerError) -> bool:
        """Whether waiting cannot help: the certificate is refused, and no request was ever served."""
        return self.last_success is None and bool(error.details.get("untrusted"))

    def concerns_one_request(
        self, error: StreamerError, first_failed_at: float, served_at: float, earlier: TryOutcomes
    ) -> bool:
        """Whether a failure concerns this request alone, not the endpoint.

        It does if the endpoint served another request that was sent after the first failure, before this try began,
        and if at most a fifth of the first tries and probes since the first failure failed. Requests sent earlier may
        end after the store has stopped, and one that is served later may be the first after the store is back: when
        these counted, nine ranges were given up after 8 s (2026-11-20). A refusal (429, 503) concerns the endpoint.

        Args:
            error: the error of this try.
            first_failed_at: when the range first failed.
            served_at: value of `newest_served` when this try began.
            earlier: value of `outcomes` at the first failure.
        """
        if isinstance(error, ThrottledError) or served_at <= first_failed_at:
            return False
        return self.outcomes.count_since(earlier).ordinary

    async def probe(self, tally: RequestTally) -> None:
        """Requests one byte of the object served last, and records the outcome. Raises nothing; takes up to 2 s.

        Does nothing before the first object was served, and within a second of the last probe. When all readers wait
        for one object, no other request shows whether the endpoint works: without probes, an object that did not answer
        was waited for as long as for an outage (2026-11-20).

        Args:
            tally: counts the request and its byte.
        """
        good = self.last_good
        now = self.time()
        if good is None or now - self._probed < _PROBE_SECONDS:
            return
        self._probed = now
        tally.requests += 1
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_SECONDS):
                await self.store.get(Get(good.object, good.start, good.start + 1), tally.count_discarded)
        except (StreamerError, TimeoutError):
            self.outcomes.failed += 1
            return
        self.outcomes.served += 1
        self.last_success = self.time()
        self.watch.record_progress(self.last_success)
        self.newest_served = max(self.newest_served, now)

    async def is_denied_for_good(self, error: AccessDeniedError, first_refused_at: float, tally: RequestTally) -> bool:
        """Whether a refusal is final: it concerns one object or kind of request only, or has lasted for too long.

        A probe may find that out. If the refusal is not final, this calls `refresh` before it returns.

        Args:
            error: the refusal.
            first_refused_at: when the first refusal of this request came.
            tally: counts a probe.
        """
        denied_seconds = max_denial_seconds(error, self.config, served=self.last_success is not None)
        if self.time() - first_refused_at >= denied_seconds or (is_expiry(error) and error.details.get("fixed")):
            return True
        if not is_credential_error(error):
            await self.probe(tally)
            if self.newest_served >= first_refused_at:
                return True
        await self.refresh()
        return False

    def pause(self, error: StreamerError, tries: int, idle_seconds: float, *, early: bool = True) -> float:
        """Returns the seconds before a request is repeated: random, up to a bound that doubles with each failed try.

        Until the request has been without progress for `failing_seconds`, the pause is cut to end then. It is never
        shorter than a store's Retry-After.

        Args:
            error: the error of the last try.
            tries: number of tries in a row that failed.
            idle_seconds: seconds for which the request has been without progress.
            early: whether the first bounds are short. Otherwise each is the largest, `backoff_max_seconds`.
        """
        config = self.config
        start = config.backoff_start_seconds if early else config.backoff_max_seconds
        pause = pause_seconds(tries, start, config.backoff_max_seconds, random.random())
        return max(cap_to_deadline(pause, config.failing_seconds, idle_seconds), read_retry_after(error))

    def limit(self, limits: FetchLimits) -> None:
        """Sets another upper bound of the window; requests in flight go on."""
        self.control.limit(limits.window_max)
        self._apply()

    def pace_anew(self) -> None:
        """Forgets the rate that the store was found to permit, and sends without a limit until it is found again."""
        self.pacing = self._make_pacing()
        self._apply()

    def _make_pacing(self) -> Pacing:
        return Pacing(lambda: self.control.climbing, self.time())

    async def refresh(self) -> None:
        """Lets the store renew its credentials, unless it did so within the last second. Raises the store's errors."""
        if self.time() - self._refreshed > _REFRESH_SECONDS:
            self._refreshed = self.time()
            await self.store.refresh()

    def _apply(self) -> None:
        """Passes the decisions of window and pacing to the gate; logs once that the store limits the rate."""
        self.gate.per_second = self.pacing.per_second
        if self.pacing.confirmations >= 2 and not self._limit_logged:
            self._limit_logged = True
            logger.warning(
                "%s permits about %.0f requests/s and refuses more (429 or 503): it is asked no faster. Samples in tar "
                "files need fewer requests than objects of their own",
                shown(self.root),
                self.pacing.measured_limit,
            )
        if self.gate.limit != self.control.size:
            self.gate.resize(self.control.size)
