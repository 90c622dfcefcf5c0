"""Quotas: how the kept part is shared out among datasets, mixes and jobs, and what is left for staging."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.quotas import SessionWindow, compute_staging_bytes, join_pools, share_out
from streamer.cache.policy.sessions import SessionOpening
from streamer.cache.policy.table import ChunkGroup, charge
from streamer.errors import CacheError, CacheFullError

CHUNK = charge(1 << 20)


def group(index: int, total: int, value: float = 1.0, pool: int | None = None) -> ChunkGroup:
    made = ChunkGroup(index, f"d{index}", data_bytes=total, total_bytes=total, largest_bytes=1)
    made.value = value
    made.pool = index if pool is None else pool
    return made


def quotas(groups: list[ChunkGroup], room: int) -> list[int]:
    share_out(groups, room)
    return [one.quota_bytes for one in groups]


@pytest.mark.parametrize("room", [0, 7, 10, 25, 31, 60, 100])
def test_datasets_that_are_read_alone_share_equally(room: int) -> None:
    """Datasets that are read alone have equal quotas, none above its data; what is left over is shared again."""
    left, expected = room, {}
    for place, (total, index) in enumerate([(5, 1), (10, 2), (40, 0)]):
        expected[index] = min(total, left // (3 - place))
        left -= expected[index]
    assert quotas([group(0, 40), group(1, 5), group(2, 10)], room) == [expected[index] for index in range(3)]


def test_the_most_passes_of_a_mix_are_kept_first() -> None:
    """Parts of a mix get quotas by their passes an epoch, equal ones equal shares, and an unused part none."""
    mix = [group(0, 100, 0.2, 0), group(1, 10, 1.0, 0), group(2, 30, 0.5, 0), group(3, 30, 0.5, 0), group(4, 9, 0.0, 0)]
    assert quotas(mix, 8) == [0, 8, 0, 0, 0]
    assert quotas(mix, 50) == [0, 10, 20, 20, 0]
    assert quotas(mix, 90) == [20, 10, 30, 30, 0]
    assert quotas(mix, 500) == [100, 10, 30, 30, 0]


def test_a_small_part_of_many_passes_does_not_cost_the_large_one_its_room() -> None:
    """Values compare the parts of one mix, not jobs: a mix has its full share beside another job.
    By value alone the other one got all 200."""
    large, small, other = group(0, 1000, 0.001, 0), group(1, 1, 1.0, 0), group(2, 1000)
    assert quotas([large, small, other], 200) == [99, 1, 100]


def test_mixes_with_a_common_dataset_are_one_pool() -> None:
    """Mixes that have a dataset in common share one pool, since a dataset has one quota."""
    groups = [group(index, 10) for index in range(5)]
    join_pools(groups, groups[:2])
    join_pools(groups, groups[3:])
    assert [one.pool for one in groups] == [0, 0, 2, 3, 3]
    join_pools(groups, groups[1:4])
    assert [one.pool for one in groups] == [0, 0, 0, 0, 0]


def test_staging_of_one_dataset_has_two_deviations() -> None:
    """Staging of one dataset is its misses and two standard deviations, or a tenth and two chunks if that is more."""
    (one,) = live = [group(0, 1000)]
    assert compute_staging_bytes(live, 500, {0: SessionWindow(50, 0)}) == 25 + 7
    assert compute_staging_bytes(live, 500, {0: SessionWindow(500, 0)}) == 250 + 25 + 2
    assert compute_staging_bytes(live, 1000, {0: SessionWindow(50, 0)}) == 2
    assert compute_staging_bytes([], 500, {}) == 0
    assert one.quota_share == 1.0


def test_s_has_what_the_link_needs_beside_the_open_misses() -> None:
    """Staging adds to the misses of the open bytes as much of the look-ahead as the link needs.
    Half of 1000 is kept: 25 of 50 open bytes miss, with a margin of 7; look-ahead has 30 if the link needs it."""
    live = [group(0, 1000)]
    windows = {0: SessionWindow(50, 30)}
    assert compute_staging_bytes(live, 500, windows) == 40 + 8
    assert compute_staging_bytes(live, 500, windows, 0) == 25 + 7
    assert compute_staging_bytes(live, 500, windows, 4) == int(25 + (49.999 + 16) ** 0.5) == 33
    assert compute_staging_bytes(live, 500, windows, 1000) == 40 + 8


def test_staging_counts_the_misses_of_each_dataset() -> None:
    """Staging counts no misses of a dataset that is kept whole, and those that it causes in another's quota."""
    small, large = group(0, 100, 1.0, 0), group(1, 1000, 0.5, 0)
    first = 25 + 7  # with 500 of 1,000 kept
    assert (
        compute_staging_bytes([small, large], 600, {0: SessionWindow(50, 0), 1: SessionWindow(50, 0)})
        == int(26.6 + 2 * (0.468 * 0.532 * 50) ** 0.5)
        == 33
    )
    assert (small.quota_share, large.quota_share) == (1.0, (500 - first) / 1000)


def policy_of(limit_chunks: int, *chunks: int) -> CachePolicy:
    policy = CachePolicy(limit_chunks * CHUNK)
    random = np.random.default_rng(0)
    datasets = [(f"d{index}", np.full(count, 1 << 20), random.bytes(16 * count)) for index, count in enumerate(chunks)]
    policy.add_datasets([(name, sizes, np.frombuffer(keys, np.uint8)) for name, sizes, keys in datasets])
    return policy


def openings(*values: float, name: str = "mix") -> list[SessionOpening]:
    return [SessionOpening(f"{name}/{part}", f"d{part}", CHUNK, CHUNK, value) for part, value in enumerate(values)]


def shares(policy: CachePolicy) -> list[float]:
    return [round(one.quota_bytes / CHUNK, 1) for one in policy._table.groups if one.name.startswith("d")]


def test_the_last_values_hold_between_the_sessions_of_a_job() -> None:
    """A job's values hold until it disconnects, so that validation between two epochs evicts nothing."""
    policy = policy_of(50, 100, 20, 30)
    policy.connect("job")
    policy.open_sessions("job", openings(0.1, 1.0))
    during = shares(policy)
    policy.close_session("mix/0", "mix/1")
    assert [one.value for one in policy._table.groups[:2]] == [0.1, 1.0]
    assert shares(policy)[1] == 20.0 == during[1]
    policy.disconnect("job")
    assert {(one.value, one.pool == one.index) for one in policy._table.groups} == {(1.0, True)}


def test_a_dataset_of_two_sessions_has_the_larger_value() -> None:
    """A dataset that a session reads alone and another in a mix where it is rare has the larger of their values."""
    policy = policy_of(50, 100, 100)
    policy.open_sessions("one", openings(0.1, 1.0))
    policy.open_session("alone", "two", "d0", CHUNK, CHUNK)
    assert [one.value for one in policy._table.groups[:2]] == [1.0, 1.0]
    first, second = shares(policy)
    assert first == second
    policy.close_session("alone")
    assert policy._table.groups[0].value == 0.1


def test_new_values_are_planned_at_once() -> None:
    """New values change the quotas at once and evict nothing by themselves."""
    policy = policy_of(50, 100, 100)
    policy.open_sessions("job", openings(1.0, 0.5))
    before = shares(policy)
    assert before[1] == 0.0
    assert not policy.set_values({"mix/0": 0.5, "mix/1": 1.0}).victims
    assert shares(policy) == before[::-1]


def test_a_mix_that_does_not_fit_opens_no_session() -> None:
    """`open_sessions` opens all sessions of a mix, or none where one does not fit or has an unknown dataset."""
    policy = policy_of(5, 100, 100)
    with pytest.raises(CacheFullError, match="too small"):
        policy.open_sessions("job", [SessionOpening("a", "d0", 2 * CHUNK, 0), SessionOpening("b", "d1", 2 * CHUNK, 0)])
    with pytest.raises(CacheError, match="not added"):
        policy.open_sessions("job", [SessionOpening("a", "d0", CHUNK, 0), SessionOpening("b", "other", CHUNK, 0)])
    assert policy.statistics().sessions == 0
    policy.open_session("a", "job", "d0", CHUNK, CHUNK)


def test_the_bound_counts_passes() -> None:
    """`hit_bound` is the share of an epoch's uses that kept chunks serve, each dataset weighted by its passes."""
    policy = policy_of(60, 100, 20)
    policy.open_sessions("job", openings(0.25, 1.0))
    large, small = shares(policy)
    assert small == 20.0
    assert policy.hit_bound({"d0", "d1"}) == pytest.approx((0.25 * large + 20) / (0.25 * 100 + 20), abs=0.002)
    assert policy.hit_bound({"d1"}) == 1.0
    assert policy.hit_bound(set()) == 0.0


def test_chunks_of_a_layer_are_always_hits() -> None:
    """Chunks of a layer count as hits in `hit_bound` beside those that the quota keeps."""
    policy = CachePolicy(40 * CHUNK)
    keys = np.random.default_rng(0).integers(0, 256, (100, 16), dtype=np.uint8)
    policy.below(keys[:50])
    policy.add_dataset("d0", np.full(100, 1 << 20), keys)
    policy.open_session("a", "job", "d0", CHUNK, CHUNK)
    assert policy.hit_bound({"d0"}) == pytest.approx((50 + shares(policy)[0]) / 100, abs=0.001)
