"""Parquet: rows are samples, the index is the footer of each file.

The fields are those that the files have together (`survey.py`). A chunk is one or several row groups; a row group that
is much larger is cut where pages begin, if it has a page index (`write_page_index=True` of pyarrow, and what Hugging
Face's datasets write since 5.0). Only the bytes of the wanted columns are fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from streamer.errors import ManifestError
from streamer.formats.base import Block, Facts, Recoder
from streamer.formats.failures import DamagedError, make_damage_error, make_refusal, require_extra
from streamer.formats.reading import Reading, near_needs, read_ranges
from streamer.formats.table.layouts import refuse_table, table_log
from streamer.formats.table.partitions import partition_values
from streamer.formats.table.records import TableOpener, head_bytes
from streamer.formats.table.schema_memory import SchemaMemory
from streamer.formats.windows import RowFormat
from streamer.manifest.blocks import MOST_FETCH_BYTES, MOST_RECORD_BYTES
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Indexing, Source, Survey, SurveyContext, Surveying
from streamer.tables.parquet.facts import Own, WantedColumns
from streamer.tables.parquet.fields import features_of
from streamer.tables.parquet.footer import FIRST_READ, ColumnChunk, FileTail, make_encryption_error, read_end
from streamer.tables.parquet.pages import (
    Pages,
    ParquetFileHint,
    Primitive,
    RowGroupParts,
    blocks_of,
    needs_pages,
    read_pages,
)
from streamer.tables.parquet.survey import (
    HUGGING_FACE,
    SCHEMA_RULE,
    ParquetFileNotes,
    describe_files,
    is_bare,
    leave_out_others,
)
from streamer.tables.parquet.unify import DifferentError

# "df.parquet.gzip" is how pandas' documentation calls files whose pages are compressed.
SUFFIXES = (".parquet", ".pq", ".parq", *(f".parquet.{codec}" for codec in ("gzip", "gz", "snappy", "zstd", "brotli")))
# Two ranges are read as one if less is between them.
_NEAR = 64 << 10
_NOTES = msgspec.msgpack.Decoder(ParquetFileNotes)


class Parquet(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Parquet files.

    Attributes:
        columns: names of the fields that samples have ("image", "meta.caption"; "meta" for all parts of a struct), in
            any order; empty: all. No other bytes are fetched.
    """

    name = "parquet"
    reads_tables = True
    numbered_keys = True
    recuts = True
    columns: tuple[str, ...] = ()

    def accepts(self, key: str) -> bool:
        """Accepts Parquet files, but not those in folders like `.cache/`, `_temporary/` and `_delta_log/`.

        Files without an ending are accepted, as Athena, Trino and Hive write them; the survey leaves out those that are
        something else.
        """
        parts = key.lower().split("/")
        # "_run=1/" is a partition.
        if any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in parts):
            return False
        return parts[-1].endswith(SUFFIXES) or is_bare(parts[-1])

    def survey_with(
        self, context: SurveyContext, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]
    ) -> Surveying:
        """Surveys files whose partitions are the folders `key=value` below the dataset's."""
        return self.survey_windows(self.survey_rows(accepted, others, context))

    def survey_rows(
        self,
        accepted: Sequence[ObjectRecord],
        others: Mapping[str, ObjectRecord],
        context: SurveyContext | None = None,
    ) -> Surveying:
        """Reads the schemas of the files that no survey before has read; paths have no partitions without a context.

        Raises:
            ConfigError: `columns` names one that no file has.
            ManifestError: it is a table of a format that says elsewhere which rows are valid.
        """
        if found := table_log(others):
            raise ManifestError(refuse_table(*found), url=found[1])
        if not accepted:
            return Survey([])
        memory = SchemaMemory(SCHEMA_RULE, context.memories if context else ())
        files = yield from leave_out_others(accepted, memory)
        facts, notes = yield from describe_files(files, self.columns, context.base if context else None, memory)
        sources = [Source(record, notes.get(record.url, b"")) for record in files]
        expected = 2 * FIRST_READ * len(files)
        read_bytes = min(expected, sum(record.size for record in files))
        return Survey(sources, facts, read_bytes=read_bytes, memory=memory.encode())

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the blocks of one file; a column that it lacks has no values in its rows."""
        record = source.record
        # Larger chunks are of several blocks.
        chunk_bytes = min(source.chunk_bytes, MOST_FETCH_BYTES // 2)
        notes = _NOTES.decode(source.notes) if source.notes else ParquetFileNotes()
        if notes.problem:
            raise make_refusal(record, notes.problem, of_one=True)
        tail, footer = yield from read_end(record, notes.end)
        if not any(group.rows for group in footer.groups):
            return
        try:
            wanted = WantedColumns.from_facts(facts)
            own = wanted.find_own(footer.root)
            features = features_of(footer.metadata.get(HUGGING_FACE, b"null"))
            describes = own is wanted.all and wanted.matches(footer.root, features, self.columns)
            hint = _file_hint(wanted, own, record, notes.key, describes=describes)
            primitives = [footer.root.at(path[-1].path).primitive for path in own.paths]
            for number, group in enumerate(footer.groups):
                if not group.rows:
                    continue
                columns = [group.columns[primitive] for primitive in primitives]
                if any(column.is_encrypted for column in columns):
                    raise make_encryption_error(record)
                own.check(columns, group.rows)
                pages = yield from _read_pages(
                    record=record, tail=tail, columns=columns, rows=group.rows, chunk_bytes=chunk_bytes
                )
                parts = [
                    Primitive(column, page, *width)
                    for column, page, width in zip(columns, pages, own.widths, strict=True)
                ]
                cut = RowGroupParts(group.rows, parts, head_bytes(facts.fields), hint)
                for block in blocks_of(cut, chunk_bytes, MOST_FETCH_BYTES):
                    _check_size(record, number, block)
                    yield block
        except DifferentError as error:
            first, own_type = error.types
            what = f"has a column {error.name!r} that is {own_type}, in the other files it is {first}"
            raise make_refusal(record, what, tail.footer_start, of_one=True) from error
        except DamagedError as error:
            raise make_damage_error(record, str(error), tail.footer_start) from error

    def narrow(self, facts: Facts, fields: Collection[str]) -> Parquet:
        """Returns the format of these columns, which are ranges of their own; see `Format.narrow`."""
        return msgspec.structs.replace(self, columns=tuple(sorted(fields)))

    def open_rows(self, facts: Facts) -> TableOpener:
        """Opens records of a table."""
        return TableOpener(facts.fields)

    def recode_rows(self, facts: Facts) -> Recoder:
        """Decodes pages with pyarrow."""
        with require_extra("Parquet is decoded with pyarrow", "parquet"):
            from streamer.tables.parquet.recode import ParquetRecoder
        return ParquetRecoder(facts)

    def has_tables(self, facts: Facts) -> bool:
        """All records are those of a table."""
        return True


def _file_hint(
    wanted: WantedColumns, own: Own, record: ObjectRecord, key: str, *, describes: bool
) -> ParquetFileHint | None:
    """Returns what the recoder has to know of a file besides the facts; None if the file `describes` it itself."""
    try:
        values = partition_values(wanted.partitions, key)
    except ValueError as error:
        raise make_refusal(record, str(error), of_one=True) from error
    if own is wanted.all:
        is_plain = describes and not wanted.partitions
        return None if is_plain else ParquetFileHint([], partitions=values, layout=wanted.layout)
    return ParquetFileHint(
        primitives=[],
        schema=own.root.elements(),
        logicals=tuple(own.root.logicals().items()),
        partitions=values,
        layout=wanted.layout,
    )


def _read_pages(
    record: ObjectRecord, tail: FileTail, columns: Sequence[ColumnChunk], rows: int, chunk_bytes: int
) -> Reading[Sequence[Pages | None]]:
    """Reads the page indexes of a row group that is to be cut, those that are near each other together."""
    indexes = [column.page_index for column in columns if column.page_index]
    fetch_bytes = sum(column.stop - column.start for column in columns)
    if len(indexes) < len(columns) or not needs_pages(fetch_bytes, chunk_bytes):
        return [None] * len(columns)
    needs = near_needs(record, [span for span in indexes if span[0] < tail.start], _NEAR)
    answers = yield from read_ranges(needs)
    pieces = [(tail.start, tail.content), *zip((need.start for need in needs), map(bytes, answers), strict=True)]
    contents = [
        next(
            content[start - base : stop - base]
            for base, content in pieces
            if base <= start and stop <= base + len(content)
        )
        for start, stop in indexes
    ]
    return [read_pages(content, column, rows) for content, column in zip(contents, columns, strict=True)]


def _check_size(record: ObjectRecord, number: int, block: Block) -> None:
    if block.fetch_bytes > MOST_FETCH_BYTES or block.record_bytes > MOST_RECORD_BYTES:
        size = f"{block.fetch_bytes} bytes (about {block.record_bytes} decoded) of the wanted columns"
        raise make_refusal(
            record,
            f"row group {number} has {size} that cannot be cut (it has no page index, or too few pages), and "
            f"at most {MOST_FETCH_BYTES} ({MOST_RECORD_BYTES}) can be decoded together: write it with "
            "write_page_index=True or smaller row groups (pyarrow: row_group_size=), or name fewer columns=",
            block.ranges[0][0] if block.ranges else 0,
        )
