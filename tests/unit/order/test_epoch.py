"""Tests of the order of one epoch of a dataset."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from streamer.errors import ConfigError, ManifestError
from streamer.order import EpochOrder, OrderSpec
from streamer.order.rank_split import real_positions
from streamer.order.spec import Cut

SPEC = OrderSpec("m", 17, "block", 8, 32)


def test_epochs_differ_and_repeat() -> None:
    """Another epoch is another order, and the same epoch is the same, however it is opened."""
    sizes = np.full(50, 7)
    positions = np.arange(350)
    zero, one = (EpochOrder(SPEC, sizes, e).ordinals(positions).tolist() for e in (0, 1))
    assert zero != one
    assert EpochOrder(SPEC, sizes, 0).open_epoch(1).ordinals(positions).tolist() == one
    assert EpochOrder(SPEC, sizes, 1).open_epoch(0).ordinals(positions).tolist() == zero


def test_a_redrawn_cut_is_not_shared_between_epochs() -> None:
    """`open_epoch` with a redrawn cut gives what a fresh order of that epoch gives."""
    spec, sizes = OrderSpec("m", 17, "block", 8, 32, "redrawn"), np.full(50, 7)
    order = EpochOrder(spec, sizes, 0)
    order.ordinals(np.arange(9))
    fresh = EpochOrder(spec, sizes, 3)
    assert order.open_epoch(3).ordinals(np.arange(350)).tolist() == fresh.ordinals(np.arange(350)).tolist()


@pytest.mark.parametrize("cut", ["fixed", "redrawn"])
@pytest.mark.parametrize("shift", [0, 3, 7])
def test_a_shift_turns_the_lanes_and_keeps_every_sample(shift: int, cut: Cut) -> None:
    """With a shift position p is in lane (p + shift) mod L, and every sample comes once.

    `open_epoch` gives what a fresh order with that shift gives.
    """
    spec, sizes = OrderSpec("m", 17, "block", 8, 32, cut), np.full(50, 7)
    order = EpochOrder(spec, sizes, 2, shift=shift)
    ordinals = order.ordinals(np.arange(350))
    assert sorted(ordinals.tolist()) == list(range(350))
    assert np.diff(order.lane_start).tolist() == np.bincount((np.arange(350) + shift) % 8).tolist()
    other = EpochOrder(spec, sizes, 0)
    other.ordinals(np.arange(9))
    assert np.array_equal(other.open_epoch(2, shift).ordinals(np.arange(350)), ordinals)
    lanes = [set(ordinals[(np.arange(350) + shift) % 8 == lane].tolist()) for lane in range(8)]
    own = EpochOrder(spec, sizes, 2).ordinals(np.arange(350))
    unshifted = [set(own[np.arange(350) % 8 == lane].tolist()) for lane in range(8)]
    assert sum(len(a & b) for a, b in zip(lanes, unshifted, strict=True)) >= 350 - 8 * 8


def test_padding_repeats_the_end_of_its_own_lane() -> None:
    """Positions beyond an epoch of n samples repeat the last L positions again and again, each in its own lane.

    p >= n is p - L ceil((p-n+1)/L).
    """
    order = EpochOrder(SPEC, np.full(4, 5), 0)
    positions = np.arange(20, 41)
    assert real_positions(positions, 20, 8).tolist() == [12 + (p - 20) % 8 for p in range(20, 41)]
    assert np.array_equal(order.ordinals(positions), order.ordinals(12 + (positions - 20) % 8))


def test_padding_with_fewer_samples_than_lanes_goes_round() -> None:
    """Positions beyond an epoch with fewer samples than lanes are p mod n, as most lanes have nothing to repeat."""
    assert real_positions(np.arange(3, 10), 3, 8).tolist() == [0, 1, 2, 0, 1, 0, 1]


def test_without_shuffle_position_is_ordinal() -> None:
    """Without shuffle a position is its ordinal, and padding repeats the last sample."""
    order = EpochOrder(OrderSpec("m", 17, "none", 1, 1), np.full(4, 5), 2)
    assert order.ordinals(np.array([7, 0, 19, 20, 33])).tolist() == [7, 0, 19, 19, 19]


def test_nothing_asked_is_nothing_answered() -> None:
    """An empty array of positions gives an empty array of ordinals."""
    assert EpochOrder(SPEC, np.full(4, 5), 0).ordinals(np.empty(0, dtype=np.int64)).shape == (0,)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: EpochOrder(SPEC, np.zeros(2, np.int64), 0), ManifestError, "no samples in 2 chunks"),
        (lambda: EpochOrder(SPEC, np.zeros(0, np.int64), 0), ManifestError, "no samples in 0 chunks"),
        (lambda: EpochOrder(SPEC, np.ones(2, np.int64), -1), ConfigError, "epoch=-1"),
        (
            lambda: EpochOrder(OrderSpec("m", 1, "sample", 1, 1), np.array([1, 4]), 0),
            ConfigError,
            "one sample per chunk; a chunk of m has 4",
        ),
        (
            lambda: EpochOrder(SPEC, np.ones(2, np.int64), 0).ordinals(np.array([-3])),
            ConfigError,
            "position -3 is negative",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], error: type[Exception], words: str) -> None:
    """An order that cannot be, or a negative position, is refused with a typed error.

    Refused are no samples, a negative epoch, and an order by sample over chunks of several.
    """
    with pytest.raises(error, match=words):
        make()


def test_sample_shuffle_mixes_one_sample_chunks() -> None:
    """`shuffle="sample"` over chunks of one sample is a permutation that leaves few neighbours together."""
    order = EpochOrder(OrderSpec.auto("m", np.ones(1000, np.int64), 64, 3, "sample"), np.ones(1000, np.int64), 0)
    found = order.ordinals(np.arange(1000))
    assert np.array_equal(np.sort(found), np.arange(1000))
    assert np.count_nonzero(np.diff(found) == 1) < 20


def test_only_the_lanes_that_are_asked_for_are_ordered() -> None:
    """Only the lanes that a rank asks for are ordered, so that it pays for its own."""
    order = EpochOrder(SPEC, np.full(50, 7), 0)
    order.ordinals(np.array([3, 11, 19]))
    assert np.flatnonzero(order._filled).tolist() == [3]


def test_repr_says_what_it_is() -> None:
    """The `repr` of an order has epoch, samples and the order's id."""
    text = repr(EpochOrder(SPEC, np.full(4, 5), 2))
    assert "epoch=2" in text
    assert "samples=20" in text
    assert SPEC.order_id in text


@pytest.mark.parametrize(("chunks", "limit_bytes"), [(100_000, 10_000_000), (1_500_000, 64_000_000)])
def test_a_large_epoch_needs_little_memory(chunks: int, limit_bytes: int) -> None:
    """An order of 1e9 samples and more takes bytes per chunk and none per sample.

    So do its first position and a resume in the middle.
    """
    sizes = np.full(chunks, 10_000, dtype=np.int64)
    spec = OrderSpec.auto("m", sizes, 256, 17)
    tracemalloc.start()
    try:
        order = EpochOrder(spec, sizes, 0)
        order.ordinals(np.arange(256))
        order.ordinals(np.arange(256) + order.samples // 2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes
