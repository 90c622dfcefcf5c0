"""`pack` of a dataset, in threads and processes: it writes what the dataset yields, with any options together."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamer
from streamer import MixedDataset, StreamingDataset
from streamer.errors import ConfigError, ManifestError, PackError
from streamer.loader.dataset_scan import DatasetScan, ScanRecipe
from tests.joins import sides

Closing = Callable[[Any], Any]
COUNT = 60
LEFTS = {"tars": sides.write_left, "files": sides.files, "parquet": sides.parquet, "lines": sides.json_lines}
# The key of the right sides in each left side.
KEYS = {"tars": "json.file", "files": "__key__", "parquet": "uid", "lines": "uid"}
EXTENSIONS = (".npy", ".txt", ".json")


def name_of(kind: str, number: int) -> str:
    """Returns the text by which the right side and the annotations name a sample of a left side."""
    return f"{number:06}.npy" if kind in ("tars", "files") else sides.uid(number)


def write_right(folder: Path, kind: str, numbers: list[int]) -> None:
    """Writes Parquet with the key, a number, a text and an array, in the given order."""
    folder.mkdir(parents=True)
    table = pa.table(
        {
            "name": [name_of(kind, number) for number in numbers],
            "times": [7 * number for number in numbers],
            "said": [f"row {number}" for number in numbers],
            "array": pa.array([sides.vector(number).tolist() for number in numbers], pa.list_(pa.float32())),
        }
    )
    pq.write_table(table, folder / "rows.parquet", row_group_size=8)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns every left side, with annotations and right sides in another order, of which one lacks some rows."""
    folder = tmp_path_factory.mktemp("data")
    numbers = np.random.default_rng(3).permutation(COUNT).tolist()
    for kind, write in LEFTS.items():
        if kind == "tars":
            sides.write_left(folder / kind, COUNT)
        else:
            write(folder / kind, range(COUNT))
        write_right(folder / f"{kind}-all", kind, numbers)
        write_right(folder / f"{kind}-some", kind, [number for number in numbers if number % 4])
        write_right(folder / f"{kind}-twice", kind, numbers + numbers[:20])
        rows = "".join(f"{name_of(kind, number)},{number + 1},tag {number}\n" for number in range(COUNT))
        (folder / f"{kind}.csv").write_text(f"file_name,score,tag\n{rows}")
    return folder


@pytest.fixture
def here() -> Iterator[ThreadPoolExecutor]:
    """Yields threads for two tasks at the same time, in place of processes."""
    with ThreadPoolExecutor(2) as found:
        yield found


def joined(dataset: StreamingDataset, data: Path, kind: str, how: str, closing: Closing) -> StreamingDataset:
    """Returns a dataset with the fields of a right side, `how` one of the names of `JOINS`."""
    name, columns, options = JOINS[how]
    right = closing(StreamingDataset(data / f"{kind}-{name}"))
    return dataset.join(right, on=(KEYS[kind], "name"), columns=columns, **options)


JOINS: Mapping[str, tuple[str, Any, Any]] = {
    "all": ("all", ["times", "array"], {}),
    "null": ("some", {"times": "number", "said": "said"}, {"missing": "none"}),
    "drop": ("some", ["said"], {"missing": "drop"}),
    "many": ("twice", {"times": "numbers", "said": "texts"}, {"validate": "many_to_many"}),
}


def plain(sample: Mapping[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    """Returns fields by the dataset's names: without the extensions, and with those in the json, that a tar needs."""
    found: dict[str, Any] = {}
    for name, value in sample.items():
        if name.startswith("__"):
            continue
        if name == "json" and "json" not in wanted:
            found |= value
            continue
        short = next((name.removesuffix(e) for e in EXTENSIONS if name.removesuffix(e) in wanted), name)
        found[name if name in wanted else short] = value
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in found.items()}


def read_all(dataset: StreamingDataset) -> list[dict[str, Any]]:
    """Returns all samples, in the order of the manifest."""
    return [dataset[number] for number in range(dataset.samples)]


def written(folder: Path, closing: Closing) -> list[dict[str, Any]]:
    """Returns the samples of a pack in its order."""
    return list(closing(StreamingDataset(folder, shuffle=False)))


@pytest.mark.process
@given(
    kind=st.sampled_from(list(LEFTS)),
    joins=st.lists(st.sampled_from(list(JOINS)), max_size=2, unique=True),
    annotated=st.booleans(),
    selected=st.sampled_from(["", "indices", "fraction", "where"]),
    order=st.sampled_from(["manifest", "shuffle", "name"]),
    output=st.sampled_from(["webdataset", "parquet"]),
    shard_bytes=st.sampled_from([6_000, 50_000]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_is_what_the_dataset_yields(
    kind: str,
    joins: list[str],
    annotated: bool,
    selected: str,
    order: Any,
    output: Any,
    shard_bytes: int,
    data: Path,
    closing: Closing,
    here: ThreadPoolExecutor,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A pack of a dataset has every sample once with all its fields, in the manifest's order, by name or shuffled."""
    annotations = {"url": str(data / f"{kind}.csv"), "sample_field": None if kind in ("tars", "files") else "uid"}
    dataset = closing(StreamingDataset(data / kind, annotations=annotations if annotated else None))
    if selected == "indices":
        dataset = dataset.select(indices=range(3, COUNT, 2))
    elif selected == "fraction":
        dataset = dataset.select(fraction=(0.2, 0.9))
    if ("all" in joins and "drop" in joins) or {"null", "drop", "many"} & set(joins) >= {"null", "drop"}:
        joins = joins[:1]
    for how in joins:
        dataset = joined(dataset, data, kind, how, closing)
    if selected == "where" and (columns := {"parquet": "n"} | ({"files": "score"} if annotated else {})).get(kind):
        dataset = dataset.select(where=f"{columns[kind]} > 9 and {columns[kind]} != 30")
    dataset = closing(dataset)
    folder = tmp_path_factory.mktemp("packed") / "out"
    pack = {"order": order, "seed": 5, "shard_bytes": shard_bytes, "output_format": output, "executor": here}
    if order == "name" and kind != "files":
        with pytest.raises(ConfigError, match="which only raw files have"):
            streamer.pack(dataset, folder, **pack)
        return
    packed = streamer.pack(dataset, folder, **pack)
    expected = read_all(dataset)
    names = frozenset(name for sample in expected for name in sample)
    assert packed.samples == len(expected) > 10
    found = [plain(sample, names) for sample in written(folder, closing)]
    wanted = [plain(sample, names) for sample in expected]
    if order == "manifest":
        assert found == wanted
        return
    if order == "name":
        keys = [str(sample["__key__"]) for sample in expected]
        assert found == [sample for _, sample in sorted(zip(keys, wanted, strict=True), key=lambda pair: pair[0])]
        return
    assert len(expected) < 2 or found != wanted
    assert sorted(map(repr, (sorted(sample.items()) for sample in found))) == sorted(
        map(repr, (sorted(sample.items()) for sample in wanted))
    )


def shards_in(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of the shards by name."""
    return {path.name: path.read_bytes() for path in folder.glob("shard-*")}


@pytest.mark.process
@pytest.mark.parametrize("output", ["webdataset", "parquet"])
@pytest.mark.parametrize("order", ["manifest", "shuffle"])
@pytest.mark.parametrize("kind", list(LEFTS))
def test_a_plain_dataset_is_packed_as_its_url(
    kind: str, order: Any, output: Any, data: Path, closing: Closing, here: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """A plain dataset is packed byte for byte as its url is, also with annotations.

    One pack may go on with the shards of the other.
    """
    annotations = {"url": str(data / f"{kind}.csv"), "sample_field": None if kind in ("tars", "files") else "uid"}
    options = {"order": order, "seed": 3, "shard_bytes": 20_000, "output_format": output, "executor": here}
    streamer.pack(data / kind, tmp_path / "url", annotations=annotations, **options)
    dataset = closing(StreamingDataset(data / kind, annotations=annotations))
    streamer.pack(dataset, tmp_path / "dataset", **options)
    assert shards_in(tmp_path / "url") == shards_in(tmp_path / "dataset")
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "url").glob("shard-*")}
    streamer.pack(dataset, tmp_path / "url", **options)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "url").glob("shard-*")} == shards


def everything(data: Path, closing: Closing) -> StreamingDataset:
    """Returns a joined, annotated and selected dataset of files."""
    dataset = closing(StreamingDataset(data / "files", annotations=str(data / "files.csv")))
    return closing(joined(dataset, data, "files", "null", closing).select(indices=range(2, COUNT)))


PROGRAM = """
import sys
from tests.joins.test_pack_dataset import everything
import streamer
from pathlib import Path
data, out = map(Path, sys.argv[1:])
dataset = everything(data, lambda made: made)
streamer.pack(dataset, out, order="shuffle", seed=2, shard_bytes=1500, executor="processes:2")
"""


@pytest.mark.process
def test_a_killed_pack_goes_on(data: Path, closing: Closing, here: ThreadPoolExecutor, tmp_path: Path) -> None:
    """A killed pack of a dataset goes on with the shards that are there, and ends with those of an undisturbed pack.

    It was killed in processes without torch, after its first shard.
    """
    streamer.pack(
        everything(data, closing), tmp_path / "whole", order="shuffle", seed=2, shard_bytes=1500, executor=here
    )
    out = tmp_path / "killed"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(data), str(out)]) as running:
        while running.poll() is None and not list(out.glob(".streamer/pack/*/0*.json")):
            time.sleep(0.01)
        running.kill()
    kept = {path: path.stat().st_mtime_ns for path in out.glob(".streamer/pack/*/0*.json")}
    streamer.pack(everything(data, closing), out, order="shuffle", seed=2, shard_bytes=1500, executor=here)
    assert shards_in(out) == shards_in(tmp_path / "whole")
    assert len(shards_in(out)) > 10
    assert kept
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.process
def test_tasks_open_the_dataset_again(data: Path, closing: Closing) -> None:
    """Tasks of a pack open the dataset again from its urls, where what was opened is not on their machine.

    They need no torch, and refuse a dataset whose objects have changed.
    """
    scan = DatasetScan(everything(data, closing)._member)
    ordinals = scan.ordinals
    assert ordinals is not None
    reader = scan.recipe()
    sent = cloudpickle.loads(reader.options)
    elsewhere = msgspec.structs.replace(sent.recipe, manifest_path=Path("/gone") / sent.recipe.manifest_path.name)
    other = ScanRecipe(cloudpickle.dumps(sent._replace(recipe=elsewhere)))
    found = [[(each.ordinal, each.key, dict(each.fields)) for each in some.read(ordinals)] for some in (reader, other)]
    assert found[0] == found[1]
    assert len(found[0]) == COUNT - 2
    wrong = ScanRecipe(cloudpickle.dumps(sent._replace(identity=("other",))))
    with pytest.raises(ManifestError, match="the objects change"):
        next(wrong.read(ordinals))
    imports = "import sys, streamer.loader.dataset_scan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imports], check=False).returncode == 0
    scan.close()


@pytest.mark.process
def test_what_a_transform_returns_is_written(
    data: Path, closing: Closing, here: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """A pack of a dataset writes what the dataset's transform returns, or what its own transform makes of that.

    A transform that raises is a PackError.
    """
    source = StreamingDataset(data / "tars", transform=lambda sample: {"n": sample["json"]["n"], "text": sample["txt"]})
    dataset = closing(source)
    streamer.pack(dataset, tmp_path / "out", output_format="parquet", executor=here)
    found = written(tmp_path / "out", closing)
    assert [(sample["n"], sample["text"]) for sample in found] == [
        (sample["n"], sample["text"]) for sample in read_all(dataset)
    ]
    streamer.pack(
        dataset, tmp_path / "twice", output_format="parquet", transform=lambda s: {"m": 2 * s["n"]}, executor=here
    )
    assert [sample["m"] for sample in written(tmp_path / "twice", closing)] == [2 * sample["n"] for sample in found]
    broken = closing(StreamingDataset(data / "tars", transform=lambda sample: sample["nothing"]))
    with pytest.raises(PackError, match="the transform of the dataset raised KeyError"):
        streamer.pack(broken, tmp_path / "broken", executor=here)


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        ({"packing": {"length": 64}}, {}, "packing"),
        ({"on_error": "skip"}, {}, "on_error='skip'"),
        ({"rank": 0, "world_size": 2}, {}, "world_size=2"),
        ({}, {"annotations": "labels.csv"}, "annotations= is an option of a url"),
        ({}, {"storage_options": {"profile": "x"}}, "storage_options= is an option of a url"),
        ({}, {"format": "mds"}, "format= is an option of a url"),
        ({}, {"fields": ["jpg"]}, "has no field 'jpg'; it has json, txt"),
    ],
)
def test_what_is_refused(
    arguments: Any, options: Any, said: str, data: Path, closing: Closing, here: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """`pack` of a dataset refuses options of urls, packing, skips and ranks with an error that names the option."""
    dataset = closing(StreamingDataset(data / "tars", **arguments))
    with pytest.raises((ConfigError, PackError), match=said):
        streamer.pack(dataset, tmp_path / "out", executor=here, **options)


@pytest.mark.process
def test_a_mix_is_refused(data: Path, closing: Closing, here: ThreadPoolExecutor, tmp_path: Path) -> None:
    """`pack` refuses a MixedDataset, because its epoch has samples several times, or not at all."""
    mix = closing(MixedDataset({kind: closing(StreamingDataset(data / kind)) for kind in ("parquet", "lines")}))
    with pytest.raises(ConfigError, match="pack\\(\\) of a MixedDataset"):
        streamer.pack(mix, tmp_path / "out", executor=here)
