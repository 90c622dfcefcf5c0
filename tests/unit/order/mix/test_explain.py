"""Tests of the description of a mix: rows of figures, and cautions."""

from __future__ import annotations

import pytest

from streamer.order.mix import MemberSize, MixSpec, cautions, explain, hit_bound, share_cache
from tests.mixes import request, sources

MIB = 1 << 20
SIZES = {"web": 300_000, "books": 3_000}


def _spec(**said: object) -> MixSpec:
    said = said or {"weights": {"web": 9, "books": 1}, "epoch_samples": 100_000}
    return request(list(SIZES), **said).spec(sources(SIZES, 75), 256)


def test_a_mix_is_said_in_a_row_per_member() -> None:
    """A mix is described by batching, shares, passes, open chunks, hits of the cache, and what a batch has."""
    text = explain(
        _spec(), [MemberSize(4000, 32_000 * MIB), MemberSize(40, 320 * MIB)], 256, cache_bytes=3520 * MIB, nodes=4
    )
    rows = dict(row.split(maxsplit=1) for row in text.splitlines())
    assert rows["mix"].startswith("stratified, 8 lanes, 391 batches of 256 in an epoch of 100,096 samples, order ")
    assert " ".join(rows["web"].split()) == "90.00% 90,088 samples = 0.30 passes 224 chunks open 1.9 GB"
    assert " ".join(rows["books"].split()) == "10.00% 10,008 samples = 3.34 passes 8 chunks open 67.1 MB"
    assert rows["cache"] == "3.7 GB of 33.9 GB: hits at most 19% (web 10%, books all)"
    assert rows["batch"] == "every batch has 230.4 web, 25.6 books, within 2 samples"
    assert rows["nodes"] == "4 nodes share no lane: store bytes 1.00 x dataset"


def test_shares_of_the_bytes_are_said_as_such() -> None:
    """Shares of a mix whose unit is bytes are described as shares of the bytes."""
    sizes = [MemberSize(4000, 32_000 * MIB), MemberSize(40, 320 * MIB)]
    rows = dict(row.split(maxsplit=1) for row in explain(_spec(), sizes, 256, unit="bytes").splitlines())
    assert rows["web"].split()[:4] == ["90.00%", "of", "the", "bytes"]


@pytest.mark.parametrize(
    ("batching", "message"),
    [("random", "every 16 batches have their share, 230.4 web, 25.6 books"), ("homogeneous", "every batch is of one")],
)
def test_other_batchings_are_said(batching: str, message: str) -> None:
    """The description of a mix says what a batch has with batching "random" and "homogeneous"."""
    spec = _spec(batching=batching, weights={"web": 9, "books": 1}, epoch_samples=256 * 1000)
    assert message in explain(spec, [MemberSize(4000, MIB), MemberSize(40, MIB)], 256)


def test_groups_are_said() -> None:
    """The description of a mix with groups says that each group is of one member."""
    text = explain(_spec(batching="homogeneous", group=32), [MemberSize(4000, MIB), MemberSize(40, MIB)], 256)
    assert "every group of 32 samples is of one member" in text


def test_a_cache_keeps_members_of_many_passes_first() -> None:
    """A cache keeps members of many passes first, since a byte saves as many fetches as its member makes passes.

    Members without passes are not kept.
    """
    assert share_cache([0.5, 4, 1, 0], [100, 10, 30, 50], 25) == [0, 10, 15, 0]
    assert share_cache([0.5, 4, 1, 0], [100, 10, 30, 50], 1000) == [100, 10, 30, 0]
    assert hit_bound([0.5, 4, 1, 0], [100, 10, 30, 50], 25) == pytest.approx((40 + 15) / (50 + 40 + 30))
    assert hit_bound([1], [100], 30) == pytest.approx(0.3)


def test_what_a_user_may_not_expect_is_said() -> None:
    """Cautions name a rounded epoch, a member without samples in an epoch, and one smaller than its part of a batch."""
    found = cautions(_spec(), 256, 100_000)
    assert found == ["epoch_samples=100,000 is rounded to 100,096, a multiple of 256"]
    found = cautions(_spec(weights={"web": 1e6, "books": 1}, epoch_samples=256), 256)
    assert found == ["member books gives no sample to epoch 0: its share is too small"]
    tiny = {"web": 3000, "one": 1}
    spec = request(list(tiny), weights={"web": 1, "one": 1}).spec(sources(tiny), 64)
    assert "member one has 1 samples, fewer than a batch takes of it" in cautions(spec, 64)[0]


def test_what_fills_homogeneous_batches_up_is_said() -> None:
    """A caution says how many marked repeats fill up the last homogeneous batch of a member."""
    found = cautions(_spec(batching="homogeneous", repeat=1), 256)
    assert found[0] == "the last batch of member web in an epoch is filled up with 32 repeats, which are marked"


def test_lanes_that_do_not_divide_the_batch_are_said() -> None:
    """With lanes that do not divide the batch the description says which run of samples has the shares.

    A caution says what the epoch is rounded to.
    """
    spec = request(list(SIZES), weights={"web": 9, "books": 1}, lanes=8, epoch_samples=10_000).spec(sources(SIZES), 100)
    text = explain(spec, [MemberSize(4000, MIB), MemberSize(40, MIB)], 100)
    assert "each run of 96 samples has 86.38 web, 9.615 books, within 2 samples; batches of 100 lie across" in text
    assert cautions(spec, 100, 10_000) == ["epoch_samples=10,000 is rounded to 9,984, a multiple of 96"]
