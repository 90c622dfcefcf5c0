"""Makes columns of records from Arrow's arrays, in recoders, which have pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.base import FieldSpec
from streamer.formats.table.records import fixed_dtype
from streamer.formats.table.writer import (
    Column,
    bytes_column,
    nulls_of,
    numbers_of,
    summed,
    whole_column,
)
from streamer.manifest.model import NESTED
from streamer.tables.parquet.nested import NestedColumns
from streamer.tables.parquet.schema import Node, has_nested, tensor_shape


def column_of(
    spec: FieldSpec,
    node: Node,
    known: Node,
    *,
    tables: Sequence[pa.Table],
    rows: int,
    meanings: Mapping[tuple[str, ...], str],
) -> Column:
    """Returns the column of a field; raises RecodeError if a field of its kind cannot have the values.

    Args:
        spec: the field.
        node: the node that has its values, in the file.
        known: that node as all files have it together.
        tables: a table for each primitive, that it is in.
        rows: rows of each table.
        meanings: see `Field.meanings`.
    """
    primitives = tables[node.primitive : node.primitive + node.primitives]
    try:
        if has_nested(spec, node):
            # Several primitives may be in one table.
            different = {id(table): table for table in primitives}
            values = {number: values_at(table, node.path) for number, table in different.items()}
            arrays = [values[id(table)] for table in primitives]
            return NestedColumns(node, known, meanings, for_json=spec.kind != NESTED).column(arrays)
        values = values_at(primitives[0], node.path)
        nulls = nulls_of(values)
        if node.items():
            return _list_column(values, spec.kind, nulls, rows, is_tensor=bool(tensor_shape(known)))
        if fixed_dtype(spec.kind) is not None:
            return Column(numbers_of(values, spec.kind), nulls=nulls)
        return bytes_column(values)
    except _RefusalError as error:
        raise RecodeError(
            f"field {spec.name!r}: {error}; leave it out by columns=, or write it anew", field=spec.name
        ) from error


class _RefusalError(ValueError):
    """Raised for values that a field of this kind cannot have."""


def values_at(table: pa.Table, path: Sequence[str]) -> pa.Array:
    """Returns the values of a node; where a struct around it is null, they are."""
    values = whole_column(table, path[0])
    for name in path[1:]:
        values = values.flatten()[values.type.get_field_index(name)]
    return values


def constant_column(spec: FieldSpec, value: int | str | None, rows: int) -> Column:
    """Makes a column that has one value in all rows; None: no value."""
    nulls = np.ones(rows, np.bool_) if value is None else None
    if (dtype := fixed_dtype(spec.kind)) is not None:
        filled = np.zeros((rows, *dtype.shape), dtype.base)
        if value is not None:
            filled[:] = value
        return Column(filled, nulls=nulls)
    content = b"" if value is None else str(value).encode("utf-8", "surrogateescape")
    return Column(np.frombuffer(content * rows, np.uint8), np.full(rows, len(content), np.int64), nulls)


def _list_column(
    values: pa.Array, kind: str, nulls: NDArray[np.bool_] | None, rows: int, *, is_tensor: bool = False
) -> Column:
    """Makes a column of numbers in lists: all of a row one after the other. A tensor is one list of all its numbers."""
    base, _, shape = kind.removesuffix("]").partition("[")
    lengths = [int(length) for length in shape.split(",")] if shape else [-1]
    lengths = [prod(lengths)] if is_tensor else lengths
    counts = np.ones(rows, np.int64)
    first = True
    for length in lengths:
        if not pa.types.is_list(values.type) or (values.null_count and not first):
            raise _RefusalError("a list in a list is null")
        edges = values.offsets.to_numpy().astype(np.int64)
        sizes = np.diff(edges)
        wrong = sizes != length if length >= 0 else np.zeros(0, np.bool_)
        if first and nulls is not None and len(wrong):
            wrong = wrong & ~nulls
        if wrong.any():
            raise _RefusalError(f"a list of {int(sizes[wrong][0])} items where the file's features say {length}")
        items = values.values.slice(int(edges[0]), int(edges[-1] - edges[0]))
        if first and nulls is not None and sizes[nulls].any():
            # What is behind null counts for nothing.
            items = items.filter(pa.array(np.repeat(~nulls, sizes)))
            sizes = np.where(nulls, 0, sizes)
        counts = summed(sizes, counts)
        values = items
        first = False
    found = _list_numbers(values, base)
    return lists_column(found, kind, counts, nulls)


def _list_numbers(values: pa.Array, dtype: str) -> NDArray[np.generic]:
    if not values.null_count:
        return numbers_of(values, dtype)
    if np.dtype(dtype).kind != "f":
        raise _RefusalError(f"a list of {values.type} has a null in it, which an array cannot have")
    found = numbers_of(values, dtype).copy()
    found[values.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return found


def lists_column(
    found: NDArray[np.generic], kind: str, counts: NDArray[np.int64], nulls: NDArray[np.bool_] | None = None
) -> Column:
    """Makes a column of lists, with lengths, or in rows of one shape where the kind of the field has one.

    `found` are the numbers of all rows, one after the other, `counts` how many each row has: int64, shape (rows,).
    """
    fixed = fixed_dtype(kind)
    if fixed is None:
        return Column(np.ascontiguousarray(found).view(np.uint8), counts * found.itemsize, nulls)
    if nulls is None:
        return Column(found.reshape(len(counts), *fixed.shape))
    filled = np.zeros((len(counts), *fixed.shape), fixed.base)
    filled[~nulls] = found.reshape(-1, *fixed.shape)
    return Column(filled, nulls=nulls)
