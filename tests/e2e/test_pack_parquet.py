"""Packs as Parquet: pyarrow reads what was packed, training reads the same as from tars, and a killed pack goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest

import streamer
from streamer import StreamingDataset
from streamer.cli.main import main
from streamer.errors import ConfigError, PackError
from streamer.executors.runner import runner
from streamer.indexing.build import BuildOptions
from streamer.indexing.source import DatasetSource, manifest_of_source
from streamer.manifest.table import Manifest
from tests.e2e import test_pack

images = test_pack.images
PNG = b"\x89PNG\r\n\x1a\n"


def made(count: int) -> Iterator[Mapping[str, Any]]:
    """Yields samples with a value of each kind, some of them None; a tenth of a kilobyte to two."""
    numbers = np.random.default_rng(1)
    for i in range(count):
        yield {
            "__key__": f"s{i:05d}",
            "image.png": PNG + numbers.bytes(i % 2000),
            "blob": numbers.bytes(5),
            "text": f"number {i}",
            "label": i % 7,
            "score": None if i % 3 else i / 4,
            "wide": i if i % 2 else i / 2,
            "good": i % 2 == 0,
            "half": np.float16(i % 9),
            "box": np.full((2, 3), i, np.int32),
            "track": np.full((i % 4, 2), i, np.float32),
            "tokens": np.arange(i % 50, dtype=np.uint16),
            "meta": {"i": [i]} if i % 2 else None,
        }


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Returns all rows, as pyarrow reads them."""
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def files_of(folder: Path) -> dict[str, bytes]:
    """Returns the content of the shards by name."""
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def read(url: Path, decode: Any = "auto") -> dict[str, dict[str, Any]]:
    """Returns all samples by key, as training reads them."""
    dataset = StreamingDataset(f"{url}/", decode=decode)
    samples = cast("Iterable[dict[str, Any]]", dataset)
    found = {sample["__key__"]: {name: _plain(value) for name, value in sample.items()} for sample in samples}
    dataset.close()
    return found


def _plain(value: Any) -> Any:
    return (str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder in which the engine has its files."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path


def test_what_a_program_makes_has_columns(folders: Path) -> None:
    """Samples packed as Parquet have typed columns that pyarrow and training read, and the digest of an index."""
    packed = streamer.pack(made(1500), folders / "table", output_format="parquet", shard_bytes="500kB")
    assert (packed.shards, packed.samples) == (3, 1500)
    expected = [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        for sample in made(1500)
    ]
    rows = rows_of(folders / "table")
    assert [{**row, "image.png": row["image.png"]["bytes"]} for row in rows] == [
        {**row, "meta": row["meta"] and json.dumps(row["meta"])} for row in expected
    ]
    assert main(["index", f"{folders}/table/", "--out", f"{folders}/manifest"]) == 0
    assert Manifest.open(folders / "manifest").digest == packed.digest
    found = read(folders / "table", {"image.png": None})
    for sample in made(1500):
        assert found[sample["__key__"]] == {name: _plain(value) for name, value in sample.items()} | {
            "half": float(sample["half"])
        }
    assert streamer.pack(made(1500), folders / "table", output_format="parquet", shard_bytes="500kB") == packed
    with ThreadPoolExecutor(1) as here:
        streamer.pack(folders / "table", folders / "again", output_format="parquet", executor=here)
    assert rows_of(folders / "again") == rows


@pytest.mark.slow
def test_tars_become_parquet(images: Path, folders: Path) -> None:
    """Training reads tars packed as Parquet as it reads the tars, and any number of processes writes the same bytes.

    Packed again, the rows are equal.
    """
    small: dict[str, Any] = {"shard_bytes": "100kB"}
    with ThreadPoolExecutor(1) as here:
        streamer.pack(images, folders / "tars", executor=here, **small)
    packed = streamer.pack(
        folders / "tars", folders / "table", output_format="parquet", executor="processes:2", **small
    )
    assert packed.shards == 10
    assert read(folders / "table", {"jpg": None}) == read(folders / "tars", {"jpg": None})
    one = [
        "pack",
        f"{folders}/tars",
        "--out",
        f"{folders}/one",
        "--output-format",
        "parquet",
        "--executor",
        "processes:1",
    ]
    assert main([*one, "--shard-bytes", "100kB"]) == 0
    assert files_of(folders / "one") == files_of(folders / "table")
    with ThreadPoolExecutor(1) as here:
        small["executor"] = here
        streamer.pack(
            folders / "table",
            folders / "again",
            output_format="parquet",
            fields={"cls": "label"},
            order="shuffle",
            **small,
        )
        streamer.pack(images, folders / "raw", output_format="parquet", **small)
    wanted = {row["__key__"]: row["cls"] for row in rows_of(folders / "table")}
    assert {row["__key__"]: row["label"] for row in rows_of(folders / "again")} == wanted
    assert {row["__key__"].replace(".", "_"): row["label"] for row in rows_of(folders / "raw")} == wanted


def test_row_groups_and_pages(folders: Path) -> None:
    """Row groups have 8 MiB before compression and pages about one, so that a reader can take a part of a row group."""
    numbers = np.random.default_rng(1)
    streamer.pack(
        ({"blob": numbers.bytes(30_000), "n": i} for i in range(900)), folders / "table", output_format="parquet"
    )
    (path,) = (folders / "table").glob("*.parquet")
    footer = pq.read_metadata(path)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    assert [group.num_rows for group in groups] == [280, 280, 280, 60]
    assert all(group.column(0).has_offset_index for group in groups)
    with runner("processes:1") as running:
        source, options = DatasetSource(urls=(f"{folders}/table/",)), BuildOptions(chunk_bytes=2 << 20)
        manifest = asyncio.run(manifest_of_source(source, folders / "manifest", running, options))
    assert (manifest.chunks, manifest.samples) == (13, 900)
    assert int(manifest.chunk_samples.max()) <= 80


PROGRAM = """
import sys, streamer
from tests.e2e.test_pack_parquet import made
streamer.pack(made(4000), sys.argv[1], output_format="parquet", shard_bytes="300kB")
"""


@pytest.mark.slow
def test_a_killed_pack_goes_on(folders: Path) -> None:
    """A killed pack as Parquet goes on when it is run again, and its shards are those of an undisturbed run."""
    target = folders / "killed"
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(target)])
    deadline = time.monotonic() + 60
    while len(list(target.glob("*.parquet"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (target / ".streamer/root.json").exists()
    before = {path.name: path.stat().st_ino for path in target.glob("*.parquet")}
    streamer.pack(made(4000), target, output_format="parquet", shard_bytes="300kB")
    kept = [name for name, inode in before.items() if (target / name).stat().st_ino == inode]
    assert len(kept) >= len(before) - 2
    streamer.pack(made(4000), folders / "undisturbed", output_format="parquet", shard_bytes="300kB")
    assert files_of(target) == files_of(folders / "undisturbed")
    assert list(target.rglob("*.spool")) == []


@pytest.mark.slow
def test_verify_names_a_changed_row_group(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`streamer verify --every` names the row group of a changed byte, and a pack writes a shard that is gone anew."""
    target = folders / "table"
    packed = streamer.pack(made(1500), target, output_format="parquet", shard_bytes="500kB")
    assert main(["verify", str(target), "--every", "--executor", "processes:1"]) == 0
    assert "1,500 samples read" in capsys.readouterr().out
    shard = target / "shard-000002.parquet"
    times, content = shard.stat(), bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert main(["verify", str(target), "--every", "--executor", "processes:1"]) == 1
    assert "shard-000002.parquet: row group 0" in capsys.readouterr().err
    shard.unlink()
    assert streamer.pack(made(1500), target, output_format="parquet", shard_bytes="500kB").samples == packed.samples
    assert main(["verify", str(target)]) == 0
    assert len(rows_of(target)) == 1500


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        pytest.param(
            {"n": "many"},
            r"sample 70 of the iterable, key 'odd': field 'n' is 'txt'.* the column has '<i8'",
            id="text for a number",
        ),
        pytest.param({"n": 0.5}, r"key 'odd': field 'n' is '<f8'", id="float for an integer"),
        pytest.param(
            {"n": 1, "v": np.zeros(4)},
            r"key 'odd': field 'v' is '<f8\[4\]'.* the column has '<f8\[3\]'",
            id="another shape",
        ),
        pytest.param({"n": 1}, r"key 'odd': field 'v' is None", id="a field less"),
        pytest.param(
            {"n": 1, "v": np.zeros(3), "w": 1},
            r"key 'odd': it has a field 'w', the first samples have __key__, n, v",
            id="a field more",
        ),
    ],
)
def test_a_sample_that_does_not_fit_is_named(sample: dict[str, Any], message: str, folders: Path) -> None:
    """Columns follow from the first samples, and a later sample that does not fit is an error with its key.

    A sample may not fit by its type, shape or fields.
    """
    first: list[dict[str, Any]] = [{"__key__": f"k{i}", "n": i, "v": np.zeros(3)} for i in range(70)]
    with pytest.raises(PackError, match=message):
        streamer.pack([*first, {"__key__": "odd", **sample}], folders / "odd", output_format="parquet")
    assert list(folders.rglob("*.spool")) == []


def test_what_has_no_column_is_refused(images: Path, folders: Path) -> None:
    """`pack` as Parquet refuses fields without one type, arrays that no column holds, and unknown output formats."""
    with pytest.raises(PackError, match="only the first length of an array can be 0"):
        streamer.pack([{"v": np.zeros((2, 0))}], folders / "empty", output_format="parquet")
    with pytest.raises(PackError, match=r"field 'n' is '<i8' in one sample and 'txt' in another"):
        streamer.pack(({"n": value} for value in (1, "1")), folders / "two", output_format="parquet")
    with (
        ThreadPoolExecutor(1) as here,
        pytest.raises(PackError, match=r"key 'cat/.*': field 'label' is 'txt'"),
    ):
        streamer.pack(images, folders / "late", transform=_texts_later, output_format="parquet", executor=here)
    assert list(folders.rglob("*.spool")) == []
    with pytest.raises(
        ConfigError, match=r"output_format='lance' is not one of .*; the format of the source is format="
    ):
        streamer.pack(images, folders / "none", output_format="lance")  # type: ignore[arg-type]


def _texts_later(sample: dict[str, Any]) -> dict[str, Any]:
    late = sample["label"] == 0 and len(sample["jpg"]) > 2900
    return {"n": len(sample["jpg"]), "label": "cat" if late else sample["label"]}
