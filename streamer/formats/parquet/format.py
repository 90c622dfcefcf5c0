"""Parquet: rows are samples, the index is the footer of each file.

The schema is that of the first file. A chunk is one or several row groups; a row group that is much larger is cut where
pages begin, if it has a page index (`write_page_index=True` of pyarrow, and what Hugging Face's datasets write since
5.0). Only the bytes of the wanted columns are fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from streamer.errors import ConfigError, ManifestError
from streamer.formats.base import Block, Facts, Recoder
from streamer.formats.failures import DamagedError, damaged, needing, refused
from streamer.formats.parquet.facts import Wanted, describe, mismatch
from streamer.formats.parquet.footer import ENCRYPTED_MAGIC, MAGIC, TAIL_BYTES, ColumnChunk, Footer, read_footer
from streamer.formats.parquet.pages import Group, Pages, Primitive, blocks_of, needs_pages, read_pages
from streamer.formats.reading import Range, Reading, near_needs, read_range, read_ranges
from streamer.formats.table.records import TableOpener, head_bytes
from streamer.formats.windows.format import RowFormat
from streamer.manifest.blocks import MOST_FETCH_BYTES, MOST_RECORD_BYTES
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Source, Survey, Surveying

SUFFIXES = (".parquet", ".pq", ".parq")
# The first read of a file: most footers are shorter, and the page indexes stand before them.
_FIRST_READ = 64 << 10
_MOST_FOOTER_BYTES = 32 << 20
# Two ranges are read as one if less is between them.
_NEAR = 64 << 10
_DELTA = "/_delta_log/"


class Tail(msgspec.Struct, frozen=True):
    """The end of a file, as far as it was read, and where its footer begins."""

    content: bytes
    start: int
    footer_start: int


class Parquet(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Parquet files.

    Attributes:
        columns: names of the fields that samples have ("image", "meta.caption"; "meta" for all parts of a struct), in
            any order; empty: all. No other bytes are fetched.
    """

    name = "parquet"
    columns: tuple[str, ...] = ()

    def accepts(self, key: str) -> bool:
        """Accepts Parquet files, but not those in folders like `.cache/`, `_temporary/` and `_delta_log/`."""
        lower = key.lower()
        return lower.endswith(SUFFIXES) and not any(part[:1] in {".", "_"} for part in lower.split("/"))

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the schema of the first file.

        Raises:
            ConfigError: `columns` names one that the file does not have.
        """
        if log := next((url for url in others if _DELTA in url), None):
            raise ManifestError(
                f"{log} is the log of a Delta table, which says which of its files are valid; streamer does not read "
                "it: name the files of the version that you want as urls (deltalake: DeltaTable(path).file_uris())",
                url=log,
            )
        if not accepted:
            return Survey([])
        first = accepted[0]
        tail, footer = yield from _read_end(first)
        try:
            facts = describe(footer, self.columns)
        except DamagedError as error:
            raise damaged(first, str(error), tail.footer_start) from error
        except ConfigError as error:
            raise ConfigError(f"{first.url}: {error}", **error.details) from error
        sources = [Source(first, tail.content), *(Source(record) for record in accepted[1:])]
        expected = 2 * len(tail.content) * len(accepted)
        return Survey(sources, facts, read_bytes=min(expected, sum(record.size for record in accepted)))

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the blocks of one file, which must have the columns of the first one."""
        record = source.record
        # Larger chunks are of several blocks.
        chunk_bytes = min(source.chunk_bytes, MOST_FETCH_BYTES // 2)
        tail, footer = yield from _read_end(record, source.notes)
        try:
            wanted = Wanted.of(facts)
            if problem := mismatch(wanted, footer.root):
                raise refused(record, f"{problem}; name the files with the same columns, or the columns that agree")
            primitives = [footer.root.at(way[-1].path).primitive for way in wanted.ways]
            for number, group in enumerate(footer.groups):
                if not group.rows:
                    continue
                columns = [group.columns[primitive] for primitive in primitives]
                if any(column.is_encrypted for column in columns):
                    raise _encrypted(record)
                wanted.check(columns, group.rows)
                pages = yield from _read_pages(record, tail, columns, group.rows, chunk_bytes)
                parts = [
                    Primitive(column, page, *width)
                    for column, page, width in zip(columns, pages, wanted.widths, strict=True)
                ]
                cut = Group(group.rows, parts, head_bytes(facts.fields))
                for block in blocks_of(cut, chunk_bytes, MOST_FETCH_BYTES):
                    _check_size(record, number, block)
                    yield block
        except DamagedError as error:
            raise damaged(record, str(error), tail.footer_start) from error

    def open_rows(self, facts: Facts) -> TableOpener:
        """Opens records of a table."""
        return TableOpener(facts.fields)

    def recode_rows(self, facts: Facts) -> Recoder:
        """Decodes pages with pyarrow."""
        with needing("Parquet is decoded with pyarrow", "parquet"):
            from streamer.formats.parquet.recode import ParquetRecoder
        return ParquetRecoder(facts)

    def has_tables(self, facts: Facts) -> bool:
        """All records are those of a table."""
        return True


def _read_end(record: ObjectRecord, known: bytes = b"") -> Reading[tuple[Tail, Footer]]:
    """Reads the footer, and what stands before it."""
    size = record.size
    if size < len(MAGIC) + TAIL_BYTES:
        raise damaged(record, f"{size} bytes are not a Parquet file", 0)
    content = known or bytes((yield from read_range(max(0, size - _FIRST_READ), size, record)))
    length = _footer_length(record, content)
    start, stop = size - length - TAIL_BYTES, size - len(content)
    if start < stop:
        content = bytes((yield from read_range(max(0, start - _FIRST_READ), stop, record))) + content
    try:
        footer = read_footer(content[-TAIL_BYTES - length : -TAIL_BYTES], start)
    except DamagedError as error:
        raise damaged(record, f"in the footer, {error}", start + error.offset) from error
    return Tail(content, size - len(content), start), footer


def _footer_length(record: ObjectRecord, content: bytes) -> int:
    magic, size = content[-4:], record.size
    if magic == ENCRYPTED_MAGIC:
        raise _encrypted(record)
    if magic != MAGIC:
        raise damaged(
            record, f"it ends with {magic!r}, not with {MAGIC!r}, so it is not a Parquet file, or cut off", size - 4
        )
    length = int.from_bytes(content[-TAIL_BYTES:-4], "little")
    most = min(size - TAIL_BYTES - len(MAGIC), _MOST_FOOTER_BYTES)
    if not 0 < length <= most:
        raise damaged(record, f"its footer should have {length} bytes, and can have up to {most}", size - TAIL_BYTES)
    return length


def _read_pages(
    record: ObjectRecord, tail: Tail, columns: Sequence[ColumnChunk], rows: int, chunk_bytes: int
) -> Reading[Sequence[Pages | None]]:
    """Reads the page indexes of a row group that is to be cut, those that are near each other together."""
    indexes = [column.page_index for column in columns if column.page_index]
    fetch_bytes = sum(column.stop - column.start for column in columns)
    if len(indexes) < len(columns) or not needs_pages(fetch_bytes, chunk_bytes):
        return [None] * len(columns)
    needs = near_needs(record, [span for span in indexes if span[0] < tail.start], _NEAR)
    answers = yield from read_ranges(needs)
    pieces = [(tail.start, tail.content), *zip((need.start for need in needs), map(bytes, answers), strict=True)]
    contents = [_among(pieces, span) for span in indexes]
    return [read_pages(content, column, rows) for content, column in zip(contents, columns, strict=True)]


def _among(pieces: Sequence[tuple[int, bytes]], span: Range) -> bytes:
    """Returns the bytes of a range that one of the pieces has."""
    start, stop = span
    return next(
        content[start - base : stop - base] for base, content in pieces if base <= start and stop <= base + len(content)
    )


def _check_size(record: ObjectRecord, number: int, block: Block) -> None:
    if block.fetch_bytes > MOST_FETCH_BYTES or block.record_bytes > MOST_RECORD_BYTES:
        size = f"{block.fetch_bytes} bytes (about {block.record_bytes} decoded) of the wanted columns"
        raise refused(
            record,
            f"row group {number} has {size} that cannot be cut (it has no page index, or too few pages), and "
            f"at most {MOST_FETCH_BYTES} ({MOST_RECORD_BYTES}) can be decoded together: write it with "
            "write_page_index=True or smaller row groups (pyarrow: row_group_size=), or name fewer columns=",
            block.ranges[0][0] if block.ranges else 0,
        )


def _encrypted(record: ObjectRecord) -> ManifestError:
    return refused(record, "is encrypted, which streamer does not read; write it without encryption")
