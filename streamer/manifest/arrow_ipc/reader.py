"""Reads a table from an Arrow IPC stream, as numpy views over one mapping.

Used for the tables of a manifest (`manifest/table.py`), for columns and selections beside it, and by
`annotations/table.py` and `batches/rows/table.py`.

A file is a schema message, one record batch and the end mark, so any Arrow library reads it
(`pyarrow.ipc.open_stream`). Columns are neither nullable nor compressed, so the values of a column are the bytes of a
buffer. nanoarrow's own reader copies them (20 MB of file cost 58 MB of anonymous memory, 2026-11-20). Here
`read_layout` checks every offset of the messages' metadata, and `numpy.frombuffer` makes the views.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import Never

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base import flatbuffer
from streamer.base.linux import map_file
from streamer.errors import ManifestCorruptError
from streamer.manifest.columns import KEY_BYTES, BinaryColumn, Column, ColumnType, Schema, Table

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<II")
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])
_SCHEMA = 1
_RECORD_BATCH = 3
_INT = 2
_BINARY = 4
_FIXED_SIZE_BINARY = 15
_LARGE_BINARY = 19
# Longer metadata of a message is refused; that of a table with a dozen columns takes 2 KiB.
_METADATA_LIMIT = 1 << 20


class FieldLayout(msgspec.Struct, frozen=True):
    """A column's name and Arrow type as text.

    Attributes:
        name: name of the column.
        kind: such as "int64", "binary" or "fixed_size_binary[16]"; "type 5" for a type that is not read here.
    """

    name: str
    kind: str


class BatchLayout(msgspec.Struct, frozen=True):
    """Says where the only record batch of a file has its bytes.

    Attributes:
        rows: number of rows.
        fields: the columns, in order.
        buffers: half-open byte ranges in the file, column by column: first a validity buffer, then those of the
            values.
    """

    rows: int
    fields: tuple[FieldLayout, ...]
    buffers: tuple[tuple[int, int], ...]


def read_layout(content: memoryview | bytes, where: str) -> BatchLayout:
    """Finds the columns and the byte ranges of all buffers of a stream; reads no values.

    Args:
        content: the whole stream.
        where: name of the stream, for errors.

    Raises:
        ManifestCorruptError: the bytes are not a schema and an uncompressed record batch, or a buffer is outside of
            them.
    """
    try:
        return _layout(content)
    except _BrokenError as error:
        raise ManifestCorruptError(f"{where}: {error}", path=where, position=error.position) from error
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        raise ManifestCorruptError(f"{where}: not an Arrow stream: {error}", path=where) from error


class _BrokenError(Exception):
    """Raised where a stream breaks the rules of `read_layout`; `position` is the byte at which its message is."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} (byte {position})")
        self.position = position


def _layout(content: memoryview | bytes) -> BatchLayout:
    """Does what `read_layout` promises; raises _BrokenError, or what a read outside of the bytes raises."""
    metadata, position = _metadata(content, 0)
    fields, body_bytes = _schema(metadata)
    metadata, body = _metadata(content, position + body_bytes)
    message = flatbuffer.Table.root(memoryview(metadata))
    body_bytes = message.number(3, "<q")
    header = message.table(2)
    if message.number(1, "<B") != _RECORD_BATCH:
        raise _BrokenError("has no record batch after the schema", body)
    if not 0 <= body_bytes <= len(content) - body:
        raise _BrokenError(f"is cut off: a body of {body_bytes} bytes at", body)
    rows = header.number(0, "<q")
    if rows < 0 or header.has(3):
        raise _BrokenError(f"has {rows} rows, or is compressed; batch at", body)
    ranges = []
    for i, (offset, size) in enumerate(header.structs(2, _BUFFER).tolist()):
        if offset < 0 or size < 0 or offset + size > body_bytes:
            raise _BrokenError(f"buffer {i} [{offset}, {offset + size}) is outside of its body at", body)
        ranges.append((body + offset, body + offset + size))
    return BatchLayout(rows, fields, tuple(ranges))


def _metadata(content: memoryview | bytes, position: int) -> tuple[bytes, int]:
    """Returns the metadata of the message at byte `position`, and the byte at which its body begins."""
    mark, length = _PREFIX.unpack(content[position : position + _PREFIX.size])
    start = position + _PREFIX.size
    body = start + length
    if mark != _CONTINUATION or not 8 <= length <= _METADATA_LIMIT or body > len(content):
        raise _BrokenError("has a broken message prefix", position)
    return bytes(content[start:body]), body


# The files of a table begin with the same schema: parsing it was half of the cost of opening a manifest (0.6 ms,
# 2026-11-23), which a mix does for every member in every process.
@lru_cache(maxsize=16)
def _schema(metadata: bytes) -> tuple[tuple[FieldLayout, ...], int]:
    """Returns the columns that a schema message has, and the bytes of its body; raises _BrokenError."""
    message = flatbuffer.Table.root(memoryview(metadata))
    body_bytes = message.number(3, "<q")
    if message.number(1, "<B") != _SCHEMA:
        raise _BrokenError("does not begin with a schema", 0)
    if body_bytes < 0:
        raise _BrokenError(f"has a schema with a body of {body_bytes} bytes at", 0)
    return tuple(FieldLayout(field.text(0), _type_name(field)) for field in message.table(2).tables(1)), body_bytes


def _type_name(field: flatbuffer.Table) -> str:
    """Returns the type of a column as `FieldLayout.kind`."""
    kind = field.number(2, "<B")
    details = field.table(3)
    if kind == _INT:
        return f"{'' if details.number(1, '<?') else 'u'}int{details.number(0, '<i')}"
    if kind == _FIXED_SIZE_BINARY:
        return f"fixed_size_binary[{details.number(0, '<i')}]"
    return {_BINARY: "binary", _LARGE_BINARY: "large_binary"}.get(kind, f"type {kind}")


def map_table(path: Path, schema: Schema) -> Table:
    """Maps a file and returns its columns by name, as read-only views; takes no memory per row.

    Raises:
        ManifestCorruptError: the file cannot be mapped, is no stream of this module, or has other columns or types than
            `schema`.
    """
    try:
        mapping = map_file(path)
    except OSError as error:
        raise ManifestCorruptError(f"{path}: cannot be mapped: {error}", path=str(path)) from error
    return read_table(mapping, schema, str(path))


def read_table(mapping: memoryview, schema: Schema, where: str) -> Table:
    """Returns the columns of a file's bytes by name, as views of these bytes.

    Args:
        mapping: all bytes of the file.
        schema: names and types of the columns, in their order.
        where: name of the file, for errors.

    Raises:
        ManifestCorruptError: the bytes are no stream of this module, or have other columns or types than `schema`.
    """
    layout = read_layout(mapping, where)
    if [field.name for field in layout.fields] != list(schema):
        found = ", ".join(field.name for field in layout.fields)
        raise ManifestCorruptError(f"{where}: has columns {found}; expected {', '.join(schema)}", path=where)
    cursor = _Cursor(mapping, layout, where)
    return {name: cursor.column(kind) for name, kind in schema.items()}


class _Cursor:
    """Makes the columns of a record batch one after the other, each from the next buffers."""

    def __init__(self, mapping: memoryview, layout: BatchLayout, where: str) -> None:
        self._mapping = mapping
        self._layout = layout
        self._where = where
        self._fields = iter(layout.fields)
        self._ranges = iter(layout.buffers)

    def column(self, kind: ColumnType) -> Column:
        """Returns the next column; raises ManifestCorruptError if it is of another type or longer than its buffers."""
        field = next(self._fields)
        if field.kind not in _ACCEPTED[kind]:
            self._fail(f"column {field.name} is {field.kind}, expected {kind}")
        self._next()  # validity: empty, as no column is nullable
        if kind == "binary":
            offset_bytes = 8 if field.kind == "large_binary" else 4
            if not self._layout.rows:  # the format lets writers leave out the one offset
                self._next()
                self._next()
                return BinaryColumn.of([])
            found = self._array(np.dtype(f"<i{offset_bytes}"), self._layout.rows + 1)
            offsets = found.view(np.int64) if offset_bytes == 8 else found.view(np.int32)
            start, stop = self._next()
            content = np.frombuffer(self._mapping, np.uint8, stop - start, start)
            if int(offsets[0]) != 0 or not 0 <= int(offsets[-1]) <= len(content):
                self._fail(f"byte strings end at {offsets[-1]} of {len(content)}")
            return BinaryColumn(offsets, content[: int(offsets[-1])])
        if kind == "key16":
            return self._array(np.dtype("u1"), self._layout.rows * KEY_BYTES).reshape(-1, KEY_BYTES)
        return self._array(np.dtype(kind).newbyteorder("<"), self._layout.rows)

    def _array(self, dtype: np.dtype[np.generic], count: int) -> NDArray[np.generic]:
        start, stop = self._next()
        if count * dtype.itemsize > stop - start:
            self._fail(f"a buffer of {stop - start} bytes for {count} values of {dtype}")
        return np.frombuffer(self._mapping, dtype, count, start)

    def _next(self) -> tuple[int, int]:
        found = next(self._ranges, None)
        if found is None:
            self._fail("fewer buffers than its schema needs")
        return found

    def _fail(self, what: str) -> Never:
        raise ManifestCorruptError(f"{self._where}: {what}", path=self._where)


_ACCEPTED: dict[ColumnType, frozenset[str]] = {
    "uint8": frozenset({"uint8"}),
    "uint32": frozenset({"uint32"}),
    "int32": frozenset({"int32"}),
    "int64": frozenset({"int64"}),
    "binary": frozenset({"binary", "large_binary"}),
    "key16": frozenset({f"fixed_size_binary[{KEY_BYTES}]"}),
}
