"""Sorting in steps gives what Python's `sorted` gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamer.base import sorting
from streamer.base.sorting import sort_names, sort_places

KEYS = st.one_of(st.lists(st.text(max_size=3), max_size=400), st.lists(st.integers(0, 30), max_size=400))


@given(KEYS, st.booleans(), st.integers(1, 40), st.integers(1, 8))
def test_places_are_those_of_sorted(keys: list[str] | list[int], ordered: bool, few: int, parts: int) -> None:
    """Sorted places and names are those of Python's `sorted`, for few and many keys, with equal keys in their order."""
    keys = sorted(keys) if ordered else keys  # type: ignore[type-var,assignment]
    before = sorting._FEW, sorting._SAMPLED, sorting._PARTS
    sorting._FEW, sorting._SAMPLED, sorting._PARTS = few, min(few, 2 * parts), parts
    try:
        assert sort_places(keys) == sorted(range(len(keys)), key=keys.__getitem__)  # type: ignore[type-var]
        names = list(map(str, keys))
        assert sort_names(names) == sorted(names)
    finally:
        sorting._FEW, sorting._SAMPLED, sorting._PARTS = before
