"""Tests of the CPU time of the engine's loop in its statistics."""

from __future__ import annotations

import time
from pathlib import Path

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine


async def test_the_time_of_the_loop_is_that_of_now_and_without_what_was_before(tmp_path: Path) -> None:
    """The loop's CPU time grows with each look at it, and what its thread did before the engine does not count.

    Regression: it was read twice a second, with the imports of the process, so that short reports blamed the loop.
    """
    begun = time.thread_time()
    assert begun > 0.1, "the imports of this process"
    cache = CacheConfig(directory=tmp_path / "cache", limit_bytes=64 << 20)
    async with Engine(EngineConfig(cache=cache, settle_seconds=0.0)) as engine:
        first = engine.fetch_pool.process_statistics()["loop_cpu_seconds"]
        assert first <= time.thread_time() - begun + 0.001
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        assert engine.fetch_pool.process_statistics()["loop_cpu_seconds"] - first >= 0.049
