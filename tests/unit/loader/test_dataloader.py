"""Tests of `StreamingDataLoader` on a fake dataset without an engine: inline, with threads, with processes.

Batches, epochs, states, errors, the ring and the end of a loader; workers and shared memory are the real ones.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import time
import traceback
import weakref
from collections import namedtuple
from typing import ClassVar

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from streamer import Skip
from streamer.batches.samples.cached_bytes import ChunkUnreadableError
from streamer.batches.skipping import Skipped
from streamer.errors import (
    ClosedError,
    ConfigError,
    DecodeError,
    IntegrityError,
    StateError,
    StoreError,
    StreamerError,
    WorkerError,
)
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset, FakeRecipe

# By value: workers would import this module otherwise, and torch with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WAYS = [(0, "process"), (2, "thread"), (2, "process")]
ways = pytest.mark.parametrize(
    ("workers", "kind"),
    [
        pytest.param(0, "process", id="inline"),
        pytest.param(2, "thread", id="threads"),
        pytest.param(2, "process", id="processes", marks=pytest.mark.process),
    ],
)
Pair = namedtuple("Pair", "left right")


def sample(epoch: int, ordinal: int) -> dict[str, object]:
    return {
        "x": np.full((3, 4), ordinal, np.float32),
        "epoch": epoch,
        "key": f"k{ordinal}",
        "raw": bytes([ordinal % 256]),
    }


def expected(samples: int, batch_size: int, epoch: int, make=sample) -> list[object]:
    """Returns the batches of an epoch as torch's `default_collate` makes them."""
    source = FakeRecipe(samples, batch_size, make).open()
    recipe = source._recipe
    return [
        default_collate([make(epoch, o) for o in source.batch(epoch, b)[0].tolist()]) for b in range(recipe.batches)
    ]


def same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return left == right


@pytest.mark.process
def test_batches_are_those_of_default_collate():
    """Any number and kind of workers give, in two epochs, exactly torch's batches of the dataset's order."""
    for workers, kind in WAYS:
        with StreamingDataLoader(FakeDataset(23, sample), 4, workers, worker_type=kind) as loader:
            for epoch in range(2):
                assert len(loader) == 6
                batches = list(loader)
                assert len(batches) == 6
                assert all(map(same, batches, expected(23, 4, epoch)))
            assert loader.repeated.tolist() == [False, False, False]
        del batches


@pytest.mark.process
def test_constructing_does_nothing():
    """A loader that is constructed prepares nothing, and may be closed twice without having been used."""
    dataset = FakeDataset(10, sample)
    loader = StreamingDataLoader(dataset, 2, 2)
    assert dataset.prepared is None
    loader.close()
    loader.close()


@ways
def test_the_last_batch(workers, kind):
    """Of 10 samples by 4 the last batch is short on one rank, or filled with marked repeats where asked for."""
    for last_batch, sizes, repeats in ((None, [4, 4, 2], 0), ("short", [4, 4, 2], 0), ("fill", [4, 4, 4], 2)):
        dataset = FakeDataset(10, sample, last_batch=last_batch)
        with StreamingDataLoader(dataset, 4, workers, worker_type=kind) as loader:
            for _ in range(3):
                assert [batch["x"].shape[0] for batch in loader] == sizes
                assert (len(loader.repeated), loader.repeated.sum()) == (sizes[-1], repeats)
            assert loader.stats().samples == 3 * sum(sizes)


@ways
def test_drop_last(workers, kind):
    """With `drop_last`, or where the dataset says so, the incomplete batch is left out; the loader's argument wins."""
    dropping = FakeDataset(10, sample, last_batch="drop")
    for dataset, drop_last in ((dropping, False), (FakeDataset(10, sample, last_batch="fill"), True)):
        with StreamingDataLoader(dataset, 4, workers, worker_type=kind, drop_last=drop_last) as loader:
            assert (len(loader), loader.drop_last) == (2, True)
            assert [batch["x"].shape[0] for batch in loader] == [4, 4]
            assert not loader.repeated.any()


def test_epochs_follow_each_other():
    """Every `iter()` is the next epoch, also after an epoch that was broken off; `set_epoch` chooses another."""
    with StreamingDataLoader(FakeDataset(8, sample), 2, 2, worker_type="thread") as loader:
        assert next(iter(loader))["epoch"][0] == 0
        assert next(iter(loader))["epoch"][0] == 1
        loader.set_epoch(7)
        assert [int(b["epoch"][0]) for b in loader] == [7] * 4
        assert [int(b["epoch"][0]) for b in loader] == [8] * 4
        loader.set_epoch(7)
        assert [int(b["x"][0, 0, 0]) for b in loader] == [7, 1, 3, 5]


@pytest.mark.process
def test_workers_that_cannot_start_are_an_error_of_all_ranks(monkeypatch):
    """A rank whose workers cannot start tells the others while all compare, as they would wait for it otherwise.

    So it does when it begins after a loaded state.
    """

    class Ranks(FakeDataset):
        """Stands for a dataset of a job of many ranks, and keeps what this rank tells the others; there are none."""

        heard: ClassVar[list[str]] = []

        @property
        def compares(self) -> bool:
            return True

        def prepare_and_share(self, prepare, place: str) -> None:
            try:
                prepare()
            except StreamerError as error:
                self.heard.append(str(error))
                raise

    def refuse(name: str, count: int) -> int:
        raise ConfigError("no memory for that", field="ring_bytes")

    with StreamingDataLoader(Ranks(20, sample), 4, 1) as loader:
        state = loader.state_dict()
        monkeypatch.setattr("streamer.batches.ring.shared_memory.create_memfd", refuse)
        for load in (False, True):
            if load:
                loader.load_state_dict(state)
            with pytest.raises(ConfigError, match="no memory for that"):
                iter(loader)
        assert len(Ranks.heard) == 2


@ways
def test_a_dataset_that_grows_between_epochs(workers, kind):
    """An epoch has the samples that are there when it begins; batches of the epoch before stay valid."""
    dataset = FakeDataset(20, sample)
    dataset.grown = 20
    with StreamingDataLoader(dataset, 4, workers, worker_type=kind) as loader:
        first = list(loader)
        dataset.grown = 28
        second = list(loader)
        assert (len(first), len(second), len(loader)) == (5, 7, 7)
        assert all(map(same, first, expected(20, 4, 0)))
        assert all(map(same, second, expected(28, 4, 1)))


def test_a_dataset_that_was_refreshed_by_hand():
    """After `dataset.refresh()` the next epoch of every loader of the dataset has what was found."""
    dataset = FakeDataset(20, sample)
    with StreamingDataLoader(dataset, 4) as loader, StreamingDataLoader(dataset, 4) as other:
        assert (len(list(loader)), len(other)) == (5, 5)
        dataset.grown = 28
        assert dataset.refresh()
        for told in (28, None):
            dataset.grown = told
            assert (len(list(loader)), len(list(other))) == (7, 7)


def test_a_new_iteration_ends_the_old_one():
    """Two iterators of one loader share no batches: the old one raises `ClosedError` instead of ending early."""
    with StreamingDataLoader(FakeDataset(8, sample), 2, 2, worker_type="thread") as loader:
        old = iter(loader)
        next(old)
        new = iter(loader)
        with pytest.raises(ClosedError, match="make two loaders"):
            next(old, "over")
        assert next(new)["epoch"][0] == 1


@ways
def test_state_at_the_position_delivered(workers, kind):
    """A state saved after k batches gives another loader exactly the rest of the epoch.

    How far the workers had looked ahead does not matter.
    """
    for k in (0, 1, 5, 6):
        with StreamingDataLoader(FakeDataset(23, sample), 4, workers, worker_type=kind) as loader:
            batches = iter(loader)
            for _ in range(k):
                next(batches)
            state = loader.state_dict()
        with StreamingDataLoader(FakeDataset(23, sample), 4, workers, worker_type=kind) as loader:
            loader.load_state_dict(state)
            loader.set_epoch(0)
            rest = list(loader)
            assert len(rest) == 6 - k
            assert all(map(same, rest, expected(23, 4, 0)[k:]))
            assert int(next(iter(loader))["epoch"][0]) == 1
        del batches, rest


@ways
def test_an_iterator_that_was_never_asked_is_no_epoch(workers, kind):
    """An iterator that gives no batch, as Lightning makes one first, uses up neither an epoch nor a loaded state."""
    with StreamingDataLoader(FakeDataset(16, sample), 4, workers, worker_type=kind) as loader:
        iter(loader)
        batches = iter(loader)
        assert loader.state_dict()["epoch"] == 0
        assert next(batches)["epoch"].tolist() == [0] * 4
        state = loader.state_dict()
        assert next(iter(loader))["epoch"].tolist() == [1] * 4
        loader.load_state_dict(state)
        iter(loader)
        rest = list(loader)
        assert [batch["x"][0, 0, 0].item() for batch in rest] == [4, 8, 12]
        assert next(iter(loader))["epoch"].tolist() == [1] * 4
        loader.set_epoch(7)
        iter(loader)
        assert next(iter(loader))["epoch"].tolist() == [7] * 4


def test_state_at_the_end_of_an_epoch():
    """A state saved after an epoch's last batch goes on with the next epoch if `set_epoch` is not called."""
    with StreamingDataLoader(FakeDataset(8, sample), 4) as loader:
        loader.load_state_dict({"epoch": 3, "batch": 2, "batch_size": 4})
        assert next(iter(loader))["epoch"][0] == 4


def shuffled(epoch: int, ordinal: int) -> dict[str, object]:
    """Stands for a user's transform that draws from the generators of Python and NumPy."""
    return {"python": random.random(), "numpy": float(np.random.rand()), "ordinal": ordinal}


@pytest.mark.process
def test_randomness_depends_on_the_sample_only():
    """A sample draws the same numbers inline and in any worker, and others in the next epoch.

    The global generator of the trainer keeps its state.
    """
    random.seed(1)
    expected_next = random.Random(1).random()
    drawn = []
    for workers in (0, 1, 2):
        with StreamingDataLoader(FakeDataset(12, shuffled), 4, workers) as loader:
            drawn.append([{k: v.tolist() for k, v in batch.items()} for _ in range(2) for batch in loader])
    assert drawn[0] == drawn[1] == drawn[2]
    assert drawn[0][0]["python"][1:] != drawn[0][3]["python"][:-1]
    assert random.random() == expected_next


def now_and_then(epoch: int, ordinal: int) -> dict[str, object]:
    """Stands for a user's transform that draws for one sample in fifty."""
    return {"drawn": random.random() + float(np.random.rand()) if ordinal % 50 == 40 else 0.0}


@pytest.mark.process
def test_what_is_drawn_now_and_then_depends_on_the_sample_only():
    """A sample that draws numbers where most others draw none draws the same inline and in workers."""
    drawn = []
    for workers in (0, 2):
        with StreamingDataLoader(FakeDataset(192, now_and_then), 16, workers) as loader:
            drawn.append([batch["drawn"].tolist() for batch in loader])
    assert drawn[0] == drawn[1]
    assert len({value for batch in drawn[0] for value in batch}) == 5


def nested(epoch: int, ordinal: int) -> object:
    return Pair({"deep": [np.arange(3), 1.5]}, ("text", True))


@ways
def test_nested_structures(workers, kind):
    """Named tuples, dicts, lists and tuples are collated as by torch; a named tuple keeps the trainer's own class."""
    with StreamingDataLoader(FakeDataset(4, nested), 2, workers, worker_type=kind) as loader:
        batch = next(iter(loader))
        assert type(batch) is Pair
        assert batch.right[0] == ("text", "text")
        assert torch.equal(batch.right[1], torch.tensor([True, True]))
        assert torch.equal(batch.left["deep"][0], torch.arange(3).repeat(2, 1))
        del batch


@ways
def test_own_collate_fn(workers, kind):
    """A lambda as `collate_fn` may be sent to workers; arrays in its result go through the ring without a spill."""
    collate = lambda samples: {"n": len(samples), "x": np.stack([s["x"] for s in samples])}  # noqa: E731
    with StreamingDataLoader(FakeDataset(8, sample), 4, workers, worker_type=kind, collate_fn=collate) as loader:
        batch = next(iter(loader))
        assert batch["n"] == 4
        assert type(batch["x"]) is np.ndarray
        assert batch["x"][:, 0, 0].tolist() == [0, 1, 2, 3]
        del batch
        assert loader.stats().spilled_batches == 0


def broken(epoch: int, ordinal: int) -> object:
    """Stands for a user's transform that fails for sample 5."""
    if ordinal == 5:
        raise KeyError("no such field")
    return {"x": ordinal}


@ways
def test_error_in_a_transform(workers, kind):
    """The caller gets the error of a transform itself, with the traceback of the worker and the sample.

    The next batch follows.
    """
    with StreamingDataLoader(FakeDataset(12, broken), 4, workers, worker_type=kind) as loader:
        batches = iter(loader)
        assert next(batches)["x"].tolist() == [0, 1, 2, 3]
        with pytest.raises(KeyError, match="no such field") as caught:
            next(batches)
        assert "a sample of epoch 0, batch 1" in caught.value.__notes__[0]
        if workers:
            assert "in broken" in str(caught.value.__cause__)
        assert next(batches)["x"].tolist() == [8, 9, 10, 11]


@ways
def test_skip_fills_the_place_from_the_same_batch(workers, kind, caplog):
    """`on_error="skip"` puts the next sample of the batch in the place of one that failed and marks it as a repeat.

    The failed one is listed, counted and logged.
    """
    with StreamingDataLoader(FakeDataset(12, broken, on_error="skip"), 4, workers, worker_type=kind) as loader:
        found = [(batch["x"].tolist(), loader.repeated.tolist()) for batch in loader]
        assert [samples for samples, _ in found] == [[0, 1, 2, 3], [4, 6, 6, 7], [8, 9, 10, 11]]
        assert [marks for _, marks in found] == [[False] * 4, [False, True, False, False], [False] * 4]
        assert loader.skipped == [Skipped(5, "#5", "KeyError: 'no such field'")]
        assert loader.stats().skipped == 1
    assert "sample 5 (#5): KeyError" in caplog.text


@ways
def test_skip_ends_with_its_budget(workers, kind):
    """The sample that is one more than `Skip` allows is an error that names it, in place of its batch.

    Every later call raises it again.
    """
    with StreamingDataLoader(FakeDataset(12, odd, on_error=Skip(budget=3)), 4, workers, worker_type=kind) as loader:
        batches = iter(loader)
        assert next(batches)["x"].tolist() == [0, 2, 2, 0]
        with pytest.raises(DecodeError, match=r"Skip\(budget=3\) is spent, 4 .*sample 7 \(#7\): ValueError: odd"):
            next(batches)
        assert loader.state_dict()["batch"] == 1
        with pytest.raises(DecodeError, match="is spent"):
            next(batches)


def odd(epoch: int, ordinal: int) -> object:
    """Stands for a user's transform that fails for every second sample."""
    if ordinal % 2:
        raise ValueError("odd")
    return {"x": ordinal}


def test_the_epoch_of_the_data_set_reaches_the_loader():
    """`dataset.set_epoch` between two iterations sets the epoch of its loader."""
    dataset = FakeDataset(8, sample)
    with StreamingDataLoader(dataset, 4) as loader:
        assert [int(batch["epoch"][0]) for batch in loader] == [0, 0]
        dataset.requested_epoch = 5
        assert [int(batch["epoch"][0]) for batch in loader] == [5, 5]
        assert [int(batch["epoch"][0]) for batch in loader] == [6, 6]


def test_skip_of_a_whole_batch_is_an_error():
    """A batch of which every sample failed is a `WorkerError` and is not left out silently."""
    with (
        StreamingDataLoader(FakeDataset(12, broken, on_error="skip"), 1, 1, worker_type="thread") as loader,
        pytest.raises(WorkerError, match="all 1 samples of a batch failed") as caught,
    ):
        list(loader)
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.process
def test_recipe_that_cannot_travel():
    """A transform that cannot be pickled is a `ConfigError` that advises `worker_type='thread'`."""
    lock = __import__("threading").Lock()
    with (
        StreamingDataLoader(FakeDataset(4, lambda e, o: (lock, o)), 2, 1) as loader,
        pytest.raises(ConfigError, match="worker_type='thread'"),
    ):
        iter(loader)


class Flaky:
    """Makes samples, one of which lies in an unreadable chunk until the chunk was rejected often enough.

    Stands for a reader of chunk files; a file that grows by a byte for each rejection tells all processes how many
    there were.
    """

    def __init__(self, path: str, times: int) -> None:
        self.path, self.times = path, times

    def __call__(self, epoch: int, ordinal: int) -> object:
        if (epoch, ordinal) == (0, 6) and os.path.getsize(self.path) < self.times:
            raise ChunkUnreadableError(3, "wrong bytes")
        return {"x": ordinal}


@ways
def test_unreadable_chunk_is_leased_again(workers, kind, tmp_path):
    """A chunk that cannot be read is rejected and leased again, and the batch repeated; the order stays the same."""
    state = tmp_path / "rejections"
    state.write_bytes(b"")
    dataset = FakeDataset(12, Flaky(str(state), 2))

    def on_reject(chunk: int) -> None:
        state.write_bytes(state.read_bytes() + b".")

    with StreamingDataLoader(dataset, 4, workers, worker_type=kind) as loader:
        loader.state_dict()
        dataset.prepared.on_reject = on_reject
        assert [batch["x"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert dataset.prepared.sessions[0].rejected == [(3, "wrong bytes")] * 2
        assert loader.stats().rereads == 2


class Overwritten:
    """Makes samples in chunks of their own, each of which is unreadable until it was rejected.

    Stands for a reader of overwritten chunk files; a file for each rejected chunk tells all processes of it.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, epoch: int, ordinal: int) -> object:
        if epoch == 0 and 4 <= ordinal < 12 and not os.path.exists(f"{self.folder}/{ordinal}"):
            raise ChunkUnreadableError(ordinal, "wrong bytes")
        return {"x": ordinal}


@ways
def test_any_number_of_wrong_chunks_in_a_batch_are_leased_again(workers, kind, tmp_path):
    """Tries are counted for each chunk, so that eight unreadable chunks in a batch are no error.

    Regression: after three tries they were one.
    """
    dataset = FakeDataset(12, Overwritten(str(tmp_path)))
    with StreamingDataLoader(dataset, 12, workers, worker_type=kind) as loader:
        loader.state_dict()
        dataset.prepared.on_reject = lambda chunk: (tmp_path / str(chunk)).touch()
        assert [batch["x"].tolist() for batch in loader] == [list(range(12))]
        assert {chunk for chunk, _ in dataset.prepared.sessions[0].rejected} == set(range(4, 12))


@ways
def test_chunk_that_stays_unreadable(workers, kind, tmp_path):
    """A chunk that stays unreadable is an `IntegrityError` at the place of its batch."""
    state = tmp_path / "rejections"
    state.write_bytes(b"")
    with StreamingDataLoader(FakeDataset(12, Flaky(str(state), 9)), 4, workers, worker_type=kind) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(IntegrityError, match="chunk 3"):
            next(batches)


@pytest.mark.parametrize("kind", ["thread"])
def test_nothing_is_read_before_it_is_local(kind):
    """A batch is made only when its chunks are local, and the engine is told which batches are consumed."""
    dataset = FakeDataset(12, sample, held_back=True)
    with StreamingDataLoader(dataset, 2, 2, worker_type=kind) as loader:
        batches = iter(loader)
        session = dataset.prepared.first_session()
        session.allow(0)
        next(batches)
        assert loader.stats().ready_batches == 0
        session.allow(5)
        assert len(list(batches)) == 5
        deadline = time.monotonic() + 60
        while session.consumed < 6 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert session.consumed >= 6


@pytest.mark.parametrize("kind", ["thread"])
def test_error_of_the_engine(kind):
    """An error that the engine reports reaches the caller after the batches before it.

    A new iteration asks the engine again.
    """
    dataset = FakeDataset(12, sample, held_back=True)
    with StreamingDataLoader(dataset, 2, 2, worker_type=kind) as loader:
        batches = iter(loader)
        session = dataset.prepared.first_session()
        session.allow(1)
        assert next(batches)["x"][0, 0, 0] == 0
        assert next(batches)["x"][0, 0, 0] == 2
        session.fail(StoreError("the bucket is gone"))
        with pytest.raises(StoreError, match="the bucket is gone"):
            next(batches)
        dataset.prepared.held_back = False
        assert len(list(loader)) == 6


@pytest.mark.parametrize("device", [None, "cpu"])
def test_an_error_that_ends_everything_does_so_for_who_asks_again(device):
    """An error of the engine is raised again by every further `next()`, also with a prefetcher that asks ahead.

    A new `iter()` begins the epoch again.
    """
    dataset = FakeDataset(12, sample, held_back=True)
    with StreamingDataLoader(dataset, 2, 1, worker_type="thread", device=device) as loader:
        batches = iter(loader)
        dataset.prepared.first_session().fail(StoreError("the bucket is gone"))
        for _ in range(2):
            with pytest.raises(StoreError, match="the bucket is gone"):
                next(batches)
        dataset.prepared.held_back = False
        assert [batch["epoch"][0].item() for batch in loader] == [0] * 6


@ways
def test_an_epoch_that_failed_at_its_first_batch_is_begun_again(workers, kind):
    """An epoch whose first batch failed is begun again at this batch by the next `iter()`."""

    def fragile(epoch: int, ordinal: int) -> object:
        if ordinal == 1 and epoch == 0:
            raise KeyError("no such field")
        return {"x": ordinal}

    with StreamingDataLoader(FakeDataset(6, fragile), 2, workers, worker_type=kind) as loader:
        with pytest.raises(KeyError, match="no such field"):
            next(iter(loader))
        again = iter(loader)
        with pytest.raises(KeyError, match="no such field"):
            next(again)
        assert [batch["x"].tolist() for batch in again] == [[2, 3], [4, 5]]


def test_batches_kept_go_around_the_ring():
    """A trainer that keeps every batch sees none change: batches beyond the ring are spilled and counted."""
    with StreamingDataLoader(FakeDataset(200, sample), 2, 2, worker_type="thread", prefetch_batches=4) as loader:
        kept = list(loader)
        assert all(map(same, kept, expected(200, 2, 0)))
        stats = loader.stats()
        assert stats.ring_slots == 7
        assert stats.spilled_batches >= 100 - 7
        assert stats.oversize_batches == 0
        del kept


def test_slots_are_used_again():
    """A trainer that keeps no batch causes no spill in 200 batches."""
    with StreamingDataLoader(FakeDataset(400, sample), 2, 2, worker_type="thread", prefetch_batches=4) as loader:
        for batch in loader:
            assert batch["x"].shape == (2, 3, 4)
        assert loader.stats().spilled_batches == 0


def growing(epoch: int, ordinal: int) -> object:
    """Stands for a user's transform whose arrays grow 500-fold after 20 samples."""
    return {"x": np.full(10 if ordinal < 20 else 5000, ordinal, np.int64)}


def test_slots_grow_with_the_batches():
    """A batch that is larger than its slot replaces the slot's memory, which is counted as oversize and is no spill."""
    with StreamingDataLoader(FakeDataset(120, growing), 2, 1, worker_type="thread", prefetch_batches=3) as loader:
        assert [int(b["x"][0, 0]) for b in loader] == list(range(0, 120, 2))
        stats = loader.stats()
        assert 2 <= stats.oversize_batches <= 60
        assert stats.spilled_batches == 0
        assert stats.ring_bytes >= 2 * 80_000


def test_budget_too_small_for_a_ring(caplog):
    """Batches that do not fit into `ring_bytes` are spilled, with one warning in the log."""
    with StreamingDataLoader(FakeDataset(40, sample), 4, 2, worker_type="thread", ring_bytes="3KiB") as loader:
        assert len(list(loader)) == 10
        assert loader.stats().spilled_batches >= 10
    assert caplog.text.count("raise ring_bytes") == 1


def test_batches_outlive_the_loader():
    """A delivered batch stays valid after its loader was closed."""
    loader = StreamingDataLoader(FakeDataset(8, sample), 4, 1, worker_type="thread")
    batch = next(iter(loader))
    loader.close()
    del loader
    assert same(batch, expected(8, 4, 0)[0])
    del batch


@pytest.mark.process
@pytest.mark.parametrize("workers", [0, 1])
def test_an_epoch_without_a_batch_is_an_error(workers):
    """Fewer samples than a batch, with `drop_last`, are a `ConfigError`.

    The loader would wait for a batch that never comes otherwise.
    """
    with StreamingDataLoader(FakeDataset(10, sample), 16, workers, drop_last=True) as loader:
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"batch_size=16 .*drop_last=True"):
                iter(loader)


class OfManyRanks(FakeDataset):
    """Stands for a dataset of a job of many ranks: a state that does not fit is raised by the next `iter()`.

    It compares nothing with other ranks.
    """

    @property
    def compares(self) -> bool:
        return True


def test_a_state_that_does_not_fit_is_raised_with_one_traceback():
    """The error of a state that does not fit has a traceback of the same length however often `iter()` raises it."""
    with StreamingDataLoader(OfManyRanks(8, sample), 4) as loader:
        loader.load_state_dict({"epoch": 0, "batch": 1, "batch_size": 3})
        lengths = set()
        for _ in range(4):
            with pytest.raises(StateError) as caught:
                iter(loader)
            lengths.add(len(traceback.extract_tb(caught.value.__traceback__)))
        assert len(lengths) == 1


def test_closed():
    """A closed loader raises `ClosedError` for `iter()`, and an iterator that is open at that time ends."""
    loader = StreamingDataLoader(FakeDataset(8, sample), 4, 1, worker_type="thread")
    batches = iter(loader)
    loader.close()
    with pytest.raises(ClosedError):
        iter(loader)
    assert next(batches, "over") == "over"


@pytest.mark.process
def test_garbage_collection_closes():
    """A loader that is dropped in mid-epoch ends its thread and its worker.

    The fixture of all tests looks for what is left.
    """
    loader = StreamingDataLoader(FakeDataset(100, sample), 4, 1)
    next(iter(loader))
    del loader
    gc.collect()


def test_forked_child_is_refused(monkeypatch):
    """A loader raises `ClosedError` in a process of another id than the one that made its workers, as after a fork."""
    with StreamingDataLoader(FakeDataset(40, sample), 4, 1, worker_type="thread") as loader:
        next(iter(loader))
        child = os.getpid() + 1
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: child)
            with pytest.raises(ClosedError, match="after the fork"):
                iter(loader)


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", 0), ("num_workers", -1), ("worker_type", "fork"), ("multiprocessing_context", "fork"),
     ("prefetch_batches", 0),
     ("device", "cuda"), ("device", "tpu9"), ("pin_memory", "required")],
)  # fmt: skip
def test_settings_that_cannot_be(field, value):
    """A setting of the loader that cannot be is a `ConfigError` that names the argument."""
    arguments = {"batch_size": 2, "num_workers": 1, "worker_type": "thread", field: value}
    with pytest.raises(ConfigError) as caught, StreamingDataLoader(FakeDataset(8, sample), **arguments) as loader:
        iter(loader)
    assert caught.value.details["field"] == field


def slow(epoch: int, ordinal: int) -> object:
    """Stands for a user's transform that takes 2 ms."""
    time.sleep(0.002)
    return sample(epoch, ordinal)


def test_stats():
    """`stats()` counts batches and samples.

    The seconds of loading, waiting, steps and handoff agree with the clock, and less than 512 bytes are pickled for a
    batch.
    """
    with StreamingDataLoader(FakeDataset(20, slow), 2, 1, worker_type="thread") as loader:
        assert loader.stats().batches == 0
        began = time.perf_counter()
        for _ in loader:
            time.sleep(0.001)
        stats, elapsed = loader.stats(), time.perf_counter() - began
    assert (stats.batches, stats.samples) == (10, 20)
    assert stats.load_seconds >= 0.04
    assert stats.step_seconds >= 0.009
    assert stats.wait_seconds > 0.02
    assert stats.wait_p99_seconds >= stats.wait_median_seconds > 0
    assert 0 < stats.wait_share < 1
    assert 0 < stats.handoff_seconds < stats.wait_seconds + stats.step_seconds <= elapsed
    assert stats.pickled_bytes / stats.batches < 512


def test_a_loader_that_the_end_of_the_interpreter_has_closed_is_an_error() -> None:
    """A loader that the end of the interpreter has closed raises `ClosedError`.

    Regression: a function of `atexit` that was registered before waited for a batch for ever.
    """
    loader = StreamingDataLoader(FakeDataset(32, sample), 4, 1, worker_type="thread", report_every=None)
    batches = iter(loader)
    next(batches)
    assert loader._supply_owner._closer is not None
    loader._supply_owner._closer()
    with pytest.raises(ClosedError, match="the interpreter ends"):
        next(iter(loader))


def test_a_loader_that_is_dropped_ends_at_once() -> None:
    """A loader that is dropped in mid-epoch without `close` ends at once, although the cycle collector is off."""
    gc.disable()
    try:
        loader = StreamingDataLoader(FakeDataset(32, sample), 4, 1, worker_type="thread", report_every=None)
        batches = iter(loader)
        next(batches)
        owner = weakref.ref(loader._supply_owner)
        del loader, batches
        assert owner() is None
    finally:
        gc.enable()
