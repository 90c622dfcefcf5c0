"""What ranks in step have open together: each chunk once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamer.engine.windows import count_open_together
from streamer.wire.schedule import EpochSchedule

CHUNKS = 6

uses = st.lists(st.tuples(st.integers(0, CHUNKS - 1), st.integers(0, 8), st.integers(0, 4)), max_size=12)


def schedule_of(entries: list[tuple[int, int, int]]) -> EpochSchedule:
    entries = sorted(entries, key=lambda entry: entry[1])
    chunk, first, length = (np.array([entry[column] for entry in entries], np.int64) for column in range(3))
    return EpochSchedule(0, chunk.astype(np.uint32), first, first + length)


@given(st.lists(uses, min_size=1, max_size=4), st.lists(st.integers(1, 100), min_size=CHUNKS, max_size=CHUNKS))
def test_the_bytes_are_those_of_the_fullest_step(ranks: list[list[tuple[int, int, int]]], sizes: list[int]) -> None:
    """Compared with a set of open chunks at each step."""
    fullest = max(
        sum(
            sizes[chunk]
            for chunk in {chunk for rank in ranks for chunk, first, length in rank if first <= step <= first + length}
        )
        for step in range(14)
    )
    assert count_open_together([schedule_of(rank) for rank in ranks], np.array(sizes)) == fullest
