"""Makes columns of Arrow's arrays, and records of columns (see `formats/table/records.py`), without a loop over rows.

Recoders of tables use it (`formats/table/rows.py`, `tables/parquet/`, `tables/arrow_ipc/`, `tables/litdata/`, `media/`,
`annotations/`): only they have pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.base import FieldSpec, Records
from streamer.formats.table.records import find_dtype, head_dtype

# The values of a column in pieces: value i is the i-th bytes of each array, and all bytes of each scalar, in order.
Pieces: TypeAlias = Sequence[pa.LargeBinaryArray | pa.LargeBinaryScalar]

_NO_BYTES = np.empty(0, np.uint8)


class Column(msgspec.Struct, frozen=True):
    """One field of all rows of a block.

    Attributes:
        values: numbers of a fixed field, shape (rows, ...); or all bytes of a variable field, one value after the
            other, uint8.
        lengths: bytes of each value of a variable field, int64, shape (rows,), or None for a fixed field.
        nulls: bool, shape (rows,): which rows have no value, or None if all have one.
        pieces: the values in pieces, in place of `values`, or empty if `values` has them.
    """

    values: NDArray[np.generic]
    lengths: NDArray[np.int64] | None = None
    nulls: NDArray[np.bool_] | None = None
    pieces: Pieces = ()


@contextmanager
def catch_decode_errors(content: memoryview, samples: int, format_name: str) -> Iterator[None]:
    """Turns any error that is raised within the context into a RecodeError, which itself passes unchanged.

    Args:
        content: bytes of the block, of which the message says the length.
        samples: number of rows that are expected.
        format_name: title of the format, for the message.
    """
    try:
        yield
    except RecodeError:
        raise
    except Exception as error:  # pyarrow raises errors of its own, OSError, and those of Python
        raise RecodeError(
            f"{len(content)} bytes are not {samples} rows of {format_name}: {type(error).__name__}: {error}",
            samples=samples,
            bytes=len(content),
        ) from error


def whole_column(table: pa.Table, name: str) -> pa.Array:
    """Returns a column of a table as one array; copies it if the table has it in several."""
    chunks = table.column(name)
    if chunks.num_chunks == 1:
        return chunks.chunk(0)
    found = chunks.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def nulls_of(values: pa.Array) -> NDArray[np.bool_] | None:
    """Returns which rows have no value, bool, shape (rows,); None if all have one."""
    if not values.null_count:
        return None
    found: NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return found


def bytes_column(values: pa.Array) -> Column:
    """Makes a column of byte strings or texts. Copies bytes only if strings of a fixed size have nulls."""
    kind = values.type
    nulls = nulls_of(values)
    rows = len(values)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        content = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width :][: rows * width]
        if nulls is None:
            return Column(content, np.full(rows, width, np.int64))
        return Column(content.reshape(-1, width)[~nulls].reshape(-1), np.where(nulls, 0, width), nulls)
    offset_dtype = np.int64 if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else np.int32
    _, offsets, content = values.buffers()
    edges = np.frombuffer(offsets, offset_dtype)[values.offset : values.offset + rows + 1].astype(np.int64)
    found = _NO_BYTES if content is None else np.frombuffer(content, np.uint8)[edges[0] : edges[-1]]
    return Column(found, np.diff(edges), nulls)


def numbers_of(values: pa.Array, kind: str) -> NDArray[np.generic]:
    """Returns the numbers of an array in the dtype of `kind`, with 0 for a null.

    An array of fixed-size bytes holds float16. Decimals become float64, and times integers in their unit.
    """
    dtype = find_dtype(kind)
    assert dtype is not None
    kind_ = values.type
    if pa.types.is_fixed_size_binary(kind_):
        # Parquet has float16 as bytes of fixed size.
        halves = np.frombuffer(values.buffers()[1], dtype)[values.offset : values.offset + len(values)]
        # The bytes of a null may be anything.
        nulls = nulls_of(values)
        return halves if nulls is None else np.where(nulls, dtype.type(0), halves)
    if pa.types.is_decimal(kind_):
        # The cast goes through text, because the direct one is off by one in the last digit.
        values = values.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_temporal(kind_):
        values = values.cast(pa.int32() if kind_.bit_width == 32 else pa.int64())
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(kind_) else 0)
    found: NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return found.astype(dtype, copy=False)


def sum_items(sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the number of items of each row.

    Args:
        sizes: number of items of each list, for all lists in the order of the rows.
        counts: number of lists of each row.
    """
    edges = np.concatenate([[0], np.cumsum(counts)])
    total = np.concatenate([[0], np.cumsum(sizes)])
    found: NDArray[np.int64] = total[edges[1:]] - total[edges[:-1]]
    return found


def json_column(values: Sequence[object]) -> Column:
    """Makes a column of JSON texts, one for each value; None is a row without a value."""
    return make_bytes_column([None if value is None else msgspec.json.encode(value) for value in values])


def make_bytes_column(contents: Sequence[bytes | None]) -> Column:
    """Makes a column of byte strings; None is a row without a value."""
    nulls = np.array([content is None for content in contents], np.bool_)
    found = [content or b"" for content in contents]
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    return Column(np.frombuffer(b"".join(found), np.uint8), lengths, nulls if nulls.any() else None)


def constant_column(spec: FieldSpec, value: int | str | None, rows: int) -> Column:
    """Makes a column that has the same value in all rows; None makes rows without a value."""
    nulls = np.ones(rows, np.bool_) if value is None else None
    if (dtype := find_dtype(spec.kind)) is not None:
        filled = np.zeros((rows, *dtype.shape), dtype.base)
        if value is not None:
            filled[:] = value
        return Column(filled, nulls=nulls)
    content = b"" if value is None else str(value).encode("utf-8", "surrogateescape")
    return Column(np.frombuffer(content * rows, np.uint8), np.full(rows, len(content), np.int64), nulls)


def write_records(fields: Sequence[FieldSpec], columns: Sequence[Column], rows: int) -> Records:
    """Makes the records of the rows of a block.

    Args:
        fields: fields of the dataset.
        columns: the values of each field.
        rows: number of rows.

    Raises:
        ValueError: a column has another number of rows, or a value of 4 GiB or more.
    """
    heads = np.zeros(rows, head_dtype(fields))
    for number, (field, column) in enumerate(zip(fields, columns, strict=True)):
        if column.nulls is not None:
            heads["nulls"][column.nulls, number // 8] |= np.uint8(1 << number % 8)
        if column.lengths is None:
            heads[str(number)] = column.values
        elif len(column.lengths) != rows or not (column.pieces or int(column.lengths.sum()) == len(column.values)):
            raise ValueError(f"field {field.name!r} has {len(column.lengths)} values for {rows} rows")
        elif rows and int(column.lengths.max()) >= 1 << 32:
            raise ValueError(f"field {field.name!r} has a value of {int(column.lengths.max())} bytes")
    lengths = [np.full(rows, heads.dtype.itemsize, np.int64)]
    pieces = [large_binary(heads.view(np.uint8).reshape(-1), lengths[0])]
    for column in columns:
        if column.lengths is not None:
            heads["lengths"][:, len(lengths) - 1] = column.lengths
            lengths.append(column.lengths)
            pieces += column.pieces or [large_binary(column.values, column.lengths)]
    _, _, content = join(pieces).buffers()
    return Records([np.frombuffer(content or b"", np.uint8)], np.sum(lengths, axis=0, dtype=np.int64))


def large_binary(values: NDArray[np.generic], lengths: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Returns an array of byte strings, which follow each other in `values`; copies nothing if `values` is contiguous.

    Args:
        values: the bytes.
        lengths: bytes of each string.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)


def join(pieces: Pieces) -> pa.LargeBinaryArray:
    """Returns an array of whole values, each joined from its pieces."""
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
