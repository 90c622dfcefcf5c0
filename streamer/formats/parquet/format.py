"""Parquet: rows are samples, the index is the footer of each file.

The schema is that of the first file. A chunk is one or several row groups; a row group that is much larger is cut where
pages begin, if it has a page index (`write_page_index=True` of pyarrow, and what Hugging Face's datasets write since
5.0). Only the bytes of the wanted columns are fetched.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import msgspec

from streamer.errors import ConfigError, ManifestError
from streamer.formats.base import (
    Answer,
    Block,
    Facts,
    Format,
    Indexing,
    Need,
    ObjectRecord,
    Recoder,
    Source,
    Survey,
    Surveying,
)
from streamer.formats.failures import damaged, not_importable, refused
from streamer.formats.parquet.facts import Wanted, describe, mismatch
from streamer.formats.parquet.footer import ENCRYPTED_MAGIC, MAGIC, TAIL_BYTES, Footer, RowGroup, read_footer
from streamer.formats.parquet.pages import Group, Pages, Primitive, blocks_of, needs_pages, read_pages
from streamer.formats.parquet.thrift import ThriftError
from streamer.formats.table.records import TableOpener, head_bytes
from streamer.manifest.blocks import MOST_FETCH_BYTES, MOST_RECORD_BYTES

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


class Parquet(Format, frozen=True, forbid_unknown_fields=True):
    """Parquet files.

    Attributes:
        columns: names of the fields that samples have ("image", "meta.caption"; "meta" for all parts of a struct), in
            any order; empty: all. No other bytes are fetched.
    """

    name = "parquet"
    columns: tuple[str, ...] = ()

    def accepts(self, key: str) -> bool:
        """Parquet files; not those of hidden folders, and of folders like `_temporary/` and `_delta_log/`."""
        lower = key.lower()
        return lower.endswith(SUFFIXES) and not any(part[:1] in {".", "_"} for part in lower.split("/"))

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the schema of the first file.

        Raises:
            ManifestError: a file that is damaged or encrypted, or a Delta table.
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
        except ThriftError as error:
            raise damaged(first, str(error), tail.footer_start) from error
        except ConfigError as error:
            raise ConfigError(f"{first.url}: {error}", **error.details) from error
        sources = [Source(first, tail.content), *(Source(record) for record in accepted[1:])]
        expected = 2 * len(tail.content) * len(accepted)
        return Survey(sources, facts, read_bytes=min(expected, sum(record.size for record in accepted)))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds the blocks of one file.

        Raises:
            ManifestError: it is damaged or encrypted, has other columns than the first file, or a row group that is too
                large and cannot be cut.
        """
        record = source.record
        tail, footer = yield from _read_end(record, source.notes)
        try:
            wanted = Wanted.of(facts)
            if problem := mismatch(wanted, footer.root):
                raise refused(record, f"{problem}; name the files with the same columns, or the columns that agree")
            primitives = wanted.primitives_in(footer.root)
            for number, group in enumerate(footer.groups):
                if group.rows:
                    yield from _group_blocks(_RowGroup(source, tail, wanted, primitives, number, group))
        except ThriftError as error:
            raise damaged(record, str(error), tail.footer_start) from error

    def opener(self, facts: Facts) -> TableOpener:
        """Opens records of a table."""
        return TableOpener(facts.fields)

    def recoder(self, facts: Facts) -> Recoder:
        """Decodes pages with pyarrow.

        Raises:
            ConfigError: it is not installed.
        """
        try:
            from streamer.formats.parquet.recode import ParquetRecoder
        except ImportError as error:
            raise not_importable("Parquet is decoded with pyarrow", "parquet", error) from error

        return ParquetRecoder(facts)


def _read_end(
    record: ObjectRecord, known: bytes = b""
) -> Generator[Need | tuple[Need, ...], Answer, tuple[Tail, Footer]]:
    """Reads the footer, and what stands before it."""
    size = record.size
    if size < len(MAGIC) + TAIL_BYTES:
        raise damaged(record, f"{size} bytes are no Parquet file", 0)
    content = known or _bytes((yield Need(max(0, size - _FIRST_READ), size, record)))
    length = _footer_length(record, content)
    missing = length + TAIL_BYTES - len(content)
    if missing > 0:
        start = max(0, size - length - TAIL_BYTES - _FIRST_READ)
        content = _bytes((yield Need(start, size - len(content), record))) + content
    data_stop = size - TAIL_BYTES - length
    try:
        footer = read_footer(content[-TAIL_BYTES - length : -TAIL_BYTES], data_stop)
    except ThriftError as error:
        raise damaged(record, f"in the footer, {error}", data_stop + error.offset) from error
    return Tail(content, size - len(content), data_stop), footer


def _footer_length(record: ObjectRecord, content: bytes) -> int:
    magic, size = content[-4:], record.size
    if magic == ENCRYPTED_MAGIC:
        raise _encrypted(record)
    if magic != MAGIC:
        raise damaged(
            record, f"it ends with {magic!r}, not with {MAGIC!r}, so it is no Parquet file, or cut off", size - 4
        )
    length = int.from_bytes(content[-TAIL_BYTES:-4], "little")
    most = min(size - TAIL_BYTES - len(MAGIC), _MOST_FOOTER_BYTES)
    if not 0 < length <= most:
        raise damaged(record, f"its footer should have {length} bytes, and can have up to {most}", size - TAIL_BYTES)
    return length


class _RowGroup(msgspec.Struct, frozen=True):
    """A row group to be cut: its file, and which of its primitives are wanted."""

    source: Source
    tail: Tail
    wanted: Wanted
    primitives: list[int]
    number: int
    group: RowGroup

    def cut(self, pages: Sequence[Pages | None]) -> Group:
        """Its wanted primitives."""
        columns = [self.group.columns[primitive] for primitive in self.primitives]
        primitives = [
            Primitive(column, page, width, in_json)
            for column, page, (width, in_json) in zip(columns, pages, self.wanted.widths, strict=True)
        ]
        return Group(self.group.rows, primitives, head_bytes(self.wanted.fields))


def _group_blocks(row_group: _RowGroup) -> Indexing:
    record, group = row_group.source.record, row_group.group
    columns = [group.columns[primitive] for primitive in row_group.primitives]
    if any(column.is_encrypted for column in columns):
        raise _encrypted(record)
    row_group.wanted.check(group, row_group.primitives)
    # Larger chunks are of several blocks.
    chunk_bytes = min(row_group.source.chunk_bytes, MOST_FETCH_BYTES // 2)
    fetch_bytes = sum(column.stop - column.start for column in columns)
    pages: Sequence[Pages | None] = [None] * len(columns)
    indexes = [column.page_index for column in columns]
    ranges = [span for span in indexes if span]
    if needs_pages(fetch_bytes, chunk_bytes) and len(ranges) == len(indexes):
        contents = yield from _read_ranges(record, row_group.tail, ranges)
        pages = [read_pages(content, column, group.rows) for content, column in zip(contents, columns, strict=True)]
    for block in blocks_of(row_group.cut(pages), chunk_bytes, MOST_FETCH_BYTES):
        _check_size(row_group, block)
        yield block


def _read_ranges(
    record: ObjectRecord, tail: Tail, ranges: Sequence[tuple[int, int]]
) -> Generator[Need | tuple[Need, ...], Answer, list[bytes]]:
    """Reads small ranges, those that are near each other together; what the tail has is not read again."""
    needs: list[Need] = []
    for start, stop in sorted(span for span in ranges if span[0] < tail.start):
        if needs and start - needs[-1].stop < _NEAR:
            needs[-1] = Need(needs[-1].start, max(stop, needs[-1].stop), record)
        else:
            needs.append(Need(start, stop, record))
    pieces = [(tail.start, tail.content)]
    if needs:
        answers = yield tuple(needs)
        assert isinstance(answers, tuple)
        pieces += [(need.start, bytes(answer)) for need, answer in zip(needs, answers, strict=True)]
    return [_among(pieces, *span) for span in ranges]


def _among(pieces: Sequence[tuple[int, bytes]], start: int, stop: int) -> bytes:
    return next(
        content[start - base : stop - base] for base, content in pieces if base <= start and stop <= base + len(content)
    )


def _check_size(row_group: _RowGroup, block: Block) -> None:
    too_long = block.fetch_bytes > MOST_FETCH_BYTES, block.record_bytes > MOST_RECORD_BYTES
    if any(too_long):
        size = f"{block.fetch_bytes} bytes (about {block.record_bytes} decoded) of the wanted columns"
        raise refused(
            row_group.source.record,
            f"row group {row_group.number} has {size} that cannot be cut (it has no page index, or too few pages), and "
            f"at most {MOST_FETCH_BYTES} ({MOST_RECORD_BYTES}) can be decoded together: write it with "
            "write_page_index=True or smaller row groups (pyarrow: row_group_size=), or name fewer columns=",
            block.ranges[0][0] if block.ranges else 0,
        )


def _bytes(answer: Answer) -> bytes:
    assert isinstance(answer, memoryview)
    return bytes(answer)


def _encrypted(record: ObjectRecord) -> ManifestError:
    return refused(record, "is encrypted, which streamer does not read; write it without encryption")
