"""Makes blocks of row groups: a row group that is much larger than a chunk is cut where pages begin."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from streamer.base.ranges import Range, join_ranges
from streamer.formats.base import Block
from streamer.formats.failures import DamagedError
from streamer.tables.parquet.footer import ColumnChunk
from streamer.tables.parquet.schema import Element
from streamer.tables.parquet.thrift import read_struct

# Pages of the other columns are read twice where runs meet; more than this is not worth smaller chunks.
_MAX_EXTRA = 1.05
# A row group up to this many chunks long is not cut.
_UNCUT = 1.5


class Pages(msgspec.Struct, frozen=True):
    """The pages of the values of one primitive in one row group.

    Attributes:
        first_rows: first row of each page, and the number of rows.
        starts: place of each page in the file, and where the last one ends.
        text_bytes: bytes of each page's byte arrays; empty: not known.
    """

    first_rows: list[int]
    starts: list[int]
    text_bytes: list[int]

    def run(self, first_row: int, stop_row: int) -> slice:
        """Returns the pages that have these rows."""
        return slice(bisect_right(self.first_rows, first_row) - 1, bisect_left(self.first_rows, stop_row))


class PrimitiveHint(msgspec.Struct, frozen=True, array_like=True):
    """The pages of one primitive among the bytes of a block, for the recoder.

    Attributes:
        length: bytes of the pages.
        codec: see `footer.CODECS`.
        values: at least how many there are, nulls included.
        rows: rows in these pages.
        skipped: how many of these rows are before the first of the block.
    """

    length: int
    codec: int
    values: int
    rows: int
    skipped: int = 0


class ParquetFileHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the recoder has to know of the file of a block, where it is not what the facts say.

    Attributes:
        primitives: hints of the primitives of the file's own schema.
        schema: the wanted part of that schema; empty: it is that of the facts.
        logicals: see `Notes.logicals`, of that schema.
        partitions: values of the fields that the path has.
        layout: `Wanted.layout`, so that records of other layouts are other chunks; the recoder has no use for it.
    """

    primitives: list[PrimitiveHint]
    schema: list[Element] = []
    logicals: tuple[tuple[int, str], ...] = ()
    partitions: list[int | str | None] = []
    layout: bytes = b""


class Primitive(msgspec.Struct, frozen=True):
    """A wanted primitive in one row group.

    Attributes:
        column: its chunk.
        pages: its pages; None: not known.
        width: bytes of each value in a record; 0: as long as it is.
        nested: whether its values are part of nested ones.
    """

    column: ColumnChunk
    pages: Pages | None
    width: int
    nested: bool


class RowGroupParts(msgspec.Struct, frozen=True):
    """The wanted primitives of one row group.

    Attributes:
        rows: number of its rows.
        primitives: its primitives.
        head_bytes: bytes of a record besides the values.
        file: what blocks say of their file, without their primitives; None: nothing.
    """

    rows: int
    primitives: list[Primitive]
    head_bytes: int
    file: ParquetFileHint | None = None

    @property
    def fetch_bytes(self) -> int:
        """Bytes of all primitives."""
        return sum(primitive.column.stop - primitive.column.start for primitive in self.primitives)

    def whole(self) -> Block:
        """Returns all rows as one block."""
        ranges = [(primitive.column.start, primitive.column.stop) for primitive in self.primitives]
        hints = [
            _hint(primitive, stop - start, self.rows)
            for primitive, (start, stop) in zip(self.primitives, ranges, strict=True)
        ]
        record_bytes = sum(_value_bytes(primitive) for primitive in self.primitives) + self.rows * self.head_bytes
        return Block(join_ranges(ranges), self.rows, record_bytes, self._encode_hint(hints))

    def run(self, first: int, stop: int) -> Block:
        """Returns the rows `[first, stop)` as one block."""
        ranges: list[Range] = []
        hints = []
        record_bytes = (stop - first) * self.head_bytes
        for primitive in self.primitives:
            assert primitive.pages
            pages = primitive.pages.run(first, stop)
            # The dictionary is read only if these pages need it.
            starts = primitive.pages.starts
            users = primitive.column.dictionary_pages
            dictionary = (primitive.column.start, starts[0])
            values = (starts[pages.start], starts[pages.stop])
            has_users = dictionary[0] < dictionary[1] and (users is None or pages.start < users)
            spans = [dictionary, values] if has_users else [values]
            ranges += spans
            rows = primitive.pages.first_rows[pages.stop] - primitive.pages.first_rows[pages.start]
            skipped = first - primitive.pages.first_rows[pages.start]
            hints.append(_hint(primitive, sum(b - a for a, b in spans), rows, skipped))
            record_bytes += _value_bytes(primitive, pages) * (stop - first) // rows
        return Block(join_ranges(ranges), stop - first, record_bytes, self._encode_hint(hints))

    def _encode_hint(self, hints: list[PrimitiveHint]) -> bytes:
        of_file = None if self.file is None else msgspec.structs.replace(self.file, primitives=hints)
        return msgspec.msgpack.encode(of_file or hints)


def needs_pages(fetch_bytes: int, chunk_bytes: int) -> bool:
    """Whether a row group is so large that it is to be cut."""
    return fetch_bytes > _UNCUT * chunk_bytes


def blocks_of(group: RowGroupParts, chunk_bytes: int, most_bytes: int) -> Iterator[Block]:
    """Yields a row group as blocks of about `chunk_bytes`, at most `most_bytes` where its pages allow it.

    The runs are as equal as the pages of the largest primitive allow. If they read too much twice, there are fewer,
    larger ones.
    """
    total = group.fetch_bytes
    # It is not cut if its pages are not known.
    count = round(total / chunk_bytes) if all(primitive.pages for primitive in group.primitives) else 1
    while count > 1:
        edges = _cuts(group, count)
        blocks = [group.run(first, stop) for first, stop in pairwise(edges)]
        extra = sum(block.fetch_bytes for block in blocks) / total
        if extra <= _MAX_EXTRA or total / count * 2 > most_bytes:
            yield from blocks
            return
        count = count * 3 // 4
    yield group.whole()


def read_pages(content: bytes, column: ColumnChunk, rows: int) -> Pages:
    """Parses an offset index; raises DamagedError if it contradicts the footer."""
    index, _ = read_struct(content)
    starts: list[int] = []
    first_rows: list[int] = []
    joined: list[int] = []
    stop = column.start
    for number, page in enumerate(index.structs(1)):
        start = page.integer(1)
        length = page.integer(2)
        row = page.integer(3)
        follows = start == stop and row >= first_rows[-1] if first_rows else start >= stop and row == 0
        if not follows or length <= 0:
            raise DamagedError(f"page {number} at byte {start} with {length} bytes begins with row {row}")
        stop = start + length
        if first_rows and row == first_rows[-1]:
            # The page before has no rows, as pyarrow writes it: one with this page.
            joined.append(number)
            continue
        starts.append(start)
        first_rows.append(row)
    if not starts or stop > column.stop or first_rows[-1] >= rows:
        raise DamagedError(f"{len(starts)} pages up to byte {stop} and row {first_rows[-1:]}, of {rows}")
    texts = [max(0, length) for length in index.items(2, int)]
    if len(texts) == len(starts) + len(joined):
        for number in reversed(joined):
            texts[number - 1] += texts.pop(number)
    return Pages([*first_rows, rows], [*starts, stop], texts if len(texts) == len(starts) else [])


def _cuts(group: RowGroupParts, count: int) -> list[int]:
    """Returns the first rows of about `count` equal runs (fewer, if pages are larger), and the number of rows."""
    largest = max(group.primitives, key=lambda primitive: primitive.column.stop - primitive.column.start)
    assert largest.pages
    starts = largest.pages.starts
    first_rows = largest.pages.first_rows
    length = starts[-1] - starts[0]
    edges = [0]
    for number in range(1, count):
        target = starts[0] + length * number // count
        right = bisect_left(starts, target)
        nearest = right if starts[right] - target <= target - starts[right - 1] else right - 1
        if edges[-1] < first_rows[nearest] < group.rows:
            edges.append(first_rows[nearest])
    return [*edges, group.rows]


def _hint(primitive: Primitive, length: int, rows: int, skipped: int = 0) -> PrimitiveHint:
    return PrimitiveHint(
        length=length, codec=primitive.column.codec, values=primitive.column.values, rows=rows, skipped=skipped
    )


def _value_bytes(primitive: Primitive, pages: slice = slice(None)) -> int:
    """Returns the bytes of the values of pages in the records: exactly, as far as the file says it."""
    column = primitive.column
    share = 1.0
    if primitive.pages and pages.stop is not None:
        starts = primitive.pages.starts
        share = (starts[pages.stop] - starts[pages.start]) / (starts[-1] - starts[0])
    if primitive.width:
        found = int(column.values * primitive.width * share)
    elif primitive.pages and primitive.pages.text_bytes:
        found = sum(primitive.pages.text_bytes[pages])
    else:
        found = int(column.value_bytes * share)
    # Names, and heads of values.
    return found + int(column.values * share) * 16 if primitive.nested else found
