"""Makes the files of tests/formats/data/arrow with pyarrow, polars and datasets, and what they read of them.

PYTHONPATH=. python tests/formats/make/arrow_ipc.py [FOLDER] [ROWS]

pyarrow 26.0.1, polars 2.1.0, datasets 5.2.0, pillow.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import datasets
import numpy as np
import polars
import pyarrow as pa
from pyarrow import feather

from tests.formats.make.parquet import kinds_table, values_of
from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "arrow"


def wide_kinds(rows: int) -> pa.Table:
    """Makes columns that Parquet does not have: large types, views, lists of one length, times, dictionaries."""
    some = [number % 5 != 3 for number in range(rows)]

    def column(values: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array([value if there else None for value, there in zip(values, some, strict=True)], kind)

    numbers = range(rows)
    table = kinds_table(rows).drop_columns(["category"])
    for name, array in {
        "large": column([f"text {n}" for n in numbers], pa.large_string()),
        "large_bytes": column([bytes([n % 256]) * (n % 7) for n in numbers], pa.large_binary()),
        "view": column([f"a longer text, number {n}" for n in numbers], pa.string_view()),
        "bytes_view": column([bytes([n % 256]) * (n % 30) for n in numbers], pa.binary_view()),
        "pair": column([[n, -n] for n in numbers], pa.list_(pa.float32(), 2)),
        "length": column([n * 10**6 for n in numbers], pa.duration("us")),
        "second": column(list(numbers), pa.time32("s")),
        "late": column([n * 10**6 for n in numbers], pa.time64("us")),
        "date64": column([n * 86_400_000 for n in numbers], pa.date64()),
    }.items():
        table = table.append_column(name, array)
    return table


def write_stream(folder: Path, rows: int) -> None:
    table = wide_kinds(rows)
    folder.mkdir(parents=True)
    for name, part in (("a", table), ("b", table.slice(3, 5))):
        with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as sink:
            for batch in part.to_batches(max_chunksize=max(1, rows // 3)):
                sink.write_batch(batch)
    expect(folder, [pa.ipc.open_stream(path).read_all() for path in sorted(folder.glob("*.arrow"))])


def write_file(folder: Path, rows: int) -> None:
    """Writes files with dictionaries, and one batch of no rows."""
    words = pa.array([f"word {n % 7}" if n % 9 else None for n in range(rows)]).dictionary_encode()
    table = pa.table(
        {"word": words, "n": pa.array(range(rows), pa.int32()), "body": [b"x" * (n % 40) for n in range(rows)]}
    )
    folder.mkdir(parents=True)
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as sink:
        for batch in table.to_batches(max_chunksize=max(1, rows // 8)):
            sink.write_batch(batch)
        sink.write_batch(batch.slice(0, 0))
    expect(folder, [pa.ipc.open_file(path).read_all() for path in sorted(folder.glob("*.arrow"))])


def write_feather(folder: Path, rows: int) -> None:
    """Writes compressed files, each by another writer."""
    folder.mkdir(parents=True)
    table = pa.table({"text": [f"text {n // 3}" * 5 for n in range(rows)], "n": pa.array(range(rows), pa.int64())})
    feather.write_feather(
        table.cast(pa.schema([("text", pa.string_view()), ("n", pa.int64())])),
        folder / "a.feather",
        "zstd",
        chunksize=rows // 4,
    )
    polars.from_arrow(table).write_ipc(folder / "b.feather", compression="lz4")
    expect(folder, [table, polars.read_ipc(folder / "b.feather").to_arrow()])


def write_huggingface(folder: Path, rows: int) -> None:
    """Writes a dataset as `save_to_disk` lays it out."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "bird"]),
            "caption": datasets.Value("string"),
            "grid": datasets.Array2D((2, 3), "float32"),
            "ids": datasets.List(datasets.Value("int32")),
            "point": datasets.List(datasets.Value("float32"), length=2),
            "objects": {"bbox": datasets.List(datasets.List(datasets.Value("float32"), length=4))},
        }
    )
    images = kinds_table(rows)["picture"].to_pylist()
    made = [
        {
            "image": {"bytes": images[n], "path": f"{n}.png"} if n % 5 else None,
            "label": n % 3,
            "caption": f"number {n}" if n % 4 else None,
            "grid": np.full((2, 3), n, np.float32),
            "ids": list(range(n % 4)),
            "point": [n, -n],
            "objects": {"bbox": [[n, 0, 1, 2]] * (n % 3)},
        }
        for n in range(rows)
    ]
    datasets.Dataset.from_list(made, features=features).save_to_disk(folder, num_shards=2)
    read = datasets.load_from_disk(folder).cast_column("image", datasets.Image(decode=False))
    samples = []
    for row in read:
        image, objects = row.pop("image"), row.pop("objects")
        row["grid"] = np.array(row["grid"], "<f4")
        row["ids"] = np.array(row["ids"], "<i4")
        row["point"] = np.array(row["point"], "<f4")
        row["objects.bbox"] = np.array(objects["bbox"], "<f4").reshape(-1, 4)
        row["image"] = image and image["bytes"]
        samples.append(row)
    write_expected(folder, samples)


def expect(folder: Path, tables: list[pa.Table]) -> None:
    """Writes what was read, as streamer's fields have it."""
    samples: list[dict[str, object]] = []
    for whole in tables:
        table = whole
        while any(pa.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
        columns = {name: values_of(_plain(table.column(name).combine_chunks())) for name in table.column_names}
        samples += [{name: values[row] for name, values in columns.items()} for row in range(table.num_rows)]
    write_expected(folder, samples)


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_time(column.type) or pa.types.is_duration(column.type) or pa.types.is_date64(column.type):
        return column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if pa.types.is_fixed_size_list(column.type):
        return column.cast(pa.list_(column.type.value_type))
    return column


def main(root: Path, rows: int) -> None:
    shutil.rmtree(root, ignore_errors=True)
    write_stream(root / "stream", rows)
    write_file(root / "file", 5 * rows)
    write_feather(root / "feather", 3 * rows)
    write_huggingface(root / "huggingface", rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 20)
