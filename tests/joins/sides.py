"""The two sides of joins: tars with a text and a record per sample, and rows for them in every kind of dataset."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from tests.tars import tar_of
from tests.zarrs import zarr_store

COUNT = 240
SHARDS = 4


def uid(number: int) -> str:
    """Returns the key of a sample; keys are in no order."""
    return f"u{number * 7919 % 100003}"


def npy(array: np.ndarray) -> bytes:
    """Returns the bytes of a `.npy` file."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def vectors_of(kind: str) -> dict[str, Any]:
    """Returns arguments of `join` with the vectors of a right side, "parquet" or "tars"."""
    key, name = ("meta.json.id.uid", "vector.npy") if kind == "tars" else ("uid", "vector")
    return {"on": ("json.uid", key), "columns": {name: "vector"}}


def vector(number: int) -> np.ndarray:
    """Returns the vector of the row with this number."""
    return np.arange(number, number + 8, dtype=np.float32)


def write_left(folder: Path, count: int = COUNT) -> Path:
    """Writes tars in which each sample has its number, and a key in its JSON."""
    folder.mkdir(parents=True)
    for shard in range(SHARDS):
        entries = []
        for number in range(shard * count // SHARDS, (shard + 1) * count // SHARDS):
            record = {"uid": uid(number), "n": number, "file": f"{number:06}.npy"}
            entries.append((f"{number:06}.json", json.dumps(record).encode()))
            entries.append((f"{number:06}.txt", f"text {number} ".encode() * 50))
        (folder / f"{shard:03}.tar").write_bytes(tar_of(entries))
    return folder


def parquet(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes rows with a key, a vector and a number, in small row groups."""
    folder.mkdir(parents=True)
    for shard, some in enumerate(np.array_split(np.array(numbers), 3)):
        pq.write_table(table(some), folder / f"{shard}.parquet", row_group_size=16)
    return folder


def table(numbers: Sequence[int]) -> pa.Table:
    """Returns the rows as columns."""
    return pa.table(
        {
            "uid": [uid(int(number)) for number in numbers],
            "n": [int(number) for number in numbers],
            "vector": [vector(int(number)).tolist() for number in numbers],
        }
    )


def arrow(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes the rows as Arrow files, in small batches."""
    folder.mkdir(parents=True)
    for shard, some in enumerate(np.array_split(np.array(numbers), 3)):
        rows = table(some)
        with pyarrow.ipc.new_file(folder / f"{shard}.arrow", rows.schema) as file:
            file.write_table(rows, max_chunksize=16)
    return folder


def hdf5(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes the rows as datasets of HDF5, whose keys are numbers."""
    folder.mkdir(parents=True)
    for shard, some in enumerate(np.array_split(np.array(numbers), 3)):
        with h5py.File(folder / f"{shard}.h5", "w") as file:
            file.create_dataset("n", data=some.astype(np.int64))
            rows = np.stack([vector(int(number)) for number in some])
            file.create_dataset("vector", data=rows, chunks=(16, 8), compression="gzip")
    return folder


def zarr(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes the rows as a group of zarr arrays in chunks of 16 rows."""
    rows = np.stack([vector(int(number)) for number in numbers])
    for name, content in zarr_store({"n": np.array(numbers, np.int64), "vector": rows}, 16).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def json_lines(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes the rows as JSON lines."""
    folder.mkdir(parents=True)
    lines = (json.dumps({"uid": uid(n), "n": int(n), "vector": vector(n).tolist()}) for n in map(int, numbers))
    (folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def tars(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes the rows as tars, with the key in a JSON."""
    folder.mkdir(parents=True)
    for shard, some in enumerate(np.array_split(np.array(numbers), 3)):
        entries = []
        for number in map(int, some):
            entries.append((f"row{number}.meta.json", json.dumps({"id": {"uid": uid(number)}}).encode()))
            entries.append((f"row{number}.vector.npy", npy(vector(number))))
        (folder / f"{shard}.tar").write_bytes(tar_of(entries))
    return folder


def mds(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes the rows as a shard of MosaicML Streaming, by its layout and not by its library."""
    folder.mkdir(parents=True)
    head = json.dumps({"column_names": ["uid", "vector"]}).encode()
    samples = []
    for number in map(int, numbers):
        key, content = uid(number).encode(), vector(number).tobytes()
        samples.append(struct.pack("<II", len(key), len(content)) + key + content)
    begin = 4 + 4 * (len(samples) + 1) + len(head)
    starts = begin + np.cumsum([0, *map(len, samples)])
    content = struct.pack("<I", len(samples)) + starts.astype("<u4").tobytes() + head + b"".join(samples)
    (folder / "shard.00000.mds").write_bytes(content)
    shard = {
        "version": 2,
        "format": "mds",
        "samples": len(samples),
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}},
        "zip_data": None,
        "compression": None,
        "column_names": ["uid", "vector"],
        "column_encodings": ["str", "bytes"],
        "column_sizes": [None, None],
    }
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    return folder


def files(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes a file for each row, whose name is the key of its sample in tars."""
    folder.mkdir(parents=True)
    for number in map(int, numbers):
        np.save(folder / f"{number:06}.npy", vector(number))
    return folder


def array(folder: Path, numbers: Sequence[int]) -> Path:
    """Writes one array, whose rows have no key but their number."""
    folder.mkdir(parents=True)
    np.save(folder / "rows.npy", np.stack([vector(int(number)) for number in numbers]))
    return folder
