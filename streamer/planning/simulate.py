"""Simulates a job on one of its nodes; the others are like it."""

from __future__ import annotations

from functools import lru_cache, partial

from streamer.cache.disk_space import FIXED_BYTES
from streamer.cache.folder import used_bytes
from streamer.engine.datasets import Dataset
from streamer.errors import ConfigError
from streamer.manifest.table import Manifest
from streamer.order.epoch import EpochOrder
from streamer.order.plan import RankPlan, check_last_batch
from streamer.order.spec import OrderSpec
from streamer.planning.link import ChunkCosts, SimulatedLink
from streamer.planning.model import EpochPlan, Job, Plan, Setting
from streamer.planning.node import SimulatedNode
from streamer.planning.trainer import SimulatedRank, SimulatedTrainer
from streamer.planning.virtual_clock import VirtualClock

# From the trainer's first request to the engine's first: processes start, a manifest is opened, a connection is made
# (benchmarks/plan.py).
START_SECONDS = 0.3


def simulate(manifest: Manifest, setting: Setting) -> Plan:
    """Runs the job's epochs, from an empty cache on.

    Args:
        manifest: of the data.
        setting: the job, its cache and its link.

    Raises:
        CacheFullError: the open chunks do not fit into the cache.
        ConfigError: the ranks cannot share a batch, or a number is not above 0.
    """
    _check(setting)
    return _Simulation(manifest, setting).run()


class _Simulation:
    def __init__(self, manifest: Manifest, setting: Setting) -> None:
        self._job = setting.job
        self._dataset = Dataset(manifest, {})
        self._clock = VirtualClock()
        ranks = range(self._job.ranks_per_node)
        plans = _Plans(manifest, self._job)
        self._batches = plans.of(0, 0).batches
        costs = ChunkCosts(self._dataset, setting.link, setting.engine)
        self._link = SimulatedLink(self._clock, costs, lambda step: step // self._batches)
        limit_bytes = max(0, setting.cache_bytes - FIXED_BYTES - used_bytes(manifest.path))
        node = SimulatedNode(self._dataset, limit_bytes, self._clock, self._link)
        self._ranks = [SimulatedRank(node, self._clock, self._job, rank, partial(plans.of, rank)) for rank in ranks]
        self._trainer = SimulatedTrainer(self._clock, self._ranks, self._job, self._batches)
        self._node = node

    def run(self) -> Plan:
        self._trainer.start()
        ended = self._clock.run(lambda: self._trainer.over or bool(self._node.errors))
        if self._node.errors:
            raise self._node.errors[0]
        if not ended:
            raise AssertionError(f"the simulation stands still after {self._trainer.steps} steps")
        return Plan(
            first_batch_seconds=START_SECONDS + self._trainer.first_batch_at,
            epochs=tuple(self._epoch(number, seconds) for number, seconds in enumerate(self._trainer.seconds())),
            ahead_bytes=self._link.fetched_bytes[self._job.epochs] * self._job.nodes,
            ahead_requests=self._link.requests[self._job.epochs] * self._job.nodes,
        )

    def _epoch(self, number: int, seconds: float) -> EpochPlan:
        needed_bytes = sum(rank.needed_bytes[number] for rank in self._ranks)
        return EpochPlan(
            fetched_bytes=self._link.fetched_bytes[number] * self._job.nodes,
            requests=self._link.requests[number] * self._job.nodes,
            hit_share=1.0 - self._link.missed_bytes[number] / max(1, needed_bytes),
            seconds=seconds,
            waiting_share=self._trainer.waited[number] / seconds if seconds else 0.0,
        )


class _Plans:
    """The batches of the ranks of the first node."""

    def __init__(self, manifest: Manifest, job: Job) -> None:
        self._world = job.nodes * job.ranks_per_node
        self._batch = job.batch_size * self._world
        spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, self._batch, job.seed, job.shuffle)
        self._first = EpochOrder(spec, manifest.chunk_samples, 0)
        self.of = lru_cache(maxsize=4 * job.ranks_per_node)(self._of)

    def _of(self, rank: int, epoch: int) -> RankPlan:
        return RankPlan(self._first.at(epoch), self._batch, self._world, rank, check_last_batch(None, self._world))


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
