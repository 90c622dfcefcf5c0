"""Tests of rows of arbitrary documents: every token that is kept once in each epoch, and as many rows of each set."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamer.errors import ConfigError
from streamer.order.rows.content import RowContent, row_counts
from streamer.order.rows.sets import chunks_per_set, make_sets
from streamer.order.rows.spec import RowSpec
from tests.documents import covered, lengths

SLOW = settings(suppress_health_check=[HealthCheck.too_slow])


@st.composite
def datasets(draw):
    """Draws costs of documents, samples per chunk, and a spec."""
    length = draw(st.sampled_from([16, 64, 128]))
    multiple = draw(st.sampled_from([1, 8, min(64, length)]))
    sizes = st.one_of(st.integers(0, length), st.integers(0, 20 * length))
    costs = np.array(draw(st.lists(sizes, min_size=1, max_size=150)), np.int64)
    count = draw(st.integers(1, 12))
    cuts = sorted(draw(st.lists(st.integers(0, len(costs)), min_size=count - 1, max_size=count - 1)))
    samples = np.diff([0, *cuts, len(costs)])
    policy = draw(st.sampled_from(["best_fit", "concat"]))
    overflow = draw(st.sampled_from(["split", "truncate", "drop"]))
    set_rows = draw(st.sampled_from([1, 4, 256]))
    return costs, samples, RowSpec(length, policy, overflow, multiple, set_rows)


def sets_of(costs, samples, spec, *, shuffle=True):
    per_set = chunks_per_set(samples, int(costs.sum()), spec.length, spec.set_rows)
    return make_sets(samples, per_set, shuffle=shuffle)


def kept(costs, spec):
    """Returns the tokens that go to rows, by the words of the documentation."""
    if spec.overflow == "truncate":
        costs = [min(cost, spec.length) for cost in costs]
    if spec.overflow == "drop":
        costs = [cost if cost <= spec.length else 0 for cost in costs]
    return Counter((document, token) for document, cost in enumerate(costs) for token in range(cost))


@SLOW
@given(datasets(), st.booleans())
def test_every_token_once_in_each_epoch(dataset, shuffle):
    """With any policy, overflow and sets no token comes twice, none is lost and each set has the rows of the table."""
    costs, samples, spec = dataset
    sets, first = sets_of(costs, samples, spec, shuffle=shuffle), np.append(0, np.cumsum(samples))
    assert sorted(sets.all_chunks.tolist()) == np.flatnonzero(samples).tolist()
    counts = row_counts(
        spec, sets, lambda number: np.concatenate([costs[first[c] : first[c + 1]] for c in sets.chunks(number)])
    )
    for epoch in range(3):
        found = covered(spec, sets, costs, first, 5 if shuffle else None, epoch)
        assert [found.pop(("rows", number)) for number in range(len(sets))] == counts.tolist()
        assert found == kept(costs.tolist(), spec)


@pytest.mark.parametrize("policy", ["best_fit", "concat"])
def test_later_epochs_have_other_rows(policy):
    """Documents are in rows with others in each epoch; without shuffle they are in the same rows."""
    costs, spec = lengths(400, 256), RowSpec(256, policy)

    def rows(seed, epoch):
        items, first = (made := RowContent(spec, seed).rows(costs, np.arange(400), epoch)).items, made.first
        return {tuple(part.tolist()) for part in np.split(items.document, first[1:-1]) if len(part) > 1}

    by_epoch = [rows(7, epoch) for epoch in range(3)]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(by_epoch[one] & by_epoch[other]) < 0.5 * len(by_epoch[one])
    assert rows(7, 1) == by_epoch[1]
    assert rows(8, 1) != by_epoch[1]
    assert rows(None, 0) == rows(None, 1)


@pytest.mark.parametrize("spec", [RowSpec(256), RowSpec(256, "concat"), RowSpec(256, multiple_of=64)])
def test_rows_that_the_table_counts_are_the_same(spec, monkeypatch):
    """Rows whose number is known are those made without it, and are not counted again."""
    costs, content = lengths(400, 256), RowContent(spec, 7)
    counted = [content.rows(costs, np.arange(400), epoch) for epoch in range(3)]
    monkeypatch.setattr("streamer.order.rows.content._count", None)
    for epoch, rows in enumerate(counted):
        known = content.rows(costs, np.arange(400), epoch, len(rows))
        assert known.first.tolist() == rows.first.tolist()
        assert known.items.document.tolist() == rows.items.document.tolist()


def test_documents_that_fit_are_not_cut():
    """Best fit cuts none of the documents that fit into a row; concatenation fills every row but the last."""
    costs = lengths(500, 256)
    items = RowContent(RowSpec(256), 3).rows(costs, np.arange(500), 1).items
    assert (items.size[costs[items.document] <= 256] == costs[items.document][costs[items.document] <= 256]).all()
    rows = RowContent(RowSpec(256, "concat"), 3).rows(costs, np.arange(500), 1)
    used = np.add.reduceat(rows.items.size, rows.first[:-1])
    assert (used[:-1] == 256).all()
    assert len(rows) == -(-int(costs.sum()) // 256)


def test_rows_without_shuffle_follow_the_data():
    """Without shuffle the first documents of rows ascend, and so do the documents in each row."""
    rows = RowContent(RowSpec(256), None).rows(lengths(300, 256), np.arange(300), 2)
    assert (np.diff(rows.items.document[rows.first[:-1]]) >= 0).all()
    for part in np.split(rows.items.document, rows.first[1:-1]):
        assert (np.diff(part) >= 0).all()


def test_sets_have_enough_rows():
    """A set has 4 chunks at least, more where a chunk has few rows, and the last one takes what is left."""
    samples = np.full(90, 10)
    assert chunks_per_set(samples, 90 * 10_000, 100, 256) == 4
    assert chunks_per_set(samples, 90 * 1_000, 100, 256) == 26
    assert chunks_per_set(samples, 10, 100, 256) == 90
    sizes = np.diff(make_sets(samples, 26, shuffle=True).first)
    assert sizes.tolist() == [26, 26, 38]
    assert make_sets(samples, 4, shuffle=False).all_chunks.tolist() == list(range(90))


def test_an_error_names_the_documents_that_are_too_long():
    """`overflow="error"` is a `ConfigError` that says how many documents are too long, and the longest."""
    with pytest.raises(ConfigError, match="2 documents are longer than a row of 64 tokens, the longest has 90"):
        RowContent(RowSpec(64, overflow="error"), 0).rows(np.array([64, 65, 90]), np.arange(3), 0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 8}, "length=8 must be 16 to"),
        ({"length": 64, "policy": "first_fit"}, 'policy=.first_fit. must be one of "best_fit", "concat"'),
        ({"length": 64, "overflow": "cut"}, "overflow=.cut. must be one of"),
        ({"length": 64, "multiple_of": 3}, "multiple_of=3 must divide length=64"),
        ({"length": 64, "set_rows": 0}, "rows_per_set=0 must be at least 1"),
        ({"length": 64, "version": 2}, "rows of version 2 cannot be made"),
    ],
)
def test_specs_outside_the_rules_are_refused(given, message):
    """A spec of rows outside the rules is refused with its value and the rule."""
    with pytest.raises(ConfigError, match=message):
        RowSpec(**given)
