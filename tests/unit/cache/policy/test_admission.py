"""Answers of the cache policy to a need while fetches are under way, and limits that a disk or a user sets.
The policy is the real one; nothing is fetched or written."""

from __future__ import annotations

import pytest

from streamer.cache.policy.answers import Admit, CacheLimits, Wait
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge
from streamer.errors import CacheFullError

LENGTH = 4096
COST = charge(LENGTH)


@pytest.fixture
def policy() -> CachePolicy:
    """Makes a policy with a limit of two chunks, one of which a session has open."""
    policy = CachePolicy(2 * COST)
    policy.add_dataset("a", [LENGTH] * 9, [bytes([1 + chunk]) * 16 for chunk in range(9)])
    policy.open_session("s", "j", "a", COST, COST)
    policy.look_ahead("s", 0)
    first = policy.need("s", 0)
    policy.publish(first.key)
    assert policy.open("s", 0)
    return policy


def test_a_head_of_line_waits_while_a_fetch_is_under_way(policy: CachePolicy) -> None:
    """A blocking need waits while a fetch is under way; the cache is called full only when all chunks are open."""
    for chunk in (1, 2):
        policy.look_ahead("s", chunk)
    coming = policy.need("s", 1)
    assert isinstance(coming, Admit)
    assert policy.need("s", 2, blocking=True) == Wait(bytes([3]) * 16, fetching=False)
    policy.publish(coming.key)
    assert policy.open("s", 1)
    with pytest.raises(CacheFullError, match="in 1 sessions"):
        policy.need("s", 2, blocking=True)


def test_a_disk_that_others_fill_leaves_what_must_be_open(policy: CachePolicy) -> None:
    """With no free space on the disk the limit admits the open chunk and one more; memory adds the look-ahead."""
    policy.set_limit(CacheLimits(limit_bytes=0, passing_bytes=0, max_bytes=9 * COST))
    assert policy.limit_bytes == 2 * COST
    for chunk in (1, 2):
        policy.look_ahead("s", chunk)
    assert isinstance(policy.need("s", 1, blocking=True), Admit)
    assert isinstance(policy.need("s", 2), Wait)
    policy.set_limit(CacheLimits(limit_bytes=0, passing_bytes=9 * COST, max_bytes=9 * COST))
    assert policy.limit_bytes == 4 * COST
    policy.close_session("s")
    assert policy.limit_bytes == 0


def test_a_limit_that_was_set_is_not_exceeded_for_what_must_be_open(policy: CachePolicy) -> None:
    """A session that does not fit beside others within the user's own limit is refused, and the limit stays."""
    policy.set_limit(CacheLimits(limit_bytes=0, passing_bytes=0, max_bytes=3 * COST))
    with pytest.raises(CacheFullError, match="too small"):
        policy.open_session("t", "j", "a", COST, 0)
    assert policy.limit_bytes == 2 * COST


def test_a_need_that_waits_for_room_is_counted_when_it_is_answered(policy: CachePolicy) -> None:
    """A need that is asked three times and answered once counts as one need and one fetch."""
    before = policy.statistics()
    for chunk in (1, 2):
        policy.look_ahead("s", chunk)
    coming = policy.need("s", 1)
    for _ in range(2):
        assert isinstance(policy.need("s", 2), Wait)
    policy.publish(coming.key)
    policy.release("s", 0)
    policy.release("s", 1)
    assert isinstance(policy.need("s", 2), Admit)
    after = policy.statistics()
    assert (after.needs - before.needs, after.hits - before.hits) == (2, 0)
    assert after.admitted_bytes - before.admitted_bytes == 2 * COST
