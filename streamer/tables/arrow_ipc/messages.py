"""Parses messages of Arrow IPC: a schema, dictionaries, then record batches; the same in streams and in files. No I/O.

    u32 0xFFFFFFFF, u32 metadata bytes | metadata, a table of FlatBuffers | body

A file has "ARROW1", 2 zeros before the messages, and behind them a footer with the schema and the places of the others,
its length (i32), and "ARROW1". What is before its first dictionary or batch does not count (polars).
Other bytes raise `DamagedError` or `FlatbufferError`.
Source: Arrow columnar format, "Serialization and IPC"; format/{Message,File}.fbs.
"""

from __future__ import annotations

from struct import Struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.flatbuffer import Table
from streamer.formats.failures import DamagedError

SCHEMA = 1
DICTIONARY = 2
BATCH = 3
PREFIX_BYTES = 8
# A file begins with these bytes, and ends with the magic behind its footer.
MAGIC = b"ARROW1"
START_BYTES = 8
END_BYTES = 4 + len(MAGIC)
# What blocks of a file have in their hints: that there are dictionaries before the batches, and the file's own schema.
DICTIONARIES = b"dictionaries"
OWN_SCHEMA = b" schema "
# What hints begin with where the file does not say itself what its records have; `FileHint` follows, as MessagePack.
FILE_HINT = b"file "
MOST_METADATA_BYTES = 16 << 20
_PREFIX = Struct("<II")
_CONTINUES = 0xFFFFFFFF
_LENGTH = Struct("<i")
# Fields of Footer, and a struct of them.
_DICTIONARIES = 2
_BATCHES = 3
# A table of a Message without its header: where it is, its fields; version 5, schema, header, no body.
_MESSAGE = Struct("<IHHHHHHiHBxIxxxxq").pack(16, 12, 24, 4, 6, 8, 16, 12, 4, SCHEMA, 0, 0)
_HEADER_AT = 24
PLACE = np.dtype([("place", "<i8"), ("head", "<i4"), ("pad", "<i4"), ("body", "<i8")])


class FileHint(msgspec.Struct, frozen=True, array_like=True):
    """What the recoder has to know of the file of a block.

    Attributes:
        has_dictionaries: Whether there are dictionaries before the batches.
        schema: The message of the file's own schema; empty if it is that of the facts.
        partitions: Values of the fields that the path has.
        layout: `Columns.layout`, so that records of other layouts are other chunks; the recoder has no use for it.
    """

    has_dictionaries: bool
    schema: bytes
    partitions: list[int | str | None]
    layout: bytes = b""


class Message(msgspec.Struct, frozen=True):
    """The metadata of a message: its kind (SCHEMA, BATCH, ...), the bytes behind it, and the rows of a batch."""

    kind: int
    body_bytes: int
    rows: int = 0
    compressed: bool = False


def read_prefix(content: memoryview) -> int:
    """Returns the length of the metadata of the message that begins here; 0: it is the end mark."""
    mark, length = _PREFIX.unpack_from(content)
    if mark == 0:
        # The end mark of before 0.15 has no prefix.
        return 0
    if mark != _CONTINUES:
        raise DamagedError("no message begins here, or it was written before Arrow 0.15")
    if length > MOST_METADATA_BYTES:
        raise DamagedError(f"metadata of {length} bytes")
    return int(length)


def read_message(metadata: memoryview) -> Message:
    """Parses the metadata of a message."""
    table = Table.root(metadata)
    kind = table.number(1, "<B")
    body_bytes = table.number(3, "<q")
    if body_bytes < 0:
        raise DamagedError(f"a body of {body_bytes} bytes")
    if kind != BATCH:
        return Message(kind, body_bytes)
    batch = table.table(2)
    rows = batch.number(0, "<q")
    if not 0 <= rows < 1 << 40:
        raise DamagedError(f"a record batch of {rows} rows")
    return Message(kind, body_bytes, rows, batch.has(3))


def schema_of(metadata: memoryview) -> Table:
    """Returns the schema in the metadata of a message."""
    table = Table.root(metadata)
    if table.number(1, "<B") != SCHEMA or table.number(3, "<q"):
        raise DamagedError("the first message is not a schema")
    return table.table(2)


def footer_bytes(tail: memoryview) -> int:
    """Returns the length of a file's footer, from the last bytes of the file."""
    if len(tail) < END_BYTES or tail[-len(MAGIC) :] != MAGIC:
        raise DamagedError(f"does not end with {MAGIC!r}")
    length: int = _LENGTH.unpack_from(tail, len(tail) - END_BYTES)[0]
    if not 0 < length <= MOST_METADATA_BYTES:
        raise DamagedError(f"a footer of {length} bytes")
    return length


def schema_message(footer: memoryview) -> bytes:
    """Returns the schema of a footer as the first message of a stream: a table that points into the footer."""
    at = len(_MESSAGE) + Table.root(footer).table(1).place
    header = (at - _HEADER_AT).to_bytes(4, "little")
    content = _MESSAGE[:_HEADER_AT] + header + _MESSAGE[_HEADER_AT + 4 :] + footer
    content += bytes(-len(content) % 8)
    return _PREFIX.pack(_CONTINUES, len(content)) + content


def read_footer(footer: memoryview) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Returns the places of the dictionaries and of the record batches of a file: "place", "head", "body", in bytes."""
    table = Table.root(footer)
    return table.structs(_DICTIONARIES, PLACE), table.structs(_BATCHES, PLACE)
