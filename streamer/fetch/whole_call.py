"""Calls to a store other than ranges, that is listings and puts, with the time limits of ranges."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from copy import copy
from typing import TypeVar

from streamer.config import FetchConfig
from streamer.errors import AccessDeniedError, StoreError, StreamerError
from streamer.fetch.endpoint import Endpoint
from streamer.fetch.retry import (
    Failing,
    TryOutcomes,
    describe_tries,
    gives_up,
    is_expired,
    pause_seconds,
    read_retry_after,
    retryable,
)
from streamer.fetch.statistics import RequestTally

T = TypeVar("T")


class WholeCall:
    """One call, repeated as a whole until it succeeds: `await run(work)` once.

    Args:
        endpoint: the store's endpoint.
        config: bounds.
        tally: the counts.
        long: whether the answer comes only after minutes: an endpoint that is silent meanwhile has not failed.
    """

    def __init__(self, endpoint: Endpoint, config: FetchConfig, tally: RequestTally, *, long: bool = False) -> None:
        self._endpoint = endpoint
        self._is_watched = not long
        self._config = config
        self._tally = tally
        self._tries = 0
        self._started = endpoint.time()
        self._refreshed = False
        self._first_failure = 0.0
        self._outcomes = TryOutcomes()

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Returns the result of `work`, which must make the call anew each time.

        Raises:
            StoreError: permanent, or still failing after the time limits of ranges.
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
        """Records that a part of the answer has arrived."""
        self._endpoint.watch.record_progress(self._endpoint.time())

    async def _recover(self, error: StreamerError, served: float) -> float:
        """Decides the pause before the next try; `served` is the endpoint's `newest_served` as the last one began.

        Raises:
            StoreError: there is no next one.
        """
        self._endpoint.watch.record_failure(error)
        if self._tries == 1:
            self._first_failure, self._outcomes = self._endpoint.time(), copy(self._endpoint.outcomes)
        if is_expired(error) and not self._refreshed:
            self._refreshed = True
            await self._endpoint.refresh()
            return 0.0
        idle = self._endpoint.time() - self._started
        if await self._is_over(error, idle, served):
            raise self._final(error, idle) from error
        self._tally.retries += 1
        config = self._config
        pause = pause_seconds(self._tries, config.backoff_start_seconds, config.backoff_max_seconds, random.random())
        return max(pause, read_retry_after(error))

    async def _is_over(self, error: StreamerError, idle: float, served: float) -> bool:
        """Whether another try cannot help, or the last try was made."""
        if isinstance(error, AccessDeniedError):
            return await self._endpoint.is_denied_for_good(error, self._first_failure, self._tally)
        failing = Failing(
            tries=self._tries,
            idle_seconds=idle,
            silent=False,
            quiet_seconds=self._endpoint.watch.quiet_seconds(),
            isolated=self._endpoint.is_isolated(error, self._first_failure, served, self._outcomes),
            permanent=self._endpoint.is_permanent(error),
        )
        return not retryable(error) or gives_up(failing, self._config)

    def _final(self, error: StreamerError, idle: float) -> StreamerError:
        if self._tries == 1 or not isinstance(error, StoreError):
            return error
        facts = {**error.details, "attempts": self._tries, "elapsed_seconds": round(idle, 3)}
        quiet = self._endpoint.watch.quiet_seconds()
        return type(error)(error.message + describe_tries(self._tries, idle, quiet, self._config), **facts)
