"""Tests of the advice for a growing dataset, computed from measured rates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamer.loader.stall.advice import advise_growth
from streamer.loader.stall.stats import GrowingStats

# 500 MB/s over a link of 125 MB/s, 2 TB, 200 GB of SSD, samples of 1 MB.
GROWING = GrowingStats(
    reuse=3,
    round=7,
    passes=0.4,
    least_uses=0,
    most_uses=3,
    live_bytes=100_000_000_000,
    data_bytes=2_000_000_000_000,
    sample_bytes=1e6,
)
RATES = {
    "samples_per_second": 500,
    "store_bytes_per_second": 125e6,
    "cache_bytes": 200_000_000_000,
    "waits": True,
}


def test_a_reuse_that_is_too_small_is_named() -> None:
    """A `reuse` that is too small is named with the one that would not wait: 1.25 G / F, rounded up, and both rates."""
    assert advise_growth(GROWING, **RATES) == (
        "the trainer reads 500 MB/s, the link brings 125 MB/s: Growing(reuse=5) instead of 3 would not wait"
    )


@pytest.mark.parametrize(
    ("growing", "rates"),
    [
        (replace(GROWING, reuse=5), RATES),
        (GROWING, {**RATES, "waits": False}),
        (GROWING, {**RATES, "store_bytes_per_second": 0}),
        (GROWING, {**RATES, "samples_per_second": 0}),
    ],
)
def test_nothing_is_said_where_nothing_is_to_be_changed(growing: GrowingStats, rates: dict) -> None:
    """Nothing is advised where the reuse is enough, nothing waits, or a rate was not measured."""
    assert advise_growth(growing, **rates) == ""


@pytest.mark.parametrize(("passes", "told"), [(0.4, False), (1.2, True)])
def test_strict_epochs_that_would_not_wait_are_named(passes: float, told: bool) -> None:
    """Epochs without `growing=` are advised once all data has arrived and they would not wait.

    With 80 % cached a fifth of the rate is enough.
    """
    growing = replace(GROWING, reuse=5, passes=passes, data_bytes=250_000_000_000)
    assert ("without growing= no epoch would wait" in advise_growth(growing, **RATES)) is told
    assert "the cache holds 80% of the data" in advise_growth(replace(growing, passes=1), **RATES)


def test_ranks_and_machines_add_up() -> None:
    """Rates of ranks, and links of machines, are summed for the advised reuse: eight ranks on two machines."""
    growing = replace(GROWING, reuse=2, ranks=8, nodes=2)
    assert "Growing(reuse=3) instead of 2" in advise_growth(growing, **{**RATES, "samples_per_second": 62.5})
