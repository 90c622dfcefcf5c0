"""Tests of `MixedDataset` in one process, on a fake engine that keeps exactly what is leased.

Shares, batches, states, damaged samples and arguments; members, orders, loaders and chunk files are the real ones.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from streamer import Homogeneous, Index, Order, Skip, StreamingDataLoader, StreamingDataset, Weights
from streamer.errors import ConfigError, DecodeError, ManifestError, StateError
from streamer.loader.mixed_dataset import MixedDataset
from tests.unit.loader.mix.conftest import SIZES, numbers, write

ALL = [1000 * place + number for place, size in enumerate(SIZES.values()) for number in range(size)]


def member_of(number: int) -> str:
    return list(SIZES)[number // 1000]


# ---------------------------------------------------------------- iteration


def test_without_a_rule_every_sample_comes_once_per_epoch(make_mix):
    """A mix without a rule gives every sample once in each epoch, in another order each time.

    Each has the name of its member.
    """
    data = make_mix()
    epochs = [list(data) for _ in range(3)]
    found = [numbers(epoch) for epoch in epochs]
    assert [sorted(epoch) for epoch in found] == [ALL] * 3
    assert len({tuple(epoch) for epoch in found}) == 3
    assert all(sample["__source__"] == member_of(sample["npy"][0]) for epoch in epochs for sample in epoch)


def test_constructing_does_no_io(fake_engine, make_mix):
    """Constructing a mix asks the engine for nothing."""
    make_mix()
    assert fake_engine.requests == []


def test_a_member_makes_another_part_of_its_pass_in_each_epoch(make_mix):
    """`repeat=0.25` gives another quarter of a member in each epoch, all of it after four.

    `repeat=2` gives each sample twice in each epoch.
    """
    data = make_mix("ab", repeat={"a": 0.25, "b": 2}, batch_size=5)
    uses: Counter[int] = Counter()
    for _ in range(4):
        epoch = Counter(numbers(islice(data, data.samples)))
        assert sum(epoch[number] for number in range(100)) == 25
        assert {epoch[1000 + number] for number in range(60)} == {2}
        uses.update(epoch)
    assert {uses[number] for number in range(100)} == {1}


def test_batches_are_the_same_through_the_loader_and_a_bare_loop(make_mix):
    """A loader gives the samples of a bare loop.

    `sources`, `__source__` and the members in `stats()` agree with a recount.
    """
    bare = make_mix(weights=Weights({"a": 7, "b": 2, "c": 1}, epoch_samples=120), batch_size=12)
    with StreamingDataLoader(make_mix(weights=Weights({"a": 7, "b": 2, "c": 1}, epoch_samples=120)), 12) as loader:
        drawn: Counter[str] = Counter()
        for _ in range(3):
            expected = numbers(bare)
            found = []
            for batch in loader:
                members = [member_of(number) for number in batch["npy"][:, 0].tolist()]
                assert list(batch["__source__"]) == members
                assert [list(SIZES)[number] for number in loader.sources] == members
                drawn.update(members)
                found += batch["npy"][:, 0].tolist()
            assert found == expected
        stats = loader.stats().members
        assert {name: row.drawn for name, row in stats.items()} == drawn
        assert {name: row.share for name, row in stats.items()} == {name: drawn[name] / 360 for name in SIZES}
        assert stats["c"].passes == drawn["c"] / 7


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_global_batches_do_not_depend_on_the_ranks(make_mix, world_size):
    """The batches of several ranks together have the samples of the batches of one rank."""
    whole = make_mix(batch_size=12, order=Order(last_batch="fill"))
    ranks = [make_mix(batch_size=12 // world_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    expected = np.array(numbers(whole)).reshape(-1, 12)
    found = np.concatenate([np.array(numbers(rank)).reshape(-1, 12 // world_size) for rank in ranks], axis=1)
    assert (np.sort(found, axis=1) == np.sort(expected, axis=1)).all()


@pytest.mark.parametrize("batching", ["stratified", "random", "homogeneous"])
def test_batchings(make_mix, batching):
    """A batch has the exact share of each member with `stratified`, and one member with `homogeneous`.

    With `random` its shares differ from batch to batch; an epoch has the quotas with all three.
    """
    data = make_mix("ab", weights=Weights({"a": 3, "b": 1}, epoch_samples=160), batching=batching, batch_size=8)
    batches = np.array(numbers(data)).reshape(-1, 8)
    of_b = (batches >= 1000).sum(axis=1)
    assert of_b.sum() == 40
    shares = set(of_b.tolist())
    assert {"stratified": shares == {2}, "random": len(shares) >= 3, "homogeneous": shares == {0, 8}}[batching]


@pytest.mark.parametrize("world_size", [1, 2])
def test_homogeneous_batches_have_every_sample_once(make_mix, world_size):
    """Homogeneous batches have every sample once, and mark what fills them up, whatever `last_batch` is.

    Regression: 96 of 100 and 64 of 60 were drawn.
    """
    drawn: list[Counter[int]] = [Counter() for _ in range(3)]
    for rank in range(world_size):
        data = make_mix("ab", batching="homogeneous", rank=rank, world_size=world_size)
        with StreamingDataLoader(data, 16 // world_size) as loader:
            assert len(loader) == 11
            for found in drawn:
                for batch in loader:
                    assert len(loader.repeated) == 16 // world_size
                    assert len(set(batch["__source__"])) == 1
                    found.update(batch["npy"][:, 0][~loader.repeated].tolist())
            assert {name: row.drawn for name, row in loader.stats().members.items()} == {"a": 300, "b": 180}
    for found in drawn:
        assert sorted(found.elements()) == sorted([*range(100), *range(1000, 1060)])


def test_each_group_of_a_batch_is_of_one_member(make_mix):
    """With `Homogeneous(group=)` each group of a batch is of one member, and each batch has the shares.

    Ranks that take one group each have the same groups after the state of a single rank is resumed in mid-epoch.
    """
    options = {"batching": Homogeneous(group=4), "weights": Weights({"a": 3, "b": 1}, epoch_samples=320)}
    expected = np.array(numbers(make_mix("ab", batch_size=16, **options))).reshape(20, 4, 4)
    of_b = expected >= 1000
    assert (of_b.all(axis=2) == of_b.any(axis=2)).all()
    assert (of_b.all(axis=2).sum(axis=1) == 1).all(), "each batch has the shares"
    with StreamingDataLoader(make_mix("ab", **options), 16) as loader:
        taken = [batch["npy"][:, 0].tolist() for batch in islice(loader, 3)]
        state = loader.state_dict()
    for rank in range(4):
        with StreamingDataLoader(make_mix("ab", rank=rank, world_size=4, **options), 4) as loader:
            loader.load_state_dict(state)
            found = [batch["npy"][:, 0].tolist() for batch in loader]
        assert found == expected[3:, rank].tolist()
    assert taken == expected[:3].reshape(3, 16).tolist()


@pytest.mark.parametrize(("world_size", "warned"), [(2, True), (3, False), (1, False)])
def test_a_batch_of_parts_of_groups_is_logged(make_mix, caplog, world_size, warned):
    """The log warns where a rank's batch has parts of several groups, and not where it has whole ones or one part."""
    data = make_mix("ab", batching=Homogeneous(group=8), world_size=world_size, rank=0)
    data._get_opening().prepare(24 // world_size, None)
    assert ("has parts of several groups of 8" in caplog.text) == warned


def test_a_sample_draws_by_the_pass_of_its_member(make_mix):
    """A transform draws other numbers in another pass of its member, and the same in the same pass.

    So it does in another mix, and in the dataset alone.
    """

    def draw(sample, rng):
        return {"npy": sample["npy"], "drawn": rng.random()}

    def draws(data):
        return sorted((int(sample["npy"][0]), sample["drawn"]) for sample in data)

    twice = draws(make_mix("b", {"b": {"transform": draw}}, repeat=2))
    assert len({drawn for _, drawn in twice}) == 120
    once = make_mix("ab", {name: {"transform": draw} for name in "ab"})
    first, second = ([pair for pair in draws(once) if pair[0] >= 1000] for _ in range(2))
    assert sorted([*first, *second]) == twice
    alone = once.members["b"]
    assert draws(alone) == first


# ---------------------------------------------------------------- contents


def test_a_member_by_name_and_a_sample_by_number(make_mix):
    """`mix[name]` is a member; `mix[i]` counts samples through the members laid end to end."""
    data = make_mix()
    assert data["b"] is data.members["b"]
    assert sorted(numbers(data[index] for index in range(167))) == ALL
    for index, name, own in ((0, "a", 0), (99, "a", 99), (100, "b", 0), (159, "b", 59), (160, "c", 0), (-1, "c", -1)):
        sample = data[index]
        assert sample["__source__"] == name
        assert sample["__key__"] == data.members[name][own]["__key__"]
    assert data[-167]["__key__"] == data[0]["__key__"]
    for index in (167, -168):
        with pytest.raises(IndexError, match="167"):
            data[index]
    with pytest.raises(KeyError, match="'d'"):
        data["d"]


def test_the_name_of_the_member_is_not_added_without_a_key(make_mix):
    """`source_key=None` adds no name of the member to a sample, and another text adds it under that key."""
    assert set(make_mix(source_key=None)[0]) == {"__key__", "npy"}
    assert make_mix(source_key="from")[0]["from"] == "a"


def test_length_samples_and_quotas(make_mix):
    """`len()` counts samples on this rank with fillings, `samples` those of all ranks, `quotas()` those of members."""
    data = make_mix(batch_size=6, rank=0, world_size=2)
    assert (len(data), data.samples) == (84, 167)
    assert data.quotas() == SIZES
    assert make_mix("ab", choose={"a": 30, "b": 10}, batch_size=8).quotas(3) == {"a": 30, "b": 10}


def test_a_selection_of_a_mix_selects_in_every_member(make_mix):
    """`select` of a mix selects in every member, which makes a split for validation in one line.

    A mix by `choose=` is refused.
    """
    data = make_mix(weights={"a": 1, "b": 1, "c": 1})
    train, validation = data.select(fraction=(0, 0.8)), data.select(fraction=(0.8, 1))
    sizes = [{name: member.samples for name, member in part.members.items()} for part in (train, validation)]
    assert {name: sizes[0][name] + sizes[1][name] for name in SIZES} == SIZES
    assert set(numbers(train)).isdisjoint(numbers(validation))
    with pytest.raises(ConfigError, match="choose"):
        make_mix(choose={"a": 5, "b": 5, "c": 5}).select(fraction=(0, 0.5))


def test_explain_names_members_batches_and_cache(make_mix, caplog):
    """`explain` says batching, batches, shares, passes and hits of the cache, and the log has it once."""
    data = make_mix(weights=Weights({"a": 7, "b": 2, "c": 1}, epoch_samples=120))
    text = data.explain(12, nodes=2)
    for part in ("stratified", "10 batches of 12", "70.00%", "passes", "hits at most"):
        assert part in text, text
    with caplog.at_level(logging.INFO, "streamer.loader.rank.opening"):
        for _ in range(2):
            data._get_opening().prepare(12)
    assert sum("10 batches of 12" in record.message for record in caplog.records) == 1


# ---------------------------------------------------------------- state


def test_a_state_continues_with_the_next_sample(make_mix):
    """A state of a mix continues with the next sample in a bare loop, and in loaders on another number of ranks."""
    options = {"weights": Weights({"a": 7, "b": 2, "c": 1}, epoch_samples=120)}
    data = make_mix(batch_size=12, **options)
    expected = numbers(data) + numbers(data)
    first = make_mix(batch_size=12, **options)
    taken = numbers(islice(first, 43))
    other = make_mix(batch_size=12, **options)
    other.load_state_dict(first.state_dict())
    assert taken + numbers(other) + numbers(other) == expected
    with StreamingDataLoader(make_mix(**options), 12) as loader:
        iterator = iter(loader)
        head = [next(iterator)["npy"][:, 0].tolist() for _ in range(3)]
        state = loader.state_dict()
    assert [number for batch in head for number in batch] == expected[:36]
    parts = []
    for rank in range(2):
        with StreamingDataLoader(make_mix(rank=rank, world_size=2, **options), 6) as loader:
            loader.load_state_dict(state)
            parts.append([batch["npy"][:, 0].tolist() for batch in loader])
    rest = [sorted(left + right) for left, right in zip(*parts, strict=True)]
    assert rest == [sorted(expected[at : at + 12]) for at in range(36, 120, 12)]


def test_weights_may_change_between_two_jobs(make_mix):
    """Weights and members may change at the end of an epoch, with `load_state_dict(state, strict=False)`.

    After both jobs no sample of a member was used more than once more than another.
    """
    uses: Counter[int] = Counter()
    with StreamingDataLoader(make_mix("ab", weights=Weights({"a": 3, "b": 1}, epoch_samples=80)), 8) as loader:
        for _ in range(3):
            for batch in loader:
                uses.update(batch["npy"][:, 0].tolist())
        state = loader.state_dict()
    changed = make_mix("abc", weights=Weights({"a": 1, "b": 2, "c": 1}, epoch_samples=96))
    with StreamingDataLoader(changed, 8) as loader:
        with pytest.raises(StateError, match="members was 'a, b' when it was saved"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, strict=False)
        for _ in range(4):
            for batch in loader:
                uses.update(batch["npy"][:, 0].tolist())
        later = loader.state_dict()
    for place, (name, size) in enumerate(SIZES.items()):
        counts = [uses[1000 * place + number] for number in range(size)]
        assert max(counts) - min(counts) <= 1, name
    with StreamingDataLoader(make_mix("abc", weights=Weights({"a": 1, "b": 2, "c": 1}, epoch_samples=96)), 8) as loader:
        loader.load_state_dict(later)
        assert next(iter(loader))["npy"].shape == (8, 40), "a state after the change fits the changed mix"


def test_a_state_of_a_dataset_is_that_members(make_mix):
    """A state of a dataset is loaded into a mix with `strict=False` as that of its member.

    A state of a mix does not fit a dataset.
    """
    data = make_mix("ab", batch_size=10)
    alone = StreamingDataset(data.members["a"]._opening.options.urls[0], batch_size=10)
    used = numbers(islice(alone, 100))
    state = alone.state_dict()
    alone.close()
    data.load_state_dict(state, strict=False)
    assert data.epoch == 0
    found = numbers(data)
    assert sorted(found) == sorted(used + [1000 + number for number in range(60)])
    other = data.members["a"]
    other.load_state_dict(data.state_dict())
    with pytest.raises(StateError, match="MixedDataset"):
        iter(other)


@pytest.mark.parametrize(("taken", "left"), [(43, {}), (5, {}), (36, {"worker_batches": 2})])
def test_a_changed_mix_begins_its_epoch_with_the_first_sample(make_mix, taken, left):
    """A changed mix begins an epoch at its first sample, also with a state that was taken inside a batch.

    Regression: the new epoch began behind as many samples as the old batch had delivered.
    """
    first = make_mix("ab", batch_size=12, weights=Weights({"a": 3, "b": 1}, epoch_samples=96))
    numbers(islice(first, taken))
    state = {**first.state_dict(), **left}
    assert state["batch_samples"] == taken % 12
    found = []
    for inside in (state, {**state, "batch_samples": 0, "worker_batches": 0}):
        changed = make_mix("abc", batch_size=12, weights=Weights({"a": 1, "b": 2, "c": 1}, epoch_samples=96))
        changed.load_state_dict(inside, strict=False)
        found.append(numbers(changed))
    assert found[0] == found[1]
    assert len(found[0]) == 96


def test_strict_false_is_for_mixes(make_mix):
    """`strict=False` is refused for one dataset, whose order is fixed."""
    dataset = make_mix("a").members["a"]
    with StreamingDataLoader(dataset, 10) as loader, pytest.raises(ConfigError, match="strict"):
        loader.load_state_dict(loader.state_dict(), strict=False)


def test_set_epoch_and_copies(make_mix):
    """`set_epoch` goes back to an epoch with the same order, and a pickled copy has the same order, too."""
    data = make_mix()
    first, second = numbers(data), numbers(data)
    data.set_epoch(0)
    assert (numbers(data), numbers(data)) == (first, second)
    copy = pickle.loads(pickle.dumps(data))
    copy.set_epoch(1)
    assert numbers(copy) == second
    copy.close()


def test_refresh_lets_the_other_members_continue(fake_engine, make_mix, folders, tmp_path):
    """At `refresh()` a member that has changed begins a new pass, and the others go on where they are."""
    folders["b"] = write(tmp_path / "b", SIZES["b"], 1000)
    data = make_mix("ab", repeat={"a": 0.5, "b": 0.5}, batch_size=8)
    half = numbers(islice(data, data.samples))
    assert not data.refresh()
    write(folders["b"], 80, 1000)
    fake_engine.manifests.pop(str(folders["b"]))
    assert data.refresh()
    other = numbers(islice(data, data.samples))
    of_a = [number for number in half + other if number < 1000]
    assert len(of_a) == len(set(of_a)) >= 88
    assert data.members["b"].samples == 80


def test_the_loader_takes_a_change_between_epochs(fake_engine, make_mix, folders, tmp_path):
    """A loader takes a change of a member with `Index(on_change="refresh")` into the next epoch.

    The other members go on.
    """
    folders["b"] = write(tmp_path / "b", SIZES["b"], 1000)
    data = make_mix("ab", {"b": {"manifest": Index(on_change="refresh")}}, repeat={"a": 0.5, "b": 1})
    with StreamingDataLoader(data, 10) as loader:
        first = [number for batch in loader for number in batch["npy"][:, 0].tolist()]
        write(folders["b"], 80, 1000)
        fake_engine.manifests.pop(str(folders["b"]))
        second = [number for batch in loader for number in batch["npy"][:, 0].tolist()]
    assert {number for number in second if number >= 1000} == {1000 + number for number in range(80)}
    of_a = [number for number in first + second if number < 1000]
    assert len(of_a) == len(set(of_a)) == 100


# ---------------------------------------------------------------- damaged samples


def test_a_skipped_sample_has_the_name_of_its_member(make_mix, folders, tmp_path):
    """A skipped sample of a mix has its member's name in `skipped` and `stats()`.

    The entries of `sources` are those of the samples that took its place.
    """
    folders["b"] = write(tmp_path / "b", SIZES["b"], 1000)
    (folders["b"] / "0005.npy").write_bytes(b"no array")
    with StreamingDataLoader(make_mix(on_error="skip"), 10) as loader:
        for batch in loader:
            members = [member_of(number) for number in batch["npy"][:, 0].tolist()]
            assert [list(SIZES)[number] for number in loader.sources] == members == list(batch["__source__"])
        (skipped,) = loader.skipped
        assert (skipped.member, skipped.key) == ("b", "0005.npy")
        assert loader.dataset.members["b"]._member.find("0005.npy") == skipped.ordinal
        assert str(skipped).startswith(f"sample b/{skipped.ordinal} (0005.npy)")
        assert {name: row.skipped for name, row in loader.stats().members.items()} == {"a": 0, "b": 1, "c": 0}


def test_an_error_names_the_member(make_mix, folders, tmp_path):
    """An error of a sample of a mix names the member and the sample's number in it."""
    folders["b"] = write(tmp_path / "b", SIZES["b"], 1000)
    (folders["b"] / "0005.npy").write_bytes(b"no array")
    data = make_mix()
    label = f"dataset['b'][{data.members['b']._member.find('0005.npy')}]"
    with StreamingDataLoader(data, 10) as loader, pytest.raises(DecodeError) as caught:
        list(loader)
    assert f"({label}, " in caught.value.message


def test_members_that_do_not_collate_are_named(make_mix):
    """Members whose samples cannot be collated are named with the field, both dtypes and shapes, and what to do.

    Batches of one member, or a `collate_fn`, need not agree.
    """
    members = {"b": {"transform": lambda sample: {**sample, "npy": sample["npy"][:7].astype(np.float32)}}}
    with StreamingDataLoader(make_mix("ab", members), 10) as loader, pytest.raises(ConfigError) as caught:
        list(loader)
    for part in ("members a and b", "'npy'", "int32 (40,)", "float32 (7,)", "homogeneous", "collate_fn"):
        assert part in caught.value.message
    members = {"b": {"transform": lambda sample: {**sample, "more": 1}}}
    with StreamingDataLoader(make_mix("ab", members), 10) as loader, pytest.raises(ConfigError, match="more"):
        list(loader)
    with StreamingDataLoader(make_mix("ab", members), 10, collate_fn=len) as loader:
        assert sum(loader) == 160
    mixed = make_mix("ab", members, repeat={"a": 1, "b": 1.5}, batching="homogeneous")
    with StreamingDataLoader(mixed, 10) as loader:
        assert {("more" in batch, set(batch["__source__"]) == {"b"}) for batch in loader} == {
            (True, True),
            (False, False),
        }


# ---------------------------------------------------------------- arguments and edge cases


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"weights": {"a": 1, "b": -1, "c": 1}}, "weights"),
        ({"weights": {"a": 1, "b": float("nan"), "c": 1}}, "weights"),
        ({"weights": {"a": 1, "b": float("inf"), "c": 1}}, "weights"),
        ({"weights": {"a": 0, "b": 0, "c": 0}}, "weights"),
        ({"weights": {"a": 1, "b": 1, "c": 1, "d": 1}}, "weights"),
        ({"weights": {"a": 1, "b": 1}}, "weights"),
        ({"weights": {"a": 1, "b": 1, "c": 1}, "repeat": 1}, "repeat"),
        ({"choose": {"a": 1, "b": 1, "c": 1}, "weights": Weights(temperature=2)}, "choose"),
        ({"repeat": {"a": 1, "b": 1, "c": -1}}, "repeat"),
        ({"choose": {"a": 1, "b": 1, "c": 0.5}}, "choose"),
        ({"batching": "sorted"}, "batching"),
        ({"seed": -1}, "seed"),
        ({"source_key": ""}, "source_key"),
        ({"batch_size": 0}, "batch_size"),
        ({"order": {"lanes": 1}}, "order"),
        ({"order": Order(lanes_by="key")}, "lanes_by"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_at_once(make_mix, options, field):
    """An argument of a mix that cannot be is a `ConfigError` with the field's name when it is constructed."""
    with pytest.raises(ConfigError) as caught:
        make_mix(**options)
    assert caught.value.details["field"] == field


def test_wrong_names_are_listed(make_mix):
    """Weights for unknown members, and members without a weight, are listed in one error."""
    with pytest.raises(ConfigError) as caught:
        make_mix(weights={"a": 1, "d": 1})
    for name in ("b", "c", "d"):
        assert name in caught.value.message


@pytest.mark.parametrize(
    "option",
    [
        {"batch_size": 2},
        {"rank": 0, "world_size": 2},
        {"on_error": "skip"},
        {"on_error": Skip(budget=7)},
        {"order": Order(last_batch="drop")},
        {"order": Order(name="s")},
        {"order": Order(lanes=2)},
        {"order": Order(shuffle_window=64)},
    ],
)
def test_an_option_of_the_whole_is_refused_on_a_member(make_mix, option):
    """An option that belongs to the mix is refused on a member, with the member's name."""
    with pytest.raises(ConfigError, match=r"member b: .*MixedDataset") as caught:
        make_mix(members={"b": option})
    assert caught.value.details["field"] in option


@pytest.mark.parametrize("option", [{"order": Order(lanes_by="key")}, {"share_caches": "auto"}])
def test_an_option_of_a_dataset_alone_is_refused_on_a_member(make_mix, option):
    """An option of a dataset that is read alone is refused on a member, with the member's name and the reason."""
    with pytest.raises(ConfigError, match=r"member b: .* is for a dataset alone") as caught:
        make_mix(members={"b": option})
    assert caught.value.details["field"] in {"lanes_by", "share_caches"}


@pytest.mark.parametrize(
    "option", [{"cache_dir": "/x"}, {"cache_bytes": "1GB"}, {"engine": "unix:/x"}, {"shuffle": False}]
)
def test_what_members_must_have_in_common(make_mix, option):
    """Members with different engines or caches, or of which only some are shuffled, are refused with both names."""
    with pytest.raises(ConfigError, match="members a and b differ in") as caught:
        make_mix(members={"b": option})
    assert caught.value.details["field"] in option


@pytest.mark.parametrize(
    "choose",
    [
        pytest.param(lambda dataset, mix: {}, id="none"),
        pytest.param(lambda dataset, mix: [dataset], id="list"),
        pytest.param(lambda dataset, mix: {"a": str(dataset._opening.options.urls[0])}, id="url"),
        pytest.param(lambda dataset, mix: {"": dataset}, id="empty name"),
        pytest.param(lambda dataset, mix: {3: dataset}, id="number as name"),
        pytest.param(lambda dataset, mix: {"a": mix}, id="mix"),
    ],
)
def test_members_are_datasets_by_name(make_mix, folders, choose):
    """Members that are not datasets by name are refused: none, a list, a url, a name that is no text, a mix."""
    with pytest.raises(ConfigError) as caught:
        MixedDataset(choose(StreamingDataset(folders["a"]), make_mix("a")))
    assert caught.value.details["field"] == "members"


def test_one_member_is_allowed(make_mix):
    """A mix of one member has the batches of the dataset alone, in another order inside a batch."""
    data = make_mix("a", batch_size=10)
    dataset = data.members["a"]
    alone = StreamingDataset(dataset._opening.options.urls[0], batch_size=10)
    for _ in range(3):
        own = np.sort(np.array(numbers(alone)).reshape(-1, 10), axis=1)
        assert (np.sort(np.array(numbers(data)).reshape(-1, 10), axis=1) == own).all()
    alone.close()


def test_a_member_of_one_sample(make_mix, tmp_path):
    """A member of one sample gives its share of an epoch although a batch needs it several times."""
    single = StreamingDataset(write(tmp_path / "single", 1, 9000))
    data = make_mix("a")
    mixed = MixedDataset({"a": data.members["a"], "one": single}, weights={"a": 1, "one": 1}, batch_size=10)
    counts = Counter(numbers(mixed))
    assert counts[9000] == counts.total() / 2
    mixed.close()


def test_a_member_that_repeats_inside_a_batch_is_logged(make_mix, caplog):
    """The log says which member has fewer samples than a batch takes of it."""
    data = make_mix("ac", weights={"a": 1, "c": 1})
    data._get_opening().prepare(20)
    assert "member c has 7 samples, fewer than a batch takes of it" in caplog.text


def test_a_weight_of_zero_leaves_a_member_out(make_mix, caplog):
    """A weight of 0 leaves a member out, which the log says."""
    data = make_mix(weights={"a": 1, "b": 0, "c": 1}, batch_size=10)
    assert {member_of(number) for number in numbers(data)} == {"a", "c"}
    assert "member b gives no sample to epoch 0: its weight is 0" in caplog.text


def test_a_tiny_weight_is_exact_in_the_long_run(make_mix):
    """A tiny weight is exact over many epochs, in some of which the quota is 0."""
    data = make_mix("ab", weights=Weights({"a": 1999, "b": 1}, epoch_samples=100), batch_size=10)
    quotas = [data.quotas(epoch)["b"] for epoch in range(400)]
    assert min(quotas) == 0 < max(quotas)
    assert abs(sum(quotas) - 20) <= 2


def test_stages_of_weights(make_mix):
    """Stages of weights change the quotas from their epoch on, also of a member that had 0 before."""
    data = make_mix(
        "ab", weights=Weights([(0, {"a": 1, "b": 0}), (2, {"a": 1, "b": 1})], epoch_samples=40), batch_size=10
    )
    assert [data.quotas(epoch)["b"] for epoch in range(4)] == [0, 0, 20, 20]
    found = [Counter(map(member_of, numbers(data))) for _ in range(4)]
    assert [counts["b"] for counts in found] == [0, 0, 20, 20]


def test_the_same_dataset_twice(make_mix, caplog):
    """One dataset may be two members of a mix; with equal seeds the log warns."""
    data = make_mix("a")
    twice = MixedDataset({"x": data.members["a"], "y": data.members["a"]}, batch_size=10)
    counts = Counter(numbers(twice))
    assert set(counts.values()) == {2}
    assert "members x and y have the same samples and the same seed" in caplog.text
    twice.close()


def test_an_empty_member_is_named(make_mix, tmp_path):
    """The error for a member without samples begins with its name."""
    (tmp_path / "empty").mkdir()
    data = make_mix("a")
    mixed = MixedDataset({"a": data.members["a"], "none": StreamingDataset(tmp_path / "empty")})
    with pytest.raises(ManifestError, match=r"^member none: "):
        len(mixed)
    mixed.close()


@pytest.mark.slow
def test_more_than_a_hundred_members(fake_engine, tmp_path):
    """A mix of 150 members of 3 samples has each sample once per epoch, through the loader as in a bare loop."""
    folders = {f"m{number}": write(tmp_path / f"m{number}", 3, 3 * number) for number in range(150)}

    def mixed(**options):
        return MixedDataset({name: StreamingDataset(folder) for name, folder in folders.items()}, **options)

    with (
        contextlib.closing(mixed(batch_size=45)) as bare,
        contextlib.closing(mixed()) as data,
        StreamingDataLoader(data, 45) as loader,
    ):
        for _ in range(2):
            found = [number for batch in loader for number in batch["npy"][:, 0].tolist()]
            assert found == numbers(bare)
            assert sorted(found) == list(range(450))
        assert {member.passes for member in loader.stats().members.values()} == {2.0}


def test_sources_is_for_mixes(make_mix):
    """`sources` of a loader of one dataset is a `ConfigError`."""
    with StreamingDataLoader(make_mix("a").members["a"], 10) as loader, pytest.raises(ConfigError, match="sources"):
        _ = loader.sources


def test_a_damaged_chunk_of_the_second_member_is_leased_again(fake_engine, make_mix, folders):
    """A damaged chunk of the second member is rejected and leased again.

    Its number counts after those of the first member.
    """
    spoilt: list[int] = []

    def spoil(chunk, path):
        if not spoilt and fake_engine.locate(chunk)[0] is fake_engine.manifests[str(folders["b"])]:
            spoilt.append(chunk & 0xFFFF)
            path.write_bytes(path.read_bytes()[:-40])

    fake_engine.spoil = spoil
    with StreamingDataLoader(make_mix("ab"), 10) as loader:
        assert sorted(number for batch in loader for number in batch["npy"][:, 0].tolist()) == sorted(
            number for number in ALL if number < 2000
        )
    before = fake_engine.manifests[str(folders["a"])].chunks
    assert [chunk - before for chunk, _ in fake_engine.rejects] == spoilt
