"""Makes records of the rows of LitData's Arrow chunks, by pyarrow.

`tables/litdata/format.py` imports it, in recoders only. Columns of texts, numbers, truth values and bytes become fields
as they are. A value of any other column becomes a byte that says how it is encoded, and the encoded value: the numbers
of a list, or MessagePack.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamer.formats.base import FieldSpec, Records
from streamer.formats.table.records import find_dtype
from streamer.formats.table.writer import (
    Column,
    bytes_column,
    catch_decode_errors,
    make_bytes_column,
    nulls_of,
    write_records,
)
from streamer.tables.arrow_ipc.recode import join_batches, read_batches

# The byte that says how a nested value is encoded; `streamer.tables.foreign.decode_value` decodes it.
INTEGERS = b"i"
FLOATS = b"f"
PACKED = b"m"


class ArrowRecoder:
    """Makes records of the rows of chunks, as a `Recoder`. Rows have no value of a field that their chunk lacks."""

    def __init__(self, fields: Sequence[FieldSpec]) -> None:
        self._fields = fields

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of a block; raises RecodeError.

        Args:
            content: the message of the schema, and record batches.
            samples: number of rows.
            hint: bytes of the schema, int64.
        """
        with catch_decode_errors(content, samples, "LitData"):
            (schema_bytes,) = struct.unpack("<q", hint)
            batches = read_batches(content[:schema_bytes], content[schema_bytes:])
            return join_batches(batches, samples, self._records)

    def _records(self, batch: pa.RecordBatch) -> Records:
        names = batch.schema.names
        rows = batch.num_rows
        columns = [
            _column(field, batch.column(names.index(field.name)) if field.name in names else None, rows)
            for field in self._fields
        ]
        return write_records(self._fields, columns, rows)


def _column(field: FieldSpec, values: pa.Array | None, rows: int) -> Column:
    """Makes the column of a field from an array; None for an array that the batch lacks, so that no row has a value."""
    dtype = find_dtype(field.kind)
    if values is None or pa.types.is_null(values.type):
        nulls = np.ones(rows, np.bool_)
        if dtype is not None:
            return Column(np.zeros(rows, dtype), nulls=nulls)
        return Column(np.empty(0, np.uint8), np.zeros(rows, np.int64), nulls)
    if dtype is not None:
        numbers = values.cast(pa.from_numpy_dtype(dtype)).fill_null(False if dtype.kind == "b" else 0)
        return Column(numbers.to_numpy(zero_copy_only=False), nulls=nulls_of(values))
    if field.kind in {"txt", "bytes"}:
        return bytes_column(values.cast(pa.large_string() if field.kind == "txt" else pa.large_binary()))
    kind = values.type
    if pa.types.is_list(kind) and not values.null_count and not values.values.null_count:
        if pa.types.is_int64(kind.value_type):
            return _numbers(values, INTEGERS)
        if pa.types.is_float64(kind.value_type):
            return _numbers(values, FLOATS)
    listed = values.to_pylist()
    return make_bytes_column([None if value is None else PACKED + msgspec.msgpack.encode(value) for value in listed])


def _numbers(values: pa.ListArray, tag: bytes) -> Column:
    """Makes a column of encoded lists of numbers, each with the byte `tag` before it, without a loop over rows."""
    edges = values.offsets.to_numpy().astype(np.int64)
    numbers = values.values.slice(edges[0], edges[-1] - edges[0]).to_numpy(zero_copy_only=False)
    content = np.ascontiguousarray(numbers).view(np.uint8)
    lengths = 8 * np.diff(edges)
    made: NDArray[np.uint8] = np.insert(content, 8 * (edges[:-1] - edges[0]), tag[0])
    return Column(made, lengths + 1)
