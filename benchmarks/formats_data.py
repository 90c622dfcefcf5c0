"""The same samples in each format, for formats.py: one function writes one file of a format.

A format is added by a `Way`: its name, what it is opened with, and its writer. The writers here are the simplest that a
peer's reader takes; files of the peers' own writers are those of tests/formats.
"""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import checkout  # noqa: F401
import google_crc32c
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.feed.generate import field, varint
from streamer.formats import (
    HDF5,
    MDS,
    Folder,
    JsonLines,
    LitData,
    Npy,
    Parquet,
    RawArrays,
    RecordIO,
    TFRecord,
    WebDataset,
    Zarr,
)
from streamer.formats.base import Format

# Of a file: 50 MB of samples of 110 KB.
FILE_SAMPLES = 500


@dataclass(frozen=True)
class Way:
    """One format.

    Attributes:
        name: in the table.
        format: of the sample length in bytes.
        write: writes samples to a file, and its index file beside it.
        least: of the rate of `beside`; 0: no bound.
        most_recoding: CPU seconds per GB fetched; 0: samples are not recoded.
        beside: the format that it is compared with.
    """

    name: str
    format: Callable[[int], Format]
    write: Callable[[Path, Sequence[bytes]], object]
    least: float = 0.0
    most_recoding: float = 0.0
    beside: str = "tar"


def make(folder: Path, way: Way, samples: int, sample_bytes: int) -> None:
    """Writes the samples, `FILE_SAMPLES` to a file; they are those of every other format."""
    folder.mkdir(parents=True)
    for first in range(0, samples, FILE_SAMPLES):
        numbers = range(first, min(samples, first + FILE_SAMPLES))
        way.write(folder / f"{first:07d}", [content(number, sample_bytes) for number in numbers])


def content(number: int, length: int) -> bytes:
    """Noise that begins with the number."""
    noise = np.random.default_rng(number).bytes(length - 8)
    return number.to_bytes(8, "little") + noise


def write_tar(stem: Path, samples: Sequence[bytes]) -> list[int]:
    edges = []
    with tarfile.open(f"{stem}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, sample in enumerate(samples):
            edges.append(tar.offset)
            member = tarfile.TarInfo(f"{stem.name}-{number:06d}.bin")
            member.size = len(sample)
            tar.addfile(member, io.BytesIO(sample))
        edges.append(tar.offset)
    return edges


def write_indexed_tar(stem: Path, samples: Sequence[bytes]) -> None:
    """As Megatron Energon indexes it."""
    edges = write_tar(stem, samples)
    Path(f"{stem}.tar.idx").write_bytes(struct.pack(f"<{len(edges)}Q", *edges))


def write_tfrecord(stem: Path, samples: Sequence[bytes]) -> list[int]:
    edges = [0]
    with open(f"{stem}.tfrecord", "wb") as file:
        for number, sample in enumerate(samples):
            payload = example(number, sample)
            length = struct.pack("<Q", len(payload))
            file.write(length + _masked(length) + payload + _masked(payload))
            edges.append(file.tell())
    return edges


def write_indexed_tfrecord(stem: Path, samples: Sequence[bytes]) -> None:
    edges = write_tfrecord(stem, samples)
    lines = (f"{first} {stop - first}\n" for first, stop in pairwise(edges))
    Path(f"{stem}.idx").write_text("".join(lines))


def example(number: int, sample: bytes) -> bytes:
    """A tf.train.Example with the features "image" and "label"."""
    image = field(1, field(1, b"image") + field(2, field(1, field(1, sample))))
    label = field(1, field(1, b"label") + field(2, field(3, field(1, varint(number)))))
    return field(1, image + label)


def write_recordio(stem: Path, samples: Sequence[bytes]) -> None:
    lines = []
    with open(f"{stem}.rec", "wb") as file:
        for number, sample in enumerate(samples):
            lines.append(f"{number}\t{file.tell()}\n")
            payload = struct.pack("<IfQQ", 0, float(number), number, 0) + sample
            file.write(struct.pack("<II", 0xCED7230A, len(payload)) + payload + bytes(-len(payload) % 4))
    Path(f"{stem}.idx").write_text("".join(lines))


def write_json_lines(stem: Path, samples: Sequence[bytes]) -> None:
    lines = (json.dumps({"text": sample.hex()[: len(sample) - 40], "id": n}) for n, sample in enumerate(samples))
    Path(f"{stem}.jsonl").write_text("\n".join(lines) + "\n")


def write_npy(stem: Path, samples: Sequence[bytes]) -> None:
    np.save(f"{stem}.npy", np.frombuffer(b"".join(samples), np.uint8).reshape(len(samples), -1))


def write_npy_files(stem: Path, samples: Sequence[bytes]) -> None:
    for number, sample in enumerate(samples):
        np.save(f"{stem}-{number:06d}.npy", np.frombuffer(sample, np.uint8))


def write_hdf5(stem: Path, samples: Sequence[bytes]) -> None:
    """One dataset, contiguous."""
    with h5py.File(f"{stem}.h5", "w") as file:
        file["rows"] = np.frombuffer(b"".join(samples), np.uint8).reshape(len(samples), -1)


def write_zarr(stem: Path, samples: Sequence[bytes]) -> None:
    """One array of version 2, not compressed; a chunk of it for each call."""
    first, length = int(stem.name), len(samples[0])
    array = {"zarr_format": 2, "shape": [first + len(samples), length], "chunks": [FILE_SAMPLES, length]}
    how = {"dtype": "|u1", "compressor": None, "fill_value": 0, "order": "C", "filters": None}
    (stem.parent / ".zarray").write_text(json.dumps(array | how))
    chunk = b"".join(samples) + bytes((FILE_SAMPLES - len(samples)) * length)
    (stem.parent / f"{first // FILE_SAMPLES}.0").write_bytes(chunk)


def write_raw(stem: Path, samples: Sequence[bytes]) -> None:
    Path(f"{stem}.bin").write_bytes(b"".join(samples))


def write_parquet(stem: Path, samples: Sequence[bytes]) -> None:
    """One row group, pages of 1 MB and a page index, as Hugging Face's datasets write pictures."""
    table = pa.table({"image": samples, "label": list(range(len(samples)))})
    # A page ends after a batch, by default of 1,024 rows.
    options = {"compression": "none", "use_dictionary": ["label"], "write_page_index": True, "write_batch_size": 10}
    pq.write_table(table, f"{stem}.parquet", **options)


def write_text_parquet(stem: Path, samples: Sequence[bytes]) -> None:
    """Words of this program, with a number and tokens, compressed; row groups of 1,000 rows."""
    drawn, words = np.random.default_rng(len(samples)), Path(__file__).read_text().split()
    rows = sum(map(len, samples)) // 2000
    table = pa.table(
        {
            "text": [" ".join(drawn.choice(words, 300)) for _ in range(rows)],
            "id": list(range(rows)),
            "tokens": [drawn.integers(0, 50_000, 200).astype(np.int32) for _ in range(rows)],
        }
    )
    pq.write_table(table, f"{stem}.parquet", compression="snappy", row_group_size=1000)


def write_mds(stem: Path, samples: Sequence[bytes]) -> None:
    """Columns "image" and "label", as MosaicML's writer has them."""
    content = _with_starts(
        [struct.pack("<I", len(sample)) + sample + struct.pack("<q", n) for n, sample in enumerate(samples)]
    )
    Path(f"{stem}.mds").write_bytes(content)
    columns = {"column_names": ["image", "label"], "column_encodings": ["bytes", "int"], "column_sizes": [None, 8]}
    file = {"basename": f"{stem.name}.mds", "bytes": len(content), "hashes": {}}
    shard = {"version": 2, "format": "mds", "samples": len(samples), "raw_data": file, "zip_data": None, **columns}
    _list(stem.parent, {"version": 2, "shards": []}, "shards", shard)


def write_litdata(stem: Path, samples: Sequence[bytes]) -> None:
    """Items of "image" and "label", as LitData 0.2.51 writes them."""
    items = [struct.pack("<II", len(sample), 8) + sample + struct.pack("<q", n) for n, sample in enumerate(samples)]
    name, content = f"chunk-0-{int(stem.name)}.bin", _with_starts(items)
    (stem.parent / name).write_bytes(content)
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = [1, {"type": "builtins.dict", "context": '["image", "label"]', "children_spec": [leaf, leaf]}]
    config = {"data_format": ["bytes", "int"], "data_spec": json.dumps(tree)}
    chunk = {"filename": name, "chunk_size": len(samples), "chunk_bytes": len(content)}
    _list(stem.parent, {"config": config, "chunks": []}, "chunks", chunk)


def _with_starts(samples: Sequence[bytes]) -> bytes:
    head = 4 * (len(samples) + 2)
    starts = np.cumsum([head, *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + starts.tobytes() + b"".join(samples)


def _list(folder: Path, empty: dict[str, object], name: str, entry: dict[str, object]) -> None:
    """Adds a file to the index of its folder."""
    path = folder / "index.json"
    index = json.loads(path.read_text()) if path.exists() else empty
    index[name].append(entry)
    path.write_text(json.dumps(index))


def _masked(raw: bytes) -> bytes:
    value = google_crc32c.value(raw)
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


WAYS = (
    Way("tar", lambda length: WebDataset(), write_tar),
    Way("tar+idx", lambda length: WebDataset(), write_indexed_tar),
    Way("tfrecord", lambda length: TFRecord(), write_tfrecord, 0.55),
    Way("tfrecord+idx", lambda length: TFRecord(), write_indexed_tfrecord, 0.55),
    Way("recordio+idx", lambda length: RecordIO(), write_recordio, 0.9),
    Way("mds", lambda length: MDS(), write_mds, 0.9),
    Way("litdata", lambda length: LitData(), write_litdata, 0.9),
    Way("jsonl", lambda length: JsonLines(), write_json_lines),
    Way("parquet", lambda length: Parquet(), write_parquet, 0.8, 0.8),
    Way("parquet text", lambda length: Parquet(), write_text_parquet, most_recoding=8),
    Way("npy files", lambda length: Folder(), write_npy_files),
    Way("npy rows", lambda length: Npy(), write_npy, 0.9, beside="npy files"),
    Way("hdf5 rows", lambda length: HDF5(), write_hdf5, 0.9, beside="npy files"),
    Way("zarr rows", lambda length: Zarr(), write_zarr, 0.9, beside="npy files"),
    Way("raw arrays", lambda length: RawArrays("u1", (length,)), write_raw),
)
