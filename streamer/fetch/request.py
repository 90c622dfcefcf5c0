"""One GET under a deadline on progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from streamer.config import FetchConfig
from streamer.errors import StoreTimeoutError
from streamer.fetch import hedge
from streamer.fetch.clock import Alarm
from streamer.fetch.deadline import Deadline
from streamer.fetch.endpoint import QUEUED_SECONDS, RATE_LEAST_BYTES, Endpoint
from streamer.fetch.statistics import Tally
from streamer.manifest.model import Extent
from streamer.store.base import PIECE_BYTES
from streamer.store.urls import shown


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for, where and under which terms.

    Attributes:
        extent: what is still missing of a range.
        due: when its chunk is needed, on the loop's clock.
        first_byte_seconds: patience until the first byte.
        piece_bytes: how much comes at once.
    """

    extent: Extent
    endpoint: Endpoint
    config: FetchConfig
    tally: Tally
    due: float
    first_byte_seconds: float
    piece_bytes: int = PIECE_BYTES


class Request:
    """One GET; `await receive()` once.

    Args:
        order: its terms.
        claim: asked at the first byte, whether this request delivers the body.
        keep: takes each piece in order.
    """

    def __init__(self, order: Order, claim: Callable[[Request], bool], keep: Callable[[memoryview], None]) -> None:
        self._order = order
        self._claim = claim
        self._keep = keep
        self._received = 0
        self._outpaced = False
        self._started = 0.0
        self._first_byte_at = 0.0
        self._due = 0.0
        self._pace: Alarm | None = None

    async def receive(self) -> None:
        """Receives the body, or ends without a byte when another request was first.

        Raises:
            StoreError: no first byte, no progress, or what the store says.
        """
        order = self._order
        self._started = order.endpoint.time()
        order.tally.requests += 1
        extent = order.extent
        body = order.endpoint.store.get(extent.object, extent.start, extent.stop, order.piece_bytes)
        deadline = Deadline(order.endpoint.clock, self._started + order.first_byte_seconds, self._more_seconds)
        try:
            async with aclosing(body):
                async for piece in body:
                    if not self._accepts(piece, deadline):
                        return
        except asyncio.CancelledError as error:
            if deadline.taken_back():
                raise self._abandoned() from error
            raise
        finally:
            deadline.cancel()
            if self._pace is not None:
                self._pace.cancel()
        self._succeeded(order.endpoint.time())

    def _more_seconds(self) -> float:
        """More patience, where the first byte is late because the link is full and not because it was lost."""
        order = self._order
        waits = self._received == 0 and order.endpoint.queued(self._started, order.first_byte_seconds)
        return QUEUED_SECONDS if waits else 0.0

    def _accepts(self, piece: memoryview, deadline: Deadline) -> bool:
        before, self._received = self._received, self._received + piece.nbytes
        if before == 0 and not self._is_first():
            return False
        self._order.tally.received_bytes += piece.nbytes
        self._keep(piece)
        if self._received < self._order.extent.length:
            self._watch(piece.nbytes, deadline, first=before == 0)
        return True

    def _is_first(self) -> bool:
        if not self._claim(self):
            return False
        order, now = self._order, self._order.endpoint.time()
        self._first_byte_at = now
        order.endpoint.newest_answered = max(order.endpoint.newest_answered, self._started)
        order.endpoint.first_byte(order.extent.length).add(now - self._started)
        order.tally.first_byte.add(now - self._started)
        return True

    def _watch(self, length: int, deadline: Deadline, *, first: bool) -> None:
        """Moves the deadline by the time that a piece takes at the floor, to `progress_seconds` from now at most."""
        config = self._order.config
        latest = self._order.endpoint.time() + config.progress_seconds
        earned = length / max(1, config.progress_floor_bytes_per_second)
        self._due = latest if first else min(latest, self._due + earned)
        if not self._outpaced:
            deadline.move(self._due)
        if first:
            self._watch_pace(deadline)

    def _watch_pace(self, deadline: Deadline) -> None:
        order = self._order
        allowed = hedge.body_seconds(order.extent.length, order.endpoint.rates)
        if allowed is not None and order.extent.length >= RATE_LEAST_BYTES:
            moment = self._first_byte_at + allowed
            self._pace = Alarm(order.endpoint.clock, moment, partial(self._judge_pace, deadline))

    def _judge_pace(self, deadline: Deadline) -> None:
        """The body takes four times as long as others: ends it, where the rest is worth a request."""
        left = self._order.extent.length - self._received
        if left >= RATE_LEAST_BYTES and not deadline.expired and self._order.endpoint.may_duplicate(left):
            self._outpaced = True
            deadline.move(self._order.endpoint.time())

    def _succeeded(self, now: float) -> None:
        endpoint, length = self._order.endpoint, self._order.extent.length
        if length >= RATE_LEAST_BYTES and now > self._first_byte_at:
            endpoint.rates.add(length / (now - self._first_byte_at))
            endpoint.last_large = now
        endpoint.last_good = self._order.extent
        endpoint.succeeded(now, now - self._started, length)

    def _abandoned(self) -> StoreTimeoutError:
        order, elapsed = self._order, self._order.endpoint.time() - self._started
        order.tally.outpaced += self._outpaced
        order.tally.stalled += not self._outpaced
        extent, url = order.extent, shown(order.extent.object.url)
        return StoreTimeoutError(
            f"{url}: {self._received} of {extent.length} bytes of [{extent.start}, {extent.stop}) after "
            f"{elapsed:.1f} s; abandoned for lack of progress",
            url=url,
            outpaced=self._outpaced,
        )
