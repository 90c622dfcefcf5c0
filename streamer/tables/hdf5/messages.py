"""Parses the messages of an HDF5 object header that describe a dataset.

`format.py`, `objects.py` and `chunks.py` use it. `HeldBytes` keeps the parts of a file that were read, and `Cursor`
takes numbers from them. Damaged bytes raise `DamagedError`, and what is not read `UnreadError`.
Source: HDF5 File Format Specification Version 3.0, IV.A.2.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence

import msgspec
import numpy as np

from streamer.formats.failures import DamagedError, UnreadError
from streamer.formats.reading import Range, Reading, near_needs, read_ranges
from streamer.manifest.model import ObjectRecord

# Bytes of the first read of a file. In most files they have all object headers.
HEAD_BYTES = 16 << 10
# Least bytes of a read: structures are written near each other.
_LEAST_BYTES = 2 << 10
# Two structures are read together if there are less bytes between them.
_NEAR_BYTES = 4 << 10
# Address that stands for none.
UNDEFINED = (1 << 64) - 1


class Cursor:
    """Takes numbers from the bytes of a structure, one after the other.

    Attributes:
        content: the bytes.
        at: number of bytes that were taken.
        offset: address of the structure, for errors.
    """

    def __init__(self, content: memoryview, offset: int = 0) -> None:
        self.content = content
        self.at = 0
        self.offset = offset

    @property
    def left(self) -> int:
        """Number of bytes that were not taken."""
        return len(self.content) - self.at

    def take(self, length: int) -> memoryview:
        """Returns the next `length` bytes; raises DamagedError if fewer are left."""
        if length > self.left:
            raise DamagedError(f"a structure ends {length - self.left} bytes too early", self.offset + self.at)
        self.at += length
        return self.content[self.at - length : self.at]

    def number(self, width: int = 8) -> int:
        """Returns the next unsigned number of `width` bytes, little-endian; raises DamagedError if fewer are left."""
        return int.from_bytes(self.take(width), "little")

    def expect(self, signature: bytes, version: Sequence[int] = ()) -> int:
        """Takes a signature and, if versions are given, a version of one byte; returns the version, or 0.

        Raises:
            DamagedError: another signature is there.
            UnreadError: the version is none of the given ones.
        """
        found = bytes(self.take(len(signature)))
        if found != signature:
            raise DamagedError(f"no {signature.decode()} is there, but {found!r}", self.offset)
        number = self.number(1) if version else 0
        if version and number not in version:
            raise UnreadError(f"version {number} of {signature.decode()} is not known; write it again", self.offset)
        return number


class HeldBytes:
    """Keeps the parts of one file that were read, and reads more when they are needed.

    Attributes:
        record: the file.
        base: byte of the file that has address 0; what is before it is the user's.
    """

    def __init__(self, record: ObjectRecord) -> None:
        self.record = record
        self.base = 0
        self._pieces: list[tuple[int, memoryview]] = []

    def read(self, address: int, length: int) -> Reading[memoryview]:
        """Returns `length` bytes from an address on, fewer at the end of the file.

        Raises DamagedError for an address outside of the file.
        """
        found = yield from self.read_all([(address, length)])
        return found[0]

    def read_all(self, places: Sequence[tuple[int, int]]) -> Reading[list[memoryview]]:
        """Returns the bytes of many places, each an address and a length, as `read` does; reads them together."""
        size = self.record.size
        spans: list[Range] = []
        for address, length in places:
            start = address + self.base
            if not start < size:
                raise DamagedError(f"an address {address} outside of the file", min(start, size))
            spans.append((start, min(start + length, size)))
        found = [self._find(*span) for span in spans]
        missing = [span for span, piece in zip(spans, found, strict=True) if piece is None]
        wanted = [(start, max(stop, min(start + _LEAST_BYTES, size))) for start, stop in missing]
        needs = near_needs(self.record, wanted, _NEAR_BYTES)
        answers = yield from read_ranges(needs)
        read = [(need.start, answer) for need, answer in zip(needs, answers, strict=True)]
        for piece in read:
            insort(self._pieces, piece, key=_start_of)
        return [
            _cut(read[bisect_right(read, start, key=_start_of) - 1], start, stop) if piece is None else piece
            for (start, stop), piece in zip(spans, found, strict=True)
        ]

    def _find(self, start: int, stop: int) -> memoryview | None:
        """Returns bytes of the file that are held; None if they are not, or were not found by a short look."""
        place = bisect_right(self._pieces, start, key=_start_of)
        # A long piece may begin before shorter ones. A piece that is not found is read again.
        for piece in self._pieces[max(0, place - 4) : place]:
            if stop <= piece[0] + len(piece[1]):
                return _cut(piece, start, stop)
        return None


def _start_of(piece: tuple[int, memoryview]) -> int:
    return piece[0]


def _cut(piece: tuple[int, memoryview], start: int, stop: int) -> memoryview:
    return piece[1][start - piece[0] : stop - piece[0]]


# Kinds of messages.
DATASPACE = 1
LINK_INFO = 2
DATATYPE = 3
FILL = 5
LINK = 6
EXTERNAL = 7
LAYOUT = 8
FILTERS = 11
CONTINUATION = 16
SYMBOL_TABLE = 17
# Classes of a datatype.
_INTEGER = 0
_FLOAT = 1
_COMPOUND = 6
_ENUM = 8
_CLASSES = (
    *("integer", "float", "time", "string", "bit field", "opaque"),
    *("compound", "reference", "enum", "vlen", "array"),
)
_IEEE = {(2, 5, 10): "f2", (4, 8, 23): "f4", (8, 11, 52): "f8"}
# Classes of a layout.
_COMPACT = 0
_CONTIGUOUS = 1
_CHUNKED = 2
# Kinds of indexes of chunks: BTREE in layouts up to version 3, the others in versions 4 and 5.
BTREE, SINGLE, IMPLICIT, FIXED_ARRAY, EXTENSIBLE_ARRAY, BTREE_2 = range(6)
# A flag of layouts of version 4.
_UNFILTERED_EDGES = 1
_MAX_AXES = 32
_MAX_LENGTH = 1 << 48
_BOOL = {b"FALSE": 0, b"TRUE": 1}


class Filter(msgspec.Struct, frozen=True, array_like=True):
    """A filter that is applied to the chunks of a dataset.

    Attributes:
        number: its registered number.
        flags: its flags.
        values: its parameters.
    """

    number: int
    flags: int
    values: tuple[int, ...]


class Layout(msgspec.Struct, frozen=True):
    """Where and how the items of a dataset are stored.

    Attributes:
        address: address of the items, or of the index of the chunks, or UNDEFINED if nothing was written.
        chunk: shape of the chunks, or empty if the items are contiguous.
        index: kind of the index of the chunks.
        length: bytes of a single filtered chunk (index SINGLE).
        mask: filters that were left out for that chunk, one bit each.
    """

    address: int
    chunk: tuple[int, ...] = ()
    index: int = BTREE
    length: int = 0
    mask: int = 0

    def chunks(self, shape: tuple[int, ...]) -> int:
        """Returns the number of chunks of a dataset of this shape; 0 if it is contiguous."""
        return math.prod(-(-size // step) for size, step in zip(shape, self.chunk, strict=False)) if self.chunk else 0


def read_dataspace(message: Cursor) -> tuple[int, ...] | None:
    """Returns the shape of a dataset; None if it has no data at all (a null dataspace)."""
    version = message.number(1)
    axes = message.number(1)
    message.take(1)
    if version not in {1, 2} or axes > _MAX_AXES:
        raise DamagedError(f"a dataspace of version {version} with {axes} axes", message.offset)
    if version == 1:
        message.take(5)
    elif message.number(1) == 2:
        return None
    shape = tuple(message.number() for _ in range(axes))
    if max(shape, default=0) >= _MAX_LENGTH:
        raise DamagedError(f"a dataspace of shape {shape}", message.offset)
    return shape


def read_datatype(message: Cursor) -> np.dtype[np.generic]:
    """Returns the dtype of numbers (also those of an enum), booleans or complex numbers.

    Raises:
        UnreadError: a value is of another type.
    """
    head = message.number(1)
    bits = message.number(3)
    size = message.number(4)
    kind = head & 15
    version = head >> 4
    order = ">" if bits & 1 else "<"
    if kind == _INTEGER:
        offset = message.number(2)
        precision = message.number(2)
        if (offset, precision) != (0, 8 * size) or size not in {1, 2, 4, 8}:
            raise UnreadError(f"integers of {precision} bits in {size} bytes")
        return np.dtype(f"{order}{'i' if bits & 8 else 'u'}{size}")
    if kind == _FLOAT:
        message.take(5)
        exponent = message.number(1)
        _ = message.number(1)
        mantissa = message.number(1)
        message.take(4)
        if bits & 64 or (size, exponent, mantissa) not in _IEEE:
            parts = f"{exponent} of exponent and {mantissa} of mantissa"
            raise UnreadError(f"floating-point numbers of {size} bytes, {parts}")
        return np.dtype(order + _IEEE[size, exponent, mantissa])
    if kind == _ENUM:
        count = bits & 0xFFFF
        base = read_datatype(message)
        names = [_name(message, version) for _ in range(count)] if count == len(_BOOL) else []
        values = [message.number(base.itemsize) for _ in names]
        if base.itemsize == 1 and dict(zip(names, values, strict=True)) == _BOOL:
            return np.dtype(bool)
        return base
    if kind == _COMPOUND:
        return _complex(message, version, bits & 0xFFFF, size)
    raise UnreadError(f"values of type {_CLASSES[kind] if kind < len(_CLASSES) else kind}")


def _complex(message: Cursor, version: int, count: int, size: int) -> np.dtype[np.generic]:
    """Returns the dtype of a compound that is a complex number, as h5py writes it; raises UnreadError for others."""
    parts = []
    for _ in range(count if count == 2 else 0):
        name = _name(message, version)
        offset = message.number(4 if version < 3 else max(1, (size.bit_length() + 7) // 8))
        if version == 1:
            message.take(28)
        parts.append((name, offset, read_datatype(message)))
    if len(parts) == 2:
        (real, at, dtype), (imaginary, following, other) = parts
        expected = (b"r", 0, b"i", dtype.itemsize, dtype, 2 * dtype.itemsize)
        if (real, at, imaginary, following, other, size) == expected and dtype.kind == "f" and size > 4:
            return np.dtype(f"{dtype.byteorder}c{size}")
    raise UnreadError(f"compounds of {count} fields")


def _name(message: Cursor, version: int) -> bytes:
    """Takes a name that ends with a zero byte; before version 3 it is filled up to a multiple of 8 bytes."""
    start = message.at
    while message.number(1):
        pass
    name = bytes(message.content[start : message.at - 1])
    if version < 3:
        message.take(-(message.at - start) % 8)
    return name


def read_layout(message: Cursor, item_bytes: int) -> Layout:
    """Returns the layout of a dataset; raises UnreadError for one that is not read, such as data in the header.

    Args:
        message: the message.
        item_bytes: bytes of an item.
    """
    version = message.number(1)
    if not 1 <= version <= 5:
        raise UnreadError(f"a layout of version {version}")
    # Files written before HDF5 1.6.3 (2004) have the number of axes first.
    axes = message.number(1) if version < 3 else 0
    kind = message.number(1)
    message.take(5 if version < 3 else 0)
    if kind == _CONTIGUOUS:
        return Layout(message.number())
    if kind != _CHUNKED:
        raise UnreadError("data in its header" if kind == _COMPACT else "data in other datasets (a virtual dataset)")
    if version >= 4:
        return _chunks_4(message, item_bytes)
    axes = axes or message.number(1)
    address = message.number()
    return Layout(address, _chunk([message.number(4) for _ in range(axes)], item_bytes, message))


def _chunks_4(message: Cursor, item_bytes: int) -> Layout:
    """Returns the layout of chunks in versions 4 and 5 of the message."""
    flags = message.number(1)
    axes = message.number(1)
    width = message.number(1)
    chunk = _chunk([message.number(width) for _ in range(axes)], item_bytes, message)
    if flags & _UNFILTERED_EDGES:
        raise UnreadError("chunks at its edges that are not filtered as the others are (H5D_CHUNK_DONT_FILTER_PARTIAL)")
    index = message.number(1)
    length = mask = 0
    if index == SINGLE and flags & 2:
        length = message.number()
        mask = message.number(4)
    elif index in {FIXED_ARRAY, EXTENSIBLE_ARRAY}:
        # The parameters of the array are also in its head, where they are read.
        message.take(1 if index == FIXED_ARRAY else 5)
    elif index not in {SINGLE, IMPLICIT}:
        raise UnreadError("chunks that can grow along several axes (a B-tree of version 2)")
    return Layout(address=message.number(), chunk=chunk, index=index, length=length, mask=mask)


def _chunk(lengths: list[int], item_bytes: int, message: Cursor) -> tuple[int, ...]:
    """Returns the shape of a chunk from the lengths in the message, whose last one is the bytes of an item."""
    if (
        not 2 <= len(lengths) <= _MAX_AXES + 1
        or lengths[-1] != item_bytes
        or not 1 <= min(lengths) <= max(lengths) < 1 << 32
    ):
        raise DamagedError(f"chunks of shape {lengths} for items of {item_bytes} bytes", message.offset)
    return tuple(lengths[:-1])


def read_filters(message: Cursor) -> tuple[Filter, ...]:
    """Returns the filters of the chunks, in the order in which they were applied."""
    version = message.number(1)
    count = message.number(1)
    if version == 1:
        message.take(6)
    found = []
    for _ in range(count):
        number = message.number(2)
        named = version == 1 or number >= 256
        name_bytes = message.number(2) if named else 0
        flags = message.number(2)
        values = message.number(2)
        message.take(-(-name_bytes // 8) * 8 if version == 1 else name_bytes)
        found.append(Filter(number, flags, tuple(message.number(4) for _ in range(values))))
        if version == 1 and values % 2:
            message.take(4)
    return tuple(found)


def read_fill(message: Cursor, item_bytes: int) -> bytes:
    """Returns the bytes of an item that was never written; empty if the file does not say them, which means zero."""
    version = message.number(1)
    if version not in {1, 2, 3}:
        raise DamagedError(f"a fill value of version {version}", message.offset)
    flags = message.take(1 if version == 3 else 3)
    defined = flags[0] & 32 if version == 3 else flags[2]
    length = message.number(4) if defined or version == 1 else 0
    if length not in {0, item_bytes}:
        raise DamagedError(f"a fill value of {length} bytes for items of {item_bytes}", message.offset)
    return bytes(message.take(length))
