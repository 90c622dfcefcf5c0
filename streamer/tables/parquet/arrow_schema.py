"""Reads the types that Arrow's schema has and Parquet's own schema cannot express: durations, tensors, wide integers.

Many writers put Arrow's schema into the footer of a Parquet file. `footer.py` adds its types to the tree of the file
(`annotate`), and `tables/arrow_ipc/schema.py` reads the same types in Arrow's own files. In Parquet a duration is a
number of 64 bits, with any unit, and a tensor is a list. polars writes integers of 128 bits as bytes.

Source: https://arrow.apache.org/docs/format/CanonicalExtensions.html#fixed-shape-tensor; Schema.fbs for the numbers.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping

import msgspec

from streamer.base.flatbuffer import Table
from streamer.formats.failures import DamagedError, UnreadError
from streamer.tables.parquet.schema import WIDE_INTEGER, SchemaNode

ARROW_SCHEMA = b"ARROW:schema"
# The schema is in a message: a mark, the length, and a flatbuffer table whose field `_HEADER` is the schema.
_MARK = b"\xff\xff\xff\xff"
_PREFIX_BYTES = 8
_HEADER = 2
_MAX_COLUMNS = 10_000
_INTEGER = 2
_MAX_INTEGER_BITS = 64
_DURATION = 18
_STRUCT = 13
_MAP = 17
_LISTS = frozenset([12, 16, 21, 25, 26])
_UNITS = ("s", "ms", "us", "ns")
_NAME = "ARROW:extension:name"
_DETAILS = "ARROW:extension:metadata"
_JSON = "arrow.json"
_TENSOR = "arrow.fixed_shape_tensor"


def annotate(root: SchemaNode, metadata: Mapping[bytes, bytes]) -> None:
    """Sets `logical` of those nodes of a schema that are durations, tensors or integers of 128 bits.

    Args:
        root: root of the schema, whose nodes are changed.
        metadata: metadata of the footer. Nothing is changed if they have no schema of Arrow, one of Arrow before 0.15,
            or more than 10,000 columns.

    Raises:
        UnreadError: a tensor is inside of a list, or `tensor_of` refuses it.
        DamagedError: the metadata do not have a schema of Arrow under its name.
    """
    # Arrow's schema of more columns is not read, because that would take longer than reading the footer.
    if not (encoded := metadata.get(ARROW_SCHEMA)) or len(root.children) > _MAX_COLUMNS:
        return
    try:
        message = memoryview(b64decode(encoded))
        if message[: len(_MARK)] != _MARK:
            # A version of Arrow before 0.15 has written the file: the columns are read as Parquet describes them.
            return
        columns = Table.root(message[_PREFIX_BYTES:]).table(_HEADER).tables(1)
        pairs = [(root.child(column.text(0)), column) for column in columns]
        for node, column in pairs:
            _annotate(node, column, inside=False)
    except UnreadError:
        raise
    except (ValueError, binascii.Error) as error:
        raise DamagedError(f"{ARROW_SCHEMA.decode()} is not a schema of Arrow: {error}") from error


def _annotate(node: SchemaNode | None, field: Table, *, inside: bool) -> None:
    """Sets `logical` of a node and those below it from a field of Arrow's schema; `inside` is true within lists."""
    if node is None:
        return
    if shape := tensor_of(field):
        if inside:
            raise UnreadError(f"a tensor inside of a list, column {'.'.join(node.path)!r}, which is not read")
        node.logical = f"tensor[{','.join(map(str, shape))}]"
        return
    kind = field.number(2, "<B")
    children = field.tables(5)
    if kind == _DURATION and not node.children:
        node.logical = duration_of(field)
    elif kind == _INTEGER and field.table(3).number(0, "<i") > _MAX_INTEGER_BITS:
        node.logical = WIDE_INTEGER
    elif kind == _STRUCT:
        for child in children:
            _annotate(node.child(child.text(0)), child, inside=inside)
    elif kind == _MAP and node.is_map and len(children) == 1:
        for own, part in zip(node.children[0].children, children[0].tables(5), strict=False):
            _annotate(own, part, inside=True)
    elif kind in _LISTS and len(children) == 1 and (found := node.items()):
        _annotate(found[0], children[0], inside=True)


def duration_of(field: Table) -> str:
    """Returns the type of a field of durations, with its unit: "duration[us]"."""
    unit = field.table(3).number(0, "<h", 1)
    return f"duration[{_UNITS[unit] if 0 <= unit < len(_UNITS) else unit}]"


def is_json(field: Table) -> bool:
    """Whether the texts of a field are JSON, by Arrow's extension type "arrow.json"."""
    return _read_extension(field).get(_NAME) == _JSON


def _read_extension(field: Table) -> dict[str, str]:
    """Returns the metadata of a field by name, among them name and details of its extension type; {} for none."""
    return {pair.text(0): pair.text(1) for pair in field.tables(6)} if field.has(6) else {}


def tensor_of(field: Table) -> tuple[int, ...]:
    """Returns the shape of the tensors in a field; () for other fields.

    Raises:
        UnreadError: the dimensions are permuted, or the shape is missing, empty or negative.
    """
    pairs = _read_extension(field)
    if pairs.get(_NAME) != _TENSOR:
        return ()
    try:
        details = msgspec.json.decode(pairs.get(_DETAILS, ""), type=_Tensor)
    except ValueError as error:
        raise UnreadError(f"a column {field.text(0)!r} of tensors that do not say their shape: {error}") from error
    if details.permutation is not None and details.permutation != sorted(details.permutation):
        raise UnreadError(
            f"a column {field.text(0)!r} of tensors whose dimensions are permuted ({details.permutation}), which are "
            "not read: write them in the order of their memory"
        )
    if not details.shape or min(details.shape) < 0:
        raise UnreadError(f"a column {field.text(0)!r} of tensors of shape {details.shape}, which are not read")
    return tuple(details.shape)


class _Tensor(msgspec.Struct, frozen=True):
    """Details of the extension type of tensors, as Arrow's JSON has them."""

    shape: list[int]
    permutation: list[int] | None = None
