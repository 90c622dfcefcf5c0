"""Makes the files of tests/formats/data/parquet with pyarrow and datasets, and what they read of them.

PYTHONPATH=. python tests/formats/make/parquet.py [FOLDER] [ROWS]

pyarrow 26.0.1, datasets 5.2.0, pillow.
"""

from __future__ import annotations

import datetime
import decimal
import io
import random
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "parquet"


def main(root: Path, rows: int) -> None:
    write_kinds(root / "kinds", rows)
    write_pages(root / "pages", 7 * rows)
    write_codecs(root / "codecs", 2 * rows)
    write_huggingface(root / "huggingface", rows)


def kinds_table(rows: int) -> pa.Table:
    """Makes every kind of column, with nulls."""
    some = [number % 5 != 3 for number in range(rows)]
    pictures = [_picture(number) for number in range(rows)]

    def column(values: list[object], kind: pa.DataType) -> pa.Array:
        return pa.array([value if there else None for value, there in zip(values, some, strict=True)], kind)

    day = datetime.date(2026, 1, 1)
    moment = datetime.datetime(2026, 1, 1, 12, 30, tzinfo=datetime.UTC)
    pairs = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
    numbers = range(rows)
    return pa.table(
        {
            "u8": column([n * 12 % 256 for n in numbers], pa.uint8()),
            "i16": column([-n * 999 % 2**15 - 2**14 for n in numbers], pa.int16()),
            "u32": column([2**32 - 1 - n for n in numbers], pa.uint32()),
            "i64": pa.array([n * 2**30 for n in numbers], pa.int64()),
            "u64": column([2**64 - 1 - n for n in numbers], pa.uint64()),
            "f2": column([np.float16(n % 99 / 4) for n in numbers], pa.float16()),
            "f4": column([n / 3 for n in numbers], pa.float32()),
            "f8": column([n / 3 for n in numbers], pa.float64()),
            "yes": column([n % 3 == 0 for n in numbers], pa.bool_()),
            "name": column([f"nämé {n}" * (n % 4) for n in numbers], pa.string()),
            "category": column(["abc"[n % 3] for n in numbers], pa.string()).dictionary_encode(),
            "payload": column([bytes([n % 256]) * (n % 50) for n in numbers], pa.binary()),
            "picture": pa.array(pictures, pa.binary()),
            "id": column([bytes([n % 256]) * 6 for n in numbers], pa.binary(6)),
            "price": column([decimal.Decimal(n * 101 % 10**6) / 1000 for n in numbers], pa.decimal128(9, 3)),
            "day": column([day + datetime.timedelta(n) for n in numbers], pa.date32()),
            "moment": column([moment + datetime.timedelta(hours=n) for n in numbers], pa.timestamp("us", "UTC")),
            "ints": column([list(range(n % 4)) for n in numbers], pa.list_(pa.int16())),
            "floats": pa.array([[n / 2] * (n % 3) for n in numbers], pa.large_list(pa.float32())),
            "flags": column([[n % 2 == 0, True] for n in numbers], pa.list_(pa.bool_())),
            "meta": pa.array(
                [{"w": n, "inner": {"s": f"s{n}"} if n % 3 else None} if n % 4 else None for n in numbers],
                pa.struct([("w", pa.int64()), ("inner", pa.struct([("s", pa.string())]))]),
            ),
            "words": column([[f"w{n}", None, ""][: n % 4] for n in numbers], pa.list_(pa.string())),
            "objects": column([[{"x": n, "tags": ["a"] * (n % 3)}] * (n % 3) for n in numbers], pa.list_(pairs)),
            "map": column([[("k", n), ("l", None)][: n % 3] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "nothing": pa.array([None] * rows, pa.null()),
        }
    )


def write_kinds(folder: Path, rows: int) -> None:
    """Writes every kind of column, in three row groups."""
    table = kinds_table(rows)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "a.parquet", row_group_size=-(-rows // 3))
    pq.write_table(table.slice(3, 4), folder / "b.parquet", compression="none", use_dictionary=False)
    _expect(folder, sorted(folder.glob("*.parquet")))


def write_pages(folder: Path, rows: int) -> None:
    """Writes one row group of many pages, which begin at other rows in every column."""
    drawn = random.Random(3)
    names = pa.struct([("name", pa.string()), ("box", pa.list_(pa.float32()))])
    table = pa.table(
        {
            "content": pa.array([drawn.randbytes(drawn.randrange(150)) for _ in range(rows)], pa.binary()),
            "label": pa.array([n % 3 if n % 7 else None for n in range(rows)], pa.int32()),
            "text": pa.array([f"{'abc'[n // 40 % 3] * 4}" for n in range(rows)], pa.string()),
            "ids": pa.array([[n] * (n % 3) if n % 11 else None for n in range(rows)], pa.list_(pa.int64())),
            "objects": pa.array([[{"name": f"o{n}", "box": [n, 1]}] * (n % 3) for n in range(rows)], pa.list_(names)),
            "map": pa.array([[("k", n)] * (n % 2) for n in range(rows)], pa.map_(pa.string(), pa.int64())),
            "meta": pa.array([{"a": n, "b": str(n)} if n % 5 else None for n in range(rows)]),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    for version in ("1.0", "2.0"):
        pq.write_table(
            table,
            folder / f"v{version[0]}.parquet",
            data_page_version=version,
            data_page_size=600,
            write_batch_size=5,
            dictionary_pagesize_limit=700,
            write_page_index=True,
            write_page_checksum=True,
            compression="zstd" if version == "2.0" else "none",
        )
    _expect(folder, sorted(folder.glob("*.parquet")))


def write_codecs(folder: Path, rows: int) -> None:
    """Writes one file of each compression."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": list(range(rows)), "text": [f"text {n // 7}" for n in range(rows)]})
    for codec in ("brotli", "gzip", "lz4", "none", "snappy", "zstd"):
        pq.write_table(table, folder / f"{codec}.parquet", compression=codec)
    _expect(folder, sorted(folder.glob("*.parquet")))


def write_huggingface(folder: Path, rows: int) -> None:
    """Writes a dataset as datasets lays out a repository on the Hub."""
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog", "bird"]),
            "caption": datasets.Value("string"),
            # To make an Audio of bytes, datasets wants a decoder: it is declared below.
            "clip": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")},
            "grid": datasets.Array2D((2, 3), "float32"),
            "ids": datasets.List(datasets.Value("int32")),
            "point": datasets.List(datasets.Value("float32"), length=2),
            "objects": {
                "bbox": datasets.List(datasets.List(datasets.Value("float32"), length=4)),
                "category": datasets.List(datasets.Value("int64")),
            },
            "answers": datasets.List({"text": datasets.Value("string"), "start": datasets.Value("int32")}),
            "images": datasets.List(datasets.Image()),
            "parts": datasets.List({"text": datasets.Value("string"), "image": datasets.Image()}),
            "extra": datasets.Json(),
            "turns": datasets.List(datasets.Json()),
            "tokens": datasets.List(datasets.List(datasets.Value("int16"))),
        }
    )
    (folder / "data").mkdir(parents=True, exist_ok=True)
    files = []
    for part in range(2):
        made = [_example(part * rows + number) for number in range(rows // 2)]
        dataset = datasets.Dataset.from_list(made, features=features).cast_column("clip", datasets.Audio(decode=False))
        files.append(folder / "data" / f"train-0000{part}-of-00002.parquet")
        dataset.to_parquet(files[-1])
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")
    (folder / "dataset_infos.json").write_text("{}\n")
    read = datasets.load_dataset("parquet", data_files=[str(path) for path in files], split="train", streaming=True)
    read = read.cast_column("image", datasets.Image(decode=False)).cast_column("clip", datasets.Audio(decode=False))
    samples = []
    for row in read:
        objects, image, clip = row.pop("objects"), row.pop("image"), row.pop("clip")
        row["grid"] = np.array(row["grid"], "<f4")
        row["ids"] = np.array(row["ids"], "<i4")
        row["point"] = np.array(row["point"], "<f4")
        row["objects.bbox"] = np.array(objects["bbox"], "<f4").reshape(-1, 4)
        row["objects.category"] = np.array(objects["category"], "<i8")
        row["image"], row["clip"] = image and image["bytes"], clip["bytes"]
        row["images"] = [np.array(each.convert("RGB")) for each in row["images"]]
        row["parts"] = [
            {**part, "image": part["image"] and np.array(part["image"].convert("RGB"))} for part in row["parts"]
        ]
        row["tokens"] = [np.array(each, "<i2") for each in row["tokens"]]
        samples.append(row)
    write_expected(folder, samples)


def _example(number: int) -> dict[str, object]:
    boxes = number % 3
    return {
        "image": {"bytes": _picture(number), "path": f"{number}.png"} if number % 5 else None,
        "label": number % 3,
        "caption": f"number {number}" if number % 4 else None,
        "clip": {"bytes": b"RIFF" + bytes([number % 256]) * 20, "path": None},
        "grid": np.full((2, 3), number, np.float32),
        "ids": list(range(number % 4)),
        "point": [number, -number],
        "objects": {"bbox": [[number, 0, 1, 2]] * boxes, "category": [number] * boxes},
        "answers": [{"text": f"a{number}", "start": number}] * boxes,
        "images": [{"bytes": _picture(2 * n + 1), "path": None} for n in range(number % 4)],
        "parts": [
            {"text": f"before {number}", "image": None},
            {"text": None, "image": {"bytes": _picture(2 * number + 1), "path": "p.png"}},
        ],
        "extra": {"n": number, "list": [None, {"a": 0.5}]},
        "turns": [{"role": "user"}, [number], "text"][: number % 4],
        "tokens": [list(range(n)) for n in range(number % 4)],
    }


def _picture(number: int) -> bytes:
    made = io.BytesIO()
    kind = ("JPEG", "PNG")[number % 2]
    Image.new("RGB", (4 + number % 3, 4), (number * 10 % 256, 0, 99)).save(made, kind)
    return made.getvalue()


# ---------------------------------------------------------------- what pyarrow reads, as streamer's fields


def _expect(folder: Path, files: list[Path]) -> None:
    samples: list[dict[str, object]] = []
    for path in files:
        table = pq.read_table(path, use_threads=False)
        while any(pa.types.is_struct(field.type) for field in table.schema):
            table = table.flatten()
        columns = {name: values_of(table.column(name)) for name in table.column_names}
        samples += [{name: values[row] for name, values in columns.items()} for row in range(table.num_rows)]
    write_expected(folder, samples)


def values_of(column: pa.ChunkedArray) -> list[object]:
    """Returns the values of a column, as streamer's fields have them."""
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    values = column.to_pylist(maps_as_pydicts="strict")
    if pa.types.is_decimal(kind):
        return [None if value is None else float(value) for value in values]
    return [_told(value, kind) for value in values]


def _told(value: object, kind: pa.DataType) -> object:
    """Returns a nested value with lists of numbers as arrays."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {part.name: _told(value[part.name], part.type) for part in kind}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_type
        if pa.types.is_integer(item) or pa.types.is_floating(item) or pa.types.is_boolean(item):
            return np.array(value, item.to_pandas_dtype())
        return [_told(each, item) for each in value]
    return value


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else 20)
