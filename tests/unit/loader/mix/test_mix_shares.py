"""Tests of weights of a mix as shares of the bytes, and of the errors for what earlier versions had."""

from __future__ import annotations

import pytest

from streamer import Weights
from streamer.errors import ConfigError
from streamer.loader.mixed_dataset import MixedDataset
from tests.unit.loader.mix.conftest import write


@pytest.mark.parametrize("wrapped", [False, True])
def test_weights_that_change_by_equal_steps_are_refused(make_mix, wrapped):
    """Weights that change linearly, as in earlier versions, are refused with the stages to write instead."""
    stages = [(0, {"a": 1, "b": 0}), (2, {"a": 1, "b": 1}, "linear")]
    with pytest.raises(ConfigError, match="write one stage for each epoch"):
        make_mix("ab", weights=Weights(stages) if wrapped else stages)


def test_a_file_of_a_mix_is_not_read_any_more():
    """`MixedDataset.from_file` of earlier versions is an error that says what to write instead."""
    with pytest.raises(ConfigError, match="from_file is not there any more: read the file with tomllib"):
        MixedDataset.from_file("mix.toml")


def test_weights_can_be_shares_of_the_bytes(make_mix, folders, tmp_path):
    """Weights with `unit="bytes"` are shares of the bytes, and a selection by size counts its own bytes.

    Samples of 4,128 and 800 bytes give 19.5 and 100.5 of 120.
    """
    folders["a"], folders["b"] = write(tmp_path / "long", 60, 0, 1000), write(tmp_path / "short", 60, 1000, 168)
    equal = {"weights": Weights({"a": 1, "b": 1}, unit="bytes", epoch_samples=120), "batch_size": 12}
    data = make_mix("ab", **equal)
    assert data.quotas(0) == {"a": 20, "b": 100}
    assert "of the bytes" in data.explain(12)
    for number in range(0, 60, 2):
        (folders["a"] / f"{number:04}.npy").write_bytes((folders["b"] / "0000.npy").read_bytes())
    folders["a"] = folders["a"].rename(tmp_path / "both")
    of_both = make_mix("ab", **equal)
    assert of_both.quotas(0) == {"a": 30, "b": 90}
    long = MixedDataset({"a": of_both["a"].select(min_bytes=1000), "b": of_both["b"]}, **equal)
    assert long.quotas(0) == {"a": 19, "b": 101}
    long.close()
