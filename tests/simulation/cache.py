"""Simulates jobs against the policy without data: predicts hit rates, and checks the policy's proof in tests.

Time is in ticks: in each one every job may use one chunk, and a fetch takes `fetch_ticks` of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.policy.answers import Admit, Freed, Wait
from streamer.cache.policy.cache_policy import CachePolicy

Order = Callable[[int], NDArray[np.int64]]


class JobPlan(msgspec.Struct, frozen=True):
    """A simulated consumer.

    Attributes:
        name: of the session and its job.
        dataset: added to the policy before.
        order: chunk numbers of an epoch, in order of first use.
        epochs: their number.
        open_chunks: uses during which a chunk stays open, from its first to its last draw.
        lookahead_chunks: its look-ahead.
        chunk_bytes: mean charged bytes of a chunk, to declare its window.
        hang_at: the use at which it stops forever (it stays connected).
    """

    name: str
    dataset: str
    order: Order
    epochs: int
    open_chunks: int
    lookahead_chunks: int
    chunk_bytes: int
    hang_at: int | None = None


class JobRun(msgspec.Struct):
    """A running job; afterwards the result.

    Attributes:
        uses: chunk numbers, all epochs, in order.
        missed: per use: whether the chunk was fetched for it.
        depth: per use: the number of further uses answered by then (the real look-ahead).
        waited_ticks: ticks without progress.
    """

    plan: JobPlan
    uses: NDArray[np.int64]
    missed: NDArray[np.bool_]
    depth: NDArray[np.int64]
    epoch_chunks: int
    place: int = 0
    requested: int = 0
    announced: int = 0
    waited_ticks: int = 0
    open: deque[int] = msgspec.field(default_factory=deque)

    @property
    def running(self) -> bool:
        """Whether the job is neither done nor hanging."""
        return self.place < len(self.uses) and self.place != self.plan.hang_at

    def hit_rates(self, weights: NDArray[np.int64]) -> list[float]:
        """Hit rates of each epoch, in bytes."""
        cost = weights[self.uses].reshape(self.plan.epochs, -1)
        fetched = np.where(self.missed.reshape(self.plan.epochs, -1), cost, 0)
        return [float(rate) for rate in 1.0 - fetched.sum(axis=1) / cost.sum(axis=1)]

    def tenths(self, epoch: int) -> NDArray[np.float64]:
        """Hit rate of each tenth of an epoch, in chunks."""
        hits = ~self.missed[epoch * self.epoch_chunks : (epoch + 1) * self.epoch_chunks]
        return np.array([part.mean() for part in np.array_split(hits, 10)])


class Simulation:
    """Jobs and one policy; `run` simulates them to their ends.

    Args:
        policy: with the datasets added; the sessions are opened here.
        plans: the jobs.
        fetch_ticks: duration of a fetch.
        on_tick: called at each tick, to check invariants.

    Raises:
        CacheFullError: a job does not fit.
    """

    def __init__(
        self,
        policy: CachePolicy,
        plans: Sequence[JobPlan],
        fetch_ticks: int = 4,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.policy = policy
        self.jobs = [_begin(plan) for plan in plans]
        self._fetch_ticks = fetch_ticks
        self._on_tick = on_tick
        self._fetching: deque[tuple[int, bytes]] = deque()
        self._tick = 0
        for plan in plans:
            opened, ahead = plan.open_chunks * plan.chunk_bytes, plan.lookahead_chunks * plan.chunk_bytes
            policy.open_session(plan.name, plan.name, plan.dataset, opened, ahead)

    def run(self) -> list[JobRun]:
        """Simulates until every job is done or hangs.

        Raises:
            RuntimeError: no job can progress and nothing is being fetched: a deadlock.
        """
        while any(job.running for job in self.jobs):
            self._publish()
            moved = [self._step(job) for job in self.jobs if job.running]
            if not any(moved) and not self._fetching:
                raise RuntimeError(f"deadlock at tick {self._tick}: {self.policy!r}")
            self._on_tick()
            self._tick += 1
        return self.jobs

    def _publish(self) -> None:
        while self._fetching and self._fetching[0][0] <= self._tick:
            self.policy.publish(self._fetching.popleft()[1])

    def _step(self, job: JobRun) -> bool:
        """Makes one use of one job; False: the job waits."""
        name, place = job.plan.name, job.place
        self._start_epoch(job)
        self._request(job)
        if not self._use(job):
            job.waited_ticks += 1
            return False
        job.depth[place] = job.requested - place - 1
        job.open.append(int(job.uses[place]))
        if len(job.open) >= job.plan.open_chunks:
            self.policy.release(name, job.open.popleft())
        job.place += 1
        return True

    def _start_epoch(self, job: JobRun) -> None:
        if job.place % job.epoch_chunks == 0:
            self.policy.start_epoch(job.plan.name, job.uses[job.place : job.place + job.epoch_chunks])

    def _request(self, job: JobRun) -> None:
        """Announces and requests chunks in order of use, until there is no space."""
        last = min(len(job.uses), job.place + job.plan.lookahead_chunks + 1)
        while job.requested < last:
            chunk = int(job.uses[job.requested])
            if job.announced == job.requested:
                self.policy.look_ahead(job.plan.name, chunk)
                job.announced += 1
            if not self._need(job, job.requested):
                return
            job.requested += 1

    def _need(self, job: JobRun, place: int) -> bool:
        answer = self.policy.need(job.plan.name, int(job.uses[place]), blocking=place == job.place)
        if isinstance(answer, Admit):
            job.missed[place] = True
            self._fetching.append((self._tick + self._fetch_ticks, answer.key))
        return not (isinstance(answer, Wait) and not answer.fetching)

    def _use(self, job: JobRun) -> bool:
        if job.requested <= job.place:
            return False
        if self.policy.open(job.plan.name, int(job.uses[job.place])):
            return True
        self._need(job, job.place)  # it was evicted for another session's blocking request, or is on its way
        return False

    def finish(self, job: JobRun) -> Freed:
        """Ends a job's session."""
        return self.policy.close_session(job.plan.name)


def lru_hit_rates(order: Order, epochs: int, cost: NDArray[np.int64], limit_bytes: int) -> list[float]:
    """Hit rates of a cache of least recently used chunks, for comparison.

    Under fresh permutations a chunk used at x and next at y sees 1 - x(1-y) of the data between, so it hits with
    f + (1 - f) ln(1 - f), f = C/D: 15 % at f = 0.5, and nothing at all under an identical order.

    Args:
        order: chunk numbers of an epoch, in order of use.
        epochs: how many.
        cost: (chunks,) what each chunk takes, in bytes.
        limit_bytes: what the cache may take.

    Returns:
        Per epoch, the share of the needed bytes that were in the cache.
    """
    kept: dict[int, int] = {}  # by last use, the oldest first
    rates, free = [], limit_bytes
    for epoch in range(epochs):
        missed = 0
        for chunk in order(epoch).tolist():
            size = int(cost[chunk])
            if kept.pop(chunk, None) is None:
                missed += size
                free -= size
            kept[chunk] = size
            while free < 0:
                free += kept.pop(next(iter(kept)))
        rates.append(1.0 - missed / float(cost.sum()))
    return rates


def _begin(plan: JobPlan) -> JobRun:
    orders = [plan.order(epoch) for epoch in range(plan.epochs)]
    uses = np.concatenate(orders)
    return JobRun(plan, uses, np.zeros(len(uses), np.bool_), np.zeros(len(uses), np.int64), len(orders[0]))
