"""Finds the smallest cache and the slowest link with which a job does not wait, by simulations of it.

Used by `tools/plan_command.py`. The job waits if its waiting share is above `WAITING_BOUND`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from streamer.batches.samples.opened import OpenedDataset
from streamer.errors import CacheFullError
from streamer.tools.planning.model import WAITING_BOUND, Setting
from streamer.tools.planning.simulate import simulate

# Two epochs show how the job goes on: the first one fills the cache.
_EPOCHS = 2
# Number of times that a search halves its range: the cache is then known to 2 % of the data, the link to 8 %.
_HALVINGS = 6
# Size of the largest cache that is tried, as a multiple of the data: chunk files have headers, and the cache sets some
# room aside.
_WHOLE_SHARE = 1.1
# The slowest and the fastest link that are looked at, as multiples of what the training reads.
_SLOWEST = 1 / 64
_FASTEST = 2.0

# Takes the number of a simulation, and the largest number that there can be.
Progress = Callable[[int, int], None]
SIMULATIONS = 2 * (_HALVINGS + 1)


@dataclass(frozen=True)
class Point:
    """One simulated value.

    Attributes:
        value: cache of each node in bytes, or link of each node in bytes per second.
        waiting_share: waiting share of the second epoch; 1.0 if the open chunks do not fit into the cache.
    """

    value: float
    waiting_share: float

    @property
    def waits(self) -> bool:
        """Whether the job waits with this value."""
        return self.waiting_share > WAITING_BOUND


@dataclass(frozen=True)
class SmallestNeeds:
    """The result of one search.

    Attributes:
        least: smallest simulated value with which the job does not wait; None if it waits with the largest one, too.
        points: the simulated values, in ascending order.
    """

    least: float | None
    points: tuple[Point, ...]


@dataclass(frozen=True)
class SearchResult:
    """The results of both searches.

    Attributes:
        cache_bytes: result for the cache, with the link as it is.
        link_bytes_per_second: result for the link, with the cache as it is.
    """

    cache_bytes: SmallestNeeds
    link_bytes_per_second: SmallestNeeds


def limits(data: OpenedDataset, setting: Setting, progress: Progress = lambda done, total: None) -> SearchResult:
    """Searches for the smallest cache with the link of `setting`, and for the slowest link with its cache.

    Args:
        data: the samples, with their joins.
        setting: job, cache and link.
        progress: called before each simulation with its number, from 1 on, and `SIMULATIONS`.

    Raises:
        ConfigError: the setting is invalid.
    """
    brief = replace(setting, job=replace(setting.job, epochs=_EPOCHS))
    done = 0

    def simulate_wait_share(changed: Setting) -> float:
        nonlocal done
        progress(done := done + 1, SIMULATIONS)
        try:
            return simulate(data, changed).epochs[-1].waiting_share
        except CacheFullError:
            return 1.0

    def wait_with_cache(share: float) -> float:
        return simulate_wait_share(replace(brief, cache_bytes=int(share * whole_bytes)))

    def wait_with_link(rate_factor: float) -> float:
        return simulate_wait_share(replace(brief, link=replace(brief.link, bytes_per_second=rate * rate_factor)))

    whole_bytes = int(_epoch_bytes(data) * _WHOLE_SHARE)
    rate = needed_bytes_per_second(data, setting)
    return SearchResult(
        cache_bytes=_scale(smallest(wait_with_cache, 0.0, 1.0, lambda low, high: (low + high) / 2), whole_bytes),
        link_bytes_per_second=_scale(
            smallest(wait_with_link, _SLOWEST, _FASTEST, lambda low, high: math.sqrt(low * high)), rate
        ),
    )


def _epoch_bytes(data: OpenedDataset) -> int:
    """Returns the bytes of the chunks that an epoch uses, each counted once, with those of joined datasets."""
    own = int(data.manifest.chunk_local_bytes[data.chunk_samples > 0].sum())
    joined = (join.manifest.chunk_local_bytes[np.unique(join.table.use_chunk)] for join in data.joins)
    return own + sum(int(sizes.sum()) for sizes in joined)


def needed_bytes_per_second(data: OpenedDataset, setting: Setting) -> float:
    """Returns the bytes per second that one node reads, from cache and store together, if it never waits."""
    job = setting.job
    samples_per_second = job.ranks_per_node * job.batch_size / max(job.step_seconds, 1e-6)
    return samples_per_second * _epoch_bytes(data) / max(1, data.samples)


def smallest(
    waiting: Callable[[float], float], low_value: float, high_value: float, middle: Callable[[float, float], float]
) -> SmallestNeeds:
    """Finds the smallest value with which the job does not wait, by halving a range `_HALVINGS` times.

    Args:
        waiting: returns the waiting share with a value; the share falls as the value grows.
        low_value: lower end of the range, which is not tried.
        high_value: upper end of the range, which is tried first.
        middle: returns the value between two others that is tried next.
    """
    points = [Point(high_value, waiting(high_value))]
    if points[0].waits:
        return SmallestNeeds(None, tuple(points))
    for _ in range(_HALVINGS):
        value = middle(low_value, high_value)
        points.append(Point(value, waiting(value)))
        low_value, high_value = (value, high_value) if points[-1].waits else (low_value, value)
    return SmallestNeeds(high_value, tuple(sorted(points, key=lambda point: point.value)))


def _scale(needed: SmallestNeeds, unit_value: float) -> SmallestNeeds:
    """Returns the result with all values multiplied by `unit_value`."""
    points = tuple(Point(point.value * unit_value, point.waiting_share) for point in needed.points)
    return SmallestNeeds(None if needed.least is None else needed.least * unit_value, points)
