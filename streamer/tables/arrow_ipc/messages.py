"""Parses messages of Arrow IPC: a schema, dictionaries and record batches, in streams as in files. It does no I/O.

    u32 0xFFFFFFFF, u32 metadata bytes | metadata, a table of FlatBuffers | body

All of `tables/arrow_ipc` uses it, and `tables/litdata/items.py` reads footers with it. A file has "ARROW1" and 2 zeros
before the messages. Behind them it has a footer with the schema and the places of dictionaries and batches, the
footer's length (i32), and "ARROW1". What is before the first dictionary or batch is ignored (polars writes more there).
Damaged bytes raise `DamagedError` or `FlatbufferError`.
Source: Arrow columnar format, "Serialization and IPC"; format/{Message,File}.fbs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
# A file begins with the magic and 2 zeros. It ends with the length of its footer, and the magic.
MAGIC = b"ARROW1"
START_BYTES = 8
END_BYTES = 4 + len(MAGIC)
# The hint of a block begins with DICTIONARIES if it has dictionaries before the batches. OWN_SCHEMA and the message of
# the file's own schema follow, if that is not the schema of the facts.
DICTIONARIES = b"dictionaries"
OWN_SCHEMA = b" schema "
# A hint begins with this if the file alone does not determine the fields of its records. `ArrowFileHint` follows.
FILE_HINT = b"file "
MAX_METADATA_BYTES = 16 << 20
_PREFIX = Struct("<II")
_CONTINUES = 0xFFFFFFFF
_LENGTH = Struct("<i")
# Numbers of fields of Footer; both are lists of the struct `PLACE`.
_DICTIONARIES = 2
_BATCHES = 3
# A Message (a table of FlatBuffers) of version 5 with a schema and no body. Its header, the schema, is not set: that is
# an offset at byte `_HEADER_AT`.
_MESSAGE = Struct("<IHHHHHHiHBxIxxxxq").pack(16, 12, 24, 4, 6, 8, 16, 12, 4, SCHEMA, 0, 0)
_HEADER_AT = 24
PLACE = np.dtype([("place", "<i8"), ("head", "<i4"), ("pad", "<i4"), ("body", "<i8")])
# Numbers of fields of Message and of RecordBatch. A buffer of a batch is a range of the message's body (`_BUFFER`).
_BODY_BYTES = 3
_BUFFERS = 2
_VIEW_COUNTS = 4
_BUFFER = np.dtype([("offset", "<i8"), ("length", "<i8")])
_COUNT = np.dtype([("count", "<i8")])
# Buffers begin at multiples of 8 bytes, of 64 by default. Buffers with less than 64 bytes between them are one range.
_ALIGNMENT = 8
_PADDING_BYTES = 64


class ArrowFileHint(msgspec.Struct, frozen=True, array_like=True):
    """What the recoder must know of the file of a block.

    Attributes:
        has_dictionaries: Whether the block has dictionaries before its batches.
        schema: The message of the file's own schema, or empty if it is the schema of the facts.
        partitions: Values of the fields in the file's path, with None for a null.
        layout: `ArrowColumns.layout`. It makes chunks whose records have another layout get another key; the recoder
            does not read it.
    """

    has_dictionaries: bool
    schema: bytes
    partitions: list[int | str | None]
    layout: bytes = b""


class ArrowMessage(msgspec.Struct, frozen=True):
    """What the metadata of a message say.

    Attributes:
        kind: SCHEMA, DICTIONARY, BATCH, or another number.
        body_bytes: length of the body behind the metadata.
        rows: rows of a record batch; 0 for other messages.
        compressed: whether the buffers of a record batch are compressed.
    """

    kind: int
    body_bytes: int
    rows: int = 0
    compressed: bool = False


def read_prefix(content: memoryview) -> int:
    """Returns the length of the metadata of the message at the beginning of `content`, or 0 for the end mark.

    Raises DamagedError if no message begins there, or its metadata have more than 16 MiB; struct.error if there are
    less than `PREFIX_BYTES`.
    """
    mark, length = _PREFIX.unpack_from(content)
    if mark == 0:
        # Versions before 0.15 write an end mark without a prefix.
        return 0
    if mark != _CONTINUES:
        raise DamagedError("no message begins here, or it was written before Arrow 0.15")
    if length > MAX_METADATA_BYTES:
        raise DamagedError(f"metadata of {length} bytes")
    return int(length)


def read_message(metadata: memoryview) -> ArrowMessage:
    """Parses the metadata of a message; raises DamagedError or FlatbufferError."""
    table = Table.root(metadata)
    kind = table.number(1, "<B")
    body_bytes = table.number(3, "<q")
    if body_bytes < 0:
        raise DamagedError(f"a body of {body_bytes} bytes")
    if kind != BATCH:
        return ArrowMessage(kind, body_bytes)
    batch = table.table(2)
    rows = batch.number(0, "<q")
    if not 0 <= rows < 1 << 40:
        raise DamagedError(f"a record batch of {rows} rows")
    return ArrowMessage(kind, body_bytes, rows, batch.has(3))


class BatchParts(msgspec.Struct, frozen=True):
    """The buffers of some columns in the body of a record batch.

    Attributes:
        are_wanted: Which buffers of the batch belong to the columns: bool, shape (buffers,).
        ranges: Half-open byte ranges of the body that have these buffers, in order.
    """

    are_wanted: NDArray[np.bool_]
    ranges: list[tuple[int, int]]

    @property
    def body_bytes(self) -> int:
        """Bytes of all ranges together."""
        return sum(stop - start for start, stop in self.ranges)


def find_parts(metadata: memoryview, counts: Sequence[tuple[int, int]], columns: Collection[int]) -> BatchParts:
    """Finds the buffers of some columns in the body of a record batch; raises DamagedError or FlatbufferError.

    Args:
        metadata: The metadata of the batch's message.
        counts: For each column of the file, the number of its buffers, and the number of its parts that are views: a
            batch says how many further buffers each view has.
        columns: Numbers of the wanted columns.
    """
    table = Table.root(metadata)
    body_bytes = table.number(_BODY_BYTES, "<q")
    buffers = table.table(2).structs(_BUFFERS, _BUFFER)
    more = table.table(2).structs(_VIEW_COUNTS, _COUNT)["count"]
    are_wanted = np.zeros(len(buffers), np.bool_)
    at = 0
    views = 0
    for number, (count, view_count) in enumerate(counts):
        stop = at + count + int(more[views : views + view_count].sum())
        are_wanted[at:stop] = number in columns
        at = stop
        views += view_count
    if at != len(buffers) or views != len(more):
        raise DamagedError(f"a record batch of {len(buffers)} buffers; its columns have {at}")
    ranges: list[tuple[int, int]] = []
    for start, length in sorted(buffers[are_wanted].tolist()):
        if start < 0 or length < 0 or start + length > body_bytes:
            raise DamagedError(f"a buffer of {length} bytes at byte {start} of a body of {body_bytes} bytes")
        stop = min(body_bytes, start + length + -length % _ALIGNMENT)
        if ranges and start - ranges[-1][1] < _PADDING_BYTES:
            ranges[-1] = (ranges[-1][0], max(stop, ranges[-1][1]))
        elif length:
            ranges.append((start, stop))
    return BatchParts(are_wanted, ranges)


def cut_batch(metadata: memoryview, parts: BatchParts) -> bytes:
    """Returns the metadata of a record batch for a body that consists of these parts only.

    Buffers of other columns become empty.
    """
    content = bytearray(metadata)
    table = Table.root(memoryview(content))
    # The buffers are a view of `content`, which is changed through it.
    buffers = table.table(2).structs(_BUFFERS, _BUFFER)
    starts = np.array([start for start, _ in parts.ranges], np.int64)
    lengths = np.array([stop - start for start, stop in parts.ranges], np.int64)
    if len(starts):
        numbers = np.maximum(np.searchsorted(starts, buffers["offset"], "right") - 1, 0)
        buffers["offset"] += (np.cumsum(lengths) - lengths - starts)[numbers]
    is_empty = ~parts.are_wanted | (buffers["length"] == 0)
    buffers["offset"][is_empty] = 0
    buffers["length"][is_empty] = 0
    if place := table.find_field(_BODY_BYTES):
        content[place : place + 8] = parts.body_bytes.to_bytes(8, "little")
    return bytes(content)


def schema_of(metadata: memoryview) -> Table:
    """Returns the schema in the metadata of a message; raises DamagedError or FlatbufferError if it has none."""
    table = Table.root(metadata)
    if table.number(1, "<B") != SCHEMA or table.number(3, "<q"):
        raise DamagedError("the first message is not a schema")
    return table.table(2)


def footer_bytes(tail: memoryview) -> int:
    """Returns the length of a file's footer, from the last bytes of the file; raises DamagedError for other bytes."""
    if len(tail) < END_BYTES or tail[-len(MAGIC) :] != MAGIC:
        raise DamagedError(f"does not end with {MAGIC!r}")
    length: int = _LENGTH.unpack_from(tail, len(tail) - END_BYTES)[0]
    if not 0 < length <= MAX_METADATA_BYTES:
        raise DamagedError(f"a footer of {length} bytes")
    return length


def schema_message(footer: memoryview) -> bytes:
    """Returns the schema of a footer as the first message of a stream. The message contains the whole footer."""
    return _make_schema_message(footer, Table.root(footer).table(1).place)


def cut_schema_message(footer: memoryview) -> bytes:
    """Returns the schema of a footer as `schema_message` does, but without the places of messages in the footer.

    What a table refers to is behind it, because FlatBuffers are written from their end. The places are before the
    schema (Arrow C++) or behind it (arrow-rs, polars). For other writers the result may be wrong, so the caller must
    compare the schema in it with the whole one.
    """
    table = Table.root(footer)
    schema = table.table(1)
    start = schema.start // _ALIGNMENT * _ALIGNMENT
    places = [table.find_structs(field) - 4 for field in (_DICTIONARIES, _BATCHES)]
    stop = min((place for place in places if place > start), default=len(footer))
    return _make_schema_message(footer[start:stop], schema.place - start)


def _make_schema_message(content: memoryview, place: int) -> bytes:
    """Returns a message whose schema is the table at byte `place` of `content`."""
    header = (len(_MESSAGE) + place - _HEADER_AT).to_bytes(4, "little")
    metadata = _MESSAGE[:_HEADER_AT] + header + _MESSAGE[_HEADER_AT + 4 :] + content
    metadata += bytes(-len(metadata) % _ALIGNMENT)
    return _PREFIX.pack(_CONTINUES, len(metadata)) + metadata


def read_footer(footer: memoryview) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Returns the places of the dictionaries, and those of the record batches of a file, as arrays of `PLACE`.

    "place" is the byte of the file at which the message begins; "head" and "body" are the lengths of its two parts.
    """
    table = Table.root(footer)
    return table.structs(_DICTIONARIES, PLACE), table.structs(_BATCHES, PLACE)
