"""Datasets of tables through an engine: logs of table formats, partitions, files that are added or say too little."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.errors import ConfigError, ManifestError, StreamerError
from streamer.formats import Parquet, Tokens
from streamer.loader.options.arguments import Index

Rows = Callable[..., list[dict[str, object]]]


@pytest.fixture(scope="module", autouse=True)
def _first_engine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Starts an engine once: what a process keeps from then on is not left over by a test."""
    root = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMER_CACHE_DIR", str(root / "cache"))
        patch.setenv("STREAMER_RUNTIME_DIR", str(root / "run"))
        write(root / "data/a.parquet", id=[1])
        with closing(StreamingDataset(root / "data", engine="inline")) as dataset:
            assert len(dataset) == 1


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Returns all samples of urls below the test's folder, without their keys."""
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))

    def read(url: str | list[str], **options: object) -> list[dict[str, object]]:
        urls = [f"{tmp_path}/{each}" for each in ([url] if isinstance(url, str) else url)]
        with closing(StreamingDataset(urls, engine="inline", shuffle=False, **options)) as dataset:
            found = [dataset[number] for number in range(dataset.samples)]
        return [{name: value for name, value in sample.items() if name != "__key__"} for sample in found]

    return read


def write(path: Path, **columns: object) -> Path:
    """Writes a Parquet file, or an Arrow file where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    else:
        pq.write_table(table, path)
    return path


def touch(path: Path, content: bytes = b"{}") -> None:
    """Writes a file with some bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.formats
@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("Delta", "_delta_log/00000000000000000000.json"),
        ("Iceberg", "metadata/00000-bbbb.metadata.json"),
        ("Hudi", ".hoodie/hoodie.properties"),
    ],
)
@pytest.mark.parametrize(
    "url", ["table", "table/data/*.parquet", "table/*/*.parquet", "table/data", "table/data/p=1", "table/data/p=*/a*"]
)
def test_tables_with_a_log(rows: Rows, tmp_path: Path, name: str, log: str, url: str):
    """Delta, Iceberg and Hudi tables are refused by name, wherever below them the url begins; named files are read."""
    write(tmp_path / "table/data/a.parquet", id=[1])
    write(tmp_path / "table/data/p=1/a.parquet", id=[1])
    touch(tmp_path / "table" / log)
    for chosen in ("auto", "parquet"):
        with pytest.raises(StreamerError, match=f"{log} is a part of an? {name} table"):
            rows(url, format=chosen)
    # Who names files has asked the table for them.
    assert rows(["table/data/a.parquet"]) == [{"id": 1}]


@pytest.mark.parametrize("chosen", ["auto", "parquet"])
def test_a_log_in_a_hidden_folder(rows: Rows, tmp_path: Path, chosen: str):
    """A Hudi log in a hidden folder below the url is found and refused."""
    write(tmp_path / "table/a.parquet", id=[1])
    touch(tmp_path / "table/.hoodie/hoodie.properties")
    with pytest.raises(ManifestError, match=r"hoodie\.properties is a part of a Hudi table"):
        rows("table", format=chosen)


def test_more_files_of_a_log_than_data(rows: Rows, tmp_path: Path):
    """A table is told by its log, though more of its files are metadata than data."""
    write(tmp_path / "table/data/a.parquet", id=[1])
    touch(tmp_path / "table/metadata/v1.metadata.json")
    for number in range(5):
        touch(tmp_path / f"table/metadata/snap-{number}.avro", b"Obj\x01")
    with pytest.raises(ManifestError, match="Iceberg"):
        rows("table")


def test_columns_of_hudi(rows: Rows, tmp_path: Path):
    """A Parquet file with Hudi's columns is refused as Hudi's."""
    write(tmp_path / "data/a.parquet", _hoodie_commit_time=["1"], _hoodie_record_key=["1"])
    with pytest.raises(ManifestError, match="Hudi"):
        rows("data")


def test_partitions_are_fields_and_columns_of_conditions(rows: Rows, tmp_path: Path):
    """Partitions in paths are fields, also below a pattern and of one file, and columns of conditions."""
    write(tmp_path / "data/year=2023/lang=en/a.parquet", id=[1])
    write(tmp_path / "data/year=2024/lang=__HIVE_DEFAULT_PARTITION__/a.parquet", id=[2])
    wanted = [{"id": 1, "year": 2023, "lang": "en"}, {"id": 2, "year": 2024, "lang": None}]
    assert rows("data") == rows("data/year=*/*/*.parquet") == wanted
    assert rows("data/year=2023/lang=en/a.parquet") == wanted[:1]
    with closing(StreamingDataset(tmp_path / "data", engine="inline", shuffle=False)) as dataset:
        assert [dataset.select(where=f"year == {year}")[0]["id"] for year in (2023, 2024)] == [1, 2]
        assert dataset.select(where="lang is None").samples == 1


def test_folders_above_the_dataset_are_no_partitions(rows: Rows, tmp_path: Path):
    """Partitions are `key=value` below the folder that the urls share, up to a pattern; of a file, in all its path."""
    for year in (2023, 2024):
        write(tmp_path / f"exp=3/data/year={year}/a.parquet", id=[year])
    wanted = [{"id": 2023, "year": 2023}, {"id": 2024, "year": 2024}]
    base = "exp=3/data"
    for url in (base, f"{base}/", f"{base}/*/*.parquet", f"{base}/year=*/*", f"{base}/year={{2023,2024}}/*.parquet"):
        assert rows(url) == wanted, url
    assert rows(f"{base}/year={{2023,2024}}/a.parquet") == wanted
    assert rows([f"{base}/year=2023", f"{base}/year=2024/*.parquet"]) == wanted
    assert rows(f"{base}/year=2023") == rows(f"{base}/year=2023/*.parquet") == [{"id": 2023}]
    # A single brace is a pattern, too: what stands behind it is below the dataset.
    assert rows(f"{base}/{{year=2023}}/*.parquet") == wanted[:1]
    # Of files that are named one by one, pyarrow takes the whole path, and so does DuckDB.
    assert rows(f"{base}/year=2023/a.parquet") == [{"id": 2023, "exp": 3, "year": 2023}]
    assert [row["exp"] for row in rows([f"{base}/year=2024/a.parquet", f"{base}/year=2023/a.parquet"])] == [3, 3]


def test_partitions_of_json_lines_are_named(rows: Rows, tmp_path: Path, caplog):
    """Folders key=value of JSON lines are no fields, and the log says so."""
    touch(tmp_path / "data/year=2023/a.jsonl", b'{"id": 1}')
    touch(tmp_path / "data/year=2024/a.jsonl", b'{"id": 2}')
    assert rows("data") == [{"id": 1}, {"id": 2}]
    assert "2 files are in folders key=value, which are no fields of JSON lines (the first is year=" in caplog.text


def test_splits_that_are_partitions(rows: Rows, tmp_path: Path):
    """Folders split=train/ and split=test/ are splits, as train/ and test/ are."""
    for name in ("train", "test"):
        write(tmp_path / f"data/split={name}/a.parquet", id=[1])
    with pytest.raises(ConfigError, match="splits split=test/, split=train/"):
        rows("data")


def test_files_without_an_ending(rows: Rows, tmp_path: Path):
    """Parquet files without an extension, of Athena and Hive, need format="parquet"; "auto" says so."""
    write(tmp_path / "bare/20240701_144951_00030", id=[1])
    write(tmp_path / "bare/000000_0", id=[2])
    touch(tmp_path / "bare/LICENSE", b"text")
    touch(tmp_path / "bare/_SUCCESS", b"")
    assert sorted(row["id"] for row in rows("bare", format="parquet")) == [1, 2]
    with pytest.raises(ConfigError, match=r"is Parquet, by its first bytes.*format='parquet'"):
        rows("bare")
    write(tmp_path / "named/df.parquet.gzip", id=[3])
    touch(tmp_path / "named/README", b"text")
    assert rows("named") == rows("named", format="parquet") == [{"id": 3}]


def test_a_file_of_other_columns_is_left_out(rows: Rows, tmp_path: Path):
    """With Index(damaged="skip") a file whose column has another type is left out; without it, it is refused."""
    for name, values in (("a", [1]), ("b", ["x"]), ("c", [3])):
        write(tmp_path / f"data/{name}.parquet", id=values)
    with pytest.raises(ManifestError, match=r"b\.parquet has a column 'id' .* in .*a\.parquet"):
        rows("data")
    assert rows("data", manifest=Index(damaged="skip")) == [{"id": 1}, {"id": 3}]
    write(tmp_path / "data/b.parquet", id=[2], x=pa.array([1], pa.int8()))
    assert rows("data", format=Parquet(columns=("x",))) == [{"x": None}, {"x": 1}, {"x": None}]


@pytest.mark.parametrize("name", ["a-new", "z-new"])
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_a_column_that_is_added_while_a_job_runs(rows: Rows, tmp_path: Path, caplog, name: str, ending: str):
    """A job goes on with its fields when files with a new column are added, and logs it; the next job has it."""
    write(tmp_path / f"data/m-old.{ending}", id=[0, 1])
    dataset = StreamingDataset(tmp_path / "data", engine="inline", manifest=Index(on_change="refresh"))
    with closing(StreamingDataLoader(dataset, batch_size=1)) as loader:
        assert sorted(int(batch["id"]) for batch in loader) == [0, 1]
        write(tmp_path / f"data/{name}.{ending}", id=[2], extra=[1])
        batches = list(loader)
    assert sorted(int(batch["id"]) for batch in batches) == [0, 1, 2]
    assert all(batch.keys() == {"id", "__key__"} for batch in batches)
    assert "new fields (extra)" in caplog.text
    assert [row["extra"] for row in sorted(rows("data"), key=lambda row: row["id"])] == [None, None, 1]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_columns_that_come_one_after_the_other(rows: Rows, tmp_path: Path, ending: str):
    """Rows that were read before columns were added have all fields of today, and not those of the cache."""
    rows  # noqa: B018 - for its environment

    def read(*names: str) -> dict[str, object]:
        urls = [f"{tmp_path}/data/{name}.{ending}" for name in names] or f"{tmp_path}/data"
        dataset = StreamingDataset(urls, engine="inline")
        with closing(StreamingDataLoader(dataset, batch_size=1, collate_fn=list)) as loader:
            found = [sample for batch in loader for sample in batch]
        return next(sample for sample in found if sample["a"] == 1)

    write(tmp_path / f"data/m.{ending}", a=[1], b=[2])
    wanted = {"a": 1, "b": 2}
    assert wanted.items() <= read().items()
    added = [{"b": [7], "a": [8]}, {"c": [9]}, {"d": ["x"], "a": [10]}, {"e": [11], "b": [0]}]
    for number, columns in enumerate(added):
        write(tmp_path / f"data/{5 - number}.{ending}", **columns)
        wanted |= dict.fromkeys(columns.keys() - wanted.keys())
        assert wanted.items() <= read().items()
    for names in (("m", "4"), ("3", "m"), ("m",), ("2", "m")):
        assert {"a": 1, "b": 2}.items() <= read(*names).items()


def test_unsigned_numbers(rows: Rows, tmp_path: Path):
    """Unsigned integers above 2^63 are joined, compared and collated as they are."""
    rows  # noqa: B018 - for its environment
    write(tmp_path / "left/a.parquet", k=pa.array([2**64 - 1, 2**63, 5], pa.uint64()))
    write(tmp_path / "right/a.parquet", k=[-1, -(2**63), 5], v=["minus one", "least", "five"])
    left, right = (StreamingDataset(tmp_path / name, engine="inline", shuffle=False) for name in ("left", "right"))
    with closing(left), closing(right):
        with closing(left.join(right, on="k", missing="none")) as joined:
            assert [joined[number]["v"] for number in range(3)] == [None, None, "five"]
        counts = [
            left.select(where=f"k {one}").samples for one in (f"> {2**63}", f">= {2**63}", "> -1", f"== {2**64 - 1}")
        ]
        assert counts == [1, 2, 3, 1]
        for workers in (0, 1):
            with closing(StreamingDataLoader(left, batch_size=3, num_workers=workers)) as loader:
                assert next(iter(loader))["k"].tolist() == [2**64 - 1, 2**63, 5]


def test_keys_beyond_64_bits(rows: Rows, tmp_path: Path):
    """Integers of more than 64 bits in JSON lines are keys, and are not taken for others."""
    rows  # noqa: B018
    for name, numbers in (("left", [2**64 + 1, 1, -(2**64)]), ("right", [1, 2**64 + 1, 0])):
        touch(tmp_path / name / "a.jsonl", "".join(f'{{"k": {n}, "{name}": "{n}"}}\n' for n in numbers).encode())
    left, right = (StreamingDataset(tmp_path / name, engine="inline", shuffle=False) for name in ("left", "right"))
    joined = left.join(right, on="k", missing="none", columns=("right",))
    with closing(left), closing(right), closing(joined):
        assert [joined[number]["right"] for number in range(3)] == [str(2**64 + 1), "1", None]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"a": NaN}', "it has NaN, which is not JSON"),
        ('{"a": [1, -Infinity]}', "it has -Infinity"),
        ('{"a": "\\ud83d x"}', "half of a surrogate pair"),
        ('{"a": "x \\ude00"}', "half of a surrogate pair"),
        ('{"a": "NaN \\ud83d\\ude00", "b": }', "invalid character"),
    ],
)
def test_lines_that_are_not_json(rows: Rows, tmp_path: Path, line: str, reason: str):
    """JSON lines with NaN, Infinity or half of a surrogate pair are refused by what they have."""
    touch(tmp_path / "data/a.jsonl", line.encode())
    with pytest.raises(StreamerError, match=reason):
        rows("data")


def test_lines_in_utf_16(rows: Rows, tmp_path: Path):
    """JSON lines in UTF-16, as Windows' tools write them, are refused by name."""
    touch(tmp_path / "data/a.jsonl", '{"a": 1}\n'.encode("utf-16"))
    with pytest.raises(StreamerError, match="it is UTF-16"):
        rows("data")


def test_tokens_without_a_header(rows: Rows, tmp_path: Path):
    """Raw .npy files of OLMo and .ds files of datatrove have windows; files with headers of others are refused."""
    tokens = np.arange(200_000, 200_021, dtype="<u4")
    touch(tmp_path / "olmo/part-0-00000.npy", tokens.tobytes())
    chosen = Tokens(sequence_length=4, dtype="<u4")
    assert rows("olmo", format=chosen)[1]["tokens"].tolist() == list(range(200_004, 200_009))
    with pytest.raises(ManifestError, match=r"Tokens\(sequence_length=\.\.\., dtype="):
        rows("olmo", format=Tokens(sequence_length=4))
    touch(tmp_path / "ds/00000.ds", tokens.tobytes())
    touch(tmp_path / "ds/00000.ds.index", np.array([10, 21], "<u8").tobytes())
    touch(tmp_path / "ds/00000.ds.metadata", b"gpt2|4\n21\n21 T\n")
    assert rows("ds", format=Tokens(sequence_length=4))[1]["tokens"].tolist() == list(range(200_004, 200_009))
    with pytest.raises(ManifestError, match="21 tokens of <u4, not dtype='<u2'"):
        rows("ds", format=Tokens(sequence_length=4, dtype="<u2"))
    head = b"LITPKDS" + bytes(17)
    for start in (head, np.array([20240522, 1, 9], "<i4").tobytes(), np.array([20240520, 2, 9], "<i4").tobytes()):
        touch(tmp_path / "other/a.bin", start + tokens.tobytes())
        with pytest.raises(ManifestError, match=r"LITPKDS|lit-gpt|llm\.c"):
            rows("other", format=Tokens(sequence_length=4, dtype="<u2"))
