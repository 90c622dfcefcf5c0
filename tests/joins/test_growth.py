"""Joins of sides that grow, on a real engine: both are listed again between epochs; what cannot grow is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamer import Growing, Packing, StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, ManifestError
from streamer.loader.options.arguments import Index
from tests.joins import sides

Closing = Callable[[Any], Any]


def numbers(sample: dict[str, Any]) -> dict[str, Any]:
    return {"n": sample["n"], "row": sample["row"]}


def epoch(loader: StreamingDataLoader) -> list[int]:
    """Returns the numbers of an epoch's samples, each of which has its own row."""
    found = [(batch["n"].tolist(), batch["row"].tolist()) for batch in loader]
    assert all(mine == rows for mine, rows in found)
    return sorted(number for mine, _ in found for number in mine)


def add(folder: Path, name: str, some: range) -> None:
    """Adds one more file of rows."""
    sides.parquet(folder / "new", some)
    (folder / "new/0.parquet").rename(folder / f"{name}/{some.start}.parquet")
    for path in (folder / "new").iterdir():
        path.rename(folder / f"{name}/{some.start}-{path.name}")
    (folder / "new").rmdir()


def test_both_sides_are_listed_again(tmp_path: Path, closing: Closing):
    """A join with on_change="refresh" lists both sides again between epochs.

    New samples need rows; once these are there, too, the next epoch has both; a new row alone changes no sample.
    """
    for name in ("left", "right"):
        sides.parquet(tmp_path / name, range(30))
    left = closing(StreamingDataset(tmp_path / "left", transform=numbers, manifest=Index(on_change="refresh")))
    right = closing(StreamingDataset(tmp_path / "right"))
    joined = closing(left.join(right, on="uid", columns={"n": "row"}))
    with StreamingDataLoader(joined, 10) as loader:
        assert epoch(loader) == list(range(30))
        add(tmp_path, "right", range(30, 60))
        assert epoch(loader) == list(range(30))
        add(tmp_path, "left", range(30, 45))
        assert epoch(loader) == list(range(45))
        add(tmp_path, "left", range(60, 70))
        with pytest.raises(ManifestError, match="10 of 55 samples have no row"):
            epoch(loader)


LEFT: list[Mapping[str, Any]] = [
    {"growing": Growing(reuse=2, epoch_samples=10)},
    {"packing": Packing(64)},
    {"share_caches": "auto"},
]
RIGHT: list[Mapping[str, Any]] = [
    {"growing": Growing(reuse=2, epoch_samples=10)},
    {"packing": Packing(64)},
    {"annotations": "s3://b/x.csv"},
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("number", range(3))
def test_what_is_refused(side: str, number: int, closing: Closing):
    """join() refuses options of either side that cannot go with a join, before any object is read."""
    options = (LEFT if side == "left" else RIGHT)[number]
    datasets = {
        name: closing(StreamingDataset(f"s3://b/{name}/", **(options if name == side else {})))
        for name in ("left", "right")
    }
    with pytest.raises(ConfigError, match=r"join\(\)"):
        datasets["left"].join(datasets["right"], on="uid")
