"""Arguments of earlier versions: an error that says what to write now."""

from __future__ import annotations

import pytest

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError
from tests.fake_dataset import FakeDataset

OF_BOTH = {
    "lanes": "order=Order(lanes=...)",
    "shuffle_window": "order=Order(shuffle_window=...)",
    "last_batch": "order=Order(last_batch=...)",
    "drop_last": 'order=Order(last_batch="drop")',
    "stream": "order=Order(stream=...)",
    "error_budget": "on_error=Skip(budget=...)",
}
OF_THE_DATASET = {
    **OF_BOTH,
    "cut": 'order=Order(cut=...), where "common" is called "by_key"',
    "peers": "order=Order(peers=...)",
    "index_limit": "manifest=Index(limit_seconds=...)",
    "index_errors": "manifest=Index(on_error=...)",
    "on_change": "manifest=Index(on_change=...)",
    "extensions": 'format=Folder(extensions=["jpg", "png"])',
    "allow_pickle": "decode=Decode(allow_pickle=True)",
}
OF_THE_MIX = {
    **OF_BOTH,
    "temperature": "weights=Weights(temperature=...)",
    "unit": "weights=Weights(..., unit=...)",
    "epoch_samples": "weights=Weights(..., epoch_samples=...)",
    "stop": "weights=Weights(..., stop=...)",
    "group": "batching=Homogeneous(group=...)",
}
OF_THE_LOADER = {
    "last_batch": "order=Order(last_batch=...) of the dataset",
    "on_error": "on_error= of the dataset",
    "error_budget": "on_error=Skip(budget=...) of the dataset",
    "worker_start": 'multiprocessing_context="forkserver" or "spawn"',
    "pin": "pin_memory=..., where True, an error if it fails, is called",
    "report_seconds": "reports=, seconds or None",
    "on_report": "reports=, the function, or reports=Reports(",
}


@pytest.mark.parametrize(("name", "now"), OF_THE_DATASET.items())
def test_of_the_dataset(name: str, now: str) -> None:
    """Whatever the value."""
    with pytest.raises(ConfigError) as caught:
        StreamingDataset("/data", **{name: None})
    assert f"{name}= of StreamingDataset is now {now}" in str(caught.value)
    assert caught.value.details["field"] == name


@pytest.mark.parametrize(("name", "now"), OF_THE_MIX.items())
def test_of_the_mix(name: str, now: str) -> None:
    """The same."""
    with pytest.raises(ConfigError) as caught:
        MixedDataset({"a": StreamingDataset("/data")}, **{name: None})
    assert f"{name}= of MixedDataset is now {now}" in str(caught.value)


@pytest.mark.parametrize(("name", "now"), OF_THE_LOADER.items())
def test_of_the_loader(name: str, now: str) -> None:
    """The same."""
    with pytest.raises(ConfigError) as caught:
        StreamingDataLoader(FakeDataset(8, lambda epoch, ordinal: ordinal), 4, **{name: None})
    assert f"{name}= of StreamingDataLoader is now {now}" in str(caught.value)


def test_what_no_version_had_is_a_type_error() -> None:
    """As Python itself says it."""
    for make in (StreamingDataset, lambda url, **more: MixedDataset({"a": StreamingDataset(url)}, **more)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'transfrom'"):
            make("/data", transfrom=None)
