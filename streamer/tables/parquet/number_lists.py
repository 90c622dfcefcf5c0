"""Reads long lists of numbers (embeddings, latents) from Parquet's pages without pyarrow.

`tables/parquet/recode.py` uses it. Parquet stores two levels for each number of a list: whether a list begins there,
and whether there is a value. pyarrow looks at each of them, so that records of float32 cost 1.9 CPU s/GB. In a page of
long lists without nulls the levels are a few runs, and the numbers behind them need no decoding: this costs 0.35 CPU
s/GB (2026-11-23). All other pages are left to pyarrow.

Source: https://github.com/apache/parquet-format/blob/master/Encodings.md (RLE / bit-packing hybrid, PLAIN)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamer.formats.base import FieldSpec
from streamer.tables.parquet.footer import CODECS
from streamer.tables.parquet.pages import PrimitiveHint
from streamer.tables.parquet.schema import DOUBLE, FLOAT, INT32, INT64, REQUIRED, SchemaNode, number_dtype
from streamer.tables.parquet.thrift import Struct, read_struct, read_varint

# Dtypes of numbers in the encoding PLAIN, by type.
_DTYPES = {INT32: "<i4", INT64: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}
# Least number of values per byte of levels. With fewer values the loop over the runs is slower than pyarrow.
_LEAST_VALUES = 32
# Max bytes of a page's header, which has some numbers, and the least and the greatest value.
_MAX_HEADER_BYTES = 1024
_DATA_PAGE = 0
_DATA_PAGE_V2 = 3
_PLAIN = 0
_RLE = 3
# Codecs that pyarrow has by the same name; Hadoop's "lz4" is another one.
_PLAIN_CODECS = frozenset(["snappy", "gzip", "brotli", "zstd", "lz4_raw"])


class NumberList(msgspec.Struct, frozen=True):
    """What is known of a field whose values are lists of numbers, before its pages are read.

    Attributes:
        kind: kind of the field, see `formats.base.Field`.
        dtype: dtype of the numbers, in the file and in the sample.
        length: number of items of each list, or -1 if they differ.
        present: the definition level of a number that is no null.
    """

    kind: str
    dtype: str
    length: int
    present: int


class _UnusualError(ValueError):
    """Raised for a page that is left to pyarrow, which reads it or says what is wrong."""


def number_list(spec: FieldSpec, node: SchemaNode, way: Sequence[SchemaNode]) -> NumberList | None:
    """Returns what is known of a field before its pages are read; None if its values are not flat lists of numbers.

    Args:
        spec: the field.
        node: the node of the field.
        way: the nodes from the column of the field down to its primitive.
    """
    dtype, bracket, shape = spec.kind.removesuffix("]").partition("[")
    element = way[-1].element
    if not bracket or "," in shape or node.primitives != 1 or sum(step.is_repeated for step in way) != 1:
        return None
    if not dtype == number_dtype(element) == _DTYPES.get(element.type):
        return None
    return NumberList(spec.kind, dtype, int(shape or -1), sum(step.element.repetition != REQUIRED for step in way))


def read_lists(
    content: memoryview, hint: PrimitiveHint, field: NumberList, rows: int
) -> tuple[NDArray[np.generic], NDArray[np.int64]] | None:
    """Returns the numbers of one field in the rows of a block, or None if the pages are left to pyarrow.

    Args:
        content: the pages of the field's primitive.
        hint: hint of the primitive; the pages have `hint.rows` rows, of which `hint.skipped` are before the block.
        field: the field.
        rows: rows of the block.

    Returns:
        The numbers of all rows, one after the other, and the number of them in each row: int64, shape (rows,).
    """
    try:
        parts: list[NDArray[np.generic]] = []
        starts: list[NDArray[np.int64]] = []
        total = 0
        for header, body in _pages(content):
            values, firsts = _page(header, body, CODECS[hint.codec], field)
            parts.append(values)
            starts.append(firsts + total)
            total += len(values)
        edges = np.concatenate([*starts, [total]])
        counts = np.diff(edges)
        if edges[0] or len(counts) != hint.rows or (field.length >= 0 and (counts != field.length).any()):
            return None
    except (ValueError, IndexError, OSError, pa.ArrowException):
        return None  # pyarrow says what is wrong with the pages, if anything is
    first = hint.skipped
    stop = hint.skipped + rows
    numbers = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return numbers[edges[first] : edges[stop]], counts[first:stop]


def _pages(content: memoryview) -> Iterator[tuple[Struct, memoryview]]:
    """Yields header and body of each page; raises _UnusualError or DamagedError for one that is damaged."""
    at = 0
    while at < len(content):
        header, length = read_struct(bytes(content[at : at + _MAX_HEADER_BYTES]))
        start = at + length
        at = start + header.integer(3)
        if not start <= at <= len(content):
            raise _UnusualError("a page that leaves its column")
        body = content[start:at]
        if 4 in header and crc32(body) != header.integer(4) & 0xFFFFFFFF:
            raise _UnusualError("another checksum")
        yield header, body


def _page(
    header: Struct, body: memoryview, codec: str, field: NumberList
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Returns the numbers of a page, and the places among them where lists begin; raises _UnusualError."""
    count, repetition, definition, content = _parts(header, body, codec)
    dtype = np.dtype(field.dtype)
    if _LEAST_VALUES * max(len(repetition), len(definition)) > count or len(content) != count * dtype.itemsize:
        raise _UnusualError("short lists, or fewer numbers than levels")
    if any((levels != field.present).any() for _, _, levels in _runs(definition, field.present.bit_length(), count)):
        raise _UnusualError("an empty list, or a null")
    firsts = [np.empty(0, np.int64)]
    for place, length, levels in _runs(repetition, 1, count):
        if length > len(levels) and not levels[0]:
            raise _UnusualError("lists of one number")
        firsts.append(place + np.flatnonzero(levels == 0))
    return np.frombuffer(content, dtype), np.concatenate(firsts)


def _parts(header: Struct, body: memoryview, codec: str) -> tuple[int, memoryview, memoryview, memoryview]:
    """Takes a page apart: number of levels, encoded repetition levels, encoded definition levels, decompressed numbers.

    Raises:
        _UnusualError: the numbers are not in the encoding PLAIN.
    """
    kind = header.integer(1)
    size = header.integer(2)
    if kind == _DATA_PAGE:
        page = header.struct(5)
        if (page.integer(2), page.integer(3), page.integer(4)) == (_PLAIN, _RLE, _RLE):
            repetition, rest = _split_levels(_decompress_page(body, codec, size))
            return page.integer(1), repetition, *_split_levels(rest)
    if kind == _DATA_PAGE_V2:
        page = header.struct(8)
        first = page.integer(6)
        second = page.integer(6) + page.integer(5)
        if page.integer(4) == _PLAIN and 0 <= first <= second <= len(body):
            rest = body[second:]
            content = _decompress_page(rest, codec, size - second) if page.flag(7, True) else rest
            return page.integer(1), body[:first], body[first:second], content
    raise _UnusualError("a dictionary, or numbers in another encoding")


def _split_levels(content: memoryview) -> tuple[memoryview, memoryview]:
    """Splits off encoded levels that have their length (4 bytes) in front; returns the levels, and what follows."""
    stop = 4 + int.from_bytes(content[:4], "little")
    return content[4:stop], content[stop:]


def _decompress_page(content: memoryview, codec: str, size: int) -> memoryview:
    """Returns the `size` decompressed bytes of a page; raises _UnusualError for a codec that is left to pyarrow."""
    if codec == "uncompressed":
        return content
    if codec not in _PLAIN_CODECS:
        raise _UnusualError(f"compressed as {codec}")
    # pyarrow gives signed bytes; the other buffers have unsigned ones.
    return memoryview(pa.Codec(codec).decompress(content, decompressed_size=size)).cast("B")


def _runs(content: memoryview, width: int, count: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yields the runs of `count` encoded levels of `width` bits.

    A run is the place of its first level, its length, and its levels: a single one if all are equal. The length of the
    last run may go beyond `count`. Raises _UnusualError if there are fewer levels.
    """
    at = place = 0
    while place < count:
        head, at = read_varint(content, at)
        if head & 1:
            stop = at + (head >> 1) * width
            bits = np.unpackbits(np.frombuffer(content[at:stop], np.uint8), bitorder="little")
            levels = bits.reshape(-1, width) @ (1 << np.arange(width, dtype=np.uint8))
            length = len(levels)
        else:
            stop = at + 1
            levels = np.frombuffer(content[at:stop], np.uint8)
            length = head >> 1
        if not length or stop > len(content):
            raise _UnusualError("fewer levels than numbers")
        yield place, length, levels[: count - place]
        at = stop
        place = place + length
