"""Limits requests in flight and per second, or bytes reserved; serves waiters by fair shares of jobs and due time.

Used for requests to an endpoint (`fetch/endpoint.py`), for memory (`fetch/memory_budget.py`), and by `peers/`,
`engine/` and `service/` for other limits. Due times alone do not share fairly: a job that never waits for its steps has
everything due at once, and another job's look-ahead would be served only when it is already late. Therefore jobs that
hold less than their share come first, and among equals the queue that is due first. Nothing is kept free: a job that is
alone takes everything.
"""

from __future__ import annotations

import asyncio
import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable

# Returns when something is needed, in seconds on the event loop's clock; asked again while it waits.
Due = Callable[[], float]
# Returns the job whose share a request is charged to; "" is no job. It may change while the request waits.
Owner = Callable[[], str]


def no_owner() -> str:
    """Returns "", the owner of requests that belong to no job."""
    return ""


# A queue's due time may change while it waits (a session ran ahead, another joined). It is read at each grant; with
# more queues than `_FEW_QUEUES` only every 50 ms. Reading it at each grant took 9 % of the engine's CPU in a cold
# epoch, every 10 ms still 3 % (2026-11-22).
_FEW_QUEUES = 8
_FRESH_SECONDS = 0.05
# Grants that come late by up to this much are made up for: timers are late by a millisecond, on a busy loop by tens.
_CATCH_UP_SECONDS = 0.02


class WaitQueue:
    """Holds the requests of one chunk that wait at one gate; they are served in order of arrival.

    Args:
        due: returns when the chunk's first reader needs it, in seconds on the loop's clock. This may change.
        owner: returns the job whose share the requests count for. This may change, too.

    Attributes:
        waiters: future that ends the wait, and amount, of each waiting request. Only the gate uses them.
    """

    __slots__ = ("due", "owner", "waiters")

    def __init__(self, due: Due, owner: Owner = no_owner) -> None:
        self.due = due
        self.owner = owner
        self.waiters: deque[tuple[asyncio.Future[str], int]] = deque()


class FairGate:
    """Works as a semaphore over bytes or requests: owners below their share first, then by due time. On one event loop.

    An amount above the limit is granted when nothing else is in use, so that even the smallest limit makes progress.
    The queue whose turn it is keeps it until its amount fits; others do not overtake it.

    Args:
        limit: bytes or requests that may be in use at once. `resize` changes it.
        fresh_seconds: seconds for which the order of many queues is taken as it is, although due times move.

    Attributes:
        limit: see Args.
        used: sum of the amounts that are granted and not released.
        peak: largest value of `used` so far.
        per_second: grants per second, which the endpoint sets. Infinity means no limit.
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
        """Number of requests that wait in all queues."""
        return sum(len(queue.waiters) for queue in self._queues)

    @property
    def contended(self) -> bool:
        """Whether requests wait because of the limit, not because of the rate."""
        return bool(self._queues) and self.used >= self.limit

    async def acquire(self, queue: WaitQueue, amount: int = 1) -> str:
        """Waits in `queue` until `amount` is granted. A waiter that is cancelled holds nothing.

        Returns:
            The owner whose share was charged; the caller passes it to `release`.
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
                if (granted, amount) in queue.waiters:  # _grant may have dropped it already
                    queue.waiters.remove((granted, amount))
                    if not queue.waiters:
                        self._queues.remove(queue)
                self._grant()
            raise

    def force(self, amount: int = 1) -> None:
        """Takes `amount` at once, beyond the limit if necessary, and charges no owner. For duplicates of requests."""
        self._take(amount, "")

    def release(self, amount: int = 1, owner: str = "") -> None:
        """Gives `amount` back and serves waiters; `owner` is what `acquire` returned, "" after `force`."""
        self.used -= amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]
        self._grant()

    def resize(self, limit: int) -> None:
        """Changes the limit and serves waiters; granted amounts stay granted."""
        self.limit = limit
        self._grant()

    def close_until(self, opens_at: float) -> None:
        """Grants nothing before `opens_at`, in seconds on the loop's clock (Retry-After); `force` ignores this."""
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
        """Takes `amount`, and moves the time of the next grant by the rate; returns the owner."""
        if self.per_second < math.inf:
            self._not_before = max(self._not_before, self._loop.time() - _CATCH_UP_SECONDS) + 1.0 / self.per_second
        return self._take(amount, owner)

    def _take(self, amount: int, owner: str) -> str:
        self.used += amount
        self._held[owner] += amount
        self.peak = max(self.peak, self.used)
        return owner

    def _grant(self) -> None:
        """Ends the waits of all requests that fit now, in order; sets a timer if the rate allows them only later."""
        while self._queues:
            # The clock is read once to decide whether to wait and whether to set the timer. When it was read twice, the
            # time that passed between left waiters without a timer.
            if not self._is_open:
                if self._timer is None:
                    self._timer = self._loop.call_at(self._not_before, self._open)
                return
            # Due times are read (`_next`) only if an amount of 1 fits.
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
        """Returns the queue whose turn it is; at least one must wait."""
        now = self._loop.time()
        if len(self._queues) <= _FEW_QUEUES or now >= self._fresh_until:
            # The queues of an owner are sorted by due time, and those of equal due time by arrival.
            self._by_owner = {}
            for queue in self._queues:
                self._by_owner.setdefault(queue.owner(), []).append(queue)
            for queued in self._by_owner.values():
                queued.sort(key=_due_of)
            self._fresh_until = now + self._fresh_seconds
        heads = []
        for owner, queued in self._by_owner.items():
            while queued and not queued[0].waiters:  # it was served or cancelled since the last sorting
                del queued[0]
            if queued:
                heads.append((owner, queued[0]))
        if len(heads) == 1:
            return heads[0][1]
        share = self.limit / len({*(owner for owner, _ in heads), *self._held})
        return min(heads, key=lambda head: (self._held[head[0]] >= share, head[1].due()))[1]


def _due_of(queue: WaitQueue) -> float:
    return queue.due()
