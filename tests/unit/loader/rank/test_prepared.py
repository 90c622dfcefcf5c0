"""Tests of a dataset made ready for a rank: batches, states, what a resumed run may change, what ranks compare.

Manifests and orders are the real ones, on a fake engine; other ranks are what a replaced `gather` says.
"""

from __future__ import annotations

import json

import pytest

from streamer import Order
from streamer.errors import ConfigError, StateError, StreamerError
from streamer.loader.rank import opening


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_batches_of_all_ranks_are_the_global_batch(make_dataset, folder, world_size):
    """The batches of all ranks together are the global batch, whatever number of ranks divides it."""
    whole = make_dataset(folder)._get_opening().prepare(12, "fill")
    ranks = [
        make_dataset(folder, rank=rank, world_size=world_size)._get_opening().prepare(12 // world_size)
        for rank in range(world_size)
    ]
    assert {prepared.global_batch for prepared in ranks} == {12}
    assert {prepared.local_batch for prepared in ranks} == {12 // world_size}
    for batch in range(whole.plan(1).batches):
        dealt = [ordinal for prepared in ranks for ordinal in prepared.ordinals(1, batch).tolist()]
        assert sorted(dealt) == sorted(whole.ordinals(1, batch).tolist())


def test_a_state_is_plain_and_comes_back(make_dataset, folder):
    """A state passes through JSON and resumes another dataset of the same data."""
    state = make_dataset(folder)._get_opening().prepare(10).state(3, 4)
    assert (state["epoch"], state["position"], state["global_batch"]) == (3, 40, 10)
    prepared = make_dataset(folder)._get_opening().prepare(10)
    assert prepared.resume(json.loads(json.dumps(state))) == (3, 4)
    assert prepared.plan(3).batches == 10
    assert prepared.state(3, 4) == state


def test_another_batch_goes_on_with_exactly_the_rest(make_dataset, folder):
    """A run that goes on with another batch size has exactly the remaining samples, and its states count positions."""
    whole = make_dataset(folder)._get_opening().prepare(10)
    seen = [o for batch in range(4) for o in whole.ordinals(3, batch).tolist()]
    prepared = make_dataset(folder)._get_opening().prepare(7)
    epoch, first = prepared.resume(whole.state(3, 4))
    assert epoch == 3
    rest = [o for batch in range(first, prepared.plan(3).batches) for o in prepared.ordinals(3, batch).tolist()]
    assert sorted(set(seen + rest)) == list(range(100))
    assert len(seen) + len(rest) == 100
    assert prepared.state(3, first + 1)["position"] == 47
    assert prepared.plan(4).batches == 15, "later epochs begin at their first position"
    reader = prepared.recipe().open()
    assert reader.batch(3, first)[0].tolist() == prepared.ordinals(3, first).tolist()


def test_a_finished_epoch_goes_on_with_the_next(make_dataset, folder):
    """A state at the end of an epoch resumes with the next one; an iterator is put back at the end itself."""
    prepared = make_dataset(folder)._get_opening().prepare(10)
    state = prepared.state(3, 10)
    assert prepared.resume(state) == (4, 0)
    assert prepared.reenter(state) == (3, 10)


def test_automatic_parts_of_the_order_follow_the_state(make_dataset, folder):
    """Parts of the order that were chosen automatically follow the state, as they were chosen for its batch.

    Given ones must agree.
    """
    saved = make_dataset(folder, order=Order(lanes=2, shuffle_window=6))._get_opening().prepare(10)
    prepared = make_dataset(folder)._get_opening().prepare(10)
    assert prepared.spec != saved.spec
    prepared.resume(saved.state(1, 2))
    assert prepared.spec == saved.spec
    assert prepared.ordinals(1, 2).tolist() == saved.ordinals(1, 2).tolist()
    fixed = make_dataset(folder, order=Order(lanes=5))._get_opening().prepare(10)
    with pytest.raises(StateError, match="lanes"):
        fixed.resume(saved.state(1, 2))


@pytest.mark.parametrize(("lanes_by", "stored"), [("seed", "fixed"), ("key", "common"), ("epoch", "redrawn")])
def test_a_run_keeps_the_cut_that_it_began_with(make_dataset, folder, lanes_by, stored):
    """A resumed run keeps the `lanes_by` of its state where its user names none, and refuses another one.

    States keep the words that they always had.
    """
    saved = make_dataset(folder, order=Order(lanes_by=lanes_by))._get_opening().prepare(10)
    state = json.loads(json.dumps(saved.state(1, 2)))
    assert state["cut"] == stored
    prepared = make_dataset(folder)._get_opening().prepare(10)
    prepared.resume(state)
    assert prepared.spec == saved.spec
    for epoch in (1, 2):
        assert prepared.ordinals(epoch, 2).tolist() == saved.ordinals(epoch, 2).tolist()
        assert prepared.recipe().open().batch(epoch, 2)[0].tolist() == saved.ordinals(epoch, 2).tolist()
    other = (
        make_dataset(folder, order=Order(lanes_by="seed" if lanes_by == "key" else "key"))._get_opening().prepare(10)
    )
    with pytest.raises(StateError, match=f"lanes_by was '{lanes_by}'"):
        other.resume(state)


def test_a_state_of_a_selection_does_not_fit_the_whole(make_dataset, folder):
    """A state of a selection does not fit the whole dataset, whose order has another digest."""
    dataset = make_dataset(folder)
    state = dataset.select(labels=[0])._get_opening().prepare(10).state(0, 1)
    with pytest.raises(StateError, match="manifest"):
        dataset._get_opening().prepare(10).resume(state)


def test_all_ranks_prepare_together(make_dataset, folder, monkeypatch):
    """A rank tells the others its facts, or its failure before it raises it.

    A bare loop compares, too, and `len()` and single samples do not.
    """
    told: list[dict[str, object]] = []

    def gather(text: str) -> list[str]:
        told.append(json.loads(text))
        return [text, text]

    monkeypatch.setattr(opening, "gather_for", lambda rank_config: gather)
    dataset = make_dataset(folder, rank=0, world_size=2)
    prepared = dataset._get_opening().prepare(5, "drop")
    assert not told, "preparing needs nobody else"
    dataset._get_opening().prepare_and_share(lambda: prepared, "epoch 0, batch 3")
    facts = told[0]["facts"]
    assert facts["seed"] == 17
    assert (facts["global_batch"], facts["world_size"], facts["last_batch"]) == (10, 2, "drop")
    assert facts["manifest"] == prepared.members.each[0].manifest.digest
    assert facts["resume"] == "epoch 0, batch 3"
    wrong = make_dataset(folder, shuffle=False, order=Order(lanes=3), rank=0, world_size=2)
    with pytest.raises(ConfigError, match="lanes"):
        wrong._get_opening().prepare_and_share(lambda: wrong._get_opening().prepare(5), "")
    assert told[1]["failure"][0] == "ConfigError"
    next(iter(dataset))
    assert len(told) == 3, "a bare loop compares, too"
    len(dataset)
    assert dataset[0]
    assert len(told) == 3, "looking does not"


def test_a_rank_with_another_state_is_refused(make_dataset, folder, monkeypatch):
    """A rank with another state than the others is refused before it waits for them in the wrong place."""
    other = {"facts": {"resume": "epoch 1, position 20"}, "failure": None}
    monkeypatch.setattr(opening, "gather_for", lambda rank_config: lambda text: [json.dumps(other), text])
    dataset = make_dataset(folder, rank=0, world_size=2, batch_size=5)
    dataset.load_state_dict({"epoch": 1, "position": 30})
    with pytest.raises(StreamerError, match=r"position 20.*position 30"):
        iter(dataset)


def test_each_session_has_a_line_of_its_own(make_dataset, folder):
    """Sessions of one dataset that are open together have connections of their own.

    The next session of a loader uses that of its last.
    """
    dataset = make_dataset(folder)
    train, other = dataset._get_opening().prepare(10), dataset._get_opening().prepare(12)
    sessions = [train.session(0, 0), other.session(0, 0), train.session(1, 0)]
    connections = [session._client for session in sessions]
    assert len(set(map(id, connections))) == 3
    for session in (*sessions, *sessions):
        session.close()
    assert other.session(1, 0)._client is connections[1]
    assert train.session(2, 0)._client is connections[2]
    dataset.close()
    assert all(connection.closed for connection in connections)


def test_a_session_that_cannot_begin_gives_its_line_back(fake_engine, make_dataset, folder, monkeypatch):
    """A session whose schedule fails is closed and gives its connection back."""
    dataset = make_dataset(folder)
    prepared = dataset._get_opening().prepare(10)
    with monkeypatch.context() as broken:
        broken.setattr("streamer.loader.kinds.step_session.EpochSession._extend", lambda session: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            prepared.session(0, 0)
    assert [session.closed for session in fake_engine.sessions] == [True]
    prepared.session(0, 0).close()
    assert repr(dataset._opening.connections) == "EngineConnections(1, 1 free)"


def test_ways_to_read_one_data_set_are_streams_of_their_own(make_dataset, folder):
    """Each batch size with which a dataset is read is a stream of its own.

    Ranks that read it in several ways disagree so only where they read it in the same way.
    """
    dataset = make_dataset(folder, batch_size=4)
    streams = [dataset._get_opening().prepare(size).session(0, 0)._spec.stream for size in (10, 12, 10)]
    plain = dataset._prepare_plain().session(0, 0)._spec.stream
    assert streams[0] == streams[2] == "shuffle block of all"
    assert streams[1] == "shuffle block of all, by 12"
    assert plain == "shuffle block of all, sample by sample"
    other = make_dataset(folder, order=Order(name="mine"))
    assert other._get_opening().prepare(12).session(0, 0)._spec.stream == "mine", "the first size is the usual one"
