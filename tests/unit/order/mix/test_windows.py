"""Tests of the places of an epoch of a mix: shares of batches, windows and groups, and where a sample can be."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.order.mix import Batching, MixOrder
from streamer.order.mix.places import epoch_places
from tests.mixes import counts_by_batch, members_of, mix, weighted

ZIPF_100 = [1 / n for n in range(1, 101)]


@pytest.mark.parametrize("weights", [[7, 3], [50, 25, 15, 9, 1], [1 / n for n in range(1, 21)], ZIPF_100, [1] * 100])
@pytest.mark.parametrize(("lanes", "batch"), [(8, 256), (16, 1024), pytest.param(64, 4096, marks=pytest.mark.slow)])
def test_every_stratified_batch_has_every_members_share(weights: list[float], lanes: int, batch: int) -> None:
    """Every stratified batch has the shares within 2 samples, with a standard deviation of at most 0.6.

    The epoch's totals are exact.
    """
    mixed = weighted(weights, batch, 48, lanes=lanes)
    counts = counts_by_batch(mixed, batch)
    share = batch * np.array(weights) / sum(weights)
    assert np.abs(counts - share).max() < 2
    assert counts.std(axis=0).max() <= 0.6
    assert tuple(counts.sum(axis=0)) == mixed.spec.quotas(0)


@pytest.mark.parametrize(
    ("weights", "lanes", "batch"), [([2, 1, 1], 8, 256), ([5, 2, 1], 8, 64), ([12, 3, 1], 16, 256)]
)
def test_shares_that_are_whole_in_every_lane_are_exact_in_every_batch(
    weights: list[float], lanes: int, batch: int
) -> None:
    """Shares that are whole numbers in every lane are exact in every batch."""
    counts = counts_by_batch(weighted(weights, batch, 100, lanes=lanes), batch)
    assert (counts == batch * np.array(weights) // sum(weights)).all()


def test_the_part_of_one_rank_is_as_even() -> None:
    """A lane's 32 samples of a batch are within 2 of their shares; independent draws are 9 off."""
    mixed = weighted([70, 20, 9, 1], 256, 160, lanes=8)
    members = mixed.codes.members(mixed.ordinals(np.arange(mixed.samples))).reshape(160, 32, 8)
    counts = np.stack([(members == member).sum(axis=1) for member in range(4)], axis=-1)
    assert np.abs(counts - 32 * np.array([0.7, 0.2, 0.09, 0.01])).max() < 2


def test_a_batch_that_the_lanes_do_not_divide_is_still_more_even_than_draws() -> None:
    """A batch that the lanes do not divide scatters less than 0.7 times as much as draws.

    8 lanes, batches of 100: each run of 96 has the shares.
    """
    mixed, shares = weighted([70, 20, 9, 1], 100, 160, lanes=8), np.array([0.7, 0.2, 0.09, 0.01])
    assert mixed.samples % 96 == 0
    assert np.abs(counts_by_batch(mixed, 96) - 96 * shares).max() < 2
    counts = counts_by_batch(mixed, 100)
    assert (counts.std(axis=0) < 0.7 * np.sqrt(100 * shares * (1 - shares))).all()
    assert tuple(counts_by_batch(mixed, mixed.samples)[0]) == mixed.spec.quotas(0)


@pytest.mark.parametrize(
    ("members", "lanes", "batch"),
    [(150, 8, 1024), (300, 64, 4096), pytest.param(1000, 64, 4096, marks=pytest.mark.slow)],
)
def test_more_than_a_hundred_members_have_their_shares(members: int, lanes: int, batch: int) -> None:
    """With Zipf weights of 150 members and more a batch is within 3 samples of the shares, and the epoch is exact."""
    weights = 1 / np.arange(1, members + 1)
    mixed = weighted(weights.tolist(), batch, 32, lanes=lanes)
    counts = counts_by_batch(mixed, batch)
    assert np.abs(counts - batch * weights / weights.sum()).max() < 3
    assert tuple(counts.sum(axis=0)) == mixed.spec.quotas(0)


def test_random_batches_scatter_and_windows_do_not() -> None:
    """A random batch scatters as draws without replacement; every 16 batches have the shares, rounded in each lane."""
    mixed = weighted([70, 20, 9, 1], 256, 160, lanes=8, batching="random")
    counts = counts_by_batch(mixed, 256)
    assert 4 < counts[:, 0].std() < 10
    windows = counts.reshape(10, 16, 4).sum(axis=1)
    assert np.abs(windows - 16 * 256 * np.array([0.7, 0.2, 0.09, 0.01])).max() < 4
    assert tuple(counts.sum(axis=0)) == mixed.spec.quotas(0)


def test_homogeneous_batches_are_of_one_member() -> None:
    """Each homogeneous batch is of one member; in a window of 16 the members have their shares of the batches."""
    mixed = weighted([8, 4, 4], 256, 160, batching="homogeneous")
    counts = counts_by_batch(mixed, 256)
    assert set(counts.ravel().tolist()) == {0, 256}
    windows = counts.reshape(10, 16, 3).sum(axis=1) // 256
    assert (windows == [8, 4, 4]).all()
    assert len({tuple(window) for window in counts.argmax(axis=1).reshape(10, 16).tolist()}) == 10


@pytest.mark.parametrize(("lanes", "groups"), [(8, 8), (8, 2), (24, 12), (64, 32)])
def test_groups_of_a_batch_have_every_members_share(lanes: int, groups: int) -> None:
    """Each group of a batch is of one member; a batch is within 2 groups of the shares, an epoch exact."""
    batch, weights = lanes * 16, np.array([50, 30, 16, 4])
    mixed = weighted(weights.tolist(), batch, 200, lanes=lanes, batching="homogeneous", group=batch // groups)
    members = members_of(mixed).reshape(200, 16, groups, lanes // groups)
    assert (members == members[:, :1, :, :1]).all()
    counts = np.stack([(members[:, 0, :, 0] == member).sum(axis=1) for member in range(4)], axis=-1)
    assert np.abs(counts - groups * weights / 100).max() < 2
    assert (groups * counts.sum(axis=0) == groups**2 * weights * 2).all()


def test_no_two_batches_have_the_same_sequence_of_members() -> None:
    """No two of 200 batches have the same sequence of members.

    The places are permuted anew in each batch and lane.
    """
    mixed = weighted([70, 20, 9, 1], 256, 200, lanes=8)
    members = mixed.codes.members(mixed.ordinals(np.arange(mixed.samples))).reshape(200, 256)
    assert len({tuple(row) for row in members.tolist()}) == 200


@pytest.mark.parametrize("batching", ["stratified", "random", "homogeneous"])
@pytest.mark.parametrize("batches", [1, 16, 31, 37])
def test_any_place_can_be_asked_alone(batching: Batching, batches: int) -> None:
    """The sample of a place is the same asked alone, also in the shorter windows at the end and an incomplete batch."""
    mixed = weighted([5, 3, 1], 64, batches, lanes=4, batching=batching)
    whole = mixed.ordinals(np.arange(mixed.samples))
    for position in range(0, mixed.samples, 97):
        assert mixed.open_epoch(0).ordinals(np.array([position]))[0] == whole[position]


@pytest.mark.parametrize("sizes", [{"a": 100, "b": 37, "c": 1}, {"a": 1001, "b": 2}])
@pytest.mark.parametrize("batching", ["stratified", "random"])
def test_an_incomplete_last_batch_has_what_is_left(sizes: dict[str, int], batching: Batching) -> None:
    """Whole passes that do not fill batches have every sample once, the last ones in an incomplete batch."""
    mixed = mix(sizes, 24, lanes=8, batching=batching)
    codes = mixed.ordinals(np.arange(mixed.samples))
    found = [(mixed.codes.members(codes) == member).sum() for member in range(len(sizes))]
    assert found == list(sizes.values())
    assert len(np.unique(codes)) == len(codes)


# ------------------------------------------------------------------ where a sample can be


def _widths(mixed: MixOrder) -> tuple[np.ndarray, np.ndarray]:
    """Returns the members' samples per batch and lane of all samples, and how many batches wide their bounds are."""
    places, lanes, slots = epoch_places(mixed.spec, 0), mixed.lanes, mixed.spec.slots
    positions = np.arange(mixed.samples)
    lane, slot = positions % lanes, positions // lanes
    members, counts = places.find(lane, slot)
    rates, widths = [], []
    for member, quota in enumerate(mixed.spec.quotas(0)):
        mine = members == member
        low, high = places.bounds(member, lane[mine], counts[mine])
        assert np.all((low <= slot[mine]) & (slot[mine] <= high))
        widths.append(high // slots - low // slots)
        rates.append(np.full(len(low), quota * slots / mixed.samples))
    return np.concatenate(rates), np.concatenate(widths)


@pytest.mark.parametrize("batches", [3, 16, 40, 63])
@pytest.mark.parametrize("batching", ["stratified", "random", "homogeneous"])
def test_the_place_of_a_sample_is_known_to_a_window(batching: Batching, batches: int) -> None:
    """The bounds of a sample's place contain it and are less than 16 batches wide."""
    mixed = weighted([60, 25, 10, 4, 1], 256, batches, lanes=8, batching=batching)
    assert _widths(mixed)[1].max() < 16


def test_the_place_of_a_frequent_sample_is_known_to_a_few_batches() -> None:
    """The place of a sample is known to 4 batches where a lane takes 3 or more samples of its member per batch."""
    rates, widths = _widths(weighted([60, 25, 10, 4, 1], 256, 64, lanes=8))
    assert widths[rates >= 3].max() <= 3
