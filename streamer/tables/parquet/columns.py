"""Makes columns of records from Arrow's arrays, without a loop over rows; the recoders of Parquet and Arrow use it.

A nested value (list, struct, map) is MessagePack, which `streamer.decode.values` reads: lists are arrays, structs and
maps are maps, and what MessagePack has no type for are extensions, by the codes of `Extension`. Its pieces are made for
all rows at once: heads by numpy, contents as views of Arrow's buffers. Arrow joins them row by row, once for each level
of lists.

Source: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.base import FieldSpec
from streamer.formats.table.records import ARRAY_DTYPES, Extension, find_dtype
from streamer.formats.table.writer import (
    Column,
    Pieces,
    bytes_column,
    join,
    json_column,
    large_binary,
    nulls_of,
    numbers_of,
    sum_items,
    whole_column,
)
from streamer.manifest.model import NESTED
from streamer.tables.parquet.fields import has_children
from streamer.tables.parquet.schema import FIXED, SchemaNode, number_dtype, tensor_shape


def column_of(
    spec: FieldSpec,
    node: SchemaNode,
    known: SchemaNode,
    *,
    tables: Sequence[pa.Table],
    rows: int,
    meanings: Mapping[tuple[str, ...], str],
) -> Column:
    """Makes the column of a field; raises RecodeError if a field of its kind cannot have the values.

    Args:
        spec: the field.
        node: the node that has its values, in the schema of the file.
        known: the same node in the schema that all files have together.
        tables: a table for each primitive of the file's schema, which has its values. Several may share one.
        rows: number of rows of each table.
        meanings: see `ColumnField.meanings`.
    """
    primitives = tables[node.primitive : node.primitive + node.primitives]
    try:
        if has_children(spec, node):
            # Several primitives may be in one table.
            different = {id(table): table for table in primitives}
            values = {number: values_at(table, node.path) for number, table in different.items()}
            arrays = [values[id(table)] for table in primitives]
            return NestedColumns(node, known, meanings, for_json=spec.kind != NESTED).column(arrays)
        values = values_at(primitives[0], node.path)
        nulls = nulls_of(values)
        if node.items():
            return _list_column(values, spec.kind, nulls, rows, is_tensor=bool(tensor_shape(known)))
        if find_dtype(spec.kind) is not None:
            return Column(numbers_of(values, spec.kind), nulls=nulls)
        if nulls is not None and ".".join(node.path[:-1]) == spec.name:
            # The field is the bytes of a file, and the node above it also has the path.
            _check_contents(values_at(primitives[0], node.path[:-1]), values, f"{spec.name}.path")
        return bytes_column(values)
    except _RefusalError as error:
        raise RecodeError(
            f"field {spec.name!r}: {error}; leave it out by columns=, or write it anew", field=spec.name
        ) from error


class _RefusalError(ValueError):
    """Raised for values that a field of this kind cannot have."""


def _check_contents(files: pa.StructArray, contents: pa.Array, path_field: str = "") -> None:
    """Raises _RefusalError for a file (image, sound) that has a path instead of bytes: `datasets` has not embedded it.

    Args:
        files: Struct of each file, with "path" or without; a null is no file.
        contents: Bytes of each file.
        path_field: Name of the field that has the paths, or "" if there is none.
    """
    if not contents.null_count:
        return
    is_wrong = pc.and_(files.is_valid(), contents.is_null())
    row = pc.index(is_wrong, True).as_py()
    if row < 0:
        return
    paths = files.field("path") if files.type.get_field_index("path") >= 0 else None
    path = "a path" if paths is None or not paths[row].is_valid else f"the path {paths[row].as_py()!r}"
    raise _RefusalError(
        f"row {row} of {len(files)} has no bytes of its file, but {path}: embed the files (datasets: "
        "dataset.with_format('arrow').map(datasets.table.embed_table_storage, batched=True))"
        + (f", or read the paths: {path_field} in columns=" if path_field else "")
    )


def values_at(table: pa.Table, path: Sequence[str]) -> pa.Array:
    """Returns the values of the node at a path; a value is null if a struct around it is."""
    values = whole_column(table, path[0])
    for name in path[1:]:
        values = values.flatten()[values.type.get_field_index(name)]
    return values


def _list_column(
    values: pa.Array, kind: str, nulls: NDArray[np.bool_] | None, rows: int, *, is_tensor: bool = False
) -> Column:
    """Makes a column of arrays from lists of numbers, or lists of such lists; raises _RefusalError.

    With `is_tensor` each row has one list with all numbers of its tensor, and `kind` has the shape.
    """
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
            # A list that is null may have items in Arrow's buffers, which are left out.
            items = items.filter(pa.array(np.repeat(~nulls, sizes)))
            sizes = np.where(nulls, 0, sizes)
        counts = sum_items(sizes, counts)
        values = items
        first = False
    if not values.null_count:
        found = numbers_of(values, base)
    elif np.dtype(base).kind != "f":
        raise _RefusalError(f"a list of {values.type} has a null in it, which an array cannot have")
    else:
        found = numbers_of(values, base).copy()
        found[values.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return lists_column(found, kind, counts, nulls)


def lists_column(
    found: NDArray[np.generic], kind: str, counts: NDArray[np.int64], nulls: NDArray[np.bool_] | None = None
) -> Column:
    """Makes a column of arrays: a fixed field if `kind` has a whole shape, else a variable one.

    `found` has the numbers of all rows, one after the other, and `counts` their number in each row, int64, (rows,).
    """
    fixed = find_dtype(kind)
    if fixed is None:
        return Column(np.ascontiguousarray(found).view(np.uint8), counts * found.itemsize, nulls)
    if nulls is None:
        return Column(found.reshape(len(counts), *fixed.shape))
    filled = np.zeros((len(counts), *fixed.shape), fixed.base)
    filled[~nulls] = found.reshape(-1, *fixed.shape)
    return Column(filled, nulls=nulls)


# First bytes of values in MessagePack. A big-endian uint32 length follows all but nil and the booleans.
_NIL = 0xC0
_FALSE = 0xC2
_BYTES = 0xC6
_EXTENSION = 0xC9
_TEXT = 0xDB
_LIST = 0xDD
_MAP = 0xDF
_PAIR = b"\x92"
_NO_BYTES = np.empty(0, np.uint8)
# First byte of a number in MessagePack, and dtype of the bytes behind it, by kind of the number's dtype.
_NUMBERS = {"i": (0xD3, ">i8"), "u": (0xCF, ">u8"), "f": (0xCB, ">f8")}
_EXTENSIONS = {"": Extension.BYTES, "image": Extension.IMAGE, "json": Extension.JSON}


class NestedColumns:
    """Makes columns of the values of one nested node.

    Args:
        node: the node, as the file has it.
        known: the node as all files have it together. A part that this file lacks becomes null.
        meanings: see `ColumnField.meanings`.
        for_json: whether the values become JSON, as in manifests of version 0.1: maps are lists of pairs, decimals are
            texts, and bytes are Base64.
    """

    def __init__(
        self, node: SchemaNode, known: SchemaNode, meanings: Mapping[tuple[str, ...], str], *, for_json: bool
    ) -> None:
        self._node = node
        self._known = known
        self._meanings = {} if for_json else meanings
        self._for_json = for_json

    def column(self, arrays: Sequence[pa.Array]) -> Column:
        """Makes the column of the node's values; raises _RefusalError for values that it cannot have.

        Args:
            arrays: For each primitive of the node, an array of the node's values that has at least this primitive.
                Lists and maps may be those of Arrow, or plain groups as in Parquet's schema.
        """
        pieces = self._values(self._node, self._known, arrays)
        if self._for_json:
            return json_column([msgspec.msgpack.decode(value) for value in join(pieces).to_pylist()])
        lengths = np.zeros(len(arrays[0]), np.int64)
        for piece in pieces:
            lengths += len(piece.as_py()) if isinstance(piece, pa.Scalar) else np.diff(_edges(piece))
        return Column(_NO_BYTES, lengths, nulls_of(arrays[0]), pieces)

    def _values(
        self,
        node: SchemaNode,
        known: SchemaNode,
        arrays: Sequence[pa.Array],
        inside: tuple[bool, bool] = (False, False),
    ) -> Pieces:
        """Makes the MessagePack of the values of a node.

        Args:
            node: the node, as the file has it.
            known: the node as all files have it together.
            arrays: see `column`.
            inside: whether `node`, and whether `known`, is a repeated node of which one item is meant, not a list.
        """
        if node.has_no_values:
            return [_nulls(len(arrays[0]))]
        own = node.items(inside[0])
        all_files = known.items(inside[1])
        if own and all_files:
            return self._list(node, own, all_files, arrays)
        if node.is_map:
            return self._map(node, known, arrays)
        if not node.children:
            return self._primitive(node, known, arrays[0])
        names = {child.element.name: number for number, child in enumerate(node.children)}
        if meaning := self._meanings.get(known.path):
            contents = _child(node, arrays, names["bytes"])[0]
            if meaning != "json":
                _check_contents(arrays[0], contents)
            return _bytes(contents, meaning)
        pieces = list[pa.LargeBinaryArray | pa.LargeBinaryScalar]()
        head = _MAP.to_bytes() + len(known.children).to_bytes(4, "big")
        for part in known.children:
            pieces.append(_constant(head + msgspec.msgpack.encode(part.element.name)))
            number = names.get(part.element.name)
            pieces += (
                [_nulls(len(arrays[0]))]
                if number is None
                else self._values(node.children[number], part, _child(node, arrays, number))
            )
            head = b""
        if not arrays[0].null_count:
            return pieces
        return [pc.if_else(arrays[0].is_null(), _constant(_NIL.to_bytes()), join(pieces))]

    def _map(self, node: SchemaNode, known: SchemaNode, arrays: Sequence[pa.Array]) -> Pieces:
        """Makes maps, or lists of pairs for JSON and nested keys; raises _RefusalError if a map has a key twice."""
        repeated = node.children[0]
        parts = known.children[0].children
        lists, entries = _split_lists(arrays)
        key, *values = repeated.children
        keys = _child(repeated, entries, 0)
        if not values:
            return _sequence(_LIST, lists, self._values(key, parts[0], keys))
        # Keys of bytes are never taken for images.
        is_bytes = not key.is_nested and not number_dtype(key.element) and key.element.meaning != "text"
        pieces = [
            *(_bytes(keys[0], "bytes") if is_bytes else self._values(key, parts[0], keys)),
            *self._values(values[0], parts[1], _child(repeated, entries, 1)),
        ]
        if self._for_json or key.is_nested:
            return _sequence(_LIST, lists, [_constant(_PAIR), *pieces])
        if len(keys[0]):
            # A map with a key that occurs twice is refused, because a dict would keep one of the values only.
            encoded = keys[0].dictionary_encode()
            count = len(encoded.dictionary)
            codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
            rows = np.repeat(np.arange(len(lists)), _counts(lists))
            pairs = np.sort(rows * count + codes)
            twice = np.flatnonzero(pairs[1:] == pairs[:-1])
            if len(twice):
                double = encoded.dictionary[int(pairs[twice[0]]) % count]
                raise _RefusalError(f"a map has the key {double.as_py()!r} twice, and a dict has one value of it")
        return _sequence(_MAP, lists, pieces)

    def _list(
        self, node: SchemaNode, own: tuple[SchemaNode, bool], known: tuple[SchemaNode, bool], arrays: Sequence[pa.Array]
    ) -> Pieces:
        """Makes lists, or arrays of lists of numbers; `own` and `known` are results of `SchemaNode.items`."""
        item, inside = own
        lists, items = _split_lists(arrays)
        if not pa.types.is_list(arrays[0].type) and item is not node.children[0]:
            items = _child(node.children[0], items, 0)
        is_flat = not item.children and (inside or not item.is_repeated)
        dtype = number_dtype(item.element) if item.has_no_values == known[0].has_no_values else ""
        if not is_flat or self._for_json or not dtype:
            return _sequence(_LIST, lists, self._values(item, known[0], items, (inside, known[1])))
        # Lists of numbers become arrays, but a list with a null in it stays a list.
        values = items[0]
        counts = _counts(lists)
        numbers = np.ascontiguousarray(numbers_of(values, dtype))
        lengths = counts * numbers.itemsize
        heads = _heads(_EXTENSION, lengths, nulls_of(lists), ARRAY_DTYPES.index(dtype))
        pieces = [heads, large_binary(numbers.view(np.uint8), lengths)]
        if not values.null_count:
            return pieces
        has_null = sum_items(values.is_null().to_numpy(zero_copy_only=False).astype(np.int64), counts) > 0
        as_lists = join(_sequence(_LIST, lists, self._primitive(item, known[0], values)))
        return [pc.if_else(pa.array(has_null), as_lists, join(pieces))]

    def _primitive(self, node: SchemaNode, known: SchemaNode, values: pa.Array) -> Pieces:
        """Makes numbers, truth values, texts, bytes or extensions of a primitive's values."""
        element = node.element
        if self._for_json and element.meaning == "decimal":
            return _bytes(values.cast(pa.string()), "text")
        if dtype := number_dtype(element):
            numbers = numbers_of(values, dtype)
            nulls = nulls_of(values)
            if numbers.dtype.kind == "b":
                return [_or_nil((numbers.view(np.uint8) + _FALSE).astype(np.uint8), nulls)]
            first, wide = _NUMBERS[numbers.dtype.kind]
            rows = np.empty(len(numbers), [("first", "u1"), ("number", wide)])
            rows["first"] = first
            rows["number"] = numbers
            return [_or_nil(rows, nulls)]
        meaning = "bytes" if element.type == FIXED else element.meaning
        if self._for_json:
            meaning = {"": "bytes", "json": "text"}.get(meaning, meaning)
        return _bytes(values, self._meanings.get(known.path, meaning))


def _child(node: SchemaNode, arrays: Sequence[pa.Array], number: int) -> list[pa.Array]:
    """Returns the values of child `number` of a struct, for each primitive of the child; null where the struct is."""
    child = node.children[number]
    start = child.primitive - node.primitive
    own = arrays[start : start + child.primitives]
    # An array made for one primitive may have only the child that leads to it.
    different = {id(each): each for each in own}
    place = {key: number if each.type.num_fields == len(node.children) else 0 for key, each in different.items()}
    found = {key: each.flatten()[place[key]] for key, each in different.items()}
    return [found[id(each)] for each in own]


def _split_lists(arrays: Sequence[pa.Array]) -> tuple[pa.Array, list[pa.Array]]:
    """Returns lists or maps as Arrow's lists, and for each primitive the items of all lists, one after the other."""
    different = {id(each): each for each in arrays}
    # Maps are made lists of pairs, and of a struct around a list the list is taken.
    lists = {}
    for key, values in different.items():
        if pa.types.is_map(values.type):
            entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
            lists[key] = pa.Array.from_buffers(
                pa.list_(entries.type),
                len(values),
                values.buffers()[:2],
                offset=values.offset,
                children=[entries],
            )
        else:
            lists[key] = values.flatten()[0] if pa.types.is_struct(values.type) else values
    items = {key: each.flatten() for key, each in lists.items()}
    return lists[id(arrays[0])], [items[id(each)] for each in arrays]


def _counts(lists: pa.Array) -> NDArray[np.int64]:
    counts = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    nulls = nulls_of(lists)
    return counts if nulls is None else np.where(nulls, 0, counts)


def _sequence(first: int, lists: pa.Array, pieces: Pieces) -> Pieces:
    """Makes lists or maps of the pieces of their items; `first` is the first byte of a list or map in MessagePack."""
    counts = _counts(lists)
    items = join(pieces)
    edges = _edges(items)[np.concatenate([[0], np.cumsum(counts)])]
    return [_heads(first, counts, nulls_of(lists)), _slices(items, edges)]


def _bytes(values: pa.Array, meaning: str) -> Pieces:
    """Makes values of MessagePack from bytes: texts, bytes, or the extension for `meaning` (`_EXTENSIONS`)."""
    nulls = nulls_of(values)
    content = values.cast(pa.large_binary())
    lengths = np.diff(_edges(content))
    if nulls is not None:
        if lengths[nulls].any():
            content = content.fill_null(b"")
            lengths = np.diff(_edges(content))
        content = _slices(content, _edges(content))
    if meaning in _EXTENSIONS:
        return [_heads(_EXTENSION, lengths, nulls, _EXTENSIONS[meaning]), content]
    return [_heads(_TEXT if meaning == "text" else _BYTES, lengths, nulls), content]


def _heads(
    first: int, lengths: NDArray[np.int64], nulls: NDArray[np.bool_] | None, code: int | None = None
) -> pa.LargeBinaryArray:
    """Returns the head of each value in MessagePack: first byte, length, and the code of an extension."""
    rows = np.empty(len(lengths), [("first", "u1"), ("length", ">u4"), *([("code", "u1")] if code is not None else [])])
    rows["first"] = first
    rows["length"] = lengths
    if code is not None:
        rows["code"] = code
    return _or_nil(rows, nulls)


def _or_nil(rows: NDArray[np.generic], nulls: NDArray[np.bool_] | None) -> pa.LargeBinaryArray:
    """Returns the bytes of each row as a value, or MessagePack's nil (one byte) where the row is null."""
    width = rows.itemsize
    content = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), width)
    if nulls is None:
        return large_binary(content.reshape(-1), np.full(len(rows), width, np.int64))
    content[nulls, 0] = _NIL
    kept = ~nulls[:, None] | (np.arange(width) == 0)
    return large_binary(content[kept], np.where(nulls, 1, width))


def _nulls(rows: int) -> pa.LargeBinaryArray:
    """Returns MessagePack's nil for each row."""
    return large_binary(np.full(rows, _NIL, np.uint8), np.ones(rows, np.int64))


def _constant(content: bytes) -> pa.LargeBinaryScalar:
    return pa.scalar(content, pa.large_binary())


def _edges(values: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Returns the byte of the buffer at which each value begins, and the end of the last one: int64, (n + 1,)."""
    return np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]


def _slices(values: pa.LargeBinaryArray, edges: NDArray[np.int64]) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(edges), values.buffers()[2]]
    return pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, buffers)
