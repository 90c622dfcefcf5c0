"""Generates the data of a workload: noise, in objects of the shapes that its public benchmark defines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.feed.workloads import Workload
from streamer.errors import ConfigError
from streamer.tables.tfrecord import sum_lengths

Progress = Callable[[float, float], None]

# Of float32 values in the columns of a row; together 2,164,832 bytes.
_PARQUET_LISTS = {"t5_encodings": 524_328, "clip_encodings": 409, "mean": 8232, "logvar": 8232, "timestamp": 7}
# A row group of 8.7 MB, about a chunk.
_PARQUET_GROUP_ROWS = 4
_NOISE_BYTES = 1 << 26


def generate(workload: Workload, folder: Path, objects: int, progress: Progress = lambda done, total: None) -> None:
    """Writes the objects of a workload that are not in the folder yet, the same ones each time.

    Raises:
        ConfigError: parquet without pyarrow.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write, suffix = _WRITERS[workload.kind]
    sizes = _sizes(workload, objects)
    noise = _Noise()
    for number in range(objects):
        path = folder / f"{number:07d}.{suffix}"
        if not path.exists():
            # Under another name until it is whole: an interrupted run leaves no short object.
            unfinished = path.with_suffix(".unfinished")
            write(unfinished, sizes[number].tolist(), noise)
            unfinished.rename(path)
        progress(number + 1, objects)


def _sizes(workload: Workload, objects: int) -> npt.NDArray[np.int64]:
    """(objects, samples): bytes of each sample."""
    drawn = np.random.default_rng(7).normal(
        workload.sample_bytes, workload.deviation_bytes, (objects, workload.object_samples)
    )
    return np.maximum(drawn, workload.sample_bytes / 16).astype(np.int64)


class _Noise:
    """Bytes that no store and no disk can compress, at the cost of a copy."""

    def __init__(self) -> None:
        self._bytes = np.random.default_rng(17).bytes(_NOISE_BYTES)
        self._at = 0

    def take(self, length: int) -> bytes:
        """Returns the next bytes, which repeat only after a terabyte."""
        self._at = (self._at + 4093) % _NOISE_BYTES
        begun = self._bytes[self._at : self._at + length]
        whole, rest = divmod(length - len(begun), _NOISE_BYTES)
        return begun + self._bytes * whole + self._bytes[:rest]


def _write_jpeg(path: Path, sizes: list[int], noise: _Noise) -> None:
    """Writes a file with the size and the first bytes of a picture; nothing decodes it."""
    path.write_bytes(b"\xff\xd8\xff" + noise.take(sizes[0] - 3))


def _write_npz(path: Path, sizes: list[int], noise: _Noise) -> None:
    """Writes a volume "x" of uint8 and a label "y", not compressed."""
    with path.open("wb") as file:
        np.savez(file, x=np.frombuffer(noise.take(sizes[0]), np.uint8), y=np.zeros(1, np.int64))


def _write_tfrecord(path: Path, sizes: list[int], noise: _Noise) -> None:
    """Writes records of tf.train.Example with the features "image" and "size".

    The checksums of the payloads are zero: the reader does not read them, and to make them needs one more library.
    """
    with path.open("wb") as file:
        for size in sizes:
            payload = _example(noise.take(size))
            lengths = np.array([len(payload)], "<u8")
            file.writelines((lengths.tobytes(), sum_lengths(lengths).astype("<u4").tobytes(), payload, bytes(4)))


def _example(image: bytes) -> bytes:
    size = field(1, field(1, b"size") + field(2, field(3, field(1, varint(len(image))))))
    return field(1, field(1, field(1, b"image") + field(2, field(1, field(1, image)))) + size)


def field(number: int, value: bytes) -> bytes:
    """Encodes a field of a protobuf message that has a length."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Encodes a number as protobuf does."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _write_parquet(path: Path, sizes: list[int], noise: _Noise) -> None:
    """Writes rows of lists of float32, neither compressed nor encoded."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("--like flux needs pyarrow: pip install 'streamer-data[parquet]'", field="like") from error
    kind = pa.list_(pa.float32())
    schema = pa.schema([(name, kind) for name in _PARQUET_LISTS])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for first in range(0, len(sizes), _PARQUET_GROUP_ROWS):
            rows = min(_PARQUET_GROUP_ROWS, len(sizes) - first)
            columns = [
                pa.ListArray.from_arrays(
                    np.arange(rows + 1, dtype=np.int32) * count, np.frombuffer(noise.take(rows * count * 4), np.float32)
                )
                for count in _PARQUET_LISTS.values()
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


_Writer = Callable[[Path, list[int], _Noise], None]
_WRITERS: dict[str, tuple[_Writer, str]] = {
    "jpeg": (_write_jpeg, "jpg"),
    "npz": (_write_npz, "npz"),
    "tfrecord": (_write_tfrecord, "tfrecord"),
    "parquet": (_write_parquet, "parquet"),
}
