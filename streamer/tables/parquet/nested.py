"""Makes columns of nested values (lists, structs, maps) without a loop over rows, in recoders, which have pyarrow.

A value is MessagePack, which `streamer.decode.nested` reads: lists are arrays, structs and maps are maps, and what
MessagePack has no type for are extensions, by the codes of `Extension`. Its pieces are made for all rows at once: heads
by numpy, contents as views of Arrow's buffers. Arrow joins them row by row, once for each level of lists.

Source: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from streamer.formats.table.records import ARRAY_DTYPES, Extension
from streamer.formats.table.writer import Column, Pieces, join, json_column, large_binary, nulls_of, numbers_of, summed
from streamer.tables.parquet.schema import FIXED, Node, number_dtype
from streamer.tables.parquet.unify import has_no_values

# First bytes of MessagePack. All but the first and the booleans are followed by a length, big-endian uint32.
_NIL = 0xC0
_FALSE = 0xC2
_BYTES = 0xC6
_EXTENSION = 0xC9
_TEXT = 0xDB
_LIST = 0xDD
_MAP = 0xDF
_PAIR = b"\x92"
_NO_BYTES = np.empty(0, np.uint8)
# First byte of a number, and the dtype that follows it.
_NUMBERS = {"i": (0xD3, ">i8"), "u": (0xCF, ">u8"), "f": (0xCB, ">f8")}
_EXTENSIONS = {"": Extension.BYTES, "image": Extension.IMAGE, "json": Extension.JSON}


class NestedColumns:
    """Makes columns of the values of one node.

    Args:
        node: the node, as the file has it.
        known: the node as all files have it together: a part that this file lacks is null.
        meanings: "image", "bytes" or "json" by the path of a node below it, where the file's features say so.
        for_json: whether the values become JSON, as manifests of version 0.1 want it: with maps as lists of pairs,
            decimals as texts, and bytes as Base64.
    """

    def __init__(self, node: Node, known: Node, meanings: Mapping[tuple[str, ...], str], *, for_json: bool) -> None:
        self._node = node
        self._known = known
        self._meanings = {} if for_json else meanings
        self._for_json = for_json

    def column(self, arrays: Sequence[pa.Array]) -> Column:
        """Makes a column.

        Args:
            arrays: for each primitive below the node, the node's values with (at least) this primitive. Lists and maps
                are laid out as Arrow's, or as the groups of a Parquet file.
        """
        pieces = self._values(self._node, self._known, arrays)
        if self._for_json:
            return json_column([msgspec.msgpack.decode(value) for value in join(pieces).to_pylist()])
        lengths = np.zeros(len(arrays[0]), np.int64)
        for piece in pieces:
            lengths += len(piece.as_py()) if isinstance(piece, pa.Scalar) else np.diff(_edges(piece))
        return Column(_NO_BYTES, lengths, nulls_of(arrays[0]), pieces)

    def _values(
        self, node: Node, known: Node, arrays: Sequence[pa.Array], inside: tuple[bool, bool] = (False, False)
    ) -> Pieces:
        """Makes the values of a node; `inside`: whether items of a repeated node are meant, of it and of `known`."""
        if has_no_values(node):
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
            return _bytes(_child(node, arrays, names["bytes"])[0], meaning)
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

    def _map(self, node: Node, known: Node, arrays: Sequence[pa.Array]) -> Pieces:
        repeated = node.children[0]
        parts = known.children[0].children
        lists, entries = _unpacked(arrays)
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
        return _sequence(_MAP, lists, pieces)

    def _list(self, node: Node, own: tuple[Node, bool], known: tuple[Node, bool], arrays: Sequence[pa.Array]) -> Pieces:
        item, inside = own
        lists, items = _unpacked(arrays)
        if not pa.types.is_list(arrays[0].type) and item is not node.children[0]:
            items = _child(node.children[0], items, 0)
        is_flat = not item.children and (inside or not item.is_repeated)
        is_number = has_no_values(item) == has_no_values(known[0]) and number_dtype(item.element)
        if is_flat and not self._for_json and is_number:
            return self._arrays(item, known[0], number_dtype(item.element), lists, items[0])
        return _sequence(_LIST, lists, self._values(item, known[0], items, (inside, known[1])))

    def _arrays(self, item: Node, known: Node, dtype: str, lists: pa.Array, items: pa.Array) -> Pieces:
        """Makes arrays of lists of numbers; a list with a null in it stays one."""
        counts = _counts(lists)
        numbers = np.ascontiguousarray(numbers_of(items, dtype))
        lengths = counts * numbers.itemsize
        heads = _heads(_EXTENSION, lengths, nulls_of(lists), ARRAY_DTYPES.index(dtype))
        pieces = [heads, large_binary(numbers.view(np.uint8), lengths)]
        if not items.null_count:
            return pieces
        has_null = summed(items.is_null().to_numpy(zero_copy_only=False).astype(np.int64), counts) > 0
        as_lists = join(_sequence(_LIST, lists, self._primitive(item, known, items)))
        return [pc.if_else(pa.array(has_null), as_lists, join(pieces))]

    def _primitive(self, node: Node, known: Node, values: pa.Array) -> Pieces:
        element = node.element
        if self._for_json and element.meaning == "decimal":
            return _bytes(values.cast(pa.string()), "text")
        if dtype := number_dtype(element):
            return [_numbers(numbers_of(values, dtype), nulls_of(values))]
        meaning = "bytes" if element.type == FIXED else element.meaning
        if self._for_json:
            meaning = {"": "bytes", "json": "text"}.get(meaning, meaning)
        return _bytes(values, self._meanings.get(known.path, meaning))


def _child(node: Node, arrays: Sequence[pa.Array], number: int) -> list[pa.Array]:
    """Returns the values of a child for each of its primitives, null where the struct is."""
    child = node.children[number]
    start = child.primitive - node.primitive
    own = arrays[start : start + child.primitives]
    # Arrays of one primitive have only the way to it.
    different = {id(each): each for each in own}
    place = {key: number if each.type.num_fields == len(node.children) else 0 for key, each in different.items()}
    found = {key: each.flatten()[place[key]] for key, each in different.items()}
    return [found[id(each)] for each in own]


def _unpacked(arrays: Sequence[pa.Array]) -> tuple[pa.Array, list[pa.Array]]:
    """Returns lists or maps as Arrow's lists, and for each primitive the items of all of them."""
    different = {id(each): each for each in arrays}
    lists = {key: _as_list(each) for key, each in different.items()}
    items = {key: each.flatten() for key, each in lists.items()}
    return lists[id(arrays[0])], [items[id(each)] for each in arrays]


def _as_list(values: pa.Array) -> pa.ListArray:
    kind = values.type
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
        start = values.offset
        return pa.Array.from_buffers(
            pa.list_(entries.type), len(values), values.buffers()[:2], offset=start, children=[entries]
        )
    return values.flatten()[0] if pa.types.is_struct(kind) else values


def _counts(lists: pa.Array) -> NDArray[np.int64]:
    counts = np.diff(lists.offsets.to_numpy()).astype(np.int64)
    nulls = nulls_of(lists)
    return counts if nulls is None else np.where(nulls, 0, counts)


def _sequence(first: int, lists: pa.Array, pieces: Pieces) -> Pieces:
    """Makes lists, or maps, of the pieces of their items."""
    counts = _counts(lists)
    items = join(pieces)
    edges = _edges(items)[np.concatenate([[0], np.cumsum(counts)])]
    return [_heads(first, counts, nulls_of(lists)), _slices(items, edges)]


def _bytes(values: pa.Array, meaning: str) -> Pieces:
    """Makes texts, bytes, or an extension, by what they mean."""
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


def _numbers(numbers: NDArray[np.generic], nulls: NDArray[np.bool_] | None) -> pa.LargeBinaryArray:
    if numbers.dtype.kind == "b":
        return _or_nil((numbers.view(np.uint8) + _FALSE).astype(np.uint8), nulls)
    first, wide = _NUMBERS[numbers.dtype.kind]
    rows = np.empty(len(numbers), [("first", "u1"), ("number", wide)])
    rows["first"] = first
    rows["number"] = numbers
    return _or_nil(rows, nulls)


def _heads(
    first: int, lengths: NDArray[np.int64], nulls: NDArray[np.bool_] | None, code: int | None = None
) -> pa.LargeBinaryArray:
    rows = np.empty(len(lengths), [("first", "u1"), ("length", ">u4"), *([("code", "u1")] if code is not None else [])])
    rows["first"] = first
    rows["length"] = lengths
    if code is not None:
        rows["code"] = code
    return _or_nil(rows, nulls)


def _or_nil(rows: NDArray[np.generic], nulls: NDArray[np.bool_] | None) -> pa.LargeBinaryArray:
    """Returns the bytes of each row; one byte, for no value, where it is null."""
    width = rows.itemsize
    content = np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), width)
    if nulls is None:
        return large_binary(content.reshape(-1), np.full(len(rows), width, np.int64))
    content[nulls, 0] = _NIL
    kept = ~nulls[:, None] | (np.arange(width) == 0)
    return large_binary(content[kept], np.where(nulls, 1, width))


def _nulls(rows: int) -> pa.LargeBinaryArray:
    """Returns no value for each row."""
    return large_binary(np.full(rows, _NIL, np.uint8), np.ones(rows, np.int64))


def _constant(content: bytes) -> pa.LargeBinaryScalar:
    return pa.scalar(content, pa.large_binary())


def _edges(values: pa.LargeBinaryArray) -> NDArray[np.int64]:
    """Returns where each value begins in their buffer, and the end."""
    return np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]


def _slices(values: pa.LargeBinaryArray, edges: NDArray[np.int64]) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(edges), values.buffers()[2]]
    return pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, buffers)
