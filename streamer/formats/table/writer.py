"""Writes records of a table, without a loop over rows; for the recoder, which has pyarrow."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamer.formats.base import FieldSpec, Records
from streamer.formats.table.records import head_dtype


class Column(msgspec.Struct, frozen=True):
    """One field of all rows of a block.

    Attributes:
        values: fixed fields: shape (rows, ...); variable ones: uint8, all values one after the other.
        lengths: of variable fields: int64, shape (rows,).
        nulls: which rows have no value: bool, shape (rows,); None: all have one.
    """

    values: NDArray[np.generic]
    lengths: NDArray[np.int64] | None = None
    nulls: NDArray[np.bool_] | None = None


def write_records(fields: Sequence[FieldSpec], columns: Sequence[Column], rows: int) -> Records:
    """Makes the records of a block, row by row.

    Args:
        fields: of the dataset.
        columns: one per field, as its kind is fixed or variable.
        rows: how many.

    Raises:
        ValueError: a column of another length, or a value of 4 GiB.
    """
    heads = np.zeros(rows, head_dtype(fields))
    for number, (field, column) in enumerate(zip(fields, columns, strict=True)):
        if column.nulls is not None:
            heads["nulls"][column.nulls, number // 8] |= np.uint8(1 << number % 8)
        if column.lengths is None:
            heads[str(number)] = column.values
        elif len(column.lengths) != rows or int(column.lengths.sum()) != len(column.values):
            raise ValueError(f"field {field.name!r} has {len(column.lengths)} values for {rows} rows")
        elif rows and int(column.lengths.max()) >= 1 << 32:
            raise ValueError(f"field {field.name!r} has a value of {int(column.lengths.max())} bytes")
    variable = [(column.values, column.lengths) for column in columns if column.lengths is not None]
    for place, (_, lengths) in enumerate(variable):
        heads["lengths"][:, place] = lengths
    parts = [(heads.view(np.uint8).reshape(-1), np.full(rows, heads.dtype.itemsize, np.int64)), *variable]
    return Records([_joined(parts)], np.sum([lengths for _, lengths in parts], axis=0, dtype=np.int64))


def _joined(parts: Sequence[tuple[NDArray[np.generic], NDArray[np.int64]]]) -> NDArray[np.uint8]:
    """The values (and their lengths) of each row one after the other, row by row."""
    binary = pa.large_binary()
    arrays = []
    for values, lengths in parts:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(values))]
        arrays.append(pa.Array.from_buffers(binary, len(lengths), buffers))
    _, _, content = pc.binary_join_element_wise(*arrays, pa.scalar(b"", binary)).buffers()
    return np.frombuffer(content or b"", np.uint8)
