"""Tests of best fit: it places every item as its definition does, in few rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.order.rows.items import best_fit, best_fit_in, spread

LENGTH = 64
_sizes = st.lists(st.integers(1, LENGTH), max_size=120).map(lambda sizes: np.array(sizes, np.int64))


def definition(sizes: np.ndarray, length: int) -> tuple[list[int], int]:
    """Returns best-fit decreasing, one item at a time."""
    rooms, found = [], [0] * len(sizes)
    for item in np.argsort(-sizes, kind="stable").tolist():
        fits = [(room, row) for row, room in enumerate(rooms) if room >= sizes[item]]
        row = min(fits)[1] if fits else len(rooms)
        if not fits:
            rooms.append(length)
        rooms[row] -= int(sizes[item])
        found[item] = row
    return found, len(rooms)


@given(_sizes)
def test_is_the_definition(sizes):
    """Best fit that places equal sizes together puts each item where placing one at a time puts it."""
    rows, count = best_fit(sizes, LENGTH)
    assert (rows.tolist(), count) == definition(sizes, LENGTH)


@given(_sizes)
def test_in_decreasing_order_is_the_same(sizes):
    """Best fit in the order of decreasing sizes is best-fit decreasing."""
    rows, count = best_fit_in(np.argsort(-sizes, kind="stable"), sizes, LENGTH)
    assert (rows.tolist(), count) == definition(sizes, LENGTH)


@given(_sizes, st.randoms())
def test_no_two_rows_fit_into_one(sizes, random):
    """Best fit in any order makes no row too long, and any two rows hold more than one row together.

    So rows < 2 N / C + 1.
    """
    order = list(range(len(sizes)))
    random.shuffle(order)
    rows, count = best_fit_in(np.array(order, np.int64), sizes, LENGTH)
    used = np.bincount(rows, weights=sizes, minlength=count)
    assert (used <= LENGTH).all()
    assert sum(np.sort(used)[:2]) > LENGTH or count < 2
    assert count < 2 * sizes.sum() / LENGTH + 1


@given(_sizes.filter(len), st.integers(0, 5))
def test_spread_uses_every_row(sizes, more):
    """`spread` gives each of the rows that must be there at least one item."""
    rows, count = best_fit(sizes, LENGTH)
    wanted = min(count + more, len(sizes))
    found = np.bincount(spread(rows, count, wanted), minlength=wanted)
    assert len(found) == wanted
    assert (found > 0).all()


@pytest.mark.parametrize(
    ("kind", "length", "most"), [("web", 8192, 0.001), ("chat", 8192, 0.001), ("code", 32768, 0.003)]
)
def test_padding_of_texts(kind, length, most):
    """Lengths like those of texts leave at most 0.1 % of the rows empty, and those of code 0.3 %.

    A set has 256 rows and more.
    """
    random, count = np.random.default_rng(0), 16_384
    sizes = {
        "web": lambda: random.lognormal(np.log(490), 1.09, count),
        "chat": lambda: random.gamma(1.3, 480, count),
        "code": lambda: random.lognormal(np.log(700), 1.55, count),
    }[kind]().clip(8, length)
    _, rows = best_fit(sizes.astype(np.int64), length)
    assert rows >= 256
    assert 1 - sizes.astype(np.int64).sum() / (rows * length) <= most
