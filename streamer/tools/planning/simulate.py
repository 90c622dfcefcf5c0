"""Simulates a job on one of its nodes, with its real order and the engine's cache policy; times follow from sizes.

Used by `tools/plan_command.py` and `search.py`. The ranks of a node step together, so that one sequence of batches
stands for all of them, and the times of a batch follow from those of earlier ones. The other nodes are taken to be like
this one. Times are seconds since the engine's first request.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from streamer.batches.samples.opened import Members, OpenedDataset
from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.folder import measure_usage
from streamer.cache.policy.answers import Admit, Hit
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.quotas import SessionWindow
from streamer.cache.policy.sessions import SessionOpening
from streamer.cache.policy.table import charge_each
from streamer.config import CacheConfig, EngineConfig, FetchConfig, enough_bytes, format_bytes
from streamer.engine.collection import Collection, Parts
from streamer.engine.datasets import Dataset
from streamer.engine.link_need import MARGIN
from streamer.engine.scheduler import OPEN_SHARE
from streamer.engine.session_progress import SessionProgress, Use, affordable_lookahead, count_open_bytes
from streamer.engine.windows import count_open_together
from streamer.errors import CacheFullError, ConfigError
from streamer.fetch.ranges import plan_ranges
from streamer.loader.options.loader_options import SPAN_MAX, SPAN_PER_WORKER
from streamer.order.epoch import EpochOrder
from streamer.order.plan import RankPlan, check_last_batch
from streamer.order.spec import OrderSpec
from streamer.tools.planning.model import EpochPlan, Plan, Setting, TrainingJob
from streamer.wire.messages import Part
from streamer.wire.schedule import EpochSchedule

# Time from the trainer's first request to the engine's first: processes start, a manifest is opened, a connection is
# made (benchmarks/plan.py).
START_SECONDS = 0.3
# When this share of an epoch is requested, the next epoch is planned; equal to that of the loader's session
# (loader/kinds/step_session.py).
_PLANNED_SHARE = 3 / 4
_SESSION = "node"


def simulate(data: OpenedDataset, setting: Setting) -> Plan:
    """Simulates the epochs of a job, which begins with an empty cache.

    Args:
        data: the selected samples, with their joins.
        setting: the job and its machines.

    Raises:
        CacheFullError: the open chunks do not fit into the cache.
        ConfigError: the ranks cannot share a batch, or a number is out of its range.
    """
    job = setting.job
    link = setting.link
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
    return _Ranks(setting.job, _SimulatedNode(data, setting)).run()


class _SimulatedNode:
    """Simulates the engine of a node: its cache, its link, and one session that reads what all its ranks read.

    Args:
        data: the selected samples, with their joins.
        setting: the job and its machines.

    Attributes:
        batches: batches of an epoch.
        fetched_bytes: bytes from the store, by the epoch that needs them and by part.
        requests: requests to the store, by the same.
        missed_bytes: bytes of chunk files that were fetched, by epoch.
        needed_bytes: bytes of chunk files that were needed, by epoch.
        progress: progress of the session, as the engine keeps it.

    Raises:
        CacheFullError: the open chunks do not fit into the cache.
    """

    def __init__(self, data: OpenedDataset, setting: Setting) -> None:
        job = setting.job
        self._setting = setting
        self._members = Members([data])
        manifests = self._members.manifests
        self._collection = Collection([Dataset(each, {}) for each in manifests], [""] * len(manifests))
        requests = [
            Part(each.digest, value=value)
            for each, value in zip(manifests, self._members.part_values([1.0]), strict=True)
        ]
        self._parts = Parts(_SESSION, self._collection, requests)
        self._numbers: dict[bytes, list[int]] = {}
        for chunk in range(len(self._collection.file_bytes)):
            self._numbers.setdefault(self._collection.key(chunk), []).append(chunk)
        self._ranks = range(job.ranks_per_node)
        self._world = job.nodes * job.ranks_per_node
        self._batch_samples = job.batch_size * self._world
        spec = OrderSpec.auto(
            data.digest, data.chunk_samples, batch_size=self._batch_samples, seed=job.seed, shuffle=job.shuffle
        )
        self._order = EpochOrder(spec, data.chunk_samples, 0)
        self.batches = self._plan(0, 0).batches
        self.fetched_bytes = Counter[tuple[int, int]]()
        self.requests = Counter[tuple[int, int]]()
        self.missed_bytes = Counter[int]()
        self.needed_bytes = Counter[int]()
        self._planned = 0
        self._running = [0] * len(manifests)
        self._link_free_at = 0.0
        self._in_flight: list[tuple[float, int]] = []
        tables = [each.path for each in manifests] + [join.table.path for join in data.joins]
        overhead_bytes = FIXED_BYTES + sum(map(measure_usage, tables))
        self._policy = CachePolicy(max(0, setting.cache_bytes - overhead_bytes))
        for dataset in self._collection.datasets:
            self._policy.add_dataset(dataset.manifest.digest, dataset.file_bytes, dataset.manifest.chunk_keys)
        self.progress = SessionProgress(self._collection.file_bytes)
        try:
            self._open_session()
        except CacheFullError as error:
            raise _too_small(setting.cache_bytes, overhead_bytes, int(str(error.details["wanted_bytes"]))) from error

    def _open_session(self) -> None:
        """Opens the session with the open chunks and the look-ahead of all ranks, as `Engine.open_session` does."""
        collection = self._collection
        parts = self._parts
        limit_bytes = self._policy.limit_bytes
        engine = EngineConfig(cache=CacheConfig(directory=collection.datasets[0].manifest.path))
        total_bytes = sum(dataset.total_bytes for dataset in collection.datasets)
        ahead = affordable_lookahead(engine.lookahead_bytes, limit_bytes, total_bytes)
        sharers = max(len(self._ranks), min(self._world, 8))
        max_bytes = int(collection.file_bytes.max(initial=0))
        self._lookahead_bytes = len(self._ranks) * max(ahead // sharers, 2 * max_bytes)
        opened = np.sum([self._open_bytes(rank) for rank in self._ranks], axis=0)
        self._most_open_bytes = max(int(opened.sum()) + self._lookahead_bytes, int(OPEN_SHARE * limit_bytes))
        rates = collection.byte_rates(parts.values)
        values = parts.relative_values()
        columns = zip(parts.names, collection.datasets, opened.tolist(), rates, strict=True)
        self._policy.open_sessions(
            "planned",
            [
                SessionOpening(
                    session=name,
                    dataset_id=dataset.manifest.digest,
                    open_bytes=open_bytes,
                    lookahead_bytes=int(rate * self._lookahead_bytes),
                    value=values[name],
                )
                for name, dataset, open_bytes, rate in columns
            ],
        )
        if len(parts.names) == 1:
            schedules = [EpochSchedule(0, *self._columns(rank, 0)) for rank in self._ranks]
            together = count_open_together(schedules, charge_each(collection.file_bytes))
            window = SessionWindow(min(together, int(opened[0])), self._lookahead_bytes)
            self._policy.set_windows({parts.names[0]: window}, self._estimate_link_bytes())
        self._extend()
        for part in range(len(parts.names)):
            self._start_epoch(part, 0)

    def _estimate_link_bytes(self) -> int:
        """Returns the bytes in flight that keep the link busy, or that suffice for the rate at which the ranks read.

        The engine measures them (`engine/link_need.py`).
        """
        job = self._setting.job
        link = self._setting.link
        step_seconds = max(job.step_seconds, job.batch_size * job.sample_seconds / job.workers)
        epoch_bytes = float(self._collection.file_bytes.sum()) / job.nodes
        wanted = epoch_bytes / (self.batches * step_seconds) if step_seconds else link.bytes_per_second
        chunk_seconds = link.first_byte_seconds + self._parts.mean_bytes / link.connection_bytes_per_second
        return int(MARGIN * min(wanted, link.bytes_per_second) * chunk_seconds)

    def _open_bytes(self, rank: int) -> npt.NDArray[np.int64]:
        """Returns the largest number of bytes that a rank has open at once, of each part: int64 (parts,)."""
        chunk, first, last = self._columns(rank, 0)
        sizes = charge_each(self._collection.file_bytes)
        part_of = self._collection.parts_of(chunk)
        here = [part_of == part for part in range(len(self._collection))]
        return np.array([count_open_bytes(chunk[mine], first[mine], last[mine], sizes) for mine in here])

    def count_by_part(self, counted: Counter[tuple[int, int]], epoch: int) -> list[int]:
        """Returns a count of an epoch for each part."""
        return [counted[epoch, part] for part in range(len(self._collection))]

    def next_arrival(self) -> float | None:
        """Returns the time at which the next chunk in flight arrives; None if none is in flight."""
        return self._in_flight[0][0] if self._in_flight else None

    def schedule(self, now: float, done: int, want: int) -> None:
        """Does what the engine's scheduler does: releases read chunks, opens local ones, fetches the next ones.

        Args:
            now: time.
            done: number of steps that are done.
            want: last step that the ranks ask for.
        """
        while want >= self.batches * (self._planned - 1 + _PLANNED_SHARE):
            self._extend()
        while self._in_flight and self._in_flight[0][0] <= now:
            arrived = heapq.heappop(self._in_flight)[1]
            key = self._collection.key(arrived)
            for chunk in self._numbers[key]:
                self.progress.mark_local(chunk)
            self._lose(self._policy.publish(key).victims)
        self.progress.advance(done, want)
        for use in self.progress.take_done():
            self._lose(self._policy.release(*self._place(use.chunk)).victims)
        self._open_local()
        while True:
            if (request := self.progress.take_request()) is not None:
                if not self._ask(request, now):
                    self.progress.ask_later(request)
                    break
                continue
            ahead = self.progress.next_use()
            is_full = self.progress.ahead_bytes >= self._lookahead_bytes
            if ahead is None or (is_full and ahead.first > self.progress.want):
                break
            self._policy.look_ahead(*self._place(ahead.chunk))
            self.progress.hold(ahead)
            if self.progress.is_local(ahead.chunk) and not self._ask(ahead, now):
                self.progress.ask_later(ahead)
        self._open_local()

    def _ask(self, use: Use, now: float) -> bool:
        """Asks the policy for a chunk, and fetches it if it is admitted; returns False if there is no space now."""
        answer = self._policy.need(*self._place(use.chunk), blocking=self.progress.is_blocking(use))
        if isinstance(answer, Hit):
            self.progress.mark_local(use.chunk)
        elif isinstance(answer, Admit):
            self._lose(answer.victims)
            self._fetch(use, now)
        else:
            return answer.fetching
        return True

    def _fetch(self, use: Use, now: float) -> None:
        """Notes the arrival of a chunk that is fetched now, and counts its bytes and requests.

        Requests share the link. A chunk takes the longest of three times: that of its bytes on the link, that of its
        requests in the link's window, and that of the engine's busiest core.
        """
        link = self._setting.link
        engine = self._setting.engine
        epoch = use.first // self.batches
        part, local = self._collection.locate(use.chunk)
        extents = self._collection.datasets[part].manifest.chunk(local).extents
        ranges = plan_ranges(extents, FetchConfig().range_bytes)
        size_bytes = sum(extent.length for extent in ranges)
        requests = len(ranges)
        one = link.first_byte_seconds + size_bytes / requests / link.connection_bytes_per_second
        by_engine = engine.seconds(size_bytes, requests)
        taken = max(size_bytes / link.bytes_per_second, requests * one / link.requests, by_engine)
        self._link_free_at = max(self._link_free_at, now) + taken
        arrival = self._link_free_at + max(link.first_byte_seconds, one - taken)
        heapq.heappush(self._in_flight, (arrival, use.chunk))
        self.fetched_bytes[epoch, part] += size_bytes
        self.requests[epoch, part] += requests
        self.missed_bytes[epoch] += int(self._collection.file_bytes[use.chunk])

    def _open_local(self) -> None:
        """Opens local chunks in the order of their uses, while the open ones leave room."""
        progress = self.progress
        for use in progress.openable():
            opened = progress.open_chunks() * self._parts.mean_bytes
            if opened >= self._most_open_bytes and not progress.is_blocking(use):
                return
            part, _ = self._collection.locate(use.chunk)
            if use.epoch > self._running[part]:
                self._start_epoch(part, use.epoch)
            if self._policy.open(*self._place(use.chunk)):
                progress.mark_open(use)
            else:
                progress.mark_absent(use.chunk)

    def _lose(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            for chunk in self._numbers[key]:
                self.progress.mark_absent(chunk)

    def _place(self, chunk: int) -> tuple[str, int]:
        """Returns the name of the policy's session for the part of a chunk, and the chunk's number in that part."""
        part, local = self._collection.locate(chunk)
        return self._parts.names[part], local

    def _start_epoch(self, part: int, epoch: int) -> None:
        self._running[part] = epoch
        remaining = self.progress.find_chunks_ahead(self._collection.span(part), epoch)
        self._policy.start_epoch(self._parts.names[part], remaining - np.uint32(self._collection.starts[part]))

    # ------------------------------------------------------------ what the ranks read

    def _extend(self) -> None:
        """Adds the schedule of the next epoch, merged of all ranks, to the session's progress."""
        columns = zip(*(self._columns(rank, self._planned) for rank in self._ranks), strict=True)
        chunk, first, last = map(np.concatenate, columns)
        order = np.argsort(first, kind="stable")
        self.progress.extend(EpochSchedule(self._planned, chunk[order], first[order], last[order]), complete=True)
        self.needed_bytes[self._planned] = int(self._collection.file_bytes[chunk].sum())
        self._planned += 1

    def _columns(
        self, rank: int, epoch: int
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the schedule of a rank for an epoch, with its joins: chunks, and the steps of first and last use."""
        plan = self._plan(rank, epoch)
        own = plan.schedule()
        base = epoch * plan.batches
        schedule = self._members.add_joins(EpochSchedule(epoch, own.chunk, own.first, own.last))
        return schedule.chunk, schedule.first + base, schedule.last + base

    def _plan(self, rank: int, epoch: int) -> RankPlan:
        last_batch = check_last_batch(None, self._world)
        return RankPlan(
            order=self._order.open_epoch(epoch),
            global_batch=self._batch_samples,
            world=self._world,
            rank=rank,
            last_batch=last_batch,
        )


class _Ranks:
    """Simulates the loaders and the training loop of a node's ranks, which are alike.

    Args:
        job: the job.
        node: the engine of the node.
    """

    def __init__(self, job: TrainingJob, node: _SimulatedNode) -> None:
        self._job = job
        self._node = node
        self._batches = node.batches
        self._span = min(SPAN_PER_WORKER * job.workers, SPAN_MAX)
        self._idle_at = [0.0] * job.workers
        self._made_at: list[float] = []
        self._taken_at: list[float] = []
        self._done = 0

    def run(self) -> Plan:
        """Runs all epochs; called once."""
        job = self._job
        node = self._node
        waited = [0.0] * self._job.epochs
        epoch_ends = [0.0] * job.epochs
        end = 0.0
        for step in range(job.epochs * self._batches):
            self._taken_at.append(max(end, self._make(step)))
            if step:
                waited[step // self._batches] += self._taken_at[step] - end
            epoch_ends[step // self._batches] = end = self._taken_at[step] + job.step_seconds
        # Workers also make batches of the epoch after the last one, as far as the span reaches.
        for step in range(len(self._taken_at), len(self._taken_at) + min(self._span, self._batches)):
            if self._make(step) > end:  # after the last batch nothing begins
                break
        seconds = np.diff([self._taken_at[0], *epoch_ends]).tolist()
        return Plan(
            first_batch_seconds=START_SECONDS + self._taken_at[0],
            epochs=tuple(map(self._epoch, range(job.epochs), seconds, waited)),
            ahead_bytes=sum(node.count_by_part(node.fetched_bytes, job.epochs)) * job.nodes,
            ahead_requests=sum(node.count_by_part(node.requests, job.epochs)) * job.nodes,
        )

    def _make(self, step: int) -> float:
        """Returns the time at which a worker has made the batch of a step.

        A worker begins it when it is idle and the chunks are local. As in the loader, the batch is at most `_span`
        steps ahead of the trainer's, and at most in the epoch after it.
        """
        now = heapq.heappop(self._idle_at)
        epoch_before = (step // self._batches - 1) * self._batches
        for needed in (step - self._span, epoch_before):
            now = max(now, self._taken_at[needed]) if needed >= 0 else now
        self._schedule(now, step)
        while self._node.progress.last_ready_step() < step:
            # Time goes on to the arrival of the next chunk, or to the next batch that is made.
            events = [self._made_at[self._done]] if self._done < step else []
            if (arrival := self._node.next_arrival()) is not None:
                events.append(arrival)
            assert events, f"the simulation stands still at step {step}"
            now = max(now, min(events))
            self._schedule(now, step)
        made_at = now + self._job.batch_size * self._job.sample_seconds
        heapq.heappush(self._idle_at, made_at)
        self._made_at.append(made_at)
        return made_at

    def _schedule(self, now: float, step: int) -> None:
        while self._done < step and self._made_at[self._done] <= now:
            self._done += 1
        self._node.schedule(now, self._done, step + self._span)

    def _epoch(self, number: int, seconds: float, waited_seconds: float) -> EpochPlan:
        """Returns the results for an epoch; counts of this node are multiplied by the number of nodes."""
        node = self._node
        nodes = self._job.nodes
        size_bytes = [size * nodes for size in node.count_by_part(node.fetched_bytes, number)]
        requests = [count * nodes for count in node.count_by_part(node.requests, number)]
        return EpochPlan(
            fetched_bytes=sum(size_bytes),
            requests=sum(requests),
            of_joins=tuple(zip(size_bytes[1:], requests[1:], strict=True)),
            hit_share=1.0 - node.missed_bytes[number] / max(1, node.needed_bytes[number]),
            seconds=seconds,
            waiting_share=waited_seconds / seconds if seconds else 0.0,
        )


def _too_small(cache_bytes: int, overhead_bytes: int, wanted_bytes: int) -> CacheFullError:
    """Returns the error of a cache that is too small for the open chunks; it names a limit that is large enough."""
    return CacheFullError(
        f"a cache of {format_bytes(cache_bytes)} is too small: needed are {format_bytes(wanted_bytes)} for the open "
        f"chunks and one more, besides {format_bytes(overhead_bytes)} of manifests and catalog; raise "
        f"cache_bytes to at least {enough_bytes(wanted_bytes + overhead_bytes)}",
        limit_bytes=cache_bytes,
        wanted_bytes=wanted_bytes,
    )
