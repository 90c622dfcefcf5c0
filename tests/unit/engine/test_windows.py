"""The bytes that ranks in step have open together: each chunk counts once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.engine.windows import count_open_together, share_open_chunks
from streamer.wire.schedule import EpochSchedule

CHUNKS = 6
NUMBERS = itertools.count()

uses = st.lists(st.tuples(st.integers(0, CHUNKS - 1), st.integers(0, 8), st.integers(0, 4)), max_size=12)


def schedule_of(entries: list[tuple[int, int, int]]) -> EpochSchedule:
    entries = sorted(entries, key=lambda entry: entry[1])
    chunk, first, length = (np.array([entry[column] for entry in entries], np.int64) for column in range(3))
    return EpochSchedule(0, chunk.astype(np.uint32), first, first + length)


@given(st.lists(uses, min_size=1, max_size=4), st.lists(st.integers(1, 100), min_size=CHUNKS, max_size=CHUNKS))
def test_the_bytes_are_those_of_the_fullest_step(ranks: list[list[tuple[int, int, int]]], sizes: list[int]) -> None:
    """The open bytes of ranks in step are those of the step with the most, as sets of open chunks give them."""
    fullest = max(
        sum(
            sizes[chunk]
            for chunk in {chunk for rank in ranks for chunk, first, length in rank if first <= step <= first + length}
        )
        for step in range(14)
    )
    assert count_open_together([schedule_of(rank) for rank in ranks], np.array(sizes)) == fullest


def session_of(entries: list[tuple[int, int, int]], order_id: str = "o") -> Any:
    """Stands for a rank's session with this first schedule, whose request said that it opens much more."""
    request = SimpleNamespace(job="j", stream="", dataset="d", order_id=order_id, start=0)
    return SimpleNamespace(
        name=str(next(NUMBERS)),
        request=request,
        openings=[SimpleNamespace(open_bytes=1 << 40)],
        first_schedule=schedule_of(entries),
        collection=SimpleNamespace(file_bytes=np.full(CHUNKS, 4096)),
        open_share=1.0,
        compared_with=(),
    )


@pytest.mark.parametrize(
    ("ranks", "share"),
    [
        ([[(0, 0, 2), (1, 1, 2)], [(0, 0, 2), (1, 1, 2)]], 0.5),
        ([[(0, 0, 2), (1, 1, 2)], [(0, 0, 2), (2, 1, 2)]], 0.75),
        ([[(0, 0, 2)], [(1, 0, 2)]], 1.0),
        ([[(0, 0, 2)]], 1.0),
        # A restarted engine is told the rest of the epoch, of which a rank may have nothing left.
        ([[], []], 1.0),
        ([[], [(0, 0, 2)]], 1.0),
    ],
)
def test_a_chunk_that_several_ranks_have_open_counts_once(
    ranks: list[list[tuple[int, int, int]]], share: float
) -> None:
    """A chunk that several ranks have open at the same steps counts once, in equal shares of the ranks."""
    sessions = [session_of(rank) for rank in ranks]
    share_open_chunks(cast("Any", sessions))
    assert [session.open_share for session in sessions] == [share] * len(ranks)


def test_sessions_of_an_unknown_order_share_nothing() -> None:
    """Sessions of an unknown order share no open bytes, since their steps are not comparable."""
    sessions = [session_of([(0, 0, 2)], order_id="") for _ in range(2)]
    share_open_chunks(cast("Any", sessions))
    assert [session.open_share for session in sessions] == [1.0, 1.0]
