"""Joins with every kind of right side, compared with plain Python, over epochs of real loaders with two workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode import ArrayDecoder
from tests.joins import sides

Write = Callable[[Path, Sequence[int]], Path]
# How each kind is written, read and joined, and the name of its vector.
KINDS: dict[str, tuple[Write, Mapping[str, Any], tuple[str, str], str]] = {
    "parquet": (sides.parquet, {}, ("json.uid", "uid"), "vector"),
    "arrow": (sides.arrow, {}, ("json.uid", "uid"), "vector"),
    "hdf5": (sides.hdf5, {}, ("json.n", "n"), "vector"),
    "zarr": (sides.zarr, {"format": "zarr"}, ("json.n", "n"), "vector"),
    "json lines": (sides.json_lines, {}, ("json.uid", "uid"), "vector"),
    "tars": (sides.tars, {}, ("json.uid", "meta.json.id.uid"), "vector.npy"),
    "mds": (sides.mds, {"decode": {"vector": ArrayDecoder("<f4")}}, ("json.uid", "uid"), "vector"),
    "files": (sides.files, {}, ("json.file", "__key__"), "npy"),
    "rows of npy": (sides.array, {"format": "npy"}, ("json.n", "__key__"), "array"),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sides.write_left(tmp_path_factory.mktemp("left") / "data")


def both(sample: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of both sides, which a transform has."""
    return {"n": sample["json"]["n"], "vector": np.asarray(sample["vector"], np.float32)}


CASES = [(kind, ordered) for kind in KINDS for ordered in (True, False)]
# One recoded and one plain; the others start workers for seconds each.
QUICK = [("parquet", False), ("tars", True)]


@pytest.mark.parametrize(
    ("kind", "ordered"), [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]
)
def test_every_kind(kind: str, ordered: bool, left: Path, tmp_path: Path, closing: Callable[[Any], Any]):
    """A join with any kind of right side gives each sample once an epoch, with the row of its key.

    The right side has rows that belong to no sample.
    """
    write, options, on, name = KINDS[kind]
    numbers = np.arange(sides.COUNT + 30)
    if not ordered and kind != "rows of npy":
        numbers = np.random.default_rng(3).permutation(numbers)
    right = closing(StreamingDataset(write(tmp_path / "right", numbers), **options))
    own = closing(StreamingDataset(left, transform=both))
    joined = closing(own.join(right, on=on, columns={name: "vector"}))
    assert joined.samples == sides.COUNT
    with StreamingDataLoader(joined, 16, num_workers=2) as loader:
        for _ in range(2):
            found = {}
            for batch in loader:
                found |= zip(batch["n"].tolist(), batch["vector"], strict=True)
            assert sorted(found) == list(range(sides.COUNT))
            wrong = [number for number, vector in found.items() if not np.array_equal(vector, sides.vector(number))]
            assert wrong == []
    assert np.array_equal(joined[7]["vector"], sides.vector(joined[7]["n"]))
