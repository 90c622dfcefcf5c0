"""Tests of errors in user code, which name the sample as its user knows it: key, object and bytes, and its index."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import cloudpickle
import pytest

from streamer import StreamingDataLoader
from streamer.errors import DecodeError, WorkerError

# By value: workers would import this module otherwise.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def refusing(key: str, refuse: Callable[[], object]) -> Callable[[dict[str, object]], object]:
    """Stands for a user's transform that calls `refuse` for one key."""

    def transform(sample: dict[str, object]) -> object:
        # Taken out, as before a batch is made of the rest.
        return refuse() if sample.pop("__key__") == key else sample

    return transform


def bad() -> object:
    raise ValueError("bad")


def by_loop(dataset) -> Iterator[object]:
    return iter(dataset)


def by_numbers(dataset) -> Iterator[object]:
    return (dataset[number] for number in range(dataset.samples))


def by_loader(workers: int) -> Callable[..., Iterator[object]]:
    def read(dataset) -> Iterator[object]:
        with StreamingDataLoader(dataset, 4, workers, collate_fn=list) as loader:
            yield from loader

    return read


READERS = [
    pytest.param(by_loop, id="loop"),
    pytest.param(by_numbers, id="numbers"),
    pytest.param(by_loader(0), id="inline"),
    pytest.param(by_loader(1), id="process", marks=pytest.mark.process),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ["folder", "tars"])
def test_a_transform(make_dataset, folder, tars, kind, read):
    """An error in a transform names the sample by index, key, object and range, in a selection by its own index."""
    key = {"folder": "class2/071.txt", "tars": "071"}[kind]
    url = {"folder": folder, "tars": tars}[kind]
    chosen = make_dataset(url, transform=refusing(key, bad)).select(indices=slice(40, None))
    with pytest.raises(ValueError, match="bad") as caught:
        list(read(chosen))
    (note,) = (note for note in caught.value.__notes__ if "dataset[" in note)
    found = re.fullmatch(rf"raised by the transform for dataset\[(\d+)\], key '{key}', (.*) \[(\d+), (\d+)\)", note)
    assert found is not None, note
    plain = make_dataset(url).select(indices=slice(40, None))
    assert plain[int(found[1])]["__key__"] == key
    stored = Path(found[2]).read_bytes()[int(found[3]) : int(found[4])]
    assert b"71 " in stored


def test_a_field_that_a_sample_does_not_have(make_dataset, folder):
    """A field that a sample does not have is an error that lists the fields that it has."""
    with pytest.raises(KeyError, match="image") as caught:
        make_dataset(folder, transform=lambda sample: sample["image"])[0]
    assert caught.value.__notes__[0].endswith("; its fields are __key__, txt, label")


@pytest.mark.parametrize("read", READERS)
def test_a_decoder(make_dataset, folder, read):
    """An error in a decoder names the sample by index, key, object and range in its message."""

    def decode(name: str, content: bytes) -> object:
        return bad() if content.startswith(b"71 ") else content

    chosen = make_dataset(folder, decode=decode).select(indices=slice(40, None))
    with pytest.raises(
        DecodeError, match=r"class2/071\.txt.* \(dataset\[\d+\], .*/class2/071\.txt \[0, \d+\)\)(\n|$)"
    ) as caught:
        list(read(chosen))
    number = caught.value.details["number"]
    assert f"dataset[{number}]" in caught.value.message
    assert make_dataset(folder).select(indices=slice(40, None))[number]["__key__"] == "class2/071.txt"


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_call_of_exit(make_dataset, folder, read, on_error):
    """A transform that calls `sys.exit` is a `WorkerError` that names the sample, also with `on_error="skip"`.

    The worker goes on: twenty would be started otherwise.
    """
    dataset = make_dataset(folder, transform=refusing("class2/071.txt", lambda: sys.exit(3)), on_error=on_error)
    with pytest.raises(
        WorkerError,
        match=r"the transform has called sys\.exit\(3\) for dataset\[\d+\], key 'class2/071\.txt', .*; raise",
    ):
        list(read(dataset))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.process)])
def test_a_call_of_exit_while_collating(make_dataset, folder, workers):
    """A `collate_fn` that calls `sys.exit` is a `WorkerError` without a sample, as there is no single one."""
    with (
        StreamingDataLoader(make_dataset(folder), 4, workers, collate_fn=lambda samples: sys.exit("no")) as loader,
        pytest.raises(WorkerError, match=r"the collate_fn has called sys\.exit\('no'\)"),
    ):
        next(iter(loader))


@pytest.mark.process
@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
def test_what_is_no_exception_ends_no_worker(make_dataset, folder, kind):
    """A `KeyboardInterrupt` or `CancelledError` in a transform is a `WorkerError` that names the sample.

    Regression: twenty workers were started over it, and none of their errors named the sample.
    """

    def cancel():
        raise kind

    dataset = make_dataset(folder, transform=refusing("class2/071.txt", cancel))
    with (
        StreamingDataLoader(dataset, 4, 1, collate_fn=list) as loader,
        pytest.raises(WorkerError, match=rf"{kind.__name__} ends no batch: .*by the transform for .*class2/071\.txt"),
    ):
        list(loader)


def test_a_skipped_sample_has_the_number_of_the_selection(make_dataset, folder):
    """A skipped sample of a selection has the selection's number: `dataset[skipped.ordinal]` is the sample."""
    options = {"transform": refusing("class2/071.txt", bad), "on_error": "skip", "batch_size": 4}
    chosen = make_dataset(folder, **options).select(indices=slice(40, None))
    with StreamingDataLoader(chosen, 4, collate_fn=list) as loader:
        list(loader)
        (skipped,) = loader.skipped
    list(chosen)
    assert chosen.skipped == [skipped]
    assert make_dataset(folder).select(indices=slice(40, None))[skipped.ordinal]["__key__"] == "class2/071.txt"
