"""Bars of the last looks at an engine: heights, spans, gaps, and the letters that a terminal can show."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.cli.sparklines import (
    ASCII,
    BLOCKS,
    LOOKS,
    WIDTHS,
    RecentLooks,
    choose_levels,
    choose_width,
    draw_bars,
    merge_looks,
)
from streamer.cli.status_view import StatusView

NUMBERS = st.one_of(st.none(), st.floats())


def test_heights_are_shares_of_the_highest_level():
    """A bar's height is its share of the highest level; unknown is a space, and a small value is above zero."""
    assert draw_bars([0, 0.001, 0.5, 1, None, 0.999], BLOCKS, 1.0) == "▁▂▅█ █"
    assert draw_bars([0, 0.001, 0.5, 1, None, 0.999], ASCII, 1.0) == "_.=# #"
    assert draw_bars([0, 10, 20]) == "▁▅█"
    assert draw_bars([0, 0]) == "▁▁"
    assert draw_bars([math.nan, math.inf, 3]) == "  █"
    assert draw_bars([]) == ""


@given(st.lists(NUMBERS, max_size=80), st.sampled_from([BLOCKS, ASCII]), st.one_of(st.none(), st.floats(0, 1e300)))
def test_heights_are_monotone(values, levels, top):
    """Each value has one letter, and of two known values the larger one is never lower."""
    bars = draw_bars(values, levels, top)
    assert len(bars) == len(values)
    known = [
        (value, levels.index(bar))
        for value, bar in zip(values, bars, strict=True)
        if value is not None and math.isfinite(value)
    ]
    assert bars.count(" ") == len(values) - len(known)
    heights = [height for _, height in sorted(known)]
    assert heights == sorted(heights)
    assert all(height == 0 for value, height in known if value <= 0)
    if top is None and any(value > 0 for value, _ in known):
        assert max(heights) == len(levels) - 1


@given(st.lists(NUMBERS, max_size=LOOKS), st.integers(0, 1000), st.sampled_from(WIDTHS))
def test_spans_are_as_many_as_asked(values, earlier, width):
    """Merged looks have as many spans as asked for, and each mean is of the looks of its own span."""
    count = len(values) + (earlier if len(values) == LOOKS else 0)
    merged = merge_looks(values, count, width)
    assert len(merged) == width
    span = LOOKS // width
    last = [value for number, value in enumerate(values, count - len(values)) if number // span == (count - 1) // span]
    known = [value for value in last if value is not None]
    if values:
        assert (merged[-1] is None) == (not known)
        if known and all(map(math.isfinite, known)):
            assert min(known) - 1e-9 * abs(min(known)) <= merged[-1] or math.isinf(merged[-1])


def test_a_bar_stays_as_it_is_once_its_span_is_over():
    """A bar whose span is over keeps its height: with a look the bars move by a whole span or not at all."""
    values = [float(number % 7) for number in range(200)]
    drawn = [draw_bars(merge_looks(values[max(0, n - LOOKS) : n], n, 10), top=6.0) for n in range(100, 160)]
    for before, after in pairwise(drawn):
        assert after[:-1] in (before[:-1], before[1:])


def _sample(second, **more):
    session = {"job": "train", "consumer": "rank 0", "dataset": "d", "age_seconds": second, "batch_samples": 8.0}
    session |= {"done": second * 2, "waiting_seconds": second / 4}
    first_bytes = {"first_byte_buckets": [{"le": "+Inf", "count": 10 * second}], "first_byte_sum_seconds": second / 2}
    counts = {"store_bytes": second * 10**6, "hit_bytes": second * 10**6, "needed_bytes": second * 4 * 10**6}
    levels = {"pid": 3, "uptime_seconds": second, "in_flight": 4, "kept_bytes": 30, "limit_bytes": 60}
    return {**levels, **counts, **first_bytes, "throttled": second * 3, "sessions": [session], **more}


def test_every_figure_of_an_interval_has_a_bar():
    """Every figure of an interval has a bar; the time before the first look has none, and a restart is a gap."""
    recent = RecentLooks()
    assert recent.draw(("store",), 10) == ""
    recent.add(StatusView(_sample(1)))
    assert recent.draw(("store",), 60) == ""
    recent.add(StatusView(_sample(2), _sample(1)))
    recent.add(StatusView(_sample(1, pid=4), _sample(2)))
    recent.add(StatusView(_sample(3, store_bytes=3 * 10**6), _sample(2)))
    for figure in ("store", "cache", "in flight", "first byte", "refusals"):
        assert recent.draw((figure,), 60) == " " * 57 + "█ █"
    assert recent.draw(("hits",), 60)[-3:] == "▃ ▃"
    assert recent.draw(("fill",), 60)[-3:] == "▅ ▅"
    assert recent.draw(("peers",), 60) == ""
    name = ("train", "rank 0", "d")
    assert recent.draw((*name, "waiting"), 60)[-3:] == "▃ ▃"
    assert recent.draw((*name, "samples/s"), 60)[-3:] == "█ █"
    assert recent.samples_per_second(name) == pytest.approx(16.0)


def test_what_an_older_engine_does_not_say_has_no_bar():
    """Figures that an older engine does not report, as batches of a rank and first bytes, have no bar."""
    recent = RecentLooks()
    old = [{"pid": 3, "uptime_seconds": n, "sessions": [{"consumer": "r", "age_seconds": n}]} for n in (1, 2)]
    recent.add(StatusView(old[1], old[0]))
    assert recent.draw(("first byte",), 60) == ""
    assert recent.draw(("hits",), 60) == ""
    assert recent.samples_per_second((None, "r", None)) is None
    assert recent.draw((None, "r", None, "waiting"), 60)[-1] == "▁"


@given(st.integers(-50, 300))
def test_a_width_is_one_that_fits(columns):
    """The width of bars is the largest that fits, or the smallest."""
    assert choose_width(columns) == max((width for width in WIDTHS if width <= columns), default=min(WIDTHS))
    assert all(LOOKS % width == 0 for width in WIDTHS)


@pytest.mark.parametrize(
    ("encoding", "environment", "levels"),
    [
        ("utf-8", {}, BLOCKS),
        ("utf-8", {"LANG": "de_DE.UTF-8"}, BLOCKS),
        ("utf-8", {"LC_ALL": "C.UTF-8", "LANG": "C"}, BLOCKS),
        ("utf-8", {"LC_ALL": "", "LANG": "C.UTF-8"}, BLOCKS),
        ("utf-8", {"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, ASCII),
        ("utf-8", {"LANG": "POSIX"}, ASCII),
        ("utf-8", {"LANG": "C.UTF-8", "TERM": "linux"}, ASCII),
        ("ascii", {}, ASCII),
        ("iso8859-1", {"LANG": "de_DE"}, ASCII),
        ("unknown", {}, ASCII),
        (None, {}, ASCII),
    ],
)
def test_blocks_are_drawn_where_they_can_be_shown(encoding, environment, levels):
    """Bars are blocks where the terminal can show them, and ASCII elsewhere."""
    assert choose_levels(encoding, environment) == levels
