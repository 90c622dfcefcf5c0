"""The open bytes that sessions need of the policy's limit: together never more than their datasets."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.sessions import SessionOpening
from streamer.errors import CacheFullError

CHUNKS, CHUNK_BYTES = 19, 1_000_000


def policy_of(limit_bytes: int) -> CachePolicy:
    policy = CachePolicy(limit_bytes)
    keys = np.arange(CHUNKS * 16, dtype=np.uint8).reshape(CHUNKS, 16)
    policy.add_datasets([("data", np.full(CHUNKS, CHUNK_BYTES), keys)])
    return policy


def open_ranks(policy: CachePolicy, ranks: int, open_bytes: int) -> None:
    for rank in range(ranks):
        policy.open_sessions(f"job {rank}", [SessionOpening(f"rank {rank}", "data", open_bytes, 0)])


def test_sessions_of_one_dataset_share_its_chunks() -> None:
    """Sessions of one dataset need at most its bytes: four ranks with 8 MB each of 19 MB fit into 24 MB."""
    open_ranks(policy_of(24_000_000), 4, 8_000_000)


def test_what_does_not_fit_is_refused() -> None:
    """Sessions whose dataset exceeds the limit are refused: four ranks of 8 MB of 19 MB do not fit into 16 MB."""
    with pytest.raises(CacheFullError, match="too small"):
        open_ranks(policy_of(16_000_000), 4, 8_000_000)
