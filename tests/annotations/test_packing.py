"""Packs with annotations, in a thread and by the command: shards have the joined fields; and samples without a row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import numpy as np
import pytest

import streamer
from streamer import Annotations, StreamingDataset
from streamer.cli.main import main
from streamer.errors import ConfigError, DecodeError, ManifestError, PackError
from streamer.executors.runner import Runner
from streamer.indexing.source import DatasetSource
from streamer.shards.annotations import rules_here
from streamer.shards.destination import Destination
from streamer.shards.prepared import PackOptions, prepare, run
from streamer.shards.progress import Callbacks
from tests.annotations import test_datasets
from tests.annotations.test_datasets import COUNT, coco_in, labels_in, name

FIELDS = ("boxes", "labels", "area", "iscrowd", "segmentation", "image_id", "height", "width")
_engine, folder, tars = test_datasets._engine, test_datasets.folder, test_datasets.tars


@pytest.fixture
def here() -> Iterator[ThreadPoolExecutor]:
    """Gives the executor that packs: one thread."""
    with ThreadPoolExecutor(1) as found:
        yield found


def read(url: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """Returns all samples by key, without folder and extension."""
    dataset = StreamingDataset(f"{url}/", **options)
    found = {str(sample.pop("__key__")).rpartition("/")[2].partition(".")[0]: sample for sample in dataset}
    dataset.close()
    return {key: {field: _plain(value) for field, value in sample.items()} for key, sample in found.items()}


def _plain(value: object) -> object:
    return (str(value.dtype), value.shape, value.tolist()) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("data", ["folder", "tars"])
def test_objects_become_fields(
    request: pytest.FixtureRequest, tmp_path: Path, here: ThreadPoolExecutor, data: str
) -> None:
    """Packed annotations are columns of Parquet under their names; in tars arrays are .npy, numbers one json."""
    source = request.getfixturevalue(data)
    annotations = Annotations(str(coco_in(tmp_path)), fields=FIELDS)
    expected = read(source, annotations=annotations)
    assert len(expected) == COUNT
    streamer.pack(source, tmp_path / "table", annotations=annotations, output_format="parquet", executor=here)
    assert read(tmp_path / "table") == expected
    streamer.pack(source, tmp_path / "packed", annotations=annotations, executor=here)
    for key, sample in read(tmp_path / "packed").items():
        wanted = expected[key]
        arrays = ("boxes", "labels", "area", "iscrowd")
        assert {field: sample.pop(f"{field}.npy") for field in arrays} == {field: wanted[field] for field in arrays}
        assert sample.pop("json") == {field: wanted[field] for field in ("image_id", "height", "width")}
        assert sample.pop("cls", None) == wanted.get("label")
        assert sample == {"npy": wanted["npy"], "segmentation.json": wanted["segmentation"]}


@pytest.mark.slow
def test_the_command_writes_the_same(folder: Path, tmp_path: Path, here: ThreadPoolExecutor) -> None:
    """`streamer pack --annotations` in a process writes the same shard as `streamer.pack` in a thread."""
    told = {"url": str(coco_in(tmp_path)), "fields": FIELDS}
    streamer.pack(folder, tmp_path / "packed", annotations=told, executor=here)
    command = ["pack", str(folder), "--out", f"{tmp_path}/again", "--annotations", json.dumps(told)]
    assert main([*command, "--executor", "processes:1"]) == 0
    shard = "shard-000000.tar"
    assert (tmp_path / "again" / shard).read_bytes() == (tmp_path / "packed" / shard).read_bytes()
    assert main(["verify", f"{tmp_path}/again"]) == 0


@pytest.mark.parametrize("data", ["folder", "tars"])
def test_samples_without_a_row(
    request: pytest.FixtureRequest, tmp_path: Path, here: ThreadPoolExecutor, data: str
) -> None:
    """A pack of files or tars refuses a sample without a row, leaves it out, or writes None, as `missing=` says."""
    source, table = request.getfixturevalue(data), str(labels_in(tmp_path, range(4, COUNT)))
    raised = ManifestError if data == "folder" else DecodeError
    with pytest.raises(raised, match=r"no annotations for '.*000\d.*'"):
        streamer.pack(source, tmp_path / "error", annotations=table, executor=here)
    assert (tmp_path / "error").exists() == (data == "tars")
    for missing, expected in {
        "drop": {name(n): 3 * n for n in range(4, COUNT)},
        "none": {name(n): None if n < 4 else 3 * n for n in range(COUNT)},
    }.items():
        given = {"url": table, "missing": missing}
        streamer.pack(source, tmp_path / missing, annotations=given, output_format="parquet", executor=here)
        assert {key: sample["tag"] for key, sample in read(tmp_path / missing).items()} == expected
    with pytest.raises(ConfigError, match="another pack, with annotations"):
        streamer.pack(source, tmp_path / "drop", annotations=given, output_format="parquet", executor=here)


def test_metadata_beside_pictures_is_packed(tmp_path: Path, here: ThreadPoolExecutor) -> None:
    """A pack joins a metadata.csv beside images as a dataset does, and gives its fields to a transform."""
    data = tmp_path / "pictures"
    data.mkdir()
    for number in range(6):
        (data / f"{number}.png").write_bytes(b"not decoded")
    rows = "".join(f"{n}.png,picture {n},{n + 10}\n" for n in range(6))
    (data / "metadata.csv").write_text(f"file_name,text,label\n{rows}")
    packed = streamer.pack(data, tmp_path / "packed", executor=here)
    assert packed.samples == 6
    assert read(tmp_path / "packed", decode=None)["3"] == {
        "png": b"not decoded",
        "text.txt": b"picture 3",
        "cls": b"13",
    }
    streamer.pack(data, tmp_path / "changed", executor=here, transform=_only_label, output_format="parquet")
    assert read(tmp_path / "changed")["3"] == {"twice": 26}
    streamer.pack(data, tmp_path / "plain", executor=here, format="folder")
    assert read(tmp_path / "plain", decode=None).keys() == {*map(str, range(6)), "metadata"}
    with pytest.raises(ConfigError, match="an iterable is packed as it is"):
        streamer.pack([{"a": 1}], tmp_path / "none", annotations="labels.csv")


def _only_label(sample: dict[str, Any]) -> dict[str, Any]:
    return {"twice": 2 * sample["label"]}


async def test_other_machines_copy_the_table(
    folder: Path, tmp_path: Path, here: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without the table of annotations copies it from beside the receipts, and keeps the copy."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    writing = PackOptions(
        url="memory://packed/",
        prefix="",
        shard_bytes=1 << 20,
        order="manifest",
        seed=0,
        fields=None,
        transform=None,
        options={},
        annotations=Annotations(str(labels_in(tmp_path))),
    )
    prepared = prepare(DatasetSource(urls=(f"{folder}/",)), writing, tmp_path / "made", Runner(here, 1), Callbacks())
    run(prepared, Runner(here, 1), Callbacks())
    joined = prepared.recipe.source.joined
    assert joined is not None
    elsewhere = msgspec.structs.replace(joined, table=tmp_path / "gone" / joined.digest)
    async with Destination(writing.url, {}) as destination:
        rules = await rules_here(destination, prepared.job, elsewhere)
        assert rules.table.name == joined.digest
        assert rules.table.parent.name.startswith(f"streamer-pack-{prepared.job.id}-")
        assert (rules.table / "rows.arrows").read_bytes() == (joined.table / "rows.arrows").read_bytes()
        assert await rules_here(destination, prepared.job, elsewhere) == rules
        shutil.rmtree(rules.table)
        removed = f"{writing.url}{prepared.job.table_folder(joined.digest)}rows.arrows"
        fsspec.filesystem("memory").rm(removed)
        with pytest.raises(PackError, match=r"memory://packed/ lacks .*rows\.arrows, a part of the table"):
            await rules_here(destination, prepared.job, elsewhere)
