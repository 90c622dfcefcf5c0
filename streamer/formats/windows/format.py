"""Formats whose samples are rows of numbers, or windows of them.

`window=(length, stride)`: a sample is `length` rows that follow each other in one object, and one begins with every
`stride`-th row of the object. A field of rows of shape S has the shape (length, *S). The format finds rows as it does
without a window, and knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from streamer.errors import ConfigError, DecodeError
from streamer.formats.base import Facts, Field, FieldSpec, Format, Opener, Recoder
from streamer.formats.failures import refused
from streamer.formats.reading import Asking, collected
from streamer.formats.table.records import fixed_dtype, head_dtype
from streamer.formats.windows.blocks import PIECES, Piece, Pieces, WindowRecoder, windows_of
from streamer.manifest.model import ObjectRecord, SampleName
from streamer.manifest.protocols import Indexing, Note, Short, Source, Survey, Surveying


class RowFormat(Format, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A format whose samples are rows, or windows of them.

    Attributes:
        window: rows of a sample, and rows from the beginning of one to that of the next; None: a sample is a row.
    """

    window: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Refuses a window that is not of two positive numbers."""
        if self.window is not None and not _is_window(self.window):
            raise ConfigError(
                f"{type(self).__name__}: window={self.window!r} is not (rows of a sample, rows from one to the next), "
                "two integers of at least 1",
                field="format",
            )

    def survey(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Surveys the rows; the fields are those of windows."""
        return (yield from self.survey_windows(self.survey_rows(accepted, others)))

    def survey_windows(self, rows: Surveying) -> Surveying:
        """Turns a survey of rows into one of windows, if samples are windows."""
        found = yield from rows
        if self.window is None:
            return found
        return msgspec.structs.replace(found, facts=_windowed(found, self.window[0]))

    def index(self, source: Source, facts: Facts, start: int = 0) -> Indexing:
        """Finds rows, and puts them together to windows."""
        if self.window is None:
            yield from self.index_rows(source, facts, start)
            return
        rows = _of_rows(facts)
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
        """Opens rows, or windows."""
        if self.window is None:
            return self.open_rows(facts)
        return WindowOpener(facts.fields, self._row_dtype(_of_rows(facts)), self.window[0])

    def recoder(self, facts: Facts) -> Recoder:
        """Makes records of rows, or of windows."""
        if self.window is None:
            return self.recode_rows(facts) or super().recoder(facts)
        rows = _of_rows(facts)
        return WindowRecoder(self.window, self._row_bytes(rows), self.recode_rows(rows))

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """See `Format.survey`."""
        raise NotImplementedError

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """See `Format.index`."""
        raise NotImplementedError

    def read_runs(self, source: Source, facts: Facts) -> Asking[list[list[Piece]]]:
        """Finds the rows of an object, in runs over whose ends no window goes on: here all rows are one."""
        found = Pieces(source.chunk_bytes)
        yield from collected(self.index_rows(source, facts, 0), found.add)
        return [found.all()]

    def open_rows(self, facts: Facts) -> Opener:
        """See `Format.opener`."""
        raise NotImplementedError

    def recode_rows(self, facts: Facts) -> Recoder | None:
        """See `Format.recoder`; None: its rows are spans."""
        return None

    def has_tables(self, facts: Facts) -> bool:
        """Whether the record of a row is one of a table; else it is the bytes of the only field."""
        return len(facts.fields) > 1

    def _row_dtype(self, facts: Facts) -> np.dtype[np.generic]:
        if self.has_tables(facts):
            return head_dtype(facts.fields)
        dtype = fixed_dtype(facts.fields[0].kind)
        assert dtype is not None, "rows are of one length"
        return dtype

    def _row_bytes(self, facts: Facts) -> int:
        return self._row_dtype(facts).itemsize


class WindowOpener:
    """Opens windows: rows that follow each other."""

    def __init__(self, fields: Sequence[FieldSpec], row: np.dtype[np.generic], length: int) -> None:
        self._fields = fields
        self._row = row
        self._length = length

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns the fields; of several, the numbers of each are put together."""
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


def _is_window(window: object) -> bool:
    return (
        isinstance(window, tuple | list)
        and len(window) == 2
        and all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in window)
    )


def _windowed(found: Survey, length: int) -> Facts:
    """The facts of windows of this many rows; raises ManifestError for rows of no fixed length."""
    if other := next((field for field in found.facts.fields if fixed_dtype(field.kind) is None), None):
        raise refused(
            found.sources[0].record,
            f"has a field {other.name!r} of kind {other.kind!r}, and window= takes numbers and arrays whose shape the "
            "file says: name the other fields (columns=)",
        )
    return _with_kinds(found.facts, lambda dtype, lengths: f"{dtype}[{','.join([str(length), *lengths])}]")


def _of_rows(facts: Facts) -> Facts:
    """The facts of the rows of which windows are made."""
    return _with_kinds(facts, lambda dtype, lengths: f"{dtype}[{','.join(lengths[1:])}]" if lengths[1:] else dtype)


def _with_kinds(facts: Facts, change: Callable[[str, list[str]], str]) -> Facts:
    fields = []
    for field in facts.fields:
        dtype, _, shape = field.kind.partition("[")
        lengths = shape.rstrip("]").split(",") if shape else []
        fields.append(FieldSpec(field.name, change(dtype, lengths)))
    return msgspec.structs.replace(facts, fields=tuple(fields))
