"""Makes blocks of row groups: a row group that is much larger than a chunk is cut where pages begin.

The index of Parquet (`format.py`) makes the blocks and their hints. The recoder (`recode.py`, `number_lists.py`) reads
the hints. A primitive is a node of the schema that has values (`schema.py`). Its values in a row group are stored in
pages of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise

import msgspec

from streamer.formats.base import Block
from streamer.formats.failures import DamagedError
from streamer.formats.reading import Range, join_ranges
from streamer.tables.parquet.footer import ColumnChunk
from streamer.tables.parquet.schema import Element
from streamer.tables.parquet.thrift import read_struct

# Max bytes that the blocks of a row group may read together, as a multiple of its bytes: pages with rows of two blocks
# are read for both. Reading more is not worth smaller chunks.
_MAX_EXTRA = 1.05
# A row group that is at most this many chunks long is not cut.
_UNCUT = 1.5


class Pages(msgspec.Struct, frozen=True):
    """The data pages of one primitive in one row group.

    Attributes:
        first_rows: first row of each page, and behind them the number of rows of the row group.
        starts: byte of the file at which each page begins, and the one at which the last page ends.
        text_bytes: bytes of the byte arrays in each page; empty if they are not known.
    """

    first_rows: list[int]
    starts: list[int]
    text_bytes: list[int]

    def run(self, first_row: int, stop_row: int) -> slice:
        """Returns which pages have the rows `[first_row, stop_row)` of the row group."""
        return slice(bisect_right(self.first_rows, first_row) - 1, bisect_left(self.first_rows, stop_row))


class PrimitiveHint(msgspec.Struct, frozen=True, array_like=True):
    """What the recoder must know of the pages of one primitive in a block.

    Attributes:
        length: bytes of the pages, the dictionary included.
        codec: number of the compression, as in `footer.CODECS`.
        values: number of values in the whole row group, nulls included: the pages have at most so many.
        rows: number of rows in these pages.
        skipped: number of these rows that are before the first row of the block.
    """

    length: int
    codec: int
    values: int
    rows: int
    skipped: int = 0


class ParquetFileHint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The hint of a block of a file that the facts alone do not describe.

    Other blocks have a list of `PrimitiveHint` as hint.

    Attributes:
        primitives: hints of the primitives of the file's own schema.
        schema: elements of the wanted part of that schema, or empty if it is the schema of the facts.
        logicals: `SchemaNode.logical` of nodes that have one, with their places in `schema`.
        partitions: values of the fields in the file's path, with None for a null.
        layout: `WantedColumns.layout`. It makes chunks whose records have another layout get another key; the recoder
            does not read it.
    """

    primitives: list[PrimitiveHint]
    schema: list[Element] = []
    logicals: tuple[tuple[int, str], ...] = ()
    partitions: list[int | str | None] = []
    layout: bytes = b""


class Primitive(msgspec.Struct, frozen=True):
    """A wanted primitive in one row group.

    Attributes:
        column: its column chunk.
        pages: its pages, or None if the file has no page index, or the row group is not cut.
        width: bytes of a value in a record, or 0 if values differ in length.
        nested: whether its values are part of nested values.
    """

    column: ColumnChunk
    pages: Pages | None
    width: int
    nested: bool


class RowGroupParts(msgspec.Struct, frozen=True):
    """The wanted primitives of one row group.

    Attributes:
        rows: number of rows of the row group.
        primitives: the wanted primitives.
        head_bytes: bytes of a record besides the values.
        file: what the hints of blocks say of the file, with no primitives yet; None if the facts say all.
    """

    rows: int
    primitives: list[Primitive]
    head_bytes: int
    file: ParquetFileHint | None = None

    @property
    def fetch_bytes(self) -> int:
        """Bytes of all primitives together."""
        return sum(primitive.column.stop - primitive.column.start for primitive in self.primitives)

    def whole(self) -> Block:
        """Returns a block with all rows."""
        ranges = [(primitive.column.start, primitive.column.stop) for primitive in self.primitives]
        hints = [
            _hint(primitive, stop - start, self.rows)
            for primitive, (start, stop) in zip(self.primitives, ranges, strict=True)
        ]
        record_bytes = sum(_value_bytes(primitive) for primitive in self.primitives) + self.rows * self.head_bytes
        return Block(join_ranges(ranges), self.rows, record_bytes, self._encode_hint(hints))

    def run(self, first: int, stop: int) -> Block:
        """Returns a block with the rows `[first, stop)`. The pages of all primitives must be known."""
        ranges: list[Range] = []
        hints = []
        record_bytes = (stop - first) * self.head_bytes
        for primitive in self.primitives:
            assert primitive.pages
            pages = primitive.pages.run(first, stop)
            # The dictionary is a part of the block only if these pages need it.
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
    """Whether a row group of `fetch_bytes` is so large that it must be cut for chunks of `chunk_bytes`."""
    return fetch_bytes > _UNCUT * chunk_bytes


def blocks_of(group: RowGroupParts, chunk_bytes: int, most_bytes: int) -> Iterator[Block]:
    """Yields a row group as blocks of consecutive rows, each of about `chunk_bytes`.

    The blocks are as equal as the pages of the largest primitive allow. If they together read more than 1.05 times the
    row group, there are fewer and longer blocks, unless these could be longer than `most_bytes`. Without page indexes
    there is one block.
    """
    total = group.fetch_bytes
    # The row group is not cut if its pages are not known.
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
    """Parses the offset index of a column chunk.

    Args:
        content: the bytes of the index.
        column: the column chunk.
        rows: rows of its row group.

    Raises:
        DamagedError: the index is damaged or contradicts the footer.
    """
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
            # The page before has no row of its own; pyarrow writes such pages. It is joined with this page.
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
    """Returns the first row of each of about `count` equal runs of rows, and behind them the number of rows.

    If the pages of the largest primitive are longer than runs, there are fewer runs.
    """
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
    """Returns the bytes that the values of some pages take in records; estimated if the file does not say it."""
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
    # A nested value also has the names of its parts, and a head for each.
    return found + int(column.values * share) * 16 if primitive.nested else found
