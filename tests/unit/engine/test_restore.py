"""What a real engine takes over from the folder at its start, and for how long it evicts nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from streamer.cache.policy.answers import Admit, Answer
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine

CHUNK_BYTES = 100_000


def config(folder: Path) -> EngineConfig:
    return EngineConfig(cache=CacheConfig(directory=folder, limit_bytes=2 << 20, free_floor_bytes=0), settle_seconds=60)


def use_thirty_chunks(policy: CachePolicy) -> list[Answer]:
    """Uses 30 chunks one after the other by one session, more than the limit holds."""
    keys = [bytes([1 + number]) * 16 for number in range(30)]
    policy.add_dataset("d", [CHUNK_BYTES] * 30, keys)
    policy.open_session("s", "j", "d", CHUNK_BYTES, CHUNK_BYTES)
    answers = []
    for chunk in range(30):
        policy.look_ahead("s", chunk)
        answers.append(policy.need("s", chunk))
        if isinstance(answers[-1], Admit):
            policy.publish(answers[-1].key)
            policy.open("s", chunk)
        policy.release("s", chunk)
    return answers


@pytest.mark.parametrize("left_over", [False, True])
async def test_an_engine_settles_where_there_is_something_to_protect(tmp_path, left_over):
    """An engine spares the chunks of an earlier one until it has settled; with an empty folder it evicts at once."""
    if left_over:
        async with Engine(config(tmp_path / "cache")) as engine:
            await engine.cache.publish(b"x" * 16, [bytes(10)], np.array([0, 10]), dataset="old")
    async with Engine(config(tmp_path / "cache")) as engine:
        evicting = [one for one in use_thirty_chunks(engine.policy) if isinstance(one, Admit) and one.victims]
        assert bool(evicting) is not left_over
        assert engine.policy.is_local(b"x" * 16) is left_over
