"""Tests of arguments of a wrong type or value: an error names the argument and its value, at once."""

from __future__ import annotations

import numpy as np
import pytest
from torch.utils.data import Subset

from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, StateError
from tests.fake_dataset import FakeDataset


def sample(epoch: int, ordinal: int) -> object:
    return {"x": ordinal}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", "16"),
        ("batch_size", 16.5),
        ("batch_size", None),
        ("num_workers", "2"),
        ("num_workers", None),
        ("timeout", "5"),
        ("timeout", -1),
        ("report_every", "30"),
    ],
)
def test_of_the_loader(name, value):
    """An argument of the loader that must be a number is refused with its name and value where it is none."""
    with pytest.raises(ConfigError, match=f"{name}={value!r} is not a"):
        StreamingDataLoader(FakeDataset(8, sample), **{"batch_size": 4, name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("drop_last", "no", "is neither True nor False"),
        ("pin_memory", "no", "must be None, 'auto', True, False or 'required'"),
        ("pin_memory", 1, "must be None"),
        ("multiprocessing_context", "fork", "must be None, 'forkserver' or 'spawn'; for threads write worker_type="),
        ("collate_fn", 7, "cannot be called"),
        ("device_transform", 7, "cannot be called"),
    ],
)
def test_of_the_loader_for_other_types(name, value, message):
    """An argument of the loader of another type is refused with its name and value.

    It would be taken for True otherwise, or fail at the first batch.
    """
    with pytest.raises(ConfigError, match=f"{name}={value!r} {message}"):
        StreamingDataLoader(FakeDataset(8, sample), 4, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", "a", "seed='a' is not a whole number"),
        ("batch_size", "16", "batch_size='16' is not a whole number"),
        ("cache_bytes", 2.5e9, ""),
        ("url", None, "url=None is not a url"),
        ("url", 3, "url=3 is not a url"),
        ("seed", 2.5, "seed=2.5 is not a whole number"),
        ("rank", "0", "rank='0' is not a whole number"),
        ("manifest", 7, "manifest=7 is not a path"),
        ("cache_dir", 7, "cache_dir=7 is not a path"),
        ("order", {"lanes": 8}, r"order=\{'lanes': 8\} is not a streamer.Order"),
        ("storage_options", "secret", "storage_options: str is not a dict"),
    ],
)
def test_of_the_dataset(name, value, message):
    """An argument of a dataset of a wrong type is refused with its name and value; a float is a number of bytes."""
    if name == "cache_bytes":
        assert StreamingDataset("/data", cache_bytes=value)._opening.options.limit_bytes() == 2_500_000_000
        return
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(**{"url": "/data", name: value})


def test_numbers_of_numpy_are_numbers():
    """Whole numbers of NumPy are taken for `int` in a dataset and a loader."""
    options = StreamingDataset("/data", batch_size=np.int64(4), seed=np.uint8(3))._opening.options
    assert (type(options.batch_size), type(options.seed)) == (int, int)
    with StreamingDataLoader(FakeDataset(8, sample), np.int64(4), np.int8(0)) as loader:
        assert len(loader) == 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("fraction", 0.9, r"fraction=0.9 is not a pair as \(0, 0.9\)"),
        ("fraction", ("a", 1), "is not a pair"),
        ("fraction", (0.9, 0.1), "is not 0 <= start < stop <= 1"),
        ("keys", 7, "keys=7 is neither a text nor a sequence of texts"),
        ("min_bytes", "1k", "min_bytes='1k' is not a whole number"),
        ("indices", 3, "indices=3: give a slice, a sequence of whole numbers, or one of bools"),
        ("indices", [0.5], "give a slice"),
        ("indices", "abc", "give a slice"),
        ("seed", "a", "seed='a' is not a whole number"),
        ("transform", 7, "transform=7 cannot be called"),
    ],
)
def test_of_a_selection(name, value, message):
    """An argument of `select` that cannot be is refused when the selection is made, not at its first use."""
    with pytest.raises(ConfigError, match=message):
        StreamingDataset("/data").select(**{name: value})


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (slice(0, 3), r"dataset.select\(indices=slice\(0, 3, None\)\) is a dataset of several"),
        ("a", "index='a' is not a whole number"),
        (1.0, "index=1.0 is not a whole number"),
        ([1], r"index=\[1\] is not a whole number"),
    ],
)
def test_of_an_index(index, message):
    """An index that is no whole number is refused: 1.0 is not sample 1, and a slice is told of `select`."""
    with pytest.raises(ConfigError, match=message):
        StreamingDataset("/data")[index]


@pytest.mark.parametrize(
    "make",
    [lambda: StreamingDataset("/data"), lambda: StreamingDataLoader(FakeDataset(8, sample), 4)],
    ids=["dataset", "loader"],
)
def test_of_an_epoch(make):
    """`set_epoch` of a dataset and of a loader refuses what is no whole number."""
    with pytest.raises(ConfigError, match="epoch='a' is not a whole number"):
        make().set_epoch("a")


@pytest.mark.parametrize("name", ["transform", "shuffle", "batch_size", "url"])
def test_arguments_cannot_be_changed(name):
    """Arguments of a dataset cannot be assigned, since that would have no effect, or one on some workers only."""
    dataset = StreamingDataset("/data")
    advice = r"dataset.select\(transform=...\) returns" if name == "transform" else "construct another dataset"
    with pytest.raises(AttributeError, match=f"{name} of a StreamingDataset is fixed when it is constructed: {advice}"):
        setattr(dataset, name, 1)


def test_attributes_cannot_be_misspelt():
    """A misspelt attribute of a dataset cannot be assigned; a subclass may have any of its own."""

    class Mine(StreamingDataset):
        """Stands for a user's subclass of a dataset."""

    with pytest.raises(AttributeError, match="StreamingDataset has no attribute 'transfrom'"):
        StreamingDataset("/data").transfrom = 1
    mine = Mine("/data")
    mine.note = "x"
    with pytest.raises(AttributeError, match="is fixed"):
        mine.seed = 3
    with pytest.raises(AttributeError, match=r"has no setter|can't set"):
        mine.samples = 3


def test_a_url_is_no_dataset():
    """A url in place of a dataset is refused by the loader, with what to pass."""
    with pytest.raises(ConfigError, match=r"dataset='/data' is not a StreamingDataset: pass StreamingDataset\(url\)"):
        StreamingDataLoader("/data", 4)


def test_parts_that_torch_makes_are_no_datasets():
    """A `Subset` of torch and a list are refused by the loader, with the way to have a part of a dataset."""
    part = Subset(StreamingDataset("/data"), [1, 2])
    advice = r"is not a StreamingDataset: .*dataset\.select\(indices=subset\.indices\), or fraction=\(0, 0\.9\)"
    with pytest.raises(ConfigError, match=advice):
        StreamingDataLoader(part, 4)
    with pytest.raises(ConfigError, match=r"dataset=\[0, 1, 2, .*\.\.\.\] is not a StreamingDataset: pass"):
        StreamingDataLoader(list(range(1_000_000)), 4)


def test_none_is_no_state():
    """None in place of a state, as from a checkpoint without one, is a `StateError` of loader and dataset."""
    with (
        StreamingDataLoader(FakeDataset(8, sample), 4) as loader,
        pytest.raises(StateError, match="NoneType is not a dict"),
    ):
        loader.load_state_dict(None)
    with pytest.raises(StateError, match="NoneType is not a dict"):
        StreamingDataset("/data").load_state_dict(None)


@pytest.mark.parametrize("manifest", ["/data", "/data/", "/data/manifest"])
def test_a_manifest_inside_the_data_is_refused(manifest):
    """A manifest inside the data is refused: it would be built there, and be samples of the next listing.

    A folder beside the data is taken.
    """
    with pytest.raises(ConfigError, match="is inside the dataset '/data'"):
        StreamingDataset("/data", manifest=manifest)
    StreamingDataset("/data", manifest="/data-manifest")
