"""Tests of a loader that is pickled for another process, as Lightning's ddp_spawn does: it is made there as here.

The copy is made in the same process.
"""

from __future__ import annotations

import pickle
import sys

import cloudpickle
import pytest

from streamer.errors import ConfigError, StateError
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset


def make(epoch: int, ordinal: int) -> dict[str, object]:
    return {"x": 100 * epoch + ordinal}


class SentDataset(FakeDataset):
    """Stands for a dataset that is pickled as it was made."""

    def __reduce__(self) -> tuple[object, ...]:
        return SentDataset, (10, make)


def double(samples: list[dict[str, int]]) -> list[int]:
    return [2 * sample["x"] for sample in samples]


def test_the_copy_has_the_arguments_and_the_next_epoch() -> None:
    """A pickled loader has the arguments, functions that plain pickle cannot send included, and the next epoch."""
    scale = 3
    with StreamingDataLoader(
        SentDataset(10, make), 4, drop_last=True, collate_fn=lambda samples: [scale * n for n in double(samples)]
    ) as loader:
        list(loader)
        with pickle.loads(cloudpickle.dumps(loader)) as copy:
            assert copy._settings.batch_size == 4
            assert copy.drop_last
            batches = list(copy)
            assert batches == list(loader)
            assert [len(batch) for batch in batches] == [4, 4]
            assert min(min(batch) for batch in batches) >= 6 * 100


def test_a_loaded_state_is_not_lost_in_a_pickle() -> None:
    """A loader with a loaded state that was not used yet cannot be pickled; the error says where to load it."""
    with StreamingDataLoader(FakeDataset(10, make), 2) as loader:
        loader.load_state_dict({"epoch": 0, "batch": 2, "batch_size": 2})
        with pytest.raises(StateError, match="call load_state_dict there"):
            pickle.dumps(loader)


@pytest.mark.parametrize(
    ("name", "text"), [("skip_first_batches", "load_state_dict"), ("prepare_data_loader", "prepare")]
)
def test_accelerate_makes_no_loader_of_its_own(name: str, text: str) -> None:
    """A function of accelerate.data_loader that takes the dataset gets an error that says what to write."""
    space: dict[str, object] = {"__name__": "accelerate.data_loader"}
    exec(f"def {name}(loader): return loader.dataset", space)
    with StreamingDataLoader(FakeDataset(10, make), 2) as loader:
        assert isinstance(loader.dataset, FakeDataset)
        with pytest.raises(ConfigError, match=text):
            space[name](loader)  # type: ignore[operator]


def test_without_accelerate_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a program that has not imported accelerate, epochs begin and end without an import of it."""
    monkeypatch.delitem(sys.modules, "accelerate.data_loader", raising=False)
    # An import would be an error.
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with StreamingDataLoader(FakeDataset(10, make), 2) as loader:
        assert [len(list(loader)) for _ in range(2)] == [5, 5]
    assert "accelerate.data_loader" not in sys.modules


@pytest.mark.parametrize("epoch", [-1, 2**32, 2**70])
def test_an_epoch_that_no_run_reaches_is_refused(epoch: int) -> None:
    """An epoch below 0 or above 32 bits is a `ConfigError`, not an OverflowError of NumPy."""
    with StreamingDataLoader(FakeDataset(10, make), 2) as loader, pytest.raises(ConfigError, match="epoch"):
        loader.set_epoch(epoch)
