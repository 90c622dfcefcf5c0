"""Defines the base class of formats whose samples are rows of a table or array, or windows of consecutive rows.

Parquet, `.npy` and raw arrays, HDF5 and zarr derive from `RowFormat`. A subclass only finds and decodes rows. Windows
are made of them here.

`window=(length, stride)`: a sample is `length` consecutive rows of one object, and a sample begins with every
`stride`-th row of the object. A field that has the shape S in a row has the shape (length, *S) in a sample.

Overlapping windows share rows in the chunk file. A piece is a run of rows that can only be decoded together. A block of
windows consists of pieces, and its hint contains their hints. Where two blocks meet, a piece that has rows of both is
fetched twice. Therefore pieces are small beside a block, and blocks are longer where a window has many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, DecodeError, RecodeError
from streamer.formats.base import Block, Facts, Field, FieldSpec, Format, Opener, Recoder, Records
from streamer.formats.failures import make_refusal
from streamer.formats.reading import Asking, collect_samples
from streamer.formats.table.records import find_dtype, head_dtype
from streamer.manifest.blocks import LONGEST_HINT
from streamer.manifest.model import ObjectRecord, SampleName
from streamer.manifest.protocols import Indexing, Note, Short, Source, Span, Surveying


class RowFormat(Format, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A format whose samples are rows, or windows of rows.

    A subclass has `survey_rows`, `index_rows`, `open_rows`, and `recode_rows` if its rows are in blocks.

    Attributes:
        window: (length, stride): rows of a sample, and rows from the beginning of a sample to that of the next one.
            None if a sample is one row.
    """

    window: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a window that is not of two positive whole numbers."""
        window: object = self.window
        if window is not None and not (
            isinstance(window, tuple | list)
            and len(window) == 2
            and all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in window)
        ):
            raise ConfigError(
                f"{type(self).__name__}: window={self.window!r} is not (rows of a sample, rows from one to the next), "
                "two integers of at least 1",
                field="format",
            )

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Surveys objects as `Format.survey`. If samples are windows, the fields of the facts have their shapes."""
        return (yield from self.survey_windows(self.survey_rows(accepted, others)))

    def survey_windows(self, rows: Surveying) -> Surveying:
        """Turns a survey of rows into one of windows: the shape of each field gets the length of a window in front.

        Without `window` it returns the survey of rows.

        Raises:
            ManifestError: samples are windows, and a field is no number and no array of a fixed shape.
        """
        found = yield from rows
        if self.window is None:
            return found
        # Windows have a length only if rows have a fixed one.
        length = self.window[0]
        if other := next((field for field in found.facts.fields if find_dtype(field.kind) is None), None):
            raise make_refusal(
                found.sources[0].record,
                f"has a field {other.name!r} of kind {other.kind!r}, and window= takes numbers and arrays whose shape "
                "the file says: name the other fields (columns=)",
            )
        facts = _change_kinds(found.facts, lambda dtype, lengths: f"{dtype}[{','.join([str(length), *lengths])}]")
        return msgspec.structs.replace(found, facts=facts)

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds rows, or blocks of windows, as `Format.index` does; windows from the beginning of the object on."""
        if self.window is None:
            yield from self.index_rows(source, facts, start)
            return
        rows = _find_row_facts(facts)
        small = msgspec.structs.replace(source, chunk_bytes=max(1, source.chunk_bytes // PIECES))
        runs = yield from self.read_runs(small, rows)
        lengths = [sum(piece.rows for piece in pieces) for pieces in runs]
        short = [length for length in lengths if length < self.window[0]]
        if len(short) == len(runs):
            yield Short(max(short, default=0), "rows")
        elif short:
            yield Note("episodes are shorter than a window, and have no sample", len(short), f"{short[0]} rows")
        for pieces in runs:
            yield from windows_of(pieces, self.window, self._row_bytes(rows), source.chunk_bytes)

    def opener(self, facts: Facts) -> Opener:
        """Returns what opens rows, or windows."""
        if self.window is None:
            return self.open_rows(facts)
        return WindowOpener(facts.fields, self._row_dtype(_find_row_facts(facts)), self.window[0])

    def recoder(self, facts: Facts) -> Recoder:
        """Returns what makes records of rows, or of windows; raises the errors of `Format.recoder`."""
        if self.window is None:
            return self.recode_rows(facts) or super().recoder(facts)
        rows = _find_row_facts(facts)
        return WindowRecoder(self.window, self._row_bytes(rows), self.recode_rows(rows))

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Surveys the objects for rows, as `Format.survey` does; each subclass has it."""
        raise NotImplementedError

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the rows of an object, as `Format.index` does; each subclass has it."""
        raise NotImplementedError

    def read_runs(self, source: Source, facts: Facts) -> Asking[list[list[RowPiece]]]:
        """Finds the pieces of each run of rows: a window has rows of one run only. Here an object is one run."""
        found = RowPieces(source.chunk_bytes)
        yield from collect_samples(self.index_rows(source, facts, 0), found.add)
        return [found.all()]

    def open_rows(self, facts: Facts) -> Opener:
        """Returns what opens rows, as `Format.opener` does; each subclass has it."""
        raise NotImplementedError

    def recode_rows(self, facts: Facts) -> Recoder | None:
        """Returns what makes records of rows, as `Format.recoder` does; None if rows are ranges of an object."""
        return None

    def has_tables(self, facts: Facts) -> bool:
        """Whether the record of a row is one of `table.records`; otherwise it is the bytes of the only field."""
        return len(facts.fields) > 1

    def _row_dtype(self, facts: Facts) -> np.dtype[np.generic]:
        if self.has_tables(facts):
            return head_dtype(facts.fields)
        dtype = find_dtype(facts.fields[0].kind)
        assert dtype is not None, "rows are of one length"
        return dtype

    def _row_bytes(self, facts: Facts) -> int:
        return self._row_dtype(facts).itemsize


class WindowOpener:
    """Opens samples that are windows of rows.

    Args:
        fields: the fields of a window.
        row: dtype of the record of a row: that of `head_dtype` for tables, else that of the only field.
        length: number of rows of a window.
    """

    def __init__(self, fields: Sequence[FieldSpec], row: np.dtype[np.generic], length: int) -> None:
        self._fields = fields
        self._row = row
        self._length = length

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns no key, and the fields, each with the numbers of all rows one after the other.

        Raises:
            DecodeError: the bytes are not `length` rows, or a row has a null.
        """
        if len(content) != self._length * self._row.itemsize:
            raise DecodeError(
                f"{len(content)} bytes are not {self._length} rows of {self._row.itemsize} bytes", offset=0
            )
        if self._row.names is None:
            return None, [Field(self._fields[0].name, content, self._fields[0].kind)]
        rows = np.frombuffer(content, self._row)
        if rows["nulls"].any():
            raise DecodeError(f"row {int(rows['nulls'].any(axis=1).argmax())} of the window has a null")
        found = []
        for number, field in enumerate(self._fields):
            values = np.ascontiguousarray(rows[str(number)])
            found.append(Field(field.name, values.reshape(-1).view(np.uint8).data, field.kind))
        return None, found


def _find_row_facts(facts: Facts) -> Facts:
    """Returns the facts of rows from those of windows: the shape of each field loses the length of a window."""
    return _change_kinds(facts, lambda dtype, lengths: f"{dtype}[{','.join(lengths[1:])}]" if lengths[1:] else dtype)


def _change_kinds(facts: Facts, change: Callable[[str, list[str]], str]) -> Facts:
    """Returns the facts with another kind for each field, which `change` makes of the dtype and the shape's lengths."""
    fields = []
    for field in facts.fields:
        dtype, _, shape = field.kind.partition("[")
        lengths = shape.rstrip("]").split(",") if shape else []
        fields.append(FieldSpec(field.name, change(dtype, lengths)))
    return msgspec.structs.replace(facts, fields=tuple(fields))


Int64Array = NDArray[np.int64]

# Number of pieces of a chunk, if the format can cut them so small: the last pieces of a block are fetched twice.
PIECES = 16
# A block is so long that at most a twelfth of it is fetched twice, but at most 64 MiB, both fetched and decoded.
_SHARE = 12
_MAX_BYTES = 64 << 20
# Max bytes of a piece in the hint of a block, besides the piece's own hint; and max bytes of the whole hint.
_HINT_BYTES = 16
_MAX_HINT_BYTES = LONGEST_HINT - 1024


class RowPiece(msgspec.Struct, frozen=True):
    """A run of rows that can only be decoded together, or whose bytes are the rows as they are.

    Attributes:
        ranges: byte ranges, as in `Block`; a single one if the bytes are the rows.
        rows: number of rows.
        hint: hint of the block of rows, or None if the bytes are the rows.
        objects: the object of each range, as in `Block`.
    """

    ranges: tuple[tuple[int, int], ...]
    rows: int
    hint: bytes | None = None
    objects: tuple[ObjectRecord, ...] = ()

    @property
    def fetch_bytes(self) -> int:
        """Bytes of all ranges together."""
        return sum(stop - start for start, stop in self.ranges)

    def trim(self, first: int, last: int) -> RowPiece:
        """Returns the piece without `first` rows at its beginning and `last` at its end; with a hint it stays whole."""
        if self.hint is not None:
            return self
        (start, stop) = self.ranges[0]
        row_bytes = self.fetch_bytes // self.rows
        return RowPiece(((start + first * row_bytes, stop - last * row_bytes),), self.rows - first - last)


class PieceHint(msgspec.Struct, frozen=True, array_like=True):
    """What the recoder is told of one piece: values of the `RowPiece`, without its ranges."""

    fetch_bytes: int
    rows: int
    hint: bytes | None


class WindowHint(msgspec.Struct, frozen=True, array_like=True):
    """The hint of a block of windows: the number of rows before its first window (`skipped`), and its pieces."""

    skipped: int
    pieces: list[PieceHint]


_HINT = msgspec.msgpack.Decoder(WindowHint)


class RowPieces:
    """Collects the rows of an object as pieces: each block, and each run of consecutive spans up to `most_bytes`."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._found: list[RowPiece] = []
        self._run: tuple[int, int, int] | None = None

    def add(self, item: Span | Block) -> None:
        """Adds the next row (a span), or the next block of rows."""
        if isinstance(item, Block):
            self._close()
            self._found.append(RowPiece(item.ranges, item.samples, item.hint, item.objects))
            return
        if self._run is not None and (item.start != self._run[1] or item.stop - self._run[0] > self._most_bytes):
            self._close()
        first, _, rows = self._run or (item.start, 0, 0)
        self._run = first, item.stop, rows + 1

    def all(self) -> list[RowPiece]:
        """Returns all pieces, in order; closes the last one."""
        self._close()
        return self._found

    def _close(self) -> None:
        if self._run is not None:
            start, stop, rows = self._run
            self._found.append(RowPiece(((start, stop),), rows))
            self._run = None


def windows_of(
    pieces: Sequence[RowPiece], window: tuple[int, int], row_bytes: int, chunk_bytes: int
) -> Iterator[Block]:
    """Yields the windows of a run of rows as blocks of about `chunk_bytes`, or more where windows overlap much.

    Args:
        pieces: all pieces of the run, in order.
        window: (length, stride), as in `RowFormat`.
        row_bytes: bytes of a row in a record.
        chunk_bytes: bytes of a chunk, as fetched.
    """
    length, stride = window
    edges = _edges([piece.rows for piece in pieces])
    fetched = _edges([piece.fetch_bytes for piece in pieces])
    hinted = _edges([_HINT_BYTES + len(piece.hint or b"") for piece in pieces])
    count = max(0, (int(edges[-1]) - length) // stride + 1)
    goal = chunk_bytes
    if length > stride and len(edges) > 1:
        # The bytes that a block shares with the next one are a twelfth of it, unless it becomes too long.
        mean_bytes = fetched[-1] / max(1, int(edges[-1]))
        piece_bytes = fetched[-1] / (len(edges) - 1)
        twice = (length - stride) * mean_bytes + piece_bytes
        goal = max(chunk_bytes, min(_MAX_BYTES, int(_SHARE * twice)))
    window_number = 0
    while window_number < count:
        row = window_number * stride
        first = int(np.searchsorted(edges, row, "right")) - 1
        limits = (fetched, goal), (hinted, _MAX_HINT_BYTES), (edges, _MAX_BYTES // row_bytes)
        reachable = min(int(np.searchsorted(sums, sums[first] + limit, "right")) - 1 for sums, limit in limits)
        stop = max(reachable, int(np.searchsorted(edges, row + length)))
        following = min(count, (int(edges[stop]) - length) // stride + 1)
        yield _block(pieces[first:stop], (row - int(edges[first]), following - window_number), window, row_bytes)
        window_number = following


def parts_of(windows: int, window: tuple[int, int]) -> tuple[Int64Array, Int64Array]:
    """Returns the shared parts of `windows` overlapping windows: a part ends wherever a window begins or ends.

    Returns:
        The boundaries of the parts, in rows from the beginning of the first window, int64, shape (parts + 1,); and the
        half-open range of parts of each window, int64, shape (windows, 1, 2).
    """
    length, stride = window
    starts = np.arange(windows, dtype=np.int64) * stride
    edges = np.unique(np.concatenate([starts, starts + length]))
    return edges, np.stack([np.searchsorted(edges, starts), np.searchsorted(edges, starts + length)], 1)[:, None]


class WindowRecoder:
    """Makes records of windows, as a `Recoder`.

    Args:
        window: (length, stride), as in `RowFormat`.
        row_bytes: bytes of a row in a record.
        rows: decodes the pieces that have a hint; None if the format has no such pieces.
    """

    def __init__(self, window: tuple[int, int], row_bytes: int, rows: Recoder | None) -> None:
        self._window = window
        self._row_bytes = row_bytes
        self._rows = rows

    def recode(self, content: memoryview, samples: int, hint: bytes) -> Records:
        """Makes the records of the windows of a block.

        Raises:
            RecodeError: the bytes are not so many windows, or the rows cannot be decoded.
            ConfigError: a library that decodes rows is not installed.
        """
        length, stride = self._window
        # Below, `rows` are the rows from the first window on: uint8, shape (rows, row_bytes).
        try:
            block = _HINT.decode(hint)
        except ValueError as error:
            raise RecodeError(f"a hint of {len(hint)} bytes does not say where rows are: {error}") from error
        found = []
        at = 0
        for piece in block.pieces:
            found += self._piece(content[at : at + piece.fetch_bytes], piece)
            at += piece.fetch_bytes
        joined = np.frombuffer(found[0], np.uint8) if len(found) == 1 else np.frombuffer(b"".join(found), np.uint8)
        rows = joined.reshape(-1, self._row_bytes)[block.skipped :]
        needed = (samples - 1) * stride + length
        if samples < 1 or not needed <= len(rows):
            raise RecodeError(f"{len(rows)} rows are not {samples} windows of {length} rows, one every {stride}")
        if stride >= length:
            places = np.arange(samples)[:, None] * stride + np.arange(length)
            return Records([rows[places].reshape(-1)], np.full(samples, length * self._row_bytes, np.int64))
        edges, ranges = parts_of(samples, self._window)
        shared = np.ascontiguousarray(rows[:needed]).reshape(-1)
        return Records(
            parts=(),
            lengths=np.zeros(samples, np.int64),
            shared_parts=[shared],
            part_lengths=np.diff(edges) * self._row_bytes,
            part_ranges=ranges,
        )

    def _piece(self, content: memoryview, piece: PieceHint) -> list[memoryview]:
        """Returns the rows of a piece as buffers; raises RecodeError for another number of rows."""
        buffers = [content]
        if piece.hint is not None:
            assert self._rows is not None, "formats with blocks have a recoder"
            buffers = [
                memoryview(part).cast("B")  # type: ignore[arg-type]
                for part in self._rows.recode(content, piece.rows, piece.hint).parts
            ]
        if sum(map(len, buffers)) != piece.rows * self._row_bytes:
            raise RecodeError(
                f"{sum(map(len, buffers))} bytes are not {piece.rows} rows of {self._row_bytes} bytes", rows=piece.rows
            )
        return buffers


def _block(pieces: Sequence[RowPiece], windows: tuple[int, int], window: tuple[int, int], row_bytes: int) -> Block:
    """Returns the block of some windows, without the pieces and rows behind the last window.

    Args:
        pieces: consecutive pieces, the first of which has the beginning of the first window.
        windows: number of rows before the first window, and number of windows.
        window: (length, stride), as in `RowFormat`.
        row_bytes: bytes of a row in a record.
    """
    (skipped, samples) = windows
    (length, stride) = window
    pieces = list(pieces)
    surplus = sum(piece.rows for piece in pieces) - skipped - (samples - 1) * stride - length
    while surplus >= pieces[-1].rows:
        surplus -= pieces.pop().rows
    # Pieces without a hint are cut to the rows of the windows.
    pieces[-1] = pieces[-1].trim(0, surplus)
    if pieces[0].hint is None:
        pieces[0] = pieces[0].trim(skipped, 0)
        skipped = 0
    hint = WindowHint(skipped, [PieceHint(piece.fetch_bytes, piece.rows, piece.hint) for piece in pieces])
    ranges = tuple(span for piece in pieces for span in piece.ranges)
    owners = tuple(owner for piece in pieces for owner in piece.objects)
    encoded = msgspec.msgpack.encode(hint)
    if stride >= length:
        return Block(
            ranges=ranges, samples=samples, record_bytes=samples * length * row_bytes, hint=encoded, objects=owners
        )
    rows = (samples - 1) * stride + length
    parts = len(parts_of(samples, window)[0]) - 1
    return Block(
        ranges=ranges,
        samples=samples,
        record_bytes=rows * row_bytes,
        hint=encoded,
        objects=owners,
        parts=parts,
        part_ranges=1,
    )


def _edges(lengths: Sequence[int]) -> Int64Array:
    """Returns the sums of the first 0, 1, ... lengths: int64, shape (n + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
