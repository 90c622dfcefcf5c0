"""Writes shards as Parquet: row groups of 8 MiB before compression, and an index of their pages.

`registry.py` imports it only when Parquet is written, because it needs pyarrow. The same samples give the same bytes
with one version of pyarrow, which the file names.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamer.errors import ConfigError, PackError
from streamer.formats.checksum import crc32
from streamer.formats.names import BYTES, IMAGE
from streamer.shards.outputs.base import ShardWriter
from streamer.shards.outputs.columns import (
    JSON,
    TEXT,
    OutputColumn,
    estimate_bytes,
    features_of,
    fit_value,
    plain_values,
)
from streamer.shards.receipts import Written, encode_numbers
from streamer.shards.values import Sample

# Row groups have about this length before compression: a chunk of the reader is one or several of them.
_GROUP_BYTES = 8 << 20
_PAGE_BYTES = 1 << 20
# pyarrow checks the length of a page after a number of rows, at most this one. That is its default, which would make
# pages of 100 MB of images.
_MOST_BATCH_ROWS = 1024
# A longer sample is refused: a row group of one sample must stay below `manifest.blocks.MOST_FETCH_BYTES`.
_MOST_SAMPLE_BYTES = 128 << 20


class ParquetShard(ShardWriter):
    """Writes a Parquet file of samples.

    Args:
        path: the file, which is overwritten.
        columns: the columns of all shards.
    """

    def __init__(self, path: Path, columns: list[OutputColumn]) -> None:
        self._path = path
        self._columns = columns
        self._names = {column.name for column in columns}
        self._file = path.open("wb")
        self._writer: pq.ParquetWriter | None = None
        self._rows: list[list[object]] = []
        self._held_bytes = 0

    def close(self) -> None:
        """Closes the file, also if its footer cannot be written; idempotent.

        Raises:
            OSError: the file cannot be written.
        """
        # An open writer of pyarrow would write to a closed file when it is collected.
        writer, self._writer = self._writer, None
        try:
            if writer is not None and writer.is_open:
                writer.close()
        finally:
            self._file.close()

    def add(self, sample: Sample, ordinal: int) -> None:
        """Adds a row, with copies of the values; writes a row group when the rows are long enough.

        Raises:
            PackError: a value does not fit into its column, a field has no column, or the sample is too long.
            ConfigError: a column is JSON, which this pyarrow does not write.
        """
        values = plain_values(sample)
        if extra := values.keys() - self._names:
            raise PackError(
                f"it has a field {min(extra)!r}, the first samples have {', '.join(sorted(self._names))}; leave it out "
                "(fields=), or write tars"
            )
        row = [fit_value(column, values.get(column.name)) for column in self._columns]
        length = sum(map(estimate_bytes, row))
        if length > _MOST_SAMPLE_BYTES:
            raise PackError(f"it has {length} bytes, a row at most {_MOST_SAMPLE_BYTES}; write tars")
        self._rows.append(row)
        self._held_bytes += length
        self.filled += length
        if self._held_bytes >= _GROUP_BYTES:
            self._write_group()

    def finish(self) -> Written:
        """Writes the last row group, the index of the pages, and the footer; see `ShardWriter.finish`.

        Then reads the file once, to compute the checksums of its row groups.

        Raises:
            ConfigError: a column is JSON, which this pyarrow does not write.
            OSError: the file cannot be written, or not be read.
        """
        if self._rows:
            self._write_group()
        self._open_writer()
        self.close()
        footer = pq.read_metadata(self._path)
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        starts = [min(map(_start, map(group.column, range(group.num_columns)))) for group in groups]
        size = self._path.stat().st_size
        # A piece is a row group; the first one begins with the file, and the last one ends with it.
        edges = [0, *starts[1:], size]
        with self._path.open("rb") as file:
            sums = [crc32(file.read(stop - start)) for start, stop in pairwise(edges)]
        return Written(
            size=size,
            blocks=encode_numbers([stop - start for start, stop in pairwise(edges)]),
            sums=encode_numbers(sums),
            unit=1,
            rows=encode_numbers([group.num_rows for group in groups] or [0]),
        )

    def _write_group(self) -> None:
        """Writes the rows that are in memory as one row group."""
        rows = self._rows
        writer = self._open_writer()
        values = zip(*rows, strict=True)
        arrays = [_array(column, list(each)) for column, each in zip(self._columns, values, strict=True)]
        writer.write_table(pa.Table.from_arrays(arrays, schema=writer.schema), row_group_size=len(rows))
        self._rows = []
        self._held_bytes = 0

    def _open_writer(self) -> pq.ParquetWriter:
        """Returns the writer, which is made at the first row group: the lengths of its rows decide on the pages."""
        if self._writer is None:
            row_bytes = max(1, self._held_bytes // max(1, len(self._rows)))
            schema = pa.schema([(column.name, _type(column)) for column in self._columns])
            numbers = [column.name for column in self._columns if column.dtype is not None and column.shape is None]
            texts = [column.name for column in self._columns if column.kind == TEXT]
            self._writer = pq.ParquetWriter(
                self._file,
                schema.with_metadata({"huggingface": features_of(self._columns)}),
                compression="zstd",
                use_dictionary=numbers + texts,
                write_statistics=numbers,
                write_page_index=True,
                data_page_size=_PAGE_BYTES,
                write_batch_size=min(_MOST_BATCH_ROWS, max(1, _PAGE_BYTES // 4 // row_bytes)),
            )
        return self._writer


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    return int(chunk.dictionary_page_offset or chunk.data_page_offset)


def _type(column: OutputColumn) -> pa.DataType:
    """Returns the type of a column in Arrow; raises ConfigError for JSON if pyarrow is too old for it."""
    if column.dtype is not None:
        found = pa.from_numpy_dtype(column.dtype)
        for length in reversed(column.shape or ()):
            found = pa.list_(found, length)
        return found
    if column.kind == JSON:
        if not hasattr(pa, "json_"):
            raise ConfigError(
                f"field {column.name!r} is JSON, which pyarrow {pa.__version__} does not write: "
                "pip install 'pyarrow>=19'",
                field="format",
            )
        return pa.json_()
    return {TEXT: pa.string(), BYTES: pa.binary(), IMAGE: _IMAGE}[column.kind]


# Images have this type in Hugging Face's datasets.
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _array(column: OutputColumn, values: list[object]) -> pa.Array:
    """Returns values from `fit_value` as an array of Arrow; None becomes null."""
    missing = np.array([value is None for value in values])
    if column.shape is not None:
        # Arrays become nested lists without a loop over their numbers.
        found = [value for value in values if isinstance(value, np.ndarray)]
        flat = np.concatenate([value.reshape(-1) for value in found]) if found else np.zeros(0, column.dtype)
        inner = pa.array(flat)
        for length in reversed(column.shape[1:]):
            inner = pa.FixedSizeListArray.from_arrays(inner, length)
        if column.shape[0] >= 0:
            return pa.FixedSizeListArray.from_arrays(inner, column.shape[0])
        lengths = [0 if value is None else len(value) for value in values]  # type: ignore[arg-type]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), inner, mask=pa.array(missing))
    if column.dtype is not None:
        numbers = np.array([0 if value is None else value for value in values], column.dtype)
        return pa.array(numbers, mask=missing)
    if column.kind == IMAGE:
        contents = pa.array(values, pa.binary())
        paths = pa.nulls(len(values), pa.string())
        return pa.StructArray.from_arrays([contents, paths], fields=list(_IMAGE), mask=pa.array(missing))
    return pa.array(values, _type(column))
