"""Chunks whose files have another length than planned: the policy counts the bytes they take."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.cache.policy.answers import Admit
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import charge

PLANNED, CHUNKS = 100_000, 20
KEYS = [bytes([1 + number]) * 16 for number in range(CHUNKS)]


def used(policy: CachePolicy, chunk: int, file_bytes: int) -> set[bytes]:
    """Fetches a chunk of this length and reads it; returns the keys that had to leave."""
    policy.look_ahead("s", chunk)
    answer = policy.need("s", chunk, blocking=True)
    gone: set[bytes] = set()
    if isinstance(answer, Admit):
        gone.update(answer.victims)
        gone.update(policy.resize(answer.key, file_bytes).victims)
        gone.update(policy.publish(answer.key).victims)
    assert policy.open("s", chunk)
    return gone | set(policy.release("s", chunk).victims)


@pytest.mark.parametrize("file_bytes", [10_000, 100_000, 400_000])
def test_what_is_there_counts_as_it_is(file_bytes: int):
    """Chunks are charged by the length of their files, whatever was planned: the limit holds and is used up."""
    limit = 20 * charge(PLANNED)
    policy = CachePolicy(limit)
    policy.add_dataset("d", [PLANNED] * CHUNKS, KEYS)
    policy.open_session("s", "j", "d", charge(PLANNED), charge(PLANNED))
    there: set[bytes] = set()
    for epoch in range(2):
        policy.start_epoch("s", np.arange(CHUNKS))
        for chunk in range(CHUNKS):
            there.add(KEYS[chunk])
            there -= used(policy, chunk, file_bytes)
            state = policy.statistics()
            assert state.kept_bytes + state.transit_bytes == len(there) * charge(file_bytes) <= limit
        fitting = min(CHUNKS, limit // charge(file_bytes))
        assert fitting - 3 <= len(there) <= fitting, epoch
    policy.close_session("s")
    assert policy.hit_bound({"d"}) == pytest.approx(min(1.0, len(there) / CHUNKS), abs=0.2)
