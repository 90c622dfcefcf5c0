"""Tests of the order of a mix: from positions to samples."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.order.mix import Batching, MixOrder, MixSource
from tests.mixes import chunk_sizes, member_chunks, mix, order, request, sources

SIZES = {"a": 5000, "b": 900, "c": 37}


def _global_batch(plans: list[RankPlan], number: int) -> list[int]:
    """Returns the codes of a batch of all ranks, without repeats, sorted."""
    parts = [plan.batch(number) for plan in plans]
    return sorted(code for part in parts for code in part.ordinals[~part.repeated].tolist())


@pytest.mark.parametrize("samples", [3000, 3001, 64])
def test_a_mix_of_one_member_has_the_batches_of_the_dataset(samples: int) -> None:
    """A mix of one member has the batches of the dataset alone in each epoch.

    So it does with lanes that are not filled evenly; inside a batch the places differ.
    """
    sizes = chunk_sizes(samples, 20)
    alone = EpochOrder(OrderSpec.auto("0" * 32, sizes, 48, 5), sizes, 0)
    member = MixSource("a", "0" * 32, sizes, 5)
    mixed = order(request(["a"]).spec([member], 48), [member])
    for epoch in range(3):
        plans = [RankPlan(one.open_epoch(epoch), 48, 1, 0) for one in (alone, mixed)]
        assert plans[0].batches == plans[1].batches
        for number in range(plans[0].batches):
            codes = mixed.codes.ordinals(np.array(_global_batch(plans[1:], number)))
            assert _global_batch(plans[:1], number) == sorted(codes.tolist())


@pytest.mark.parametrize("batching", ["stratified", "random", "homogeneous"])
def test_batches_do_not_depend_on_the_number_of_ranks(batching: Batching) -> None:
    """1 to 24 ranks deal the same global batches of a mix, each of 48 different samples."""
    weights = {"a": 0.8, "b": 0.15, "c": 0.05}
    mixed = mix(SIZES, 48, batching=batching, lanes=8, weights=weights, epoch_samples=1440).open_epoch(2)
    alone = RankPlan(mixed, 48, 1, 0)
    whole = [_global_batch([alone], number) for number in range(30)]
    assert [len(set(batch)) for batch in whole] == [48] * 30
    for world in (2, 3, 4, 6, 8, 12, 24):
        plans = [RankPlan(mixed, 48, world, rank) for rank in range(world)]
        assert [_global_batch(plans, number) for number in range(30)] == whole


@pytest.mark.parametrize("batching", ["stratified", "random"])
def test_a_resume_has_the_rest_of_the_epoch(batching: Batching) -> None:
    """A mix that is resumed with other ranks and another batch size has exactly the rest of the epoch."""
    mixed = mix(SIZES, 48, batching=batching, lanes=8)
    plan = RankPlan(mixed, 48, 1, 0)
    rest = [code for number in range(50, plan.batches) for code in _global_batch([plan], number)]
    other = [RankPlan(mixed.open_epoch(0), 32, 4, rank, start=50 * 48) for rank in range(4)]
    found = [code for number in range(other[0].batches) for code in _global_batch(other, number)]
    assert sorted(found) == sorted(rest)


def test_padding_repeats_samples_of_its_own_lane() -> None:
    """Positions beyond a mix's epoch repeat samples of their own lane, whose chunks the rank has open."""
    mixed = mix(SIZES, 48, lanes=8)
    padded = np.arange(mixed.samples, mixed.samples + 40)
    assert np.array_equal(mixed.ordinals(padded), mixed.ordinals(mixed.samples - 8 + (padded - mixed.samples) % 8))
    with pytest.raises(ConfigError, match="position -1 is negative"):
        mixed.ordinals(np.array([-1]))


def test_a_quarter_of_the_samples_each_epoch_is_another_quarter() -> None:
    """`repeat=0.25` uses every sample exactly twice in 8 epochs."""
    mixed = mix({"a": 4 * 256 * 20, "b": 4 * 256 * 8}, 256, repeat=0.25)
    uses = [np.zeros(member.samples, np.int64) for member in mixed.spec.members]
    for epoch in range(8):
        mixed = mixed.open_epoch(epoch)
        codes = mixed.ordinals(np.arange(mixed.samples))
        for member, counts in enumerate(uses):
            np.add.at(counts, mixed.codes.ordinals(codes[mixed.codes.members(codes) == member]), 1)
    assert all((counts == 2).all() for counts in uses)


def test_two_uses_in_an_epoch_have_different_codes() -> None:
    """Two uses of a sample in an epoch have different codes, by the pass, so that it is augmented differently."""
    mixed = mix({"a": 100, "b": 60}, 20, repeat={"a": 1, "b": 3}).open_epoch(5)
    codes = mixed.ordinals(np.arange(mixed.samples))
    own = codes[mixed.codes.members(codes) == 1]
    assert len(set(own.tolist())) == 180
    assert np.bincount(mixed.codes.turns(own)).tolist() == [60, 60, 60]
    assert mixed.spec.first_passes(5) == (5, 15)


def test_a_member_that_pauses_goes_on_where_it_was() -> None:
    """A member with weight 0 in a stage goes on after it where it was."""
    weights = [(0, {"a": 1, "b": 1}), (1, {"a": 1, "b": 0}), (3, {"a": 1, "b": 1})]
    mixed = mix({"a": 900, "b": 300}, 20, weights=weights, epoch_samples=200)
    found = []
    for epoch in range(6):
        codes = mixed.open_epoch(epoch).ordinals(np.arange(200))
        found += mixed.codes.ordinals(codes[mixed.codes.members(codes) == 1]).tolist()
    assert len(found) == 400
    assert sorted(found[:300]) == list(range(300))


def test_members_in_the_order_of_their_data_stay_in_it() -> None:
    """With `shuffle=False` the samples of a member come batch by batch as they are stored."""
    members = [MixSource(name, "0" * 32, chunk_sizes(n, 7), 0, "none") for name, n in SIZES.items()]
    weights = {"a": 2, "b": 1, "c": 1}
    mixed = order(request(list(SIZES), weights=weights, epoch_samples=640).spec(members, 64), members)
    codes = mixed.ordinals(np.arange(640))
    batch, member, ordinal = np.arange(640) // 64, mixed.codes.members(codes), mixed.codes.ordinals(codes)
    for number in range(3):
        mine = member == number
        arranged = ordinal[mine][np.lexsort((mixed.codes.turns(codes)[mine] * 5000 + ordinal[mine], batch[mine]))]
        assert arranged.tolist() == [i % list(SIZES.values())[number] for i in range(len(arranged))]


def test_an_epoch_before_the_first_is_refused() -> None:
    """An epoch before the first of a mix is refused."""
    mixed = mix(SIZES, 48)
    with pytest.raises(ConfigError, match="epoch=-1 comes before epoch 0"):
        mixed.open_epoch(-1)


def test_a_thousand_million_samples_start_without_a_table_of_them() -> None:
    """A mix of 1e9 samples in 1e5 chunks of 3 members takes less than 24 bytes for each chunk."""
    sizes = {"a": 500_000_000, "b": 300_000_000, "c": 200_000_000}
    members = sources(sizes, 10_000)
    spec = request(list(sizes), weights={"a": 6, "b": 3, "c": 1}).spec(members, 1024)
    chunks = member_chunks(members)
    tracemalloc.start()
    plan = RankPlan(MixOrder(spec, chunks, 0), 1024, 1, 0)
    plan.batch(plan.batches - 1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 24 * 100_000
