"""The format "parquet": rows are samples, and the index comes from the footer of each file.

`formats/registry.py` makes it for engine, recoders and workers, and `media/lerobot/format.py` reads its tables with it.
The fields are those of all files together (`survey.py`). A chunk is one or several row groups. A row group that is much
larger than a chunk is cut where pages begin, if it has a page index (pyarrow writes one with `write_page_index=True`,
and Hugging Face's datasets since 5.0). Only the bytes of the wanted columns are fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from streamer.base.extras import require_extra
from streamer.errors import ManifestError
from streamer.formats.base import Block, Facts, Recoder
from streamer.formats.failures import DamagedError, make_damage_error, make_refusal
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

# The documentation of pandas calls files whose pages are compressed "df.parquet.gzip".
SUFFIXES = (".parquet", ".pq", ".parq", *(f".parquet.{codec}" for codec in ("gzip", "gz", "snappy", "zstd", "brotli")))
# Page indexes with fewer bytes than this between them are read with one request.
_NEAR = 64 << 10
_NOTES = msgspec.msgpack.Decoder(ParquetFileNotes)


class Parquet(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Reads Parquet files.

    Attributes:
        columns: names of the wanted fields ("image", "meta.caption", or "meta" for all parts of a struct), in any
            order. Empty for all fields. Only their bytes are fetched.
    """

    name = "parquet"
    reads_tables = True
    numbered_keys = True
    recuts = True
    columns: tuple[str, ...] = ()

    def accepts(self, key: str) -> bool:
        """Whether an object may be a Parquet file of the dataset: not one below `.cache/`, `_temporary/` and the like.

        Files without an ending are accepted, because Athena, Trino and Hive write Parquet without one. The survey
        leaves out those that are something else.
        """
        parts = key.lower().split("/")
        # "_run=1/" is a partition.
        if any(part[:1] == "." or (part[:1] == "_" and "=" not in part) for part in parts):
            return False
        return parts[-1].endswith(SUFFIXES) or is_bare(parts[-1])

    def survey_with(
        self, context: SurveyContext, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]
    ) -> Surveying:
        """Surveys files as `survey_rows`, and takes folders `key=value` below the dataset's folder as fields."""
        return self.survey_windows(self.survey_rows(accepted, others, context))

    def survey_rows(
        self,
        accepted: Sequence[ObjectRecord],
        others: Mapping[str, ObjectRecord],
        context: SurveyContext | None = None,
    ) -> Surveying:
        """Reads the schemas of the files that no earlier survey has read, and finds the fields.

        Args:
            accepted: the objects that `accepts` takes.
            others: the other objects, by url.
            context: what `survey_with` is told; with None, folders are no partitions.

        Raises:
            ConfigError: `columns` names a field that no file has.
            ManifestError: no file can be read, the files belong to a table with a log of its valid rows, two fields
                have one name, or a column has integers of 128 bits.
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
        """Finds the blocks of one file. Its rows have no values of a column that the file lacks.

        Raises:
            ManifestError: the file cannot be a part of the dataset, is damaged or encrypted, or has a row group that is
                too large and cannot be cut.
        """
        record = source.record
        # If chunks are larger than this, a chunk has several blocks.
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
        """Returns the format with these columns only, never None: each column is in ranges of its own."""
        return msgspec.structs.replace(self, columns=tuple(sorted(fields)))

    def open_rows(self, facts: Facts) -> TableOpener:
        """Returns what opens the records of rows."""
        return TableOpener(facts.fields)

    def recode_rows(self, facts: Facts) -> Recoder:
        """Returns what decodes pages with pyarrow; raises ConfigError if pyarrow is not installed."""
        with require_extra("decoding Parquet", field="format"):
            from streamer.tables.parquet.recode import ParquetRecoder
        return ParquetRecoder(facts)

    def has_tables(self, facts: Facts) -> bool:
        """Returns True, because a row with a single field is also a record of `table.records`."""
        return True


def _file_hint(
    wanted: WantedColumns, own: Own, record: ObjectRecord, key: str, *, describes: bool
) -> ParquetFileHint | None:
    """Returns what the recoder must know of a file besides the facts; None if the facts say all.

    Raises ManifestError if a partition of the file has another type than in other files.

    Args:
        wanted: the facts of the dataset.
        own: the file's part of them.
        record: the file.
        key: part of its url that has the partitions.
        describes: whether the file alone would give the same fields.
    """
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
    """Reads the page indexes of a row group if it is so large that it must be cut.

    Args:
        record: the file.
        tail: the end of the file, which may have the page indexes.
        columns: the wanted columns of the row group.
        rows: rows of the row group.
        chunk_bytes: bytes of a chunk.

    Returns:
        The pages of each column; None for each if the row group is not cut, or a column has no page index.
    """
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
    """Raises ManifestError if a block of row group `number` is too long to be fetched or decoded."""
    if block.fetch_bytes > MOST_FETCH_BYTES or block.record_bytes > MOST_RECORD_BYTES:
        size = f"{block.fetch_bytes} bytes (about {block.record_bytes} decoded) of the wanted columns"
        raise make_refusal(
            record,
            f"row group {number} has {size} that cannot be cut (it has no page index, or too few pages), and "
            f"at most {MOST_FETCH_BYTES} ({MOST_RECORD_BYTES}) can be decoded together: write it with "
            "write_page_index=True or smaller row groups (pyarrow: row_group_size=), or name fewer columns=",
            block.ranges[0][0] if block.ranges else 0,
        )
