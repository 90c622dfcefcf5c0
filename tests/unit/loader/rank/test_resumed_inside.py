"""Tests of states that a loop gives inside a batch: they go on at the sample, or are refused."""

from __future__ import annotations

from itertools import islice

import pytest

from streamer import Order, StreamingDataLoader
from streamer.errors import StateError


def numbers(samples):
    """Returns the number that each text begins with; the empty file is 42."""
    return [int((sample["txt"] or "42").split()[0]) for sample in samples]


def take_state(make_dataset, folder, samples, **options):
    """Returns the numbers of the first samples of a loop, and its state then."""
    dataset = make_dataset(folder, **options)
    return numbers(islice(dataset, samples)), dataset.state_dict()


@pytest.mark.parametrize(
    ("options", "now"),
    [
        ({"batch_size": 5, "rank": 0, "world_size": 2}, "10 samples that 2 ranks share"),
        ({"batch_size": 4}, "4 samples on 1 rank"),
        ({"batch_size": 20}, "20 samples on 1 rank"),
    ],
)
def test_a_state_inside_a_batch_is_refused_by_other_ranks_and_batches(make_dataset, folder, options, now):
    """A state inside a batch is refused by another number of ranks, and with another batch size.

    Regression: each rank left out as many samples of its own share, so that samples were lost or came twice.
    """
    _, state = take_state(make_dataset, folder, 23, batch_size=10)
    other = make_dataset(folder, **options)
    other.load_state_dict(state)
    with pytest.raises(StateError, match=rf"3 samples inside a batch of 10 samples on 1 rank, and .* {now}.*between"):
        iter(other)


def test_a_state_of_one_of_several_ranks_inside_a_batch_goes_on_with_as_many(make_dataset, folder):
    """A state that one of two ranks took inside a batch goes on on two ranks, and is refused by one.

    So is one of an earlier version, which does not say its number of ranks, if a rank now has fewer samples of a batch.
    """
    parts = []
    states = []
    for rank in range(2):
        part, state = take_state(make_dataset, folder, 13, batch_size=5, rank=rank, world_size=2)
        parts.append(part)
        states.append(state)
    for rank in range(2):
        dataset = make_dataset(folder, batch_size=5, rank=rank, world_size=2)
        dataset.load_state_dict(states[0])
        parts[rank] += numbers(dataset)
    assert sorted(parts[0] + parts[1]) == list(range(100))
    alone = make_dataset(folder, batch_size=10)
    alone.load_state_dict(states[0])
    with pytest.raises(StateError, match=r"a batch of 10 samples that 2 ranks share, and .* 10 samples on 1 rank"):
        iter(alone)
    _, early = take_state(make_dataset, folder, 27, batch_size=10)
    del early["batch_split"]
    dataset = make_dataset(folder, batch_size=5, rank=1, world_size=2)
    dataset.load_state_dict(early)
    with pytest.raises(StateError, match="7 samples inside a batch of 10 samples"):
        iter(dataset)


def test_a_state_between_batches_is_as_it_was(make_dataset, folder):
    """A state between two batches does not say how ranks share them, since any number of them goes on."""
    _, between = take_state(make_dataset, folder, 20, batch_size=10)
    _, inside = take_state(make_dataset, folder, 23, batch_size=10)
    assert inside == {**between, "batch_samples": 3, "batch_split": "samples on 1 rank"}


def test_a_place_inside_a_batch_ends_with_its_epoch(make_dataset, folder):
    """A state inside a last batch that is left out now goes on with the whole next epoch.

    Regression: the next epoch began behind as many samples as the old batch had delivered.
    """
    whole = make_dataset(folder, batch_size=15, order=Order(last_batch="drop"))
    whole.set_epoch(1)
    expected = numbers(whole)
    _, state = take_state(make_dataset, folder, 93, batch_size=15, order=Order(last_batch="short"))
    assert (state["position"], state["batch_samples"]) == (90, 3)
    other = make_dataset(folder, batch_size=15, order=Order(last_batch="drop"))
    other.load_state_dict(state)
    assert numbers(other) == expected
    assert len(expected) == 90


def test_a_worker_goes_on_with_its_own_batch_size_only(make_dataset, folder):
    """The state of a worker of torch's loader, which counts batches, is refused with another batch size.

    Regression: it left out as many batches of the other size.
    """
    _, state = take_state(make_dataset, folder, 20, batch_size=10)
    worker = {**state, "position": 0, "worker_batches": 2}
    iterator = iter(make_dataset(folder, batch_size=5))
    with pytest.raises(StateError, match=r"2 batches of 10 samples .* 5 samples on 1 rank"):
        iterator.load_state_dict(worker)
    iterator.close()


@pytest.mark.parametrize("place", [{"batch_samples": 3}, {"workers": 2, "worker": 1, "worker_batches": 2}])
def test_a_loader_refuses_a_place_that_it_cannot_begin_at(make_dataset, folder, place):
    """A StreamingDataLoader refuses the state of a loop inside a batch, and that of a worker of torch's loader.

    Regression: it began at the last place between two batches of all workers, so that samples came twice.
    """
    _, state = take_state(make_dataset, folder, 20, batch_size=10)
    with StreamingDataLoader(make_dataset(folder), 10, report_every=None) as loader:
        with pytest.raises(StateError, match=r"StreamingDataLoader goes on between two batches only"):
            loader.load_state_dict({**state, **place})
        loader.load_state_dict(state)
        assert sum(len(batch["__key__"]) for batch in loader) == 80
