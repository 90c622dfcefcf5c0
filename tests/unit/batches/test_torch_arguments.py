"""Tests of arguments and attributes that users bring from torch's DataLoader."""

from __future__ import annotations

import inspect
import multiprocessing

import pytest
import torch.utils.data

from streamer.batches.torch_arguments import check_torch_arguments
from streamer.errors import ConfigError
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset

OTHER = {
    "shuffle": True,
    "sampler": [0, 1],
    "batch_sampler": [[0, 1]],
    "pin_memory_device": "cuda:0",
    "prefetch_factor": 2,
    "persistent_workers": False,
    "worker_init_fn": print,
    "generator": torch.Generator(),
    "in_order": False,
}


def sample(epoch: int, ordinal: int) -> object:
    return {"x": ordinal}


@pytest.mark.parametrize("name", OTHER)
def test_the_error_says_what_to_write(name):
    """An argument of torch's DataLoader is a `ConfigError` with its name and what to write instead."""
    with pytest.raises(ConfigError, match=f"{name}=.* is not an argument of StreamingDataLoader: ") as caught:
        StreamingDataLoader(FakeDataset(8, sample), 4, **{name: OTHER[name]})
    assert caught.value.details["field"] == name


def test_one_error_names_all_of_them():
    """Several arguments of torch's DataLoader are one error, so that a call is corrected once."""
    with pytest.raises(ConfigError, match=r"shuffle=True is not .* StreamingDataset.*; prefetch_factor=2 is not an"):
        StreamingDataLoader(FakeDataset(8, sample), 4, shuffle=True, prefetch_factor=2)


def test_every_argument_of_torchs_loader_is_known():
    """Every argument of torch's DataLoader is one of the streaming loader, or has an error of its own."""
    theirs = set(inspect.signature(torch.utils.data.DataLoader).parameters)
    ours = set(inspect.signature(StreamingDataLoader).parameters)
    assert theirs - ours - {"multiprocessing_context", "pin_memory", "generator"} <= set(OTHER)


def test_values_that_change_nothing_are_accepted():
    """Arguments of torch's DataLoader whose values change nothing are accepted, as in a script that used it."""
    same = {"shuffle": None, "pin_memory": True, "persistent_workers": True, "prefetch_factor": None, "in_order": True}
    with StreamingDataLoader(FakeDataset(8, sample), 4, **same) as loader:
        assert len(list(loader)) == 2


@pytest.mark.parametrize("context", ["spawn", multiprocessing.get_context("spawn")])
def test_the_context_of_processes_has_torchs_name(context):
    """`multiprocessing_context=` takes a name or a context of multiprocessing; the default is "forkserver"."""
    own, instead = check_torch_arguments({"multiprocessing_context": context}), check_torch_arguments({})
    assert (own.start, instead.start) == ("spawn", "forkserver")


def test_every_attribute_of_torchs_loader_can_be_read():
    """Every attribute of torch's DataLoader can be read, with torch's value for the same arguments.

    Trainers read them.
    """
    same = {"num_workers": 2, "timeout": 7, "drop_last": True, "persistent_workers": True}
    torchs = torch.utils.data.DataLoader(Numbers(), 4, **same)
    own = {"worker_type": "thread", "prefetch_batches": 4}
    with StreamingDataLoader(FakeDataset(8, sample), 4, **same, **own) as loader:
        names = {name for name in vars(torchs) if not name.startswith("_")} - {"dataset", "sampler", "batch_sampler"}
        found = {name: getattr(loader, name) for name in names | {"multiprocessing_context"}}
        assert found == {name: getattr(torchs, name) for name in found}
        assert (loader.sampler, loader.dataset.__class__) == (None, FakeDataset)
        assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (4, True)
        assert not loader.pin_memory or torch.cuda.is_available()
        with pytest.raises(AttributeError, match=r"has no setter|can't set"):
            loader.batch_size = 8
    with StreamingDataLoader(FakeDataset(8, sample)) as loader:
        assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)
        assert loader.collate_fn is torch.utils.data.default_collate


class Numbers(torch.utils.data.IterableDataset):
    """Stands for a dataset of torch, which its own loader needs."""

    def __iter__(self):
        return iter(range(8))


def test_others_are_a_type_error():
    """An argument that neither loader has is a `TypeError` with Python's own message."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'shufle'"):
        StreamingDataLoader(FakeDataset(8, sample), 4, shufle=True)
