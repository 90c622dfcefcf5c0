"""Keeps what the requests to one endpoint share: store, window, budgets, observations, and whether it serves at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from streamer.config import FetchConfig
from streamer.errors import AccessDeniedError, StreamerError, ThrottledError
from streamer.fetch import hedge
from streamer.fetch.concurrency import LATENCY_INFLATION, WindowControl, size_class
from streamer.fetch.fair_gate import FairGate
from streamer.fetch.hedge import HedgeBudget, Sampled
from streamer.fetch.pacing import Pacing
from streamer.fetch.presence_clock import Alarm, PresenceClock
from streamer.fetch.retry import (
    RetryBudget,
    TryOutcomes,
    is_credential_error,
    is_expired,
    max_denied_seconds,
    read_retry_after,
)
from streamer.fetch.statistics import RequestTally
from streamer.manifest.model import Extent
from streamer.store.addresses.urls import shown
from streamer.store.base import Get, ObjectStore

logger = logging.getLogger(__name__)

Notify = Callable[[str], None]

# Users take longer pauses for a hang.
QUIET_SECONDS = 1.5
# A store whose every answer takes longer is reported once in this time, not at each answer.
AGAIN_SECONDS = 60.0


class OutageWatch:
    """Watches one endpoint while requests wait for it. Lives on its loop.

    Args:
        clock: the endpoint's clock, which stops while this process does not run.
        root: the endpoint as messages may show it.
        outage_seconds: time for which requests wait for it.
        notify: called with a sentence, once in each period without an answer.
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
        """Begins a request that waits for an answer; `end` follows."""
        self._waiters += 1
        if self._waiters == 1:
            self._progressed = self._clock.time()
            self._why = ""
            self._alarm = Alarm(self._clock, self._progressed + QUIET_SECONDS, self._look)

    def end(self) -> None:
        """Ends a request that has its answer or its error."""
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
        """Returns the seconds for which the endpoint has served nothing although it was asked."""
        return self._clock.time() - self._progressed if self._waiters else 0.0

    def record_failure(self, error: StreamerError) -> None:
        """Records the failure of a try, which the report names if this goes on."""
        url = error.details.get("url")
        self._why = error.message.removeprefix(f"{url}: ")

    def _look(self) -> None:
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


# Credentials are renewed once for all requests that were refused together.
_REFRESH_SECONDS = 1.0
_PROBE_SECONDS = 1.0
# A request that the store queues is looked at again after this.
QUEUED_SECONDS = 0.5
# Requests sent within this time of each other may be answered in any order, because they use several threads and
# connections. Of eight requests of one burst four counted as overtaken by microseconds (2026-11-20).
ORDER_SECONDS = 0.25
_PROBE_TIMEOUT_SECONDS = 2.0
# Bodies below this say nothing about the rate of a connection: they fit the first packets.
RATE_LEAST_BYTES = 1 << 20


def ignore_notice(text: str) -> None:
    """Ignores a notice, for an endpoint whose waiting concerns no job: the log has it."""


class Endpoint:
    """State shared by the requests of one process to one bucket or host with one set of storage options.

    It is created on the event loop that it lives on. What it decides is enforced by its gate (`FairGate`).

    Args:
        root: root of the urls, such as "s3://bucket".
        store: the store that serves it.
        config: bounds and budgets.
        notify: called with a sentence when the endpoint has served nothing for a while.

    Attributes:
        clock: stands still while this process does not run. It stores the loop, because `get_running_loop()`
            calls getpid() each time in Python 3.11: 16 system calls for a small object were 7 % of its scheduling
            (2026-11-20).
        time: the clock's time; all moments and durations here are its own, except the time at which a chunk is due.
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
        # Time of the last whole body that is large enough to tell a rate.
        self.last_large = float("-inf")
        # Send time of the youngest request that has had a first byte.
        self.newest_answered = float("-inf")
        # Send time of the youngest request that was served.
        self.newest_served = float("-inf")
        self._limit_logged = False
        self._config = config
        self._hedging = config.hedge
        self._first_byte: dict[int, Sampled] = {}
        self._refreshed = float("-inf")
        self._probed = float("-inf")

    def __repr__(self) -> str:
        return f"Endpoint({shown(self.root)!r}, {self.control}, {self.gate})"

    def first_byte(self, length: int) -> Sampled:
        """Returns the times to first byte of requests of about `length` bytes."""
        kind = size_class(length)
        if (sampled := self._first_byte.get(kind)) is None:
            sampled = self._first_byte[kind] = Sampled()
        return sampled

    def best_known(self, own: Sampled) -> Sampled:
        """Returns the times to first byte of a size class, or, while it has too few, of the best-known size class."""
        if own.quantiles is not None:
            return own
        return max(self._first_byte.values(), key=lambda sampled: len(sampled.values))

    def record_success(self, now: float, seconds: float, length: int) -> None:
        """Records a request that has just been served, at `now`, in `seconds`."""
        self.last_success = now
        self.watch.record_progress(now)
        self.newest_served = max(self.newest_served, now - seconds)
        self.retries.give_back()
        self.control.record_request(now, seconds, length, contended=self.gate.contended)
        self.pacing.record_served(now - seconds, now)
        self._apply()

    def record_failure(self, error: StreamerError, sent_at: float) -> None:
        """Records the failure of a request sent at `sent_at`. It may lower the rate, or stop all (Retry-After)."""
        self.watch.record_failure(error)
        if not isinstance(error, ThrottledError):
            return
        self.pacing.record_refused(sent_at, self.time())
        if pause := read_retry_after(error):
            self.gate.close_until(self.clock.loop.time() + pause)
        self._apply()

    def may_duplicate(self, length: int) -> bool:
        """Decides on a duplicate (or an early end) of `length` bytes and pays for it."""
        return self._hedging and not self.congested and not self.pacing.limited and self.budget.take(length)

    def duplicate_after(self, first_byte: Sampled) -> float | None:
        """Returns the seconds until a request without a first byte gets a duplicate; None if hedging is off.

        Args:
            first_byte: times to first byte of its size class.
        """
        return hedge.duplicate_after(first_byte) if self._hedging else None

    @property
    def congested(self) -> bool:
        """Whether requests in general take longer than on an idle link."""
        return self.control.inflation_at(self.time()) > LATENCY_INFLATION

    def is_queued(self, started_at: float, within_seconds: float) -> bool:
        """Whether the store may have queued a request without a first byte: it serves others, but none sent later.

        If such a request were given up, it would be sent again to the end of the queue, and its answer would still fill
        the link: after a fivefold drop that took half of the link (2026-11-20).

        Args:
            started_at: when the request was sent.
            within_seconds: seconds within which another request must have been served.
        """
        now = self.time()
        served = self.last_success
        if self.newest_answered > started_at + ORDER_SECONDS or now - started_at >= self._config.outage_seconds:
            return False
        return served is not None and served > max(started_at, now - within_seconds)

    def is_permanent(self, error: StreamerError) -> bool:
        """Whether waiting cannot help: no request was ever served, and the certificate is refused."""
        return self.last_success is None and bool(error.details.get("untrusted"))

    def is_isolated(self, error: StreamerError, first_failed_at: float, served_at: float, earlier: TryOutcomes) -> bool:
        """Whether a failure concerns this request alone, not the endpoint.

        It does if other requests were sent and served between the first failure and this try, and few of them failed:
        behind a gateway one of whose two servers is down, one range in 256 fails eight times in a row. A refusal (503)
        concerns the endpoint. Requests in flight when a store stops may end after others have failed, and a try that
        began before the endpoint was back fails after others were served: neither proves anything (a stop took the
        requests of 30 ms with it, and nine ranges were given up after 8 s, 2026-11-20).

        Args:
            error: the error of this try.
            first_failed_at: when the range first failed.
            served_at: `newest_served` as this try began.
            earlier: `outcomes` at the first failure.
        """
        if isinstance(error, ThrottledError) or served_at <= first_failed_at:
            return False
        return self.outcomes.count_since(earlier).ordinary

    async def probe(self, tally: RequestTally) -> None:
        """Requests one byte of the object served last, at most once a second, to see whether the endpoint works.

        When all readers wait for one object, no other request shows that the endpoint works: an object that did not
        answer was waited for as long as for an outage (2026-11-20).
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
        """Whether a refusal is final: of one object or one kind of request, or of everything for too long.

        While it is not final, credentials are looked up again, once for all requests that were refused together.

        Args:
            error: the refusal.
            first_refused_at: when the first refusal came.
            tally: the counts.
        """
        denied_seconds = max_denied_seconds(error, self._config, served=self.last_success is not None)
        if self.time() - first_refused_at >= denied_seconds or (is_expired(error) and error.details.get("fixed")):
            return True
        if not is_credential_error(error):
            await self.probe(tally)
            if self.newest_served >= first_refused_at:
                return True
        await self.refresh()
        return False

    def limit(self, window_max: int) -> None:
        """Allows at most this many requests at once from now on."""
        self.control.limit(window_max)
        self._apply()

    def pace_anew(self) -> None:
        """Forgets what rate the store permits, so that it is measured again."""
        self.pacing = self._make_pacing()
        self._apply()

    def _make_pacing(self) -> Pacing:
        return Pacing(lambda: self.control.climbing, self.time())

    async def refresh(self) -> None:
        """Renews the credentials, once for all requests that were refused together."""
        if self.time() - self._refreshed > _REFRESH_SECONDS:
            self._refreshed = self.time()
            await self.store.refresh()

    def _apply(self) -> None:
        """Passes the decisions of window and pacing to the gate."""
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
