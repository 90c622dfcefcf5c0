"""A bound on something that is reserved: requests in flight, or bytes. Waiters are served by due time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Due = Callable[[], float]

# A line's due time may move while it waits (a session ran ahead, another joined). It is read at each grant; of more
# lines than this (4 us for 64) only so often.
_FEW_LINES = 64
_FRESH_SECONDS = 0.01


class Line:
    """The waiters of one chunk, served first in, first out.

    Args:
        due: when the chunk's first reader needs it, in seconds on the loop's clock; may change.
    """

    __slots__ = ("due", "waiters")

    def __init__(self, due: Due) -> None:
        self.due = due
        self.waiters: deque[tuple[asyncio.Future[None], int]] = deque()


class Gate:
    """Grants amounts up to a limit, to the line that is due first. Lives on one event loop.

    Invariants: `used` is the sum of what was granted and not released; an amount above the limit is granted when
    nothing else is, so the smallest read always moves; nobody overtakes the line that is due first.

    Args:
        limit: how much may be used at once; may be changed by `resize`.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._lines: list[Line] = []
        self._first: Line | None = None
        self._first_until = 0.0
        self._closed_until = 0.0

    def __repr__(self) -> str:
        return f"Gate(used={self.used}, limit={self.limit}, waiting={self.waiting})"

    @property
    def waiting(self) -> int:
        """Waiters in all lines."""
        return sum(len(line.waiters) for line in self._lines)

    @property
    def contended(self) -> bool:
        """Whether somebody waits."""
        return bool(self._lines)

    async def acquire(self, line: Line, amount: int = 1) -> None:
        """Waits for `amount`; a cancelled waiter holds nothing."""
        if not self._lines and self._fits(amount):
            self._take(amount)
            return
        granted = asyncio.get_running_loop().create_future()
        self._join(line, granted, amount)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            self._give_up(line, granted, amount)
            raise

    def force(self, amount: int = 1) -> None:
        """Takes `amount` at once, over the limit if need be: duplicates have a budget of their own."""
        self._take(amount)

    def release(self, amount: int = 1) -> None:
        """Gives `amount` back."""
        self.used -= amount
        self._grant()

    def resize(self, limit: int) -> None:
        """Changes the limit; what is granted stays granted."""
        self.limit = limit
        self._grant()

    def close_until(self, moment: float) -> None:
        """Grants nothing before `moment` on the loop's clock (Retry-After)."""
        if moment > self._closed_until:
            self._closed_until = moment
            asyncio.get_running_loop().call_at(moment, self._grant)

    def _fits(self, amount: int) -> bool:
        if self._closed_until and asyncio.get_running_loop().time() < self._closed_until:
            return False
        return self.used == 0 or self.used + amount <= self.limit

    def _take(self, amount: int) -> None:
        self.used += amount
        self.peak = max(self.peak, self.used)

    def _join(self, line: Line, granted: asyncio.Future[None], amount: int) -> None:
        if not line.waiters:
            self._lines.append(line)
            self._first = None
        line.waiters.append((granted, amount))

    def _give_up(self, line: Line, granted: asyncio.Future[None], amount: int) -> None:
        if granted.done() and not granted.cancelled():
            self.release(amount)
            return
        if (granted, amount) in line.waiters:  # _grant drops cancelled ones that it meets
            line.waiters.remove((granted, amount))
            if not line.waiters:
                self._leave(line)
        self._grant()

    def _leave(self, line: Line) -> None:
        self._lines.remove(line)
        self._first = None

    def _grant(self) -> None:
        # Due times are read only when there is room for the smallest amount.
        while self._lines and self._fits(1) and self._fits((line := self._due_first()).waiters[0][1]):
            granted, amount = line.waiters.popleft()
            if not line.waiters:
                self._leave(line)
            if not granted.done():
                self._take(amount)
                granted.set_result(None)

    def _due_first(self) -> Line:
        now = asyncio.get_running_loop().time()
        if self._first is None or len(self._lines) <= _FEW_LINES or now >= self._first_until:
            self._first = min(self._lines, key=_due_of)
            self._first_until = now + _FRESH_SECONDS
        return self._first


def _due_of(line: Line) -> float:
    return line.due()
