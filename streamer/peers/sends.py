"""Decides which chunk is sent next."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streamer.fetch.fair_gate import FairGate, WaitQueue

# Of one peer; it asks for a few dozen chunks at once.
_MOST_WAITING = 256


class BusyError(Exception):
    """Is raised when a chunk is not sent in time, because others are before it."""


class Sends:
    """Gives turns to send, in fair shares to the peers, and by due time among the chunks of one peer.

    Args:
        most: limit for the sends at once.
        most_bytes: limit for the lengths of the files that are sent at once. A file that is evicted meanwhile takes
            its space until it is sent; the cache keeps so much free.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._gate = FairGate(most_bytes)
        # One gate bounds both: each send takes its length, and its part of the number.
        self._least_bytes = -(-most_bytes // most)
        self._waiting: Counter[str] = Counter()
        self.under_way = 0

    def __repr__(self) -> str:
        return f"Sends({self.under_way} under way, {self._waiting.total()} waiting)"

    def fits(self, length: int) -> bool:
        """Whether a file of that length can ever be sent."""
        return length <= self._gate.limit

    @asynccontextmanager
    async def turn(self, member: str, length: int, due_seconds: float, most_seconds: float) -> AsyncIterator[None]:
        """Waits for the turn of a chunk that a member needs in `due_seconds`; the turn lasts as long as the context.

        Raises:
            BusyError: the wait takes longer.
        """
        amount = max(length, self._least_bytes)
        await self._granted(member, amount, due_seconds, most_seconds)
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._gate.release(amount, member)

    async def _granted(self, member: str, amount: int, due_seconds: float, most_seconds: float) -> None:
        if self._waiting[member] >= _MOST_WAITING:
            raise BusyError
        due = asyncio.get_running_loop().time() + due_seconds
        self._waiting[member] += 1
        try:
            async with asyncio.timeout(most_seconds):
                await self._gate.acquire(WaitQueue(lambda: due, lambda: member), amount)
        except TimeoutError:
            raise BusyError from None
        finally:
            self._waiting[member] -= 1
            if not self._waiting[member]:
                del self._waiting[member]
