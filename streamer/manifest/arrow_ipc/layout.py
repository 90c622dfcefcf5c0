"""Offsets of the buffers of an Arrow IPC stream: its message metadata, with every offset checked.

Source: Arrow columnar format, "IPC Streaming Format" and format/{Message,Schema}.fbs. The numbers of fields are their
    places in those files.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import msgspec
import numpy as np

from streamer.base.flatbuffer import Table
from streamer.errors import ManifestCorruptError

_CONTINUATION = 0xFFFFFFFF
_PREFIX = struct.Struct("<II")
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])
_SCHEMA = 1
_RECORD_BATCH = 3
_INT = 2
_BINARY = 4
_FIXED_SIZE_BINARY = 15
_LARGE_BINARY = 19
# Metadata of a table with a dozen columns takes 2 KiB.
_METADATA_LIMIT = 1 << 20


class FieldLayout(msgspec.Struct, frozen=True):
    """A column's name and type, e.g. "int64", "binary", "fixed_size_binary[16]"."""

    name: str
    kind: str


class BatchLayout(msgspec.Struct, frozen=True):
    """The only record batch of a file: rows, columns and the byte ranges of all buffers in the file."""

    rows: int
    fields: tuple[FieldLayout, ...]
    buffers: tuple[tuple[int, int], ...]


def read_layout(content: memoryview | bytes, where: str) -> BatchLayout:
    """Finds schema and record batch of a stream.

    Raises:
        ManifestCorruptError: it is not such a stream, or points outside of it.
    """
    try:
        return _layout(content)
    except _BrokenError as error:
        raise ManifestCorruptError(f"{where}: {error}", path=where, position=error.position) from error
    except (struct.error, IndexError, ValueError, TypeError, OverflowError) as error:
        raise ManifestCorruptError(f"{where}: not an Arrow stream: {error}", path=where) from error


class _BrokenError(Exception):
    """Raised for anything that is not such a stream."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} (byte {position})")
        self.position = position


def _layout(content: memoryview | bytes) -> BatchLayout:
    metadata, position = _metadata(content, 0)
    fields, body_bytes = _schema(metadata)
    metadata, body = _metadata(content, position + body_bytes)
    rows, buffers = _batch(metadata, body, len(content))
    return BatchLayout(rows, fields, buffers)


def _metadata(content: memoryview | bytes, position: int) -> tuple[bytes, int]:
    """The metadata of the message at `position`, and the start of its body."""
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
    """Returns the columns, and the length of the body."""
    message = Table.root(memoryview(metadata))
    body_bytes = message.number(3, "<q")
    if message.number(1, "<B") != _SCHEMA:
        raise _BrokenError("does not begin with a schema", 0)
    if body_bytes < 0:
        raise _BrokenError(f"has a schema with a body of {body_bytes} bytes at", 0)
    return tuple(FieldLayout(field.text(0), _type_name(field)) for field in message.table(2).tables(1)), body_bytes


def _batch(metadata: bytes, body: int, length: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Returns rows and byte ranges of the buffers of a message whose body starts at `body` of the file."""
    message = Table.root(memoryview(metadata))
    body_bytes = message.number(3, "<q")
    header = message.table(2)
    if message.number(1, "<B") != _RECORD_BATCH:
        raise _BrokenError("has no record batch after the schema", body)
    if not 0 <= body_bytes <= length - body:
        raise _BrokenError(f"is cut off: a body of {body_bytes} bytes at", body)
    rows = header.number(0, "<q")
    if rows < 0 or header.has(3):
        raise _BrokenError(f"has {rows} rows, or is compressed; batch at", body)
    ranges = []
    for i, (offset, size) in enumerate(header.structs(2, _BUFFER).tolist()):
        if offset < 0 or size < 0 or offset + size > body_bytes:
            raise _BrokenError(f"buffer {i} [{offset}, {offset + size}) is outside of its body at", body)
        ranges.append((body + offset, body + offset + size))
    return rows, tuple(ranges)


def _type_name(field: Table) -> str:
    kind = field.number(2, "<B")
    details = field.table(3)
    if kind == _INT:
        return f"{'' if details.number(1, '<?') else 'u'}int{details.number(0, '<i')}"
    if kind == _FIXED_SIZE_BINARY:
        return f"fixed_size_binary[{details.number(0, '<i')}]"
    return {_BINARY: "binary", _LARGE_BINARY: "large_binary"}.get(kind, f"type {kind}")
