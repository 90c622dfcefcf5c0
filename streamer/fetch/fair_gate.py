"""A limit on requests in flight and per second, or on bytes reserved. Waiters are served by fair shares and due time.

Due times alone do not share fairly: a job that never waits for its steps has everything due at once, and another job's
look-ahead would be served only when it is already late. Therefore jobs that hold more than their share come after those
that hold less, and among equals the queue that is due first is served. Nothing is kept free: a job that is alone takes
everything.
"""

from __future__ import annotations

import asyncio
import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable

Due = Callable[[], float]
Owner = Callable[[], str]


def no_owner() -> str:
    """Returns the owner of requests that belong to no job."""
    return ""


# A queue's due time may change while it waits (a session ran ahead, another joined). It is read at each grant; with
# more queues than this only every 50 ms: at each grant it was 9 % of the engine's CPU in a cold epoch, every 10 ms
# still 3 % (2026-11-22).
_FEW_QUEUES = 8
_FRESH_SECONDS = 0.05
# Timers are late by a millisecond, on a busy loop by tens: a rate is an average over this time.
_CATCH_UP_SECONDS = 0.02


class WaitQueue:
    """The requests of one chunk that wait at one gate, served first in, first out.

    Args:
        due: when the chunk's first reader needs it, in seconds on the loop's clock; may change.
        owner: the job whose share it counts for; may change, too.
    """

    __slots__ = ("due", "owner", "waiters")

    def __init__(self, due: Due, owner: Owner = no_owner) -> None:
        self.due = due
        self.owner = owner
        self.waiters: deque[tuple[asyncio.Future[str], int]] = deque()


class FairGate:
    """A semaphore over bytes or requests: owners below their fair share first, then by due time. On one event loop.

    Invariants: `used` is the sum of the amounts granted and not released; an amount above the limit is granted when
        nothing else is, so that even the smallest limit makes progress; no queue overtakes the first one.

    Args:
        limit: the most that may be used at once; `resize` changes it.
        fresh_seconds: how long the order of many queues is taken as it is, although due times move.

    Attributes:
        per_second: grants per second; inf: no limit.
    """

    def __init__(self, limit: int, fresh_seconds: float = _FRESH_SECONDS) -> None:
        self.limit = limit
        self._fresh_seconds = fresh_seconds
        self.used = 0
        self.peak = 0
        self._held: Counter[str] = Counter()
        self._queues: list[WaitQueue] = []
        self._by_owner: dict[str, list[WaitQueue]] = {}
        self._fresh_until = float("-inf")
        self.per_second = math.inf
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"FairGate(used={self.used}, limit={self.limit}, waiting={self.waiting})"

    @property
    def waiting(self) -> int:
        """Waiters in all queues."""
        return sum(len(queue.waiters) for queue in self._queues)

    @property
    def contended(self) -> bool:
        """Whether requests wait because of the limit, not because of the rate."""
        return bool(self._queues) and self.used >= self.limit

    async def acquire(self, queue: WaitQueue, amount: int = 1) -> str:
        """Waits for `amount`; a cancelled waiter holds nothing.

        Returns:
            The owner whose share was charged, for `release`.
        """
        if not self._queues and self._is_open and self._fits(amount):
            return self._take_turn(amount, queue.owner())
        granted: asyncio.Future[str] = self._loop.create_future()
        if not queue.waiters:
            self._queues.append(queue)
            insort(self._by_owner.setdefault(queue.owner(), []), queue, key=_due_of)
        queue.waiters.append((granted, amount))
        self._grant()
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(amount, granted.result())
            else:
                if (granted, amount) in queue.waiters:  # _grant drops cancelled ones that it meets
                    queue.waiters.remove((granted, amount))
                    if not queue.waiters:
                        self._queues.remove(queue)
                self._grant()
            raise

    def force(self, amount: int = 1) -> None:
        """Takes `amount` at once, beyond the limit if necessary: duplicates have their own budget, and no owner."""
        self._take(amount, "")

    def release(self, amount: int = 1, owner: str = "") -> None:
        """Returns `amount` to the share that it was taken from."""
        self.used -= amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def resize(self, limit: int) -> None:
        """Changes the limit; granted amounts stay granted."""
        self.limit = limit
        self._grant()

    def close_until(self, opens_at: float) -> None:
        """Grants nothing before `opens_at` on the loop's clock (Retry-After)."""
        self._not_before = max(self._not_before, opens_at)

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, looked up once: in Python 3.11 each look-up is a system call."""
        if self._own_loop is None:
            self._own_loop = asyncio.get_running_loop()
        return self._own_loop

    def _fits(self, amount: int) -> bool:
        return self.used == 0 or self.used + amount <= self.limit

    @property
    def _is_open(self) -> bool:
        return not self._not_before or self._loop.time() >= self._not_before

    def _take_turn(self, amount: int, owner: str) -> str:
        """Takes `amount`, and its turn in the rate."""
        if self.per_second < math.inf:
            self._not_before = max(self._not_before, self._loop.time() - _CATCH_UP_SECONDS) + 1.0 / self.per_second
        return self._take(amount, owner)

    def _take(self, amount: int, owner: str) -> str:
        self.used += amount
        self._held[owner] += amount
        self.peak = max(self.peak, self.used)
        return owner

    def _grant(self) -> None:
        while self._queues:
            # The clock is read once for both decisions: a moment that passed between two readings left waiters without
            # a timer.
            if not self._is_open:
                if self._timer is None:
                    self._timer = self._loop.call_at(self._not_before, self._open)
                return
            # Due times are read only if the smallest amount fits.
            if not self._fits(1) or not self._fits((queue := self._next()).waiters[0][1]):
                return
            granted, amount = queue.waiters.popleft()
            if not queue.waiters:
                self._queues.remove(queue)
            if not granted.done():
                granted.set_result(self._take_turn(amount, queue.owner()))

    def _open(self) -> None:
        self._timer = None
        self._grant()

    def _next(self) -> WaitQueue:
        """Returns the queue whose turn it is; there must be one."""
        now = self._loop.time()
        if len(self._queues) <= _FEW_QUEUES or now >= self._fresh_until:
            # The queues of an owner are in order of due time, equal ones of arrival.
            self._by_owner = {}
            for queue in self._queues:
                self._by_owner.setdefault(queue.owner(), []).append(queue)
            for queued in self._by_owner.values():
                queued.sort(key=_due_of)
            self._fresh_until = now + self._fresh_seconds
        heads = []
        for owner, queued in self._by_owner.items():
            while queued and not queued[0].waiters:  # it left
                del queued[0]
            if queued:
                heads.append((owner, queued[0]))
        if len(heads) == 1:
            return heads[0][1]
        share = self.limit / len({*(owner for owner, _ in heads), *self._held})
        return min(heads, key=lambda head: (self._held[head[0]] >= share, head[1].due()))[1]


def _due_of(queue: WaitQueue) -> float:
    return queue.due()
