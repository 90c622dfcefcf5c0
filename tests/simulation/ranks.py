"""Simulates the ranks of a job on one machine: the real order, scheduler, sessions and policy, in virtual time.

Only bytes are made up: a link with a rate and a delay stands for the store, and nothing is written. Counts what the
link has carried by the epoch that needed it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge_each
from streamer.engine.bring import Fetch, Waiter
from streamer.engine.collection import Collection
from streamer.engine.scheduler import PageCache, Scheduler
from streamer.engine.session import EngineSession
from streamer.engine.session_progress import affordable_lookahead
from streamer.errors import CacheFullError, StreamerError
from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.wire.messages import OpenSession
from streamer.wire.schedule import EpochSchedule

_DIGEST = "0" * 32


class SimulatedJob(msgspec.Struct, frozen=True):
    """A job on one machine.

    Attributes:
        chunks: number of chunks.
        chunk_bytes: mean length of a chunk's file; lengths vary by a tenth, and the last chunk is a half.
        cache_share: limit of the cache as a share of the chunks.
        ranks: number of ranks.
        chunk_samples: samples of a chunk.
        batch_size: samples of a rank's batch.
        span: batches that a rank may begin before the trainer takes them.
        workers: batches that a rank makes at once.
        make_seconds: time of a worker for a batch.
        step_seconds: time of a training step, which all ranks begin together.
        bytes_per_second, delay_seconds: rate of the link, and time until the first byte of a request.
        epochs: number of epochs.
        lookahead_bytes: setting of the engine.
    """

    chunks: int
    cache_share: float
    ranks: int = 1
    chunk_bytes: int = 1 << 20
    chunk_samples: int = 64
    batch_size: int = 32
    span: int = 8
    workers: int = 1
    make_seconds: float = 0.01
    step_seconds: float = 0.0
    bytes_per_second: float = 100e6
    delay_seconds: float = 0.03
    epochs: int = 3
    lookahead_bytes: int = 512 << 20


class VirtualLoop:
    """Stands for an event loop: calls functions in order of their times, without waiting; has no sockets."""

    def __init__(self) -> None:
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Calls a function after all that is due now."""
        self.call_later(0.0, call, *arguments)

    def call_later(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Calls a function after so many seconds."""
        heapq.heappush(self._events, (self._now + seconds, next(self._numbers), call, arguments))

    def run_while(self, busy: Callable[[], bool]) -> None:
        """Runs until `busy` is false.

        Raises:
            RuntimeError: nothing will happen any more: a deadlock.
        """
        while busy():
            if not self._events:
                raise RuntimeError(f"deadlock after {self._now:.3f} s")
            self._now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)


class _Dataset:
    """Stands for an engine's dataset: chunks with keys and lengths, without a manifest, samples or bytes."""

    def __init__(self, job: SimulatedJob) -> None:
        random = np.random.default_rng(1)
        lengths = random.uniform(0.9, 1.1, job.chunks) * job.chunk_bytes
        lengths[-1] /= 2
        self.file_bytes: NDArray[np.int64] = lengths.astype(np.int64)
        self.keys = random.integers(0, 256, (job.chunks, 16), dtype=np.uint8)
        self.manifest = SimpleNamespace(chunks=job.chunks, digest=_DIGEST, recoded=False)
        self.total_bytes = int(self.file_bytes.sum())
        self.mean_bytes = self.total_bytes / job.chunks

    def key(self, chunk: int) -> bytes:
        return self.keys[chunk].tobytes()

    def check_key(self, chunk: int) -> None:
        pass


class _Link:
    """Stands for the engine's chunks in flight and its store: requests share the rate in order, each after a delay."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._fetches: dict[bytes, Fetch] = {}
        self._free_at = 0.0

    def __len__(self) -> int:
        return len(self._fetches)

    def start(self, key: bytes, waiter: Waiter, victims: Iterable[bytes] = ()) -> None:
        engine = self._engine
        part, chunk = waiter.session.collection.locate(waiter.chunk)
        dataset = waiter.session.collection.datasets[part]
        size_bytes = int(dataset.file_bytes[chunk])
        epoch = waiter.step // engine.batches
        engine.fetched_bytes[epoch] += size_bytes
        engine.fetched_in_time[engine.trained // engine.batches] += size_bytes
        fetch = self._fetches[key] = Fetch(key, dataset, chunk, [waiter])
        now = engine.loop.time()
        arrives_at = max(self._free_at, now + engine.job.delay_seconds) + size_bytes / engine.job.bytes_per_second
        self._free_at = arrives_at
        engine.loop.call_later(arrives_at - now, self._arrive, fetch)

    def join(self, key: bytes, waiter: Waiter) -> bool:
        fetch = self._fetches.get(key)
        if fetch is not None:
            fetch.waiters.append(waiter)
        return fetch is not None

    def unlink(self, keys: Iterable[bytes]) -> None:
        pass

    def _arrive(self, fetch: Fetch) -> None:
        del self._fetches[fetch.key]
        self._engine.scheduler.end_fetch(fetch, None)


class SimulatedEngine:
    """The engine of one machine and the ranks of one job on it; `run` simulates all epochs.

    Attributes:
        fetched_bytes: bytes that the link has carried, by the epoch that needed them.
        epoch_seconds: duration of each epoch.
        waited_seconds: time in each epoch in which the trainer waited for a batch.
    """

    silent_seconds = 60.0

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.loop = VirtualLoop()
        self.dataset = _Dataset(job)
        self.cost = charge_each(self.dataset.file_bytes)
        self.limit_bytes = int(job.cache_share * self.cost.sum())
        self.policy = CachePolicy(self.limit_bytes)
        self.sessions: dict[str, EngineSession] = {}
        pages = cast("PageCache", SimpleNamespace(prefetch_pages=lambda key: None, drop_pages=lambda key: None))
        self.scheduler = Scheduler(self.policy, self.sessions, pages, cast("Any", self.loop))
        self.scheduler.in_flight = cast("Any", _Link(self))
        self.fetched_bytes = Counter[int]()
        self.fetched_in_time = Counter[int]()
        self.epoch_seconds: list[float] = []
        self.waited_seconds: list[float] = []
        self.errors: list[StreamerError] = []
        self.trained = 0
        samples = np.full(job.chunks, job.chunk_samples, np.int64)
        self.global_batch = job.batch_size * job.ranks
        self.spec = OrderSpec.auto(_DIGEST, samples, self.global_batch, 17, True)
        self._samples = samples
        self.batches = self.plan(0, 0).batches
        self.policy.add_datasets([(_DIGEST, self.dataset.file_bytes, self.dataset.keys)])
        self.collection = Collection([cast("Any", self.dataset)], [""])
        self.ranks = [_Rank(self, rank) for rank in range(job.ranks)]

    def plan(self, rank: int, epoch: int) -> RankPlan:
        """A rank's plan of an epoch."""
        return RankPlan(EpochOrder(self.spec, self._samples, epoch), self.global_batch, self.job.ranks, rank)

    def columns(self, rank: int, epoch: int) -> EpochSchedule:
        """The chunks of a rank in an epoch, by steps of all epochs."""
        own = self.plan(rank, epoch).schedule()
        base = epoch * self.batches
        return EpochSchedule(epoch, own.chunk, own.first + base, own.last + base)

    # ------------------------------------------------------------ what sessions ask of their engine

    def now(self) -> float:
        return self.loop.time()

    def wake(self) -> None:
        self.scheduler.wake()

    def has(self, session: EngineSession) -> bool:
        return session.name in self.sessions

    def admit(self, session: EngineSession, schedule: EpochSchedule) -> None:
        if session.admitted:
            return
        affordable = affordable_lookahead(self.job.lookahead_bytes, self.limit_bytes, self.policy.live_bytes({_DIGEST}))
        openings = session.plan(schedule, affordable, len(self.sessions))
        try:
            freed = self.policy.open_sessions(session.request.job, openings)
        except CacheFullError as error:
            session.fail(error)
            return
        session.admitted = True
        self.scheduler.apply_evictions(freed)
        self.scheduler.change_windows()

    def continue_passes(self, session: EngineSession) -> None:
        self.scheduler.continue_passes(session)

    def reject(self, session: EngineSession, chunk: int, reason: str) -> None:
        raise AssertionError("nothing is corrupt here")

    def note_good_read(self, session: EngineSession, chunk: int) -> None:
        raise AssertionError("nothing is corrupt here")

    def count_error(self, error: StreamerError) -> None:
        self.errors.append(error)

    def close_session(self, session: EngineSession) -> None:
        raise AssertionError("sessions stay")

    # ------------------------------------------------------------ the job

    def run(self) -> SimulatedEngine:
        """Simulates all epochs.

        Raises:
            CacheFullError: the open chunks do not fit.
            RuntimeError: nothing moves any more.
        """
        steps = self.job.epochs * self.batches
        begun = ended = 0.0
        waited = 0.0
        for rank in self.ranks:
            rank.begin()
        while self.trained < steps:
            self.loop.run_while(lambda: not self.errors and any(rank.made <= self.trained for rank in self.ranks))
            if self.errors:
                raise self.errors[0]
            waited += self.loop.time() - ended
            self.trained += 1
            for rank in self.ranks:
                rank.go_on()
            over: list[bool] = []
            self.loop.call_later(self.job.step_seconds, over.append, True)
            self.loop.run_while(lambda: not over)  # noqa: B023
            ended = self.loop.time()
            if self.trained % self.batches == 0:
                self.epoch_seconds.append(ended - begun)
                self.waited_seconds.append(waited)
                begun = ended
                waited = 0.0
        return self

    def hits(self, epoch: int) -> float:
        """Share of the dataset's bytes that an epoch did not fetch."""
        return 1.0 - self.fetched_bytes[epoch] / self.dataset.total_bytes

    def must_be_open_bytes(self, epoch: int) -> int:
        """The most bytes that all ranks together have open at one step, each chunk once."""
        return count_together([self.columns(rank, epoch) for rank in range(self.job.ranks)], self.cost)

    def bound(self, epoch: int) -> float:
        """Share of the dataset that fits beside the chunks that must be open."""
        room = self.limit_bytes - self.must_be_open_bytes(epoch)
        return max(0.0, min(1.0, room / float(self.cost.sum())))


def count_together(schedules: list[EpochSchedule], cost: NDArray[np.int64]) -> int:
    """The most bytes of chunks that any of the schedules has open at one step, each chunk once."""
    chunk = np.concatenate([one.chunk for one in schedules]).astype(np.int64)
    steps = np.concatenate([one.first for one in schedules] + [one.last + 1 for one in schedules])
    change = np.concatenate([np.ones(len(chunk), np.int64), -np.ones(len(chunk), np.int64)])
    chunks = np.tile(chunk, 2)
    order = np.lexsort((-change, steps, chunks))
    chunks, steps, change = chunks[order], steps[order], change[order]
    users = np.cumsum(change)  # every chunk's changes add up to 0
    before = users - change
    begins = (before == 0) & (users > 0)
    ends = (before > 0) & (users == 0)
    edge = begins | ends
    signed = np.where(begins, 1, -1)[edge] * cost[chunks[edge]]
    order = np.lexsort((signed, steps[edge]))
    return int(np.cumsum(signed[order]).max(initial=0))


class _Rank:
    """Stands for a rank: the real session, simulated workers, and the batches that they have made."""

    def __init__(self, engine: SimulatedEngine, rank: int) -> None:
        self._engine = engine
        self._rank = rank
        self._begun = 0
        self._at_work: set[int] = set()
        self._planned = 0
        request = OpenSession(rank, "job", _DIGEST, f"rank {rank}", order_id="o", world_size=engine.job.ranks)
        self.session = EngineSession(
            cast("Any", engine), f"{rank}", request, engine.collection, (self._on_ready, self._on_error)
        )
        engine.sessions[self.session.name] = self.session
        self._ready = -1

    @property
    def made(self) -> int:
        """The first step whose batch is not made."""
        return min(self._at_work, default=self._begun)

    def begin(self) -> None:
        self._extend()
        self.session.advance(0, self._engine.job.span)

    def go_on(self) -> None:
        """Begins further batches, as the trainer has taken one."""
        self._begin_batches()

    def _on_ready(self, through: int, rejects: int) -> None:
        self._ready = through
        self._engine.loop.call_soon(self._begin_batches)

    def _on_error(self, error: StreamerError) -> None:
        pass  # counted by the engine

    def _begin_batches(self) -> None:
        engine = self._engine
        job = engine.job
        last = job.epochs * engine.batches
        while (
            len(self._at_work) < job.workers
            and self._begun <= self._ready
            and self._begun < min(engine.trained + job.span, last)
        ):
            step = self._begun
            self._begun += 1
            self._at_work.add(step)
            while step + job.span >= engine.batches * (self._planned - 1 + 0.75) and self._planned < job.epochs:
                self._extend()
            self.session.advance(self.made, min(step + job.span, last - 1))
            engine.loop.call_later(job.make_seconds, self._finish, step)

    def _finish(self, step: int) -> None:
        self._at_work.discard(step)
        self.session.advance(self.made, self.session.progress.want)
        self._begin_batches()

    def _extend(self) -> None:
        self.session.extend(self._engine.columns(self._rank, self._planned), True)
        self._planned += 1
