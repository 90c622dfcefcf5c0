"""Epochs of blocked datasets through the public interface, on real engines: workers, small cache, resume, raw bytes."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer import Order, StreamingDataLoader, StreamingDataset
from tests.recoding.blocked_format import packed_object
from tests.tars import tar_of

pytestmark = pytest.mark.process

SAMPLES, BLOCKS, OBJECTS = 20, 6, 8
ALL = list(range(SAMPLES * BLOCKS * OBJECTS))


def sample(number: int) -> bytes:
    """Returns the bytes of a sample: between 100 and 3,000."""
    random = np.random.default_rng(number)
    return b"%d " % number + random.bytes(int(random.integers(50, 1500))).hex().encode()


def slow(*values: str) -> list[object]:
    """Returns parameters for `make test-faults`."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture(params=["blocks", "tgz", "jsonl"])
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Returns the same samples in one of three formats."""
    folder = tmp_path / request.param
    folder.mkdir()
    for number in range(OBJECTS):
        numbers = range(number * SAMPLES * BLOCKS, (number + 1) * SAMPLES * BLOCKS)
        samples = list(map(sample, numbers))
        if request.param == "blocks":
            content = packed_object(samples[first : first + SAMPLES] for first in range(0, len(samples), SAMPLES))
        elif request.param == "tgz":
            content = gzip.compress(tar_of([(f"{n:04}.txt", each) for n, each in zip(numbers, samples, strict=True)]))
        else:
            content = gzip.compress(b"\n".join(json.dumps({"txt": each.decode()}).encode() for each in samples))
        ending = {"jsonl": "jsonl.gz"}.get(request.param, request.param)
        (folder / f"{number}.{ending}").write_bytes(content)
    return folder


@contextlib.contextmanager
def opened(data: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> Iterator[StreamingDataset]:
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(data.parent / "run"))
    kind = {"tgz": "webdataset"}.get(data.name, data.name)
    with contextlib.closing(
        StreamingDataset(data, format=kind, cache_dir=data.parent / "cache", batch_size=16, **options)
    ) as dataset:
        yield dataset


def numbers(batch: dict[str, object]) -> list[int]:
    found = batch["txt"]
    assert isinstance(found, list)
    assert all((text if isinstance(text, bytes) else text.encode()) == sample(int(text.split()[0])) for text in found)
    return [int(text.split()[0]) for text in found]


@pytest.mark.parametrize("data", ["blocks", *slow("tgz", "jsonl")], indirect=True)
@pytest.mark.parametrize(
    "cache_bytes", [pytest.param("100MB", marks=pytest.mark.slow), "1.9MB"], ids=["all of it", "a part of it"]
)
def test_workers_and_resume(data: Path, monkeypatch: pytest.MonkeyPatch, cache_bytes: str) -> None:
    """Blocked datasets give each sample once an epoch, also after a resume, and if chunks leave the cache meanwhile."""
    with (
        opened(data, monkeypatch, cache_bytes=cache_bytes, order=Order(shuffle_window=2)) as dataset,
        contextlib.closing(StreamingDataLoader(dataset, 16, num_workers=2)) as loader,
    ):
        assert sorted(number for batch in loader for number in numbers(batch)) == ALL
        batches = iter(loader)
        first = [number for _ in range(7) for number in numbers(next(batches))]
        state = loader.state_dict()
    with (
        opened(data, monkeypatch, cache_bytes=cache_bytes, order=Order(shuffle_window=2)) as dataset,
        contextlib.closing(StreamingDataLoader(dataset, 16, num_workers=1)) as loader,
    ):
        loader.load_state_dict(state)
        assert sorted(first + [number for batch in loader for number in numbers(batch)]) == ALL


@pytest.mark.parametrize("data", ["tgz", *slow("blocks")], indirect=True)
def test_bytes_that_are_not_decoded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undecoded samples are read whole into the slot of their batch, from the places that the chunk files say."""
    with (
        opened(data, monkeypatch, decode=None) as dataset,
        contextlib.closing(StreamingDataLoader(dataset, 16, num_workers=1)) as loader,
    ):
        for _ in range(2):
            assert sorted(number for batch in loader for number in numbers(batch)) == ALL


def test_single_samples(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single samples of blocked datasets are read by number, and all of them by iteration without a loader."""
    with opened(data, monkeypatch) as dataset:
        found = [dataset[number]["txt"] for number in (0, 17, 18, -1)]
        assert sorted(int(each["txt"].split()[0]) for each in dataset) == ALL
        assert [dataset[number]["txt"] for number in (0, 17, 18, -1)] == found
        assert [int(text.split()[0]) for text in found] == [0, 17, 18, len(ALL) - 1]
