"""Tests of `measure_lengths`: tokens are counted once, of what the transform returns, and rows planned by the file."""

from __future__ import annotations

import numpy as np
import pytest

from streamer import Balance, Order, Packing, Skip, StreamingDataLoader, measure_lengths
from streamer.errors import ConfigError, DecodeError
from streamer.loader.measure import find_partial_file


def tokenize(sample: dict) -> dict:
    """Stands for a tokenizer: the tokens are the bytes of the text."""
    return {"input_ids": list(sample["txt"].encode()), "__key__": sample["__key__"]}


def picky(sample: dict) -> dict:
    """Stands for a tokenizer that fails for one file."""
    if sample["__key__"].endswith("007.txt"):
        raise ValueError("no good")
    return tokenize(sample)


def test_texts_are_packed_by_what_was_measured(make_dataset, folder, tmp_path):
    """Texts are packed by the lengths that were measured, each once; the lengths are in the order of `dataset[i]`."""
    path = tmp_path / "costs.npy"
    costs = measure_lengths(make_dataset(folder, transform=tokenize), "input_ids", path=path)
    plain = make_dataset(folder)
    assert costs.tolist() == [len(plain[number]["txt"]) for number in range(100)]
    assert np.load(path).tolist() == costs.tolist()
    dataset = make_dataset(folder, transform=tokenize, packing=Packing(600, lengths=path, rows_per_set=8))
    found = []
    with StreamingDataLoader(dataset, 3, report_every=None) as loader:
        for batch in loader:
            rows, numbers = np.asarray(batch["input_ids"]), np.asarray(batch["document_ids"])
            for row, number in zip(rows, numbers, strict=True):
                found += [bytes(row[number == one].astype(np.uint8)) for one in range(1, number.max() + 1)]
    assert sorted(found) == sorted(plain[number]["txt"].encode() for number in range(100) if costs[number])


def test_a_function_counts(make_dataset, folder, tmp_path):
    """A function may count the length of a sample."""
    costs = measure_lengths(make_dataset(folder), lambda sample: len(sample["txt"]) // 4, path=tmp_path / "costs.npy")
    assert costs.max() > 100


def halved(sample: dict, rng: np.random.Generator, out: dict) -> dict:
    """Draws a number of tokens; `out` must be empty."""
    assert out == {}
    return {"input_ids": [0] * int(rng.integers(1, 9)), "__key__": sample["__key__"]}


def test_transforms_get_what_they_take(make_dataset, folder, tmp_path):
    """A measure gives transforms the `rng` of the first epoch and `out`.

    Packing and balance of the dataset are ignored.
    """
    path = tmp_path / "costs.npy"
    dataset = make_dataset(
        folder,
        transform=halved,
        packing=Packing(16, lengths=path),
        balance=Balance(rows_per_rank=2),
        order=Order(lanes=2),
    )
    costs = measure_lengths(dataset, "input_ids", path=path)
    assert costs.tolist() == [len(dataset[number]["input_ids"]) for number in range(100)]
    assert 1 <= costs.min() < costs.max() <= 8


def test_samples_that_cannot_be_made_are_in_no_row(make_dataset, folder, tmp_path):
    """With `on_error="skip"` a sample that cannot be made gets the length -1 and is in no row."""
    costs = measure_lengths(
        make_dataset(folder, transform=picky, on_error="skip"), "input_ids", path=(path := tmp_path / "costs.npy")
    )
    assert (costs == -1).sum() == 1
    dataset = make_dataset(folder, transform=picky, packing=Packing(600, lengths=path))
    with StreamingDataLoader(dataset, 3, report_every=None) as loader:
        assert sum(len(batch["__key__"]) for batch in loader) == (costs > 0).sum()


def test_samples_that_cannot_be_made_have_a_budget(make_dataset, folder, tmp_path, caplog):
    """A measure ends with an error when more samples fail than `Skip` allows, or any without it.

    Skipped ones are logged.
    """

    def pick(sample: dict) -> dict:
        if sample["__key__"].endswith(("007.txt", "042.txt")):
            raise ValueError("no good")
        return tokenize(sample)

    for budget in (1, 2):
        dataset = make_dataset(folder, transform=pick, on_error=Skip(budget=budget))
        if budget == 1:
            with pytest.raises(DecodeError, match=r"Skip\(budget=1\) is spent, 2 samples .*no good"):
                measure_lengths(dataset, "input_ids", path=tmp_path / "costs.npy")
        else:
            assert (measure_lengths(dataset, "input_ids", path=tmp_path / "costs.npy") == -1).sum() == 2
    assert "skipped and left out of its row: sample " in caplog.text
    with pytest.raises(ValueError, match="no good"):
        measure_lengths(make_dataset(folder, transform=pick), "input_ids", path=tmp_path / "costs.npy")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_measure_that_was_interrupted_goes_on(make_dataset, folder, tmp_path, monkeypatch, error):
    """A measure that was interrupted goes on from the file beside its result.

    The lengths are those of one that was not.
    """
    monkeypatch.setattr("streamer.loader.measure._BATCH", 10)
    path = tmp_path / "costs.npy"
    seen: list[str] = []

    def count(sample: dict) -> int:
        if len(seen) == stop:
            raise error("broken")
        seen.append(sample["__key__"])
        return len(sample["txt"])

    stop = 55
    with pytest.raises(error, match="broken"):
        measure_lengths(make_dataset(folder), count, path=path)
    assert not path.exists()
    kept = len(np.load(find_partial_file(path)))
    assert 0 < kept <= 50
    seen.clear()
    stop = -1
    found = measure_lengths(make_dataset(folder), count, path=path, resume_from=path)
    assert len(seen) == 100 - kept
    assert found.tolist() == measure_lengths(make_dataset(folder), "txt", path=tmp_path / "all.npy").tolist()
    assert sorted(one.name for one in tmp_path.glob("costs*")) == ["costs.npy", "costs.npy.chunks.npy"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "costs.txt"}, "path='costs.txt': give the path of an .npy file"),
        ({"path": "/proc/costs.npy"}, "path='/proc/costs.npy' cannot be written: No such file or directory"),
        ({"count": "text"}, "count='text' is not a field of the sample; its fields are __key__, txt, label"),
        ({"count": "label"}, "count='label': a value of type int has no length"),
        ({"count": lambda sample: 2**31}, "count: 2147483648 tokens of one sample; at most 2147483647"),
        ({"num_workers": 2, "executor": "processes:2"}, "num_workers=2 beside executor="),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"count": 3}, "count=3 is neither the name of a field nor a function"),
    ],
)
def test_arguments_outside_the_rules_are_refused(make_dataset, folder, tmp_path, arguments, message):
    """Arguments of `measure_lengths` outside the rules are refused before the first sample or with it."""
    with pytest.raises(ConfigError, match=message):
        measure_lengths(make_dataset(folder), **{"count": "txt", "path": tmp_path / "costs.npy", **arguments})


def test_a_selection_is_measured_as_a_whole(make_dataset, folder):
    """`measure_lengths` of a selection is refused, as the file of the whole dataset serves its selections."""
    with pytest.raises(ConfigError, match="call it before select"):
        measure_lengths(make_dataset(folder).select(fraction=(0, 0.5)), "txt", path="costs.npy")
