"""Evictions for a join: one side's chunks are used many times an epoch, the other side's once and fill the cache."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from streamer.cache.policy.answers import Admit
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.sessions import SessionOpening

CHUNK, LEFT, OPEN = 1_000_000, 1000, 4


def fetched(limit_chunks: int, uses: int, epochs: int) -> list[Counter[str]]:
    """Counts the chunks of each side that each epoch of a join fetches, after an index that has filled the cache."""
    chance = random.Random(1)
    chunks = {"left": LEFT, "right": LEFT // uses}
    keys = {side: [chance.randbytes(16) for _ in range(count)] for side, count in chunks.items()}
    lengths = {side: [CHUNK - 5000] * count for side, count in chunks.items()}
    policy = CachePolicy(limit_chunks * CHUNK)
    there = chance.sample(keys["left"], limit_chunks - 1)
    policy.local(there, lengths["left"][: len(there)], "left")
    policy.add_datasets([(side, lengths[side], keys[side]) for side in chunks])
    policy.connect("job")
    values = {"left": 1.0, "right": float(uses)}
    policy.open_sessions(
        "job", [SessionOpening(side, side, OPEN * CHUNK, OPEN * CHUNK, values[side]) for side in chunks]
    )
    counts = []
    for _ in range(epochs):
        for side, count in chunks.items():
            policy.start_epoch(side, np.arange(count))
        count = Counter[str]()
        opened: list[int] = []
        for chunk in [*chance.sample(range(LEFT), LEFT), *[-1] * OPEN]:
            for side, number in {"left": chunk, "right": chunk // uses}.items() if chunk >= 0 else ():
                policy.look_ahead(side, number)
                answer = policy.need(side, number, blocking=True)
                if isinstance(answer, Admit):
                    count[side] += 1
                    policy.publish(answer.key)
                assert policy.open(side, number)
            opened += [chunk] if chunk >= 0 else []
            if len(opened) > OPEN or chunk < 0:
                done = opened.pop(0)
                policy.release("left", done)
                policy.release("right", done // uses)
        counts.append(count)
    return counts


@pytest.mark.parametrize(("limit_chunks", "uses"), [(120, 10), (500, 5)])
def test_what_fits_is_fetched_once(limit_chunks: int, uses: int):
    """A side that fits the cache is fetched once, even in the first epoch, at the expense of the other side.
    (473 and 261 without.)"""
    first, second = fetched(limit_chunks, uses, epochs=2)
    assert first["right"] == LEFT // uses
    assert second["right"] == 0
    assert first["left"] <= LEFT
