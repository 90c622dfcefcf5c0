"""Shards have the values that samples had when they were given, also if their maker uses the memory again."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import streamer
from streamer.decode.rule import StoredSample
from streamer.errors import PackError
from streamer.formats.base import Field
from streamer.shards.outputs.registry import OUTPUTS
from streamer.shards.task import Recipe, _Making

# More samples than those of which the columns are found.
COUNT = 70
VALUES = [[number, number + 1] for number in range(COUNT)]
KINDS = {"array": "<i4[2]", "view": "bytes", "bytes": "bytes"}


class Reused:
    """Makes one sample of each kind of value after the other, in the same memory."""

    def __init__(self, kind: str) -> None:
        self._numbers = np.zeros(2, "<i4")
        whole = bytearray(8)
        self._copied = np.frombuffer(whole, "<i4")
        value = {"array": self._numbers, "view": memoryview(self._numbers), "bytes": whole}[kind]
        self._sample: dict[str, Any] = {"x": value, "meta": {"at": [-1]}}

    def make(self, number: int) -> dict[str, Any]:
        self._numbers[:] = self._copied[:] = number, number + 1
        self._sample["meta"]["at"][0] = number
        return self._sample


def read_rows(folder: Path, output: str) -> tuple[list[list[int]], list[int]]:
    """Returns the numbers and the metadata of all samples in the shards of a folder."""
    if output == "parquet":
        rows = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
        numbers = [row["x"] if isinstance(row["x"], list) else np.frombuffer(row["x"], "<i4").tolist() for row in rows]
        return numbers, [json.loads(row["meta"])["at"][0] for row in rows]
    numbers, places = [], []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member).read()  # type: ignore[union-attr]
                if member.name.endswith(".json"):
                    places.append(json.loads(content)["meta"]["at"][0])
                else:
                    numbers.append(np.frombuffer(content[-8:], "<i4").tolist())
                    assert len(content) == (8 if member.name.endswith(".x") else 136)
    return numbers, places


@pytest.mark.parametrize("output", ["webdataset", "parquet"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_an_iterable_that_gives_the_same_sample_again(tmp_path: Path, output: Any, kind: str) -> None:
    """A generator that yields one dict again and again, with new values in the same memory, is packed as it was."""
    maker = Reused(kind)
    streamer.pack((maker.make(number) for number in range(COUNT)), tmp_path, output_format=output)
    assert read_rows(tmp_path, output) == (VALUES, list(range(COUNT)))


@pytest.mark.parametrize("as_list", [False, True])
def test_tokens_of_the_same_memory(tmp_path: Path, as_list: bool) -> None:
    """A generator that yields one array or list of tokens again and again is packed with the tokens of each time."""

    def make() -> Iterator[Mapping[str, Any]]:
        tokens = [0, 0] if as_list else np.zeros(2, "<i4")
        for number in range(COUNT):
            tokens[:] = [number, number + 1]
            yield {"tokens": tokens}

    streamer.pack(make(), tmp_path, output_format="tokens")
    (path,) = tmp_path.glob("*.bin")
    assert np.fromfile(path, "<i4").reshape(-1, 2).tolist() == VALUES


@pytest.mark.parametrize("output", ["webdataset", "parquet"])
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("of_dataset", [False, True], ids=["pack", "dataset"])
def test_a_transform_that_returns_the_same_memory(tmp_path: Path, output: str, kind: str, of_dataset: bool) -> None:
    """A transform of a pack or of its dataset that returns one array or view again and again is packed as it was."""
    maker = Reused(kind)

    def transform(sample: dict[str, Any]) -> dict[str, Any]:
        return maker.make(sample["number"])

    def stored() -> Iterator[StoredSample]:
        for number in range(COUNT):
            field = Field("number", memoryview(np.array(number, "<i8").tobytes()), "<i8")
            fields = list(maker.make(number).items()) if of_dataset else [(field.name, field)]
            yield StoredSample(ordinal=number, where=f"sample {number}", key=f"{number:03}", fields=fields)

    chosen = OUTPUTS[output]
    columns = [("__key__", "txt"), ("x", KINDS[kind]), ("meta", "json")]
    path = tmp_path / f"a.{chosen.extension}"
    path.touch()
    recipe: Any = Recipe(None, None, None if of_dataset else transform, {})  # type: ignore[arg-type]
    with chosen.open_writer(path, {"columns": columns}) as writer:
        _Making(recipe, chosen, writer).add_all(stored())
        writer.finish()
    assert read_rows(tmp_path, output) == (VALUES, list(range(COUNT)))


def test_a_value_that_is_nested_too_deeply(tmp_path: Path) -> None:
    """A list that is nested a hundred thousand times is refused with the name of its field."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(PackError, match=r"field 'x' is nested too deeply"):
        streamer.pack(iter([{"x": nested}]), tmp_path, output_format="parquet")
    while nested:
        (nested,) = nested
