"""Reads the footer of a Parquet file: the schema, and where the bytes of each column are.

Survey and index of Parquet use it (`survey.py`, `format.py`). They run in the engine, which does without pyarrow; and
pyarrow's metadata (26.0.1) lack what is needed to cut row groups: places of page indexes, lengths of byte arrays, and
encodings of pages. A footer that is damaged or contradicts itself raises `DamagedError`. A primitive is a node of the
schema that has values (`schema.py`). Its values in one row group are a column chunk, which consists of pages.

Source: https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from streamer.errors import ManifestError
from streamer.formats.failures import DamagedError, UnreadError, make_damage_error, make_refusal
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need
from streamer.tables.parquet.arrow_schema import annotate
from streamer.tables.parquet.schema import Element, SchemaNode, read_element, read_logical, tree
from streamer.tables.parquet.thrift import Struct, read_struct

MAGIC = b"PAR1"
ENCRYPTED_MAGIC = b"PARE"
# Bytes behind the footer: its length, and the magic.
TAIL_BYTES = 8
# Numbers of fields of FileMetaData.
_SCHEMA = 2
_ROWS = 3
_GROUPS = 4
# Names of the compressions of pages, by their number.
CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
# Numbers of PLAIN_DICTIONARY and RLE_DICTIONARY.
_DICTIONARY_ENCODINGS = frozenset([2, 8])
_DATA_PAGES = frozenset([0, 3])
# Assumed bytes of a value, if a file does not say how long the entries of a dictionary are.
_USUAL_VALUE_BYTES = 16


class ColumnChunk(msgspec.Struct, frozen=True):
    """The values of one primitive in one row group.

    Attributes:
        start: byte of the file at which the pages begin. A dictionary is the first page.
        stop: byte at which the pages end.
        codec: number of the compression, as in `CODECS`.
        values: number of values, nulls included.
        value_bytes: bytes of all its byte arrays together, each counted as often as it occurs; estimated if the writer
            did not say it.
        dictionary_pages: number of pages, counted from the first, that need the dictionary, or None if it is not known.
            Once a dictionary is too large, a writer uses it for no further page.
        page_index: byte range of its offset index in the file, or None if it has none.
        is_encrypted: whether its pages are encrypted. If its metadata are, too, the numbers are 0 or None.
    """

    start: int
    stop: int
    codec: int
    values: int
    value_bytes: int
    dictionary_pages: int | None
    page_index: tuple[int, int] | None
    is_encrypted: bool


class RowGroup(msgspec.Struct, frozen=True):
    """Rows that are written together: their number, and a column chunk for each primitive (none without rows)."""

    rows: int
    columns: list[ColumnChunk]


class Footer(msgspec.Struct, frozen=True):
    """The footer of a file: the schema, the row groups in the order of the rows, and the writer's metadata by name."""

    root: SchemaNode
    groups: list[RowGroup]
    metadata: Mapping[bytes, bytes]


def read_footer(content: bytes, data_stop: int) -> Footer:
    """Parses a footer.

    Args:
        content: bytes of the footer (FileMetaData in Thrift).
        data_stop: byte of the file at which the footer begins: pages must end before it.

    Raises:
        DamagedError: the footer is damaged or contradicts itself.
        UnreadError: the schema has something that is not read.
    """
    struct, _ = read_struct(content)
    metadata = {each.binary(1): each.binary(2, b"") for each in struct.structs(5)}
    root = _schema(struct, metadata)
    primitives = [path[-1].element for path in root.find_paths()]
    groups = []
    for each in struct.structs(4):
        rows = each.integer(3)
        columns = each.structs(1)
        if rows < 0 or len(columns) != len(primitives):
            raise DamagedError(f"a row group of {rows} rows has {len(columns)} columns, the schema {len(primitives)}")
        pairs = zip(columns, primitives, strict=True)
        groups.append(RowGroup(rows, [_column(*pair, data_stop) for pair in pairs] if rows else []))
    return Footer(root, groups, metadata)


class Description(msgspec.Struct, frozen=True):
    """What a footer says of the file as a whole: the schema, the number of rows, and the writer's metadata by name."""

    root: SchemaNode
    rows: int
    metadata: Mapping[bytes, bytes]


class Descriptions:
    """Reads the descriptions in the footers of many files; those with the same schema and metadata are parsed once."""

    def __init__(self) -> None:
        # The keys are the bytes of a footer before its number of rows. The values are the bytes behind the row groups,
        # and the description.
        self._known: dict[bytes, list[tuple[bytes, Description]]] = {}

    def read(self, content: bytes) -> Description:
        """Parses a footer but for its row groups; equal schemas and metadata give the same objects.

        Raises the errors of `read_footer`.
        """
        _, stop = read_struct(content, _SCHEMA)
        rows = read_struct(content, _ROWS)[0].integer(_ROWS)
        known = self._known.setdefault(content[:stop], [])
        for rest, description in known:
            if content.endswith(rest):
                return msgspec.structs.replace(description, rows=rows)
        struct, _ = read_struct(content)
        metadata = {each.binary(1): each.binary(2, b"") for each in struct.structs(5)}
        found = Description(_schema(struct, metadata), rows, metadata)
        known.append((content[read_struct(content, _GROUPS)[1] :], found))
        return found


def _schema(struct: Struct, metadata: Mapping[bytes, bytes]) -> SchemaNode:
    """Returns the root of the schema, to which Arrow's schema in the metadata has added its types."""
    elements = struct.structs(_SCHEMA)
    logicals = {number: logical for number, each in enumerate(elements) if (logical := read_logical(each))}
    root = tree([read_element(each) for each in elements], logicals)
    annotate(root, metadata)
    return root


def _column(struct: Struct, primitive: Element, data_stop: int) -> ColumnChunk:
    """Parses a ColumnChunk, the metadata of one primitive in a row group; raises DamagedError."""
    if 1 in struct:
        raise DamagedError(f"column {primitive.name!r} is in another file, {struct.binary(1)!r}")
    if 3 not in struct and 8 in struct:
        return ColumnChunk(
            start=0, stop=0, codec=0, values=0, value_bytes=0, dictionary_pages=None, page_index=None, is_encrypted=True
        )
    details = struct.struct(3)
    if details.integer(1) != primitive.type:
        raise DamagedError(
            f"column {primitive.name!r} has values of type {details.integer(1)}, the schema says {primitive.type}"
        )
    pages = details.integer(9)
    dictionary = details.integer(11, 0)
    start = dictionary if 0 < dictionary < pages else pages
    stop = start + details.integer(7)
    values = details.integer(5)
    codec = details.integer(4)
    if not len(MAGIC) <= start <= stop <= data_stop or min(values, details.integer(6)) < 0:
        raise DamagedError(f"column {primitive.name!r} at bytes {start}..{stop} of {data_stop} has {values} values")
    if not 0 <= codec < len(CODECS):
        raise DamagedError(f"column {primitive.name!r} is compressed with codec {codec}, which is not known")
    counts = [each for each in details.structs(13) if each.integer(1) in _DATA_PAGES]
    encoded = [each.integer(3) for each in counts if each.integer(2) in _DICTIONARY_ENCODINGS]
    dictionary_pages = sum(encoded) if counts else None
    index = struct.integer(4, 0), struct.integer(4, 0) + struct.integer(5, 0)
    return ColumnChunk(
        start=start,
        stop=stop,
        codec=codec,
        values=values,
        value_bytes=_value_bytes(details),
        dictionary_pages=dictionary_pages,
        page_index=index if 0 < index[0] < index[1] <= data_stop else None,
        is_encrypted=8 in struct,
    )


def _value_bytes(details: Struct) -> int:
    """Returns `ColumnChunk.value_bytes` from the ColumnMetaData."""
    if 16 in details and 1 in (sizes := details.struct(16)):
        return max(0, sizes.integer(1))
    plain_bytes = details.integer(6)
    if not _DICTIONARY_ENCODINGS.intersection(details.items(2, int)):
        return plain_bytes
    # The pages have only numbers of dictionary entries. The least and the greatest value tell how long entries are.
    statistics = details.struct(12) if 12 in details else Struct({})
    longest = max(len(statistics.binary(number, b"")) for number in (1, 2, 5, 6))
    return max(plain_bytes, details.integer(5) * (longest or _USUAL_VALUE_BYTES))


# Bytes of the first read of a file, at its end. Most footers are shorter, and the page indexes stand before them.
FIRST_READ = 64 << 10
_MAX_FOOTER_BYTES = 32 << 20


class FileTail(msgspec.Struct, frozen=True):
    """The end of a file, as far as it was read.

    Attributes:
        content: the bytes, up to the end of the file.
        start: byte of the file at which `content` begins.
        footer_start: byte of the file at which the footer begins.
    """

    content: bytes
    start: int
    footer_start: int

    @property
    def footer(self) -> bytes:
        """The bytes of the footer."""
        return self.content[self.footer_start - self.start : -TAIL_BYTES]


def read_end(record: ObjectRecord, known: bytes = b"") -> Reading[tuple[FileTail, Footer]]:
    """Reads the end of a file and parses its footer.

    Args:
        record: the file.
        known: the end of the file, if a survey has read it (`FileTail.content`); else empty.

    Raises:
        ManifestError: the file is damaged, encrypted, or has something that is not read, or more than 32 MiB of footer.
    """
    content = known or bytes((yield from read_range(*_first(record), record)))
    tail = yield from _whole(record, content)
    try:
        return tail, read_footer(tail.footer, tail.footer_start)
    except UnreadError as error:
        raise make_refusal(record, f"has {error}", tail.footer_start, of_one=True) from error
    except DamagedError as error:
        raise make_damage_error(record, f"in the footer, {error}", tail.footer_start + error.offset) from error


def read_tails(records: Sequence[ObjectRecord]) -> Reading[list[FileTail | ManifestError]]:
    """Reads the ends of some files at the same time, without parsing the footers.

    Returns, in the order of `records`, the end of each file, or the error of `read_end` if it has none that is read.
    """
    filled = [record for record in records if record.size]
    contents = yield from read_ranges([Need(*_first(record), record) for record in filled])
    ends = dict(zip((record.url for record in filled), contents, strict=True))
    found: list[FileTail | ManifestError] = []
    for record in records:
        try:
            found.append((yield from _whole(record, bytes(ends.get(record.url, b"")))))
        except ManifestError as error:
            found.append(error)
    return found


def _first(record: ObjectRecord) -> tuple[int, int]:
    if record.size < len(MAGIC) + TAIL_BYTES:
        return 0, record.size
    return max(0, record.size - FIRST_READ), record.size


def _whole(record: ObjectRecord, content: bytes) -> Reading[FileTail]:
    """Checks the end of a file, and reads the rest of a footer that is longer than the first read.

    Args:
        record: the file.
        content: the bytes of the first read.

    Raises:
        ManifestError: the file is damaged or encrypted, or its footer is longer than 32 MiB.
    """
    size = record.size
    if size < len(MAGIC) + TAIL_BYTES:
        raise make_damage_error(record, f"{size} bytes are not a Parquet file", 0)
    magic = content[-4:]
    if magic == ENCRYPTED_MAGIC:
        raise make_encryption_error(record)
    if magic != MAGIC:
        raise make_damage_error(
            record,
            f"it ends with {magic!r}, not with {MAGIC!r}, so it is not a Parquet file, or cut off, or compressed as a "
            "whole (then decompress it)",
            size - 4,
        )
    length = int.from_bytes(content[-TAIL_BYTES:-4], "little")
    limit = min(size - TAIL_BYTES - len(MAGIC), _MAX_FOOTER_BYTES)
    if not 0 < length <= limit:
        raise make_damage_error(
            record, f"its footer should have {length} bytes, and can have up to {limit}", size - TAIL_BYTES
        )
    start = size - length - TAIL_BYTES
    stop = size - len(content)
    if start < stop:
        content = bytes((yield from read_range(max(0, start - FIRST_READ), stop, record))) + content
    return FileTail(content, size - len(content), start)


def make_encryption_error(record: ObjectRecord) -> ManifestError:
    """Makes the error of a Parquet file that is encrypted."""
    return make_refusal(record, "is encrypted, which streamer does not read; write it without encryption")
