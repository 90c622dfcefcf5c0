"""One range, whatever the store does: tries, pauses, resumes at the last good byte."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from streamer.errors import StoreError, StreamerError, ThrottledError
from streamer.fetch import hedge
from streamer.fetch.attempt import Attempt
from streamer.fetch.request import Order
from streamer.fetch.retry import asked_seconds, expired, gives_up, pause_seconds, retryable
from streamer.manifest.model import Extent
from streamer.store.urls import shown

if TYPE_CHECKING:
    from streamer.config import FetchConfig
    from streamer.fetch.endpoint import Endpoint
    from streamer.fetch.gate import Line
    from streamer.fetch.statistics import Tally


class Transfer:
    """The life of one range: `await run()` once.

    Bytes that arrived are kept over tries; a try asks only for the rest.

    Args:
        extent: the range.
        line: where it waits for the window.
        endpoint: where it is asked for.
        config: bounds.
        tally: what is counted.
    """

    def __init__(self, extent: Extent, line: Line, endpoint: Endpoint, config: FetchConfig, tally: Tally) -> None:
        self._extent = extent
        self._line = line
        self._endpoint = endpoint
        self._config = config
        self._tally = tally
        self._position = extent.start
        self._attempts = 0
        self._started = 0.0
        self._first_failure = 0.0
        self._refreshed = False
        self._parts: list[memoryview] = []

    async def run(self) -> list[memoryview]:
        """Fetches the range; returns its bytes in pieces.

        Raises:
            StoreError: permanent, or still failing after the last try; details have url, attempts, elapsed_seconds.
        """
        self._started = _time()
        while self._position < self._extent.stop:
            pause = await self._try()
            if pause > 0.0:
                await asyncio.sleep(pause)
        return self._parts

    async def _try(self) -> float:
        """One try in the window; returns the pause before the next."""
        gate = self._endpoint.gate
        self._attempts += 1
        owner = await gate.acquire(self._line)
        try:
            await Attempt(self._order(), self._keep).run()
        except StreamerError as error:
            pause = await self._recover(error)
            if not isinstance(error, ThrottledError):
                return pause
            # What was refused keeps its place while it waits: another in its stead would be refused as well.
            await asyncio.sleep(pause)
        finally:
            gate.release(owner=owner)
        return 0.0

    def _order(self) -> Order:
        extent = self._extent
        if self._position > extent.start:
            extent = Extent(extent.object, self._position, extent.stop)
        sampled = self._endpoint.first_byte(extent.length)
        return Order(
            extent,
            self._endpoint,
            self._config,
            self._tally,
            self._line.due(),
            hedge.patience_seconds(sampled, self._config.first_byte_seconds, self._attempts),
        )

    def _keep(self, piece: memoryview) -> None:
        self._parts.append(piece)
        self._position += piece.nbytes

    async def _recover(self, error: StreamerError) -> float:
        """Judges a failed try; returns the pause before the next one.

        Raises:
            StoreError: there is none.
        """
        elapsed = _time() - self._started
        self._first_failure = self._first_failure or _time()
        self._endpoint.failed(error)
        self._tally.throttled += isinstance(error, ThrottledError)
        if expired(error) and not self._refreshed:
            self._refreshed = True
            await self._endpoint.refresh()
            pause = 0.0
        elif self._is_last(error, elapsed):
            raise self._final(error, elapsed) from error
        else:
            pause = 0.0 if error.details.get("outpaced") else self._pause(error)
        self._tally.retries += 1
        return pause

    def _is_last(self, error: StreamerError, elapsed: float) -> bool:
        return not retryable(error) or gives_up(
            self._attempts,
            self._config.attempts,
            elapsed_seconds=elapsed,
            outage_seconds=self._config.outage_seconds,
            alone=self._endpoint.alone(error, self._first_failure),
        )

    def _pause(self, error: StreamerError) -> float:
        config = self._config
        if self._endpoint.tokens.take(error):
            pause = pause_seconds(
                self._attempts, config.backoff_start_seconds, config.backoff_max_seconds, random.random()
            )
        else:
            pause = config.backoff_max_seconds * random.random()
        return max(pause, asked_seconds(error))

    def _final(self, error: StreamerError, elapsed: float) -> StreamerError:
        """The same error with what was tried."""
        self._tally.failures += 1
        facts = {"url": shown(self._extent.object.url), **error.details}
        facts |= {"attempts": self._attempts, "elapsed_seconds": round(elapsed, 3)}
        tries = "" if self._attempts == 1 else f" ({self._attempts} tries in {elapsed:.1f} s)"
        kind = type(error) if isinstance(error, StoreError) else StoreError
        return kind(error.message + tries, **facts)


def _time() -> float:
    return asyncio.get_running_loop().time()
