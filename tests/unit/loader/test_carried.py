"""Tests of what earlier versions carried for the trainer: a state with it is not loaded as if it had nothing."""

from __future__ import annotations

import pytest

from streamer import StreamingDataset
from streamer.errors import ConfigError, StateError
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset


def loader_of(**options: object) -> StreamingDataLoader:
    dataset = FakeDataset(100, lambda epoch, ordinal: {"x": ordinal})
    return StreamingDataLoader(dataset, 5, report_every=None, **options)  # type: ignore[arg-type]


def test_a_state_whose_part_would_be_lost_is_refused() -> None:
    """A state with a part that this version does not load is refused, with where the part goes.

    Without it the rest is loaded.
    """
    with loader_of() as loader:
        plain = loader.state_dict()
        carried = {**plain, "stateful": {"rank": 0, "world_size": 1, "state": {"rest": [1, 2]}}}
        with pytest.raises(StateError, match=r"give state\[\"stateful\"\]\[\"state\"\] to the load_state_dict"):
            loader.load_state_dict(carried)
        with pytest.raises(StateError, match='remove "stateful" from the state'):
            StreamingDataset("s3://bucket/data/").load_state_dict(carried)
        del carried["stateful"]
        loader.load_state_dict(carried)
        assert loader.state_dict() == plain


def test_names_that_have_gone_say_what_to_write() -> None:
    """An argument and a method of earlier versions are errors that say what to write instead."""
    with pytest.raises(ConfigError, match=r"stateful= .* is now saved by you: packer\.state_dict\(\)"):
        loader_of(stateful=object())
    with loader_of() as loader, pytest.raises(ConfigError, match="headspace is not there any more: keep a few batches"):
        loader.headspace(k=16)
