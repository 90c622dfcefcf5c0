"""Joined ranges keep the bytes of the ranges and need as few requests as the rule allows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamer.formats.reading import join_near_ranges, join_ranges

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda it: (it[0], it[0] + it[1])), max_size=12)


@given(RANGES)
def test_neighbours_are_joined(ranges: list[tuple[int, int]]) -> None:
    """Joining adjacent ranges keeps their concatenated bytes in the order given, even if ranges overlap or go back."""
    joined = join_ranges(ranges)
    assert [at for pair in joined for at in range(*pair)] == [at for pair in ranges for at in range(*pair)]
    assert all(start < stop for start, stop in joined)
    assert all(first[1] != second[0] for first, second in pairwise(joined))


@given(RANGES, st.integers(1, 8))
def test_near_ones_are_joined(ranges: list[tuple[int, int]], near_bytes: int) -> None:
    """Joining near ranges keeps every byte and leaves no gap shorter than a request is worth."""
    joined = join_near_ranges(sorted(ranges), near_bytes)
    assert {at for pair in ranges for at in range(*pair)} <= {at for pair in joined for at in range(*pair)}
    assert all(second[0] - first[1] >= near_bytes for first, second in pairwise(joined))
    assert {start for start, _ in joined} <= {start for start, _ in ranges}
    assert {stop for _, stop in joined} <= {stop for _, stop in ranges}
