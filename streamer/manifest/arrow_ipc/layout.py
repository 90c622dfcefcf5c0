"""Offsets of the buffers of an Arrow IPC stream: its message metadata, with every offset checked.

Source: Arrow columnar format, "IPC Streaming Format" and format/{Message,Schema}.fbs. The numbers below are
the slots of those flatbuffers tables (field k is at vtable offset 4 + 2 k).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple, Never

import msgspec

from streamer.errors import ManifestCorruptError

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<II")
_TWO_LONGS = struct.Struct("<qq")
_OFFSET = struct.Struct("<H")
_SIGNED = struct.Struct("<i")
_UNSIGNED = struct.Struct("<I")
_SCHEMA, _RECORD_BATCH = 1, 3
_INT, _BINARY, _FIXED_SIZE_BINARY, _LARGE_BINARY = 2, 4, 15, 19
# Metadata of a table with a dozen columns takes 2 KiB.
_METADATA_LIMIT = 1 << 20
_COLUMNS_LIMIT = 256


class FieldLayout(msgspec.Struct, frozen=True):
    """A column's name and type, e.g. "int64", "binary", "fixed_size_binary[16]"."""

    name: str
    kind: str


class BatchLayout(msgspec.Struct, frozen=True):
    """The one record batch of a file: rows, columns and the byte ranges of all buffers in the file."""

    rows: int
    fields: tuple[FieldLayout, ...]
    buffers: tuple[tuple[int, int], ...]


def read_layout(content: memoryview | bytes, where: str) -> BatchLayout:
    """Finds schema and record batch of a stream.

    Raises:
        ManifestCorruptError: anything that is not such a stream, or points outside of it.
    """
    try:
        return _layout(content)
    except _BrokenError as error:
        raise ManifestCorruptError(f"{where}: {error}", path=where, position=error.position) from error
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        raise ManifestCorruptError(f"{where}: not an Arrow stream: {error}", path=where) from error


class _BrokenError(Exception):
    """Not such a stream."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} (byte {position})")
        self.position = position


def _layout(content: memoryview | bytes) -> BatchLayout:
    metadata, position = _metadata(content, 0)
    fields, body_bytes = _schema(metadata)
    metadata, body = _metadata(content, position + body_bytes)
    rows, buffers = _Message(metadata).batch(body, len(content))
    return BatchLayout(rows, fields, buffers)


def _metadata(content: memoryview | bytes, position: int) -> tuple[bytes, int]:
    """The metadata of the message at `position`, and the start of its body."""
    mark, length = _PREFIX.unpack(content[position : position + _PREFIX.size])
    start = position + _PREFIX.size
    body = start + length
    if mark != _CONTINUATION or not 8 <= length <= _METADATA_LIMIT or body > len(content):
        raise _BrokenError("has a broken message prefix", position)
    return bytes(content[start:body]), body


# The files of a table begin with the same schema: to walk it was half of what opening a manifest cost (0.6 ms,
# 2026-11-23), which a mix does for every member in every process.
@lru_cache(maxsize=16)
def _schema(metadata: bytes) -> tuple[tuple[FieldLayout, ...], int]:
    return _Message(metadata).schema()


class _Table(NamedTuple):
    """A flatbuffers table inside the metadata.

    Attributes:
        metadata: of the message.
        position: of the table in it.
        vtable: position of its list of fields.
        length: of that list in bytes.
    """

    metadata: bytes
    position: int
    vtable: int
    length: int


class _Message:
    """The metadata of a message. Positions in errors are those in it."""

    def __init__(self, metadata: bytes) -> None:
        message = self._at(metadata, _UNSIGNED.unpack_from(metadata)[0])
        self._kind, self._header = self._scalar(message, 1, "<B"), self._child(message, 2)
        self._body_bytes = self._scalar(message, 3, "<q")

    def schema(self) -> tuple[tuple[FieldLayout, ...], int]:
        """The columns, and the length of the body."""
        if self._kind != _SCHEMA:
            self._fail("does not begin with a schema", 0)
        if self._body_bytes < 0:
            self._fail(f"has a schema with a body of {self._body_bytes} bytes at", 0)
        return tuple(self._field(field) for field in self._tables(self._header, 1)), self._body_bytes

    def batch(self, body: int, length: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """The number of rows and the byte ranges of the buffers.

        Args:
            body: its start in the file.
            length: of the file.
        """
        if self._kind != _RECORD_BATCH:
            self._fail("has no record batch after the schema", body)
        if not 0 <= self._body_bytes <= length - body:
            self._fail(f"is cut off: a body of {self._body_bytes} bytes at", body)
        return self._batch(self._header, body, body + self._body_bytes)

    def _field(self, field: _Table) -> FieldLayout:
        kind = self._scalar(field, 2, "<B")
        details = self._child(field, 3)
        return FieldLayout(self._text(field, 0), self._type_name(kind, details))

    def _type_name(self, kind: int, details: _Table) -> str:
        if kind == _INT:
            signed = self._scalar(details, 1, "<?")
            return f"{'' if signed else 'u'}int{self._scalar(details, 0, '<i')}"
        if kind == _FIXED_SIZE_BINARY:
            return f"fixed_size_binary[{self._scalar(details, 0, '<i')}]"
        return {_BINARY: "binary", _LARGE_BINARY: "large_binary"}.get(kind, f"type {kind}")

    def _batch(self, batch: _Table, body: int, end: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        rows = self._scalar(batch, 0, "<q")
        if rows < 0 or self._slot(batch, 3):
            self._fail(f"has {rows} rows, or is compressed; batch at", body)
        start, count = self._vector(batch, 2, _TWO_LONGS.size)
        ranges = []
        for i in range(count):
            offset, length = _TWO_LONGS.unpack_from(batch.metadata, start + i * _TWO_LONGS.size)
            if offset < 0 or length < 0 or body + offset + length > end:
                self._fail(f"buffer {i} [{offset}, {offset + length}) is outside of its body at", body)
            ranges.append((body + offset, body + offset + length))
        return rows, tuple(ranges)

    # Steps through a flatbuffer. Each returns only positions inside the metadata.

    def _at(self, metadata: bytes, position: int) -> _Table:
        if not 0 <= position <= len(metadata) - 4:
            self._fail("metadata points outside of itself", position)
        vtable = position - _SIGNED.unpack_from(metadata, position)[0]
        if not 0 <= vtable <= len(metadata) - 4:
            self._fail("metadata has a table outside of itself", vtable)
        length = _OFFSET.unpack_from(metadata, vtable)[0]
        if vtable + length > len(metadata):
            self._fail("metadata has a table that is cut off", vtable)
        return _Table(metadata, position, vtable, length)

    def _slot(self, table: _Table, field: int) -> int:
        """Position of a field in the metadata; 0 if the table does not have it."""
        place = 4 + 2 * field
        offset: int = _OFFSET.unpack_from(table.metadata, table.vtable + place)[0] if place < table.length else 0
        return table.position + offset if offset else 0

    def _scalar(self, table: _Table, field: int, layout: str) -> int:
        slot = self._slot(table, field)
        return int(struct.unpack_from(layout, table.metadata, slot)[0]) if slot else 0

    def _child(self, table: _Table, field: int) -> _Table:
        slot = self._slot(table, field)
        if not slot:
            self._fail(f"metadata lacks field {field} of the table at", table.position)
        return self._at(table.metadata, slot + _UNSIGNED.unpack_from(table.metadata, slot)[0])

    def _vector(self, table: _Table, field: int, item_bytes: int) -> tuple[int, int]:
        """Position of the first item and how many there are, all of them inside the metadata."""
        slot = self._slot(table, field)
        if not slot:
            return 0, 0
        start = slot + _UNSIGNED.unpack_from(table.metadata, slot)[0]
        count = _UNSIGNED.unpack_from(table.metadata, start)[0]
        if start + 4 + count * item_bytes > len(table.metadata):
            self._fail(f"metadata has a vector of {count} items at", start)
        return start + 4, count

    def _tables(self, table: _Table, field: int) -> list[_Table]:
        start, count = self._vector(table, field, 4)
        if count > _COLUMNS_LIMIT:
            self._fail(f"has {count} columns, at most {_COLUMNS_LIMIT};", start)
        places = range(start, start + 4 * count, 4)
        return [self._at(table.metadata, p + _UNSIGNED.unpack_from(table.metadata, p)[0]) for p in places]

    def _text(self, table: _Table, field: int) -> str:
        start, count = self._vector(table, field, 1)
        return bytes(table.metadata[start : start + count]).decode()

    def _fail(self, what: str, position: int) -> Never:
        raise _BrokenError(what, position)
