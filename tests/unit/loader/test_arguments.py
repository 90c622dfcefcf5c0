"""Arguments of a wrong type: an error that names the argument and its value, at once."""

from __future__ import annotations

import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, StateError
from streamer.testing import FakeDataset


def sample(epoch: int, ordinal: int) -> object:
    return {"x": ordinal}


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", "16"), ("batch_size", 16.5), ("num_workers", "2"), ("num_workers", None), ("timeout", "5")],
)
def test_of_the_loader(name, value):
    """Text from a command line, a float from a division."""
    with pytest.raises(ConfigError, match=f"{name}={value!r} is not a"):
        StreamingDataLoader(FakeDataset(8, sample), **{"batch_size": 4, name: value})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("seed", "a", "seed='a' is not a number"),
        ("batch_size", "16", "batch_size='16' is not a number"),
        ("cache_bytes", 2.5e9, ""),
        ("url", None, "url=None is no url"),
        ("url", 3, "url=3 is no url"),
    ],
)
def test_of_the_dataset(name, value, message):
    """The same."""
    if name == "cache_bytes":
        assert StreamingDataset("/data", cache_bytes=value)._opening.options.limit_bytes() == 2_500_000_000
        return
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(**{"url": "/data", name: value})


def test_a_url_is_no_dataset():
    """As torch's loader takes a dataset, not its place."""
    with pytest.raises(ConfigError, match=r"dataset='/data' is not a StreamingDataset: pass StreamingDataset\(url\)"):
        StreamingDataLoader("/data", 4)


def test_none_is_no_state():
    """A checkpoint without one."""
    with (
        StreamingDataLoader(FakeDataset(8, sample), 4) as loader,
        pytest.raises(StateError, match="NoneType is no dict"),
    ):
        loader.load_state_dict(None)


@pytest.mark.parametrize("manifest", ["/data", "/data/", "/data/manifest"])
def test_a_manifest_inside_the_data_is_refused(manifest):
    """It would be built there, and its files be samples of the next listing."""
    with pytest.raises(ConfigError, match="is inside the dataset '/data'"):
        StreamingDataset("/data", manifest=manifest)
    StreamingDataset("/data", manifest="/data-manifest")
