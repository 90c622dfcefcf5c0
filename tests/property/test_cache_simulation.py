"""The simulation itself: it counts what happens, and it sees a deadlock."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge
from tests.simulation.cache import JobPlan, Simulation

COST = charge(4096)


def policy_of(limit: int, count: int = 10) -> CachePolicy:
    policy = CachePolicy(limit * COST)
    policy.add_dataset("d", [4096] * count, [bytes([chunk]) * 16 for chunk in range(count)])
    return policy


def plan(**changes: object) -> JobPlan:
    values: dict[str, object] = {
        "name": "job", "dataset": "d", "order": lambda epoch: np.arange(10), "epochs": 2,
        "open_chunks": 1, "lookahead_chunks": 1, "chunk_bytes": COST,
    }  # fmt: skip
    return JobPlan(**(values | changes))  # type: ignore[arg-type]


def test_a_cache_that_holds_everything_hits_everything() -> None:
    """In a cache that holds the dataset, the first epoch misses each chunk once and the second hits every chunk."""
    (job,) = Simulation(policy_of(20), [plan()]).run()
    assert job.hit_rates(np.full(10, COST)) == [0.0, 1.0]
    assert job.tenths(1).tolist() == [1.0] * 10


def test_a_fetch_takes_its_ticks() -> None:
    """With a fetch of ten ticks and one chunk of look-ahead, a simulated job waits for most of the time."""
    (job,) = Simulation(policy_of(20), [plan(epochs=1)], fetch_ticks=10).run()
    assert 40 <= job.waited_ticks <= 50


def test_a_hanging_job_ends_the_run_and_keeps_its_session() -> None:
    """A simulation with a job that hangs ends with the job at its place and its session still open."""
    policy = policy_of(20)
    (job,) = Simulation(policy, [plan(hang_at=3)]).run()
    assert job.place == 3
    assert policy.statistics().sessions == 1


def test_a_deadlock_is_seen() -> None:
    """A simulation under a policy that never opens a chunk raises an error that names the deadlock."""
    policy = policy_of(20)
    policy.open = lambda session, chunk: False  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="deadlock"):
        Simulation(policy, [plan()]).run()
