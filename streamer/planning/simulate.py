"""Simulates a job on one of its nodes: the real order, the cache policy that ships, and times that follow from sizes.

The ranks of a node step together, so that one sequence of batches stands for all of them, and a batch's times follow
from those before it: no events, no clock. The other nodes are like this one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

import numpy as np

from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.folder import used_bytes
from streamer.cache.policy.answers import Admit, Hit
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.sessions import Opening
from streamer.cache.policy.table import charged_bytes
from streamer.config import CacheConfig, EngineConfig, FetchConfig
from streamer.engine.datasets import Dataset
from streamer.engine.scheduler import OPEN_SHARE
from streamer.engine.session_progress import SessionProgress
from streamer.engine.uses import Columns, Use, affordable_lookahead, open_bytes
from streamer.errors import ConfigError
from streamer.fetch.ranges import plan_ranges
from streamer.manifest.table import Manifest
from streamer.order.epoch import EpochOrder
from streamer.order.plan import RankPlan, check_last_batch
from streamer.order.spec import OrderSpec
from streamer.planning.model import EpochPlan, Job, Plan, Setting

# From the trainer's first request to the engine's first: processes start, a manifest is opened, a connection is made
# (benchmarks/plan.py).
START_SECONDS = 0.3
# As the loader has them (loader/options.py): batches that are begun and not yet taken.
_SPAN_PER_WORKER = 8
_SPAN_MAX = 48
# As its session has it (loader/rank/step_session.py): the next epoch is planned when so much of one is asked for.
_PLANNED_SHARE = 3 / 4
_SESSION = "node"


def simulate(manifest: Manifest, setting: Setting) -> Plan:
    """Runs the job's epochs, from an empty cache on.

    Raises:
        CacheFullError: the open chunks do not fit into the cache.
        ConfigError: the ranks cannot share a batch, or a number is not above 0.
    """
    _check(setting)
    return _Ranks(setting.job, _Node(manifest, setting)).run()


class _Node:
    """The cache of a node, with one session that reads what all its ranks read, and the link that fills it.

    Attributes:
        fetched_bytes, requests: bytes and requests from the store, by the epoch that needs them.
        missed_bytes, needed_bytes: bytes of the chunks' files, by epoch.
    """

    def __init__(self, manifest: Manifest, setting: Setting) -> None:
        job, limit_bytes = setting.job, setting.cache_bytes - FIXED_BYTES - used_bytes(manifest.path)
        self._setting, self._manifest, self._dataset = setting, manifest, Dataset(manifest, {})
        self._numbers = {key.tobytes(): chunk for chunk, key in enumerate(manifest.chunk_keys)}
        self._ranks, self._world = range(job.ranks_per_node), job.nodes * job.ranks_per_node
        self._batch_samples = job.batch_size * self._world
        spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, self._batch_samples, job.seed, job.shuffle)
        self._order = EpochOrder(spec, manifest.chunk_samples, 0)
        self.batches = self._plan(0, 0).batches
        self.fetched_bytes, self.requests, self.missed_bytes, self.needed_bytes = (Counter[int]() for _ in range(4))
        self._planned = self._running = 0
        self._link_free_at = 0.0
        self._in_flight: list[tuple[float, int]] = []
        self._policy = CachePolicy(max(0, limit_bytes))
        self._policy.add_dataset(manifest.digest, self._dataset.file_bytes, manifest.chunk_keys)
        self.progress = SessionProgress(self._dataset.file_bytes)
        self._open_session()

    def _open_session(self) -> None:
        """Opens one session with the open chunks and the look-ahead of all ranks."""
        engine, file_bytes = EngineConfig(cache=CacheConfig(directory=self._manifest.path)), self._dataset.file_bytes
        ahead = affordable_lookahead(engine.lookahead_bytes, self._policy.limit_bytes, self._dataset.total_bytes)
        sharers = max(len(self._ranks), min(self._world, 8))
        self._lookahead_bytes = len(self._ranks) * max(ahead // sharers, 2 * int(file_bytes.max(initial=0)))
        opened = sum(open_bytes(self._columns(rank, 0), charged_bytes(file_bytes)) for rank in self._ranks)
        self._most_open_bytes = max(opened + self._lookahead_bytes, int(OPEN_SHARE * self._policy.limit_bytes))
        opening = Opening(_SESSION, self._manifest.digest, opened, self._lookahead_bytes)
        self._policy.open_sessions("planned", [opening])
        self._extend()
        self._start_epoch(0)

    def next_arrival(self) -> float | None:
        """Returns when the next chunk in flight arrives."""
        return self._in_flight[0][0] if self._in_flight else None

    def schedule(self, now: float, done: int, want: int) -> None:
        """Does what the engine's scheduler does: releases read chunks, opens local ones, fetches the next ones."""
        while want >= self.batches * (self._planned - 1 + _PLANNED_SHARE):
            self._extend()
        while self._in_flight and self._in_flight[0][0] <= now:
            arrived = heapq.heappop(self._in_flight)[1]
            self.progress.arrived(arrived)
            self._lose(self._policy.published(self._dataset.key(arrived)).victims)
        self.progress.advance(done, want)
        for use in self.progress.take_finished():
            self._lose(self._policy.release(_SESSION, use.chunk).victims)
        self._open_local()
        self._ask_ahead(now)
        self._open_local()

    def _ask_ahead(self, now: float) -> None:
        progress = self.progress
        while True:
            if (request := progress.take_request()) is not None:
                if not self._ask(request, now):
                    progress.ask_later(request)
                    return
                continue
            use = progress.next_use()
            if use is None or (use.first > progress.want and progress.ahead_bytes >= self._lookahead_bytes):
                return
            self._policy.look_ahead(_SESSION, use.chunk)
            progress.hold(use)
            if progress.is_local(use.chunk) and not self._ask(use, now):
                progress.ask_later(use)

    def _ask(self, use: Use, now: float) -> bool:
        """Asks for one chunk; returns False if there is no space now."""
        answer = self._policy.need(_SESSION, use.chunk, blocking=self.progress.is_blocking(use))
        if isinstance(answer, Hit):
            self.progress.arrived(use.chunk)
        elif isinstance(answer, Admit):
            self._lose(answer.victims)
            self._fetch(use, now)
        else:
            return answer.fetching
        return True

    def _fetch(self, use: Use, now: float) -> None:
        """Fetches a chunk. Requests share the link, so together they take the time of their bytes.

        Unless their number is the limit, of the link's window or of the engine's cores.
        """
        link, engine, epoch = self._setting.link, self._setting.engine, use.first // self.batches
        ranges = plan_ranges(self._manifest.chunk(use.chunk).extents, FetchConfig().range_bytes)
        size_bytes, requests = sum(extent.length for extent in ranges), len(ranges)
        one = link.first_byte_seconds + size_bytes / requests / link.connection_bytes_per_second
        by_engine = engine.seconds(size_bytes, requests)
        taken = max(size_bytes / link.bytes_per_second, requests * one / link.requests, by_engine)
        self._link_free_at = max(self._link_free_at, now) + taken
        arrival = self._link_free_at + max(link.first_byte_seconds, one - taken)
        heapq.heappush(self._in_flight, (arrival, use.chunk))
        self.fetched_bytes[epoch] += size_bytes
        self.requests[epoch] += requests
        self.missed_bytes[epoch] += int(self._dataset.file_bytes[use.chunk])

    def _open_local(self) -> None:
        progress = self.progress
        for use in progress.openable():
            opened = progress.open_chunks() * self._dataset.mean_bytes
            if opened >= self._most_open_bytes and not progress.is_blocking(use):
                return
            if use.epoch > self._running:
                self._start_epoch(use.epoch)
            if self._policy.opened(_SESSION, use.chunk):
                progress.opened(use)
            else:
                progress.lost(use.chunk)

    def _lose(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self.progress.lost(self._numbers[key])

    def _start_epoch(self, epoch: int) -> None:
        self._running = epoch
        self._policy.start_epoch(_SESSION, self.progress.remaining((0, self._manifest.chunks), epoch))

    # ------------------------------------------------------------ what the ranks read

    def _extend(self) -> None:
        """Adds the schedule of the next epoch, of all ranks."""
        columns = zip(*(self._columns(rank, self._planned) for rank in self._ranks), strict=True)
        chunk, first, last = map(np.concatenate, columns)
        order = np.argsort(first, kind="stable")
        self.progress.extend(self._planned, (chunk[order], first[order], last[order]), complete=True)
        self.needed_bytes[self._planned] = int(self._dataset.file_bytes[chunk].sum())
        self._planned += 1

    def _columns(self, rank: int, epoch: int) -> Columns:
        plan = self._plan(rank, epoch)
        schedule, base = plan.schedule(), epoch * plan.batches
        return schedule.chunk, schedule.first + base, schedule.last + base

    def _plan(self, rank: int, epoch: int) -> RankPlan:
        last_batch = check_last_batch(None, self._world)
        return RankPlan(self._order.at(epoch), self._batch_samples, self._world, rank, last_batch)


class _Ranks:
    """The loaders and the training loop of a node's ranks, which are alike."""

    def __init__(self, job: Job, node: _Node) -> None:
        self._job, self._node, self._batches = job, node, node.batches
        self._span = min(_SPAN_PER_WORKER * job.workers, _SPAN_MAX)
        self._idle_at = [0.0] * job.workers
        self._made_at: list[float] = []
        self._taken_at: list[float] = []
        self._done = 0

    def run(self) -> Plan:
        """Runs all epochs."""
        job, node, waited = self._job, self._node, [0.0] * self._job.epochs
        epoch_ends, end = [0.0] * job.epochs, 0.0
        for step in range(job.epochs * self._batches):
            self._taken_at.append(max(end, self._make(step)))
            if step:
                waited[step // self._batches] += self._taken_at[step] - end
            epoch_ends[step // self._batches] = end = self._taken_at[step] + job.step_seconds
        # Of the epoch after the last one, as far as the window reaches.
        for step in range(len(self._taken_at), len(self._taken_at) + min(self._span, self._batches)):
            if self._make(step) > end:  # after the last batch nothing begins
                break
        seconds = np.diff([self._taken_at[0], *epoch_ends]).tolist()
        return Plan(
            first_batch_seconds=START_SECONDS + self._taken_at[0],
            epochs=tuple(map(self._epoch, range(job.epochs), seconds, waited)),
            ahead_bytes=node.fetched_bytes[job.epochs] * job.nodes,
            ahead_requests=node.requests[job.epochs] * job.nodes,
        )

    def _make(self, step: int) -> float:
        """Returns when a worker has made the batch of a step.

        It begins when it is idle, the chunks are here, and, as in the loader's window, at most `span` batches before
        the trainer and at most in the epoch after the trainer's.
        """
        now, epoch_before = heapq.heappop(self._idle_at), (step // self._batches - 1) * self._batches
        for needed in (step - self._span, epoch_before):
            now = max(now, self._taken_at[needed]) if needed >= 0 else now
        self._schedule(now, step)
        while self._node.progress.through() < step:
            now = max(now, self._next_event(step))
            self._schedule(now, step)
        made_at = now + self._job.batch_size * self._job.sample_seconds
        heapq.heappush(self._idle_at, made_at)
        self._made_at.append(made_at)
        return made_at

    def _schedule(self, now: float, step: int) -> None:
        while self._done < step and self._made_at[self._done] <= now:
            self._done += 1
        self._node.schedule(now, self._done, step + self._span)

    def _next_event(self, step: int) -> float:
        """Returns when the next chunk arrives, or the next batch is made."""
        events = [self._made_at[self._done]] if self._done < step else []
        if (arrival := self._node.next_arrival()) is not None:
            events.append(arrival)
        assert events, f"the simulation stands still at step {step}"
        return min(events)

    def _epoch(self, number: int, seconds: float, waited: float) -> EpochPlan:
        node, nodes = self._node, self._job.nodes
        return EpochPlan(
            fetched_bytes=node.fetched_bytes[number] * nodes,
            requests=node.requests[number] * nodes,
            hit_share=1.0 - node.missed_bytes[number] / max(1, node.needed_bytes[number]),
            seconds=seconds,
            waiting_share=waited / seconds if seconds else 0.0,
        )


def _check(setting: Setting) -> None:
    job, link = setting.job, setting.link
    least: dict[str, float] = {
        "nodes": job.nodes, "ranks": job.ranks_per_node, "batch_size": job.batch_size, "workers": job.workers,
        "epochs": job.epochs, "link": link.bytes_per_second,
    }  # fmt: skip
    for name, value in least.items():
        if value <= 0:
            raise ConfigError(f"{name}={value} must be above 0", field=name)
    for name, seconds in (("step_seconds", job.step_seconds), ("sample_seconds", job.sample_seconds)):
        if seconds < 0:
            raise ConfigError(f"{name}={seconds} is negative", field=name)
