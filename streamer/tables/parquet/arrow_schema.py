"""Reads of Arrow's schema, which many writers put into the footer, what Parquet's own schema has no words for.

A duration is a number of 64 bits in Parquet, whatever its unit, and a tensor is a list. polars writes integers of 128
bits as bytes.

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
# A message: the mark, its length, and a table whose header is the schema.
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
    """Notes in the nodes of a schema which of them are durations, tensors or wide integers.

    Raises:
        UnreadError: a tensor whose dimensions are permuted, or that is inside of a list.
    """
    # The schema of wider ones is not read: it would take longer than the footer.
    if not (encoded := metadata.get(ARROW_SCHEMA)) or len(root.children) > _MAX_COLUMNS:
        return
    try:
        message = memoryview(b64decode(encoded))
        if message[: len(_MARK)] != _MARK:
            # Written by a version of Arrow from before 0.15: the columns are read as Parquet describes them.
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
    """Returns the exact type of a field of durations."""
    unit = field.table(3).number(0, "<h", 1)
    return f"duration[{_UNITS[unit] if 0 <= unit < len(_UNITS) else unit}]"


def is_json(field: Table) -> bool:
    """Whether the texts of a field are JSON, by its extension type."""
    return _read_extension(field).get(_NAME) == _JSON


def _read_extension(field: Table) -> dict[str, str]:
    """Returns the name and the metadata of a field's extension type."""
    return {pair.text(0): pair.text(1) for pair in field.tables(6)} if field.has(6) else {}


def tensor_of(field: Table) -> tuple[int, ...]:
    """Returns the shape of a field of tensors of one shape; empty for other fields.

    Raises:
        UnreadError: its dimensions are permuted.
    """
    pairs = _read_extension(field)
    if pairs.get(_NAME) != _TENSOR:
        return ()
    try:
        details = msgspec.json.decode(pairs.get(_DETAILS, ""), type=_Tensor)
    except msgspec.MsgspecError as error:
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
    """The metadata of a tensor's type."""

    shape: list[int]
    permutation: list[int] | None = None
