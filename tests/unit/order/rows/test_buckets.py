"""Tests of buckets: documents of like length, as many as the budget allows, equally many buckets in every epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.errors import ConfigError
from streamer.order.rows.content import RowContent, row_counts
from streamer.order.rows.sets import make_sets
from streamer.order.rows.spec import RowSpec

BUDGET = 64
_sizes = st.lists(st.integers(0, BUDGET), min_size=1, max_size=80).map(lambda sizes: np.array(sizes, np.int64))


@given(_sizes, st.sampled_from([3, BUDGET]), st.booleans())
def test_budget_and_order(sizes, most, shuffle):
    """No bucket is above the budget or the limit, none could take the next document, and lengths descend."""
    content = RowContent(RowSpec(BUDGET, "buckets", "error", most=most), 3 if shuffle else None)
    rows = content.rows(sizes, np.arange(len(sizes)), 1)
    items = rows.items
    assert sorted(items.document.tolist()) == np.flatnonzero(sizes).tolist()
    assert (np.diff(items.size) <= 0).all()
    found = [part.tolist() for part in np.split(items.size, rows.first[1:-1])] if len(rows) else []
    for bucket in found:
        assert len(bucket) * bucket[0] <= BUDGET
        assert len(bucket) <= most
    assert all((len(bucket) + 1) * bucket[0] > BUDGET or len(bucket) == most for bucket in found[:-1])


@given(_sizes, st.sampled_from(["error", "drop"]))
def test_every_document_once_and_as_many_buckets_in_every_epoch(sizes, overflow):
    """Every epoch has every document once, in as many buckets as the table says."""
    spec, samples = RowSpec(BUDGET, "buckets", overflow, most=BUDGET), np.array([len(sizes)])
    sets = make_sets(samples, 1, shuffle=True)
    counts = row_counts(spec, sets, lambda number: sizes).tolist()
    for epoch in range(3):
        content = RowContent(spec, 5).rows(sizes, np.arange(len(sizes)), epoch)
        assert [len(content)] == counts
        assert sorted(content.items.document.tolist()) == np.flatnonzero(sizes).tolist()


def test_equal_lengths_change_places():
    """Documents of equal length change places between epochs, and stay in place without shuffle."""
    sizes, spec = np.full(40, 7), RowSpec(BUDGET, "buckets", "error", most=BUDGET)
    epochs = [RowContent(spec, 5).rows(sizes, np.arange(40), epoch).items.document.tolist() for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert RowContent(spec, None).rows(sizes, np.arange(40), 1).items.document.tolist() == list(range(40))


@pytest.mark.parametrize(("kind", "most"), [("web", 0.02), ("speech", 0.05)])
def test_padding_of_buckets(kind, most):
    """Padding of buckets is at most 2 % for lengths of texts, and 5 % for durations like those of read speech.

    Sets have 256 buckets and more.
    """
    random = np.random.default_rng(0)
    if kind == "web":
        sizes, budget = random.lognormal(np.log(490), 1.09, 8192).clip(16, 16384).astype(np.int64), 16384
    else:
        sizes, budget = (random.triangular(2, 15, 17, 16_384) * 100).astype(np.int64), 40_000
    rows = RowContent(RowSpec(budget, "buckets", "error", most=budget), 1).rows(sizes, np.arange(len(sizes)), 0)
    assert len(rows) >= 256
    parts = np.split(rows.items.size, rows.first[1:-1])
    assert 1 - sizes.sum() / sum(len(part) * part[0] for part in parts) <= most


@pytest.mark.parametrize("given", [{"policy": "buckets"}, {"policy": "buckets", "most": 0}, {"most": 3}])
def test_specs_outside_the_rules_are_refused(given):
    """A limit of documents is refused for other rows than buckets, and required to be at least 1 for buckets."""
    with pytest.raises(ConfigError, match="Buckets: max_samples="):
        RowSpec(64, **given)


def test_other_rows_have_no_such_part():
    """States of packed rows do not name the limit of documents that those of buckets have."""
    assert "packing.most" not in RowSpec(64).parts()
    assert RowSpec(64, "buckets", most=3).parts()["packing.most"] == 3
