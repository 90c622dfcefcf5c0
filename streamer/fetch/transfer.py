"""One range, whatever the store does: tries, pauses, resumes at the last good byte."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

from streamer.config import FetchConfig
from streamer.errors import StoreError, StoreTimeoutError, StreamerError, ThrottledError
from streamer.fetch.endpoint import Endpoint
from streamer.fetch.gate import Line
from streamer.fetch.retry import asked_seconds, gives_up, pause_seconds, retryable
from streamer.fetch.statistics import Tally
from streamer.manifest.model import Extent
from streamer.store.urls import shown


class Transfer:
    """The life of one range: `await run()` once.

    Bytes that arrived are kept over tries; a try asks only for the rest.
    """

    def __init__(self, extent: Extent, line: Line, endpoint: Endpoint, config: FetchConfig, tally: Tally) -> None:
        self._extent = extent
        self._line = line
        self._endpoint = endpoint
        self._config = config
        self._tally = tally
        self._position = extent.start
        self.parts: list[memoryview] = []

    async def run(self) -> list[memoryview]:
        """Fetches the range; returns its bytes in pieces.

        Raises:
            StoreError: permanent, or still failing after the last try; details have url, attempts, elapsed_seconds.
        """
        loop = asyncio.get_running_loop()
        started, first_failure, attempt = loop.time(), 0.0, 0
        while self._position < self._extent.stop:
            attempt += 1
            try:
                await self._try(attempt)
            except StreamerError as error:
                first_failure = first_failure or loop.time()
                self._endpoint.failed(error)
                self._count(error)
                if self._is_last(error, attempt, loop.time() - started, first_failure):
                    raise self._final(error, attempt, loop.time() - started) from error
                await asyncio.sleep(self._pause(error, attempt))
                self._tally.retries += 1
        return self.parts

    async def _try(self, attempt: int) -> None:
        gate = self._endpoint.gate
        await gate.acquire(self._line)
        try:
            await self._receive(attempt)
        finally:
            gate.release()

    async def _receive(self, attempt: int) -> None:
        loop = asyncio.get_running_loop()
        started, begin = loop.time(), self._position
        patience, step = self._config.progress_seconds, self._floor_bytes()
        self._tally.requests += 1
        store = self._endpoint.store
        try:
            async with (
                asyncio.timeout(self._first_byte_seconds(attempt)) as deadline,
                aclosing(store.get(self._extent.object, begin, self._extent.stop)) as body,
            ):
                renewed = begin
                async for piece in body:
                    if self._position == begin:
                        self._tally.first_byte.add(loop.time() - started)
                    self._keep(piece)
                    if self._position - renewed >= step or renewed == begin:
                        renewed = self._position
                        deadline.reschedule(loop.time() + patience)
        except TimeoutError as error:
            if isinstance(error, StreamerError):
                raise
            self._tally.stalled += 1
            raise self._stalled(loop.time() - started) from error
        self._endpoint.succeeded(loop.time() - started, self._position - begin)

    def _keep(self, piece: memoryview) -> None:
        self.parts.append(piece)
        self._position += piece.nbytes
        self._tally.received_bytes += piece.nbytes

    def _floor_bytes(self) -> int:
        """Bytes that earn another `progress_seconds`: a body slower than the floor does not get them."""
        return int(self._config.progress_floor_bytes_per_second * self._config.progress_seconds)

    def _first_byte_seconds(self, attempt: int) -> float:
        return self._config.first_byte_seconds * min(8.0, 2.0 ** (attempt - 1))

    def _count(self, error: StreamerError) -> None:
        self._tally.throttled += isinstance(error, ThrottledError)

    def _is_last(self, error: StreamerError, attempt: int, elapsed: float, first_failure: float) -> bool:
        return not retryable(error) or gives_up(
            attempt,
            self._config.attempts,
            elapsed_seconds=elapsed,
            outage_seconds=self._config.outage_seconds,
            alone=self._endpoint.alone(first_failure),
        )

    def _pause(self, error: StreamerError, attempt: int) -> float:
        config = self._config
        draw = random.random() if self._endpoint.tokens.take(error) else 1.0
        exponent = attempt if draw < 1.0 else 64
        pause = pause_seconds(exponent, config.backoff_start_seconds, config.backoff_max_seconds, draw)
        return max(pause, asked_seconds(error))

    def _stalled(self, elapsed: float) -> StoreTimeoutError:
        url = shown(self._extent.object.url)
        return StoreTimeoutError(
            f"{url}: no progress in [{self._position}, {self._extent.stop}) after {elapsed:.1f} s; "
            f"abandoned (floor {self._config.progress_floor_bytes_per_second} B/s)",
            url=url,
        )

    def _final(self, error: StreamerError, attempts: int, elapsed: float) -> StreamerError:
        """The same error with what was tried."""
        self._tally.failures += 1
        facts = {**error.details, "attempts": attempts, "elapsed_seconds": round(elapsed, 3)}
        facts.setdefault("url", shown(self._extent.object.url))
        tries = "" if attempts == 1 else f" ({attempts} tries in {elapsed:.1f} s)"
        kind = type(error) if isinstance(error, StoreError) else StoreError
        return kind(error.message + tries, **facts)
