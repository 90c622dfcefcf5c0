"""Arguments of `streamer.pack` that have another type are refused before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamer
from streamer.errors import ConfigError

CASES: list[tuple[str, object]] = [
    *(("source", value) for value in (None, 5, b"/x")),
    *(("url", value) for value in (None, 5, b"/x")),
    *(("manifest", value) for value in (True, b"/x", ["a"])),
    *(("prefix", value) for value in (None, b"x", Path("x"))),
    *(("fields", value) for value in (True, "jpg", [1], np.array([1]), {"a": 1}, [["a"]])),
    *(("storage_options", value) for value in (True, "key", ["key"])),
    *(("out_storage_options", value) for value in (True, "key", ["key"])),
    *(("output_format", value) for value in (["parquet"], 5, "tar.gz")),
    *(("on_progress", value) for value in (None, 5)),
    *(("transform", value) for value in (5, "name")),
    *(("seed", value) for value in (-1, 1.5, "1", None)),
    *(("vocab_size", value) for value in (-1, 1.5, "1")),
    *(("shard_bytes", value) for value in (-1, "many", [], None)),
    *(("order", value) for value in (None, "random", ["name"])),
]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_an_argument_of_another_type_is_named(tmp_path: Path, name: str, value: object) -> None:
    """An argument of another type or out of its range raises ConfigError about that argument; nothing is written."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("a")
    arguments: dict[str, Any] = {"source": tmp_path / "data", "url": tmp_path / "out", "executor": "processes:1"}
    with pytest.raises(ConfigError) as caught:
        streamer.pack(**{**arguments, name: value})
    assert caught.value.details["field"] == name
    assert not (tmp_path / "out").exists()
