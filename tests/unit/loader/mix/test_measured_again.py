"""Tests of `measure_lengths` with `resume_from=`: of data that has grown only the new chunks are measured."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from streamer import measure_lengths
from streamer.errors import ConfigError
from tests.documents import documents, lengths, write_megatron


@pytest.fixture
def urls(tmp_path) -> list[Path]:
    """Writes 1,000 documents and 100 more, and returns their urls."""
    return [
        write_megatron(tmp_path / name, documents(lengths(count, 64, seed), seed), 1)
        for seed, (name, count) in enumerate({"old": 1000, "new": 100}.items())
    ]


def test_only_new_chunks_are_read(make_dataset, urls, tmp_path):
    """A second measure reads only new chunks, and gives the lengths that a measure of the whole gives."""
    seen: list[int] = []

    def count(sample: dict) -> int:
        seen.append(len(sample["tokens"]))
        return len(sample["tokens"])

    path = tmp_path / "costs.npy"
    before = measure_lengths(make_dataset(urls[0], format="tokens"), count, path=path)
    assert len(seen) == len(before) == 1000
    seen.clear()
    after = measure_lengths(make_dataset(urls, format="tokens"), count, path=path, resume_from=path)
    assert len(seen) == 100
    assert (
        after.tolist()
        == measure_lengths(make_dataset(urls, format="tokens"), "tokens", path=tmp_path / "all.npy").tolist()
    )
    seen.clear()
    assert np.array_equal(
        measure_lengths(make_dataset(urls, format="tokens"), count, path=path, resume_from=path), after
    )
    assert not seen


@pytest.mark.parametrize("name", ["costs.npy", "none.npy"])
def test_numbers_of_unknown_chunks_are_refused(make_dataset, urls, tmp_path, name):
    """A file for `resume_from=` that `measure_lengths` has not written, or that is not there, is refused."""
    np.save(tmp_path / "costs.npy", np.zeros(1000, np.int32))
    with pytest.raises(ConfigError, match=r"was not written by measure_lengths\(\)"):
        measure_lengths(
            make_dataset(urls[0], format="tokens"), "tokens", path=tmp_path / "all.npy", resume_from=tmp_path / name
        )


def test_the_global_generators_are_left_alone(make_dataset, urls, tmp_path):
    """A measure does not seed the global generators, which takes longer than to count."""
    drawn: list[float] = []

    def count(sample: dict) -> int:
        drawn.append(random.random())
        return len(sample["tokens"])

    random.seed(5)
    measure_lengths(make_dataset(urls[1], format="tokens"), count, path=tmp_path / "costs.npy")
    random.seed(5)
    assert drawn == [random.random() for _ in range(100)]
