"""Makes columns of records from Arrow's arrays, in recoders, which have pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.base import FieldSpec
from streamer.formats.parquet.schema import Node
from streamer.formats.table.records import fixed_dtype
from streamer.formats.table.writer import Column, bytes_column, json_column, nulls_of, whole_column

# Nested values as `to_pylist` returns them.
_Nested: TypeAlias = Any


def is_json(spec: FieldSpec, node: Node) -> bool:
    """Whether the values of a field are nested ones, written as JSON."""
    return spec.kind == "json" and node.is_nested


def column_of(spec: FieldSpec, node: Node, tables: Sequence[pa.Table], rows: int) -> Column:
    """Returns the column of a field; raises RecodeError if a field of its kind cannot have the values.

    Args:
        spec: the field.
        node: the node that has its values.
        tables: a table for each primitive, that it is in.
        rows: rows of each table.
    """
    primitives = tables[node.primitive : node.primitive + node.primitives]
    try:
        if is_json(spec, node):
            # Several primitives may be in one table.
            different = {id(table): table for table in primitives}.values()
            return _json_column([values_at(table, node.path) for table in different], node)
        values = values_at(primitives[0], node.path)
        nulls = nulls_of(values)
        if node.items():
            return _list_column(values, spec.kind, nulls, rows)
        if fixed_dtype(spec.kind) is not None:
            return Column(_numbers(values, spec.kind), nulls=nulls)
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


def _numbers(values: pa.Array, kind: str) -> NDArray[np.generic]:
    """Returns numbers, 0 where there is none."""
    dtype = fixed_dtype(kind)
    assert dtype is not None
    kind_ = values.type
    if pa.types.is_fixed_size_binary(kind_):
        # float16.
        return np.frombuffer(values.buffers()[1], dtype)[values.offset : values.offset + len(values)]
    if pa.types.is_decimal(kind_):
        # Cast to text first: the direct cast is off by one in the last digit.
        values = values.cast(pa.string()).cast(pa.float64())
    elif pa.types.is_timestamp(kind_):
        values = values.cast(pa.int64())
    if values.null_count:
        values = values.fill_null(False if pa.types.is_boolean(kind_) else 0)
    found: NDArray[np.generic] = values.to_numpy(zero_copy_only=False)
    return found.astype(dtype, copy=False)


def _list_column(values: pa.Array, kind: str, nulls: NDArray[np.bool_] | None, rows: int) -> Column:
    """Makes a column of numbers in lists: all of a row one after the other."""
    base, _, shape = kind.removesuffix("]").partition("[")
    lengths = [int(length) for length in shape.split(",")] if shape else [-1]
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
        counts = _summed(sizes, counts)
        values, first = values.values.slice(int(edges[0]), int(edges[-1] - edges[0])), False
    found = _list_numbers(values, base)
    return lists_column(found, kind, counts, nulls)


def _summed(sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns the items per row, from the items per list and the lists per row."""
    edges = np.concatenate([[0], np.cumsum(counts)])
    total = np.concatenate([[0], np.cumsum(sizes)])
    found: NDArray[np.int64] = total[edges[1:]] - total[edges[:-1]]
    return found


def _list_numbers(values: pa.Array, dtype: str) -> NDArray[np.generic]:
    if not values.null_count:
        return _numbers(values, dtype)
    if np.dtype(dtype).kind != "f":
        raise _RefusalError(f"a list of {values.type} has a null in it, which an array cannot have")
    found = _numbers(values, dtype).copy()
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


def _json_column(primitives: Sequence[pa.Array], node: Node) -> Column:
    """Makes a column of JSON, row by row."""
    first, *others = [primitive.to_pylist() for primitive in primitives]
    for other in others:
        first = [_merged(*pair) for pair in zip(first, other, strict=True)]
    return json_column([_plain(value, node) for value in first])


def _merged(one: _Nested, other: _Nested) -> _Nested:
    """Joins the values that two primitives have of one nested value."""
    if isinstance(one, dict):
        both = {name: _merged(one[name], other[name]) for name in one.keys() & other.keys()}
        return {**one, **other, **both}
    return [_merged(*pair) for pair in zip(one, other, strict=True)] if isinstance(one, list) else one


def _plain(value: _Nested, node: Node, inside: bool = False) -> _Nested:
    """Returns a nested value as the schema means it: lists and maps without the groups that they are written in."""
    if value is None:
        return None
    if found := node.items(inside):
        return [_plain(each, *found) for each in _items(value, node, inside, found[0])]
    if not node.children:
        return value
    if node.is_map:
        repeated = node.children[0]
        parts = node.children[0].children
        entries = [[_plain(each[part.element.name], part) for part in parts] for each in value[repeated.element.name]]
        # A map without values has only keys.
        return entries if len(parts) > 1 else [entry[0] for entry in entries]
    return {child.element.name: _plain(value[child.element.name], child) for child in node.children}


def _items(value: _Nested, node: Node, inside: bool, item: Node) -> list[_Nested]:
    if node.is_repeated and not inside:
        return list(value)
    repeated = node.children[0]
    items = value[repeated.element.name]
    return list(items) if item is repeated else [each[item.element.name] for each in items]
