"""Columns that `streamer index` copies with a manifest, read by inline engines with a cache of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from streamer import StreamingDataset
from streamer.cli.main import main
from streamer.errors import ManifestCorruptError, StreamerError
from streamer.manifest.column_files import ColumnFiles
from streamer.manifest.table import Manifest
from tests.joins import sides

Closing = Callable[[Any], Any]
pytestmark = pytest.mark.process


@pytest.fixture(scope="module", autouse=True)
def _first_loop() -> None:
    """Makes a loop first, because libuv keeps a pipe for signals from the first loop of a process to its end."""
    uvloop.new_event_loop().close()


@pytest.fixture
def left(tmp_path: Path) -> str:
    return str(sides.write_left(tmp_path / "left"))


def chosen(left: str, cache: Path, closing: Closing, **options: Any) -> int:
    """Counts the samples that a machine with an empty cache chooses by the columns."""
    place: dict[str, Any] = {"engine": "inline", "cache_dir": cache, "cache_bytes": "100MB", **options}
    whole = closing(StreamingDataset(left, **place))
    return closing(whole.select(where="json.n < 10 and json.uid != 'x'")).samples


@pytest.mark.parametrize("place", ["out", "beside"])
def test_columns_are_copied_with_the_manifest(place: str, left: str, tmp_path: Path, closing: Closing):
    """`streamer index --columns` copies columns with the manifest, also when they are added to a copy that is there."""
    out, option = str(tmp_path / "out"), {"manifest": str(tmp_path / "out")} if place == "out" else {}
    copy = ["--out", out] if place == "out" else ["--beside"]
    assert main(["index", left, *copy]) == 0
    with pytest.raises(StreamerError, match=r"the column 'json\.n'"):
        chosen(left, tmp_path / "first", closing, **option)
    assert main(["index", left, *copy, "--columns", "json.n,json.uid"]) == 0
    assert chosen(left, tmp_path / "second", closing, **option) == 10
    if place == "out":
        assert chosen(left, tmp_path / "first", closing, **option) == 10


def test_a_wrong_column_is_refused(left: str, tmp_path: Path, closing: Closing):
    """A column whose content is not that of its name is refused, and columns of other manifests are left alone."""
    out = tmp_path / "out"
    assert main(["index", left, "--out", str(out), "--columns", "json.n,json.uid"]) == 0
    numbers = next(out.glob("*.json%2En.int.*.column"))
    (out / ("0" * 32 + numbers.name[32:])).write_bytes(b"of another manifest")
    assert chosen(left, tmp_path / "first", closing, manifest=str(out)) == 10
    numbers.write_bytes(numbers.read_bytes()[:-8] + bytes(8))
    with pytest.raises(ManifestCorruptError, match="not that of its name"):
        chosen(left, tmp_path / "second", closing, manifest=str(out))


def test_a_damaged_column_is_read_again(left: str, tmp_path: Path, closing: Closing):
    """A damaged column in the cache is as if it were not there, until `streamer index --columns` reads it again."""
    assert main(["index", left, "--cache-dir", str(tmp_path / "cache"), "--columns", "json.n,json.uid"]) == 0
    assert chosen(left, tmp_path / "cache", closing) == 10
    numbers = next((tmp_path / "cache" / "manifests").glob("*.json%2En.int.column"))
    numbers.write_bytes(numbers.read_bytes()[:-200])
    with pytest.raises(StreamerError, match=r"the column 'json\.n'.*--columns json\.n"):
        chosen(left, tmp_path / "cache", closing)
    assert main(["index", left, "--cache-dir", str(tmp_path / "cache"), "--columns", "json.n"]) == 0
    assert chosen(left, tmp_path / "cache", closing) == 10


def test_a_column_of_other_samples_is_refused(tmp_path: Path, closing: Closing):
    """A column whose length is not that of the manifest is refused with both numbers."""
    found: list[Manifest] = []
    for count in (240, 200):
        data = sides.write_left(tmp_path / f"left{count}", count)
        place: dict[str, Any] = {"engine": "inline", "cache_dir": tmp_path / "cache", "cache_bytes": "100MB"}
        found.append(closing(StreamingDataset(data, **place))._member.open().manifest)
    own, other = (ColumnFiles(manifest, tmp_path / "fallback_dir") for manifest in found)
    other.add("n", range(200))
    [(name, content)] = other.export()
    with pytest.raises(ManifestCorruptError, match="200 values for 240 samples"):
        own.install(f"{found[0].digest}{name[32:]}", content)
    assert own.list_absent([name, "../x", f"{found[0].digest}{name[32:]}"]) == [f"{found[0].digest}{name[32:]}"]
    assert own.names == []


def test_tasks_have_no_engine_for_columns(left: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """`streamer index --executor` refuses --columns, and its error gives the command that adds them."""
    assert (
        main(["index", left, "--executor", "processes:1", "--out", str(tmp_path / "out"), "--columns", "json.n"]) != 0
    )
    assert f"then `streamer index {left} --columns json.n --beside` adds them" in capsys.readouterr().err
