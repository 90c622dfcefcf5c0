"""`streamer pack --join` as a command: what it writes is the joined dataset, sample by sample."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import StreamingDataset
from streamer.cli.main import main
from tests.joins import sides

Closing = Callable[[Any], Any]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns right sides in another order than the left one; a tenth of the samples have no row there."""
    folder = tmp_path_factory.mktemp("sides")
    sides.write_left(folder / "left")
    numbers = np.random.default_rng(5).permutation(sides.COUNT * 9 // 10)
    sides.parquet(folder / "parquet", numbers)
    sides.tars(folder / "tars", numbers)
    return folder


def packed(data: Path, target: Path, *options: str) -> int:
    """Returns the exit code of a pack with both right sides: Parquet, and tars with new names."""
    rows = {
        "url": f"{data}/parquet",
        "on": ["json.uid", "uid"],
        "missing": "none",
        "columns": {"n": "n", "vector": "v"},
    }
    tars = {"url": f"{data}/tars", "on": ["json.uid", "meta.json.id.uid"], "columns": {"vector.npy": "other"}}
    both = ["--join", json.dumps(rows), "--join", json.dumps(tars | {"missing": "drop"})]
    return main(["pack", f"{data}/left", "--out", str(target), "--shard-bytes", "100kB", *both, *options])


def joined(data: Path, closing: Closing) -> list[dict[str, Any]]:
    """Returns the samples of the same join, as training has them."""
    left, rows, tars = (closing(StreamingDataset(data / name, shuffle=False)) for name in ("left", "parquet", "tars"))
    both = closing(left.join(rows, on=("json.uid", "uid"), missing="none", columns={"n": "n", "vector": "v"}))
    columns = {"vector.npy": "other"}
    both = closing(both.join(tars, on=("json.uid", "meta.json.id.uid"), missing="drop", columns=columns))
    return list(both)


def same(value: object, other: object) -> bool:
    if isinstance(value, np.ndarray):
        return isinstance(other, np.ndarray) and value.dtype == other.dtype and np.array_equal(value, other)
    return type(value) is type(other) and value == other


@pytest.mark.process
@pytest.mark.parametrize(
    ("output", "names"),
    [
        pytest.param(
            "webdataset",
            {"json": "json", "txt": "txt", "n": "n.json", "v": "v.npy", "other": "other.npy"},
            marks=pytest.mark.slow,
        ),
        ("parquet", {"json": "json", "txt": "txt", "n": "n", "v": "v", "other": "other.npy"}),
    ],
)
def test_it_is_the_join(output: str, names: Mapping[str, str], data: Path, tmp_path: Path, closing: Closing):
    """`pack --join` writes what training would get: the left side's order, and every field with its name and value."""
    assert packed(data, tmp_path / "out", "--output-format", output) == 0
    found = list(closing(StreamingDataset(tmp_path / "out", shuffle=False)))
    expected = joined(data, closing)
    assert len(expected) == sides.COUNT * 9 // 10
    assert [sample["__key__"] for sample in found] == [sample["__key__"] for sample in expected]
    for sample, wanted in zip(found, expected, strict=True):
        assert sample.keys() == {"__key__", *names.values()}
        assert [name for name, new in names.items() if not same(wanted[name], sample[new])] == []


def test_samples_without_a_row(data: Path, tmp_path: Path, closing: Closing):
    """`pack --join` writes lists of several rows as JSON, and an empty list for a sample without a row."""
    many = {
        "url": f"{data}/parquet",
        "on": ["json.uid", "uid"],
        "validate": "many_to_many",
        "missing": "none",
        "columns": ["n"],
    }
    options = ["--join", json.dumps(many), "--fields", "txt,n=numbers", "--output-format", "parquet"]
    assert main(["pack", f"{data}/left", "--out", str(tmp_path / "out"), *options]) == 0
    found = list(closing(StreamingDataset(tmp_path / "out", shuffle=False)))
    assert [sample["numbers"] for sample in found] == [
        [number] if number < sides.COUNT * 9 // 10 else [] for number in range(sides.COUNT)
    ]
    assert found[0].keys() == {"__key__", "txt", "numbers"}


@pytest.mark.process
@pytest.mark.parametrize("output", ["webdataset", "parquet"])
def test_lists_have_decoded_values(output: str, tmp_path: Path, closing: Closing):
    """`pack --join` writes each row's text, JSON or array to a list as it is alone."""
    numbers = [5, 2, 2, 0, 7]
    sides.write_left(tmp_path / "left", 8)
    for write, name in ((sides.parquet, "rows"), (sides.json_lines, "lines"), (sides.tars, "tars")):
        write(tmp_path / name, numbers)
    values = {
        "a": ("rows", "uid", {"uid": "a"}, sides.uid),
        "b": ("lines", "uid", {"vector": "b"}, lambda number: sides.vector(number).tolist()),
        "c": ("tars", "meta.json.id.uid", {"meta.json": "c"}, lambda number: {"id": {"uid": sides.uid(number)}}),
        "d": ("tars", "meta.json.id.uid", {"vector.npy": "d"}, lambda number: sides.vector(number).tolist()),
    }
    options = ["--output-format", output]
    for right, key, columns, _ in values.values():
        join = {"url": f"{tmp_path}/{right}", "on": ["json.uid", key], "columns": columns}
        options += ["--join", json.dumps(join | {"validate": "many_to_many", "missing": "none"})]
    assert main(["pack", f"{tmp_path}/left", "--out", str(tmp_path / "out"), *options]) == 0
    found = list(closing(StreamingDataset(tmp_path / "out", shuffle=False)))
    for name, (_, _, _, value) in values.items():
        written = [sample[f"{name}.json" if output == "webdataset" else name] for sample in found]
        assert written == [[value(number)] * numbers.count(number) for number in range(8)]


def test_what_it_would_write(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`pack --join --dry-run` says what the right sides cost, and writes nothing."""
    assert packed(data, tmp_path / "out", "--dry-run") == 0
    said = capsys.readouterr().out
    assert said.count("an epoch fetches") == 2
    assert f"{sides.COUNT * 9 // 10} samples" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--order", "name"], "which only raw files have"),
        (["--join", '{"url": "x"}'], "missing required field `on`"),
        (["--join", '{"url": "x", "on": "k", "keys": 1}'], "unknown field `keys`"),
        (["--fields", "jpg"], "has no field 'jpg'; it has"),
    ],
)
def test_what_is_refused(options: list[str], said: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`pack --join` refuses joins that are wrong, an order by name and a field that is not there, and names each."""
    assert packed(data, tmp_path / "out", *options) != 0
    assert said in capsys.readouterr().err
