"""Ranges of keys that are listed at the same time; the store and its tasks are simulated by pages of ten keys."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.indexing.tasks import KeyRange, KeyRanges, is_clean, key_between

PAGE = 10


def listed(keys: list[str], part: KeyRange, size: int) -> tuple[list[str], int, KeyRange | None]:
    """Lists a range as a task does, with pages of `size` keys: returns the keys, the pages read, and what is left."""
    at, found = bisect_right(keys, part.after), []
    for pages in count(1):
        page = keys[at : at + size]
        at += size
        found += [key for key in page if part.has(key)]
        if not page:
            return found, pages, None
        if part.ends_before(page[-1]) or (pages >= part.pages and is_clean(page[-1])):
            return found, pages, part.rest(page[-1])
    raise AssertionError


def everything(keys: list[str], most: int, size: int = PAGE) -> tuple[list[str], int, int]:
    """Lists all keys with `most` tasks at once: returns the keys, the pages, and how many follow each other."""
    ranges, found, total, now = KeyRanges(KeyRange(""), most), [], 0, 0
    running: list[tuple[int, int, KeyRange | None]] = []
    order = count()

    def start() -> None:
        nonlocal total
        while len(running) < most and (part := ranges.take()) is not None:
            some, pages, rest = listed(keys, part, size)
            found.extend(some)
            total += pages
            heappush(running, (now + pages, next(order), rest))

    start()
    while running:
        now, _, rest = heappop(running)
        ranges.finish(rest)
        start()
    return found, total, now


NAMES = {
    "numbers": [f"img_{number:08d}.jpg" for number in range(20_000)],
    "hashes": [random.Random(number).randbytes(16).hex() for number in range(20_000)],
    "folders": [f"n{folder:04d}/n{folder:04d}_{number}.JPEG" for folder in range(200) for number in range(100)],
    "one large folder": ["a/1", *(f"b/deep/er/{number:x}" for number in range(20_000)), "c/1"],
}


@pytest.mark.parametrize("name", NAMES)
def test_large_prefixes_are_listed_by_many(name: str) -> None:
    """Many tasks list a large prefix with every key once: 2,000 pages in the time of 320, few of them for nothing."""
    keys = sorted(NAMES[name])
    found, total, in_turn = everything(keys, 16)
    assert sorted(found) == keys
    assert in_turn < 320
    assert total < 2600


@given(
    st.lists(
        st.text("ab/ #~é\U0001f600", min_size=1, max_size=12) | st.text("01", min_size=1, max_size=8), unique=True
    ),
    st.integers(1, 9),
    st.integers(1, 4),
)
def test_every_key_once(keys: list[str], most: int, size: int) -> None:
    """Every key is listed once, whatever the keys, the number of tasks and the keys of a page."""
    found, _, _ = everything(sorted(keys), most, size)
    assert Counter(found) == Counter(keys)


@given(st.text("az09-/#", max_size=9), st.text("az09-/#", max_size=9))
def test_a_key_between_two(first: str, second: str) -> None:
    """A key between two others lies between them, and every client sends it unchanged.

    There is one if the keys begin with letters or digits that do not follow each other.
    """
    after, until = sorted((first, second))
    middle = key_between(after, until)
    if middle:
        assert after < middle
        assert middle < until or not until
        assert is_clean(middle)
    else:
        assert not after[:1].isalnum() or not until[:1].isalnum() or ord(until[0]) - ord(after[0]) < 2


def test_halves() -> None:
    """`key_between` finds a clean key between two others or none; `is_clean` refuses keys that clients change."""
    assert "img_0" < key_between("img_00000009", "img_1") < "img_1"
    assert key_between("a", "a-") == ""
    assert key_between("a#1", "a#9") == ""
    assert [is_clean(key) for key in ("a/b.c=1_2-3", "a//b", "a/", "../a", "a/./b", "a b", "é")] == [True] + [False] * 6
