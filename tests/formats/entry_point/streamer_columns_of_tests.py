"""A format of another package that can do all that a format can: files of two columns, one behind the other.

    file   u32 rows | numbers, 8 bytes each | names, 8 bytes each

Its decoding is that of a codec that FFmpeg has, and its packing writes names in capitals, so that tests see both.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable

import msgspec
import numpy as np

from streamer.errors import DecodeError, ManifestError, RecodeError
from streamer.formats.base import Block, Facts, Field, FieldPacker, FieldSpec, Format, Need, Records, Source, Survey

WIDTH = 8
_KINDS = {"number": "<i8", "name": "txt"}
_ROWS = struct.Struct("<I")


def write_columns(numbers: Iterable[int], names: Iterable[str]) -> bytes:
    """Writes a file."""
    values = np.array(list(numbers), "<i8")
    texts = b"".join(name.encode().ljust(WIDTH, b" ") for name in names)
    return _ROWS.pack(len(values)) + values.tobytes() + texts


class Cost(msgspec.Struct, frozen=True):
    """The cost of decoding: as many steps as fields."""

    work: float
    cheaper: str = "one column: half of it"
    advice: str = "name fewer columns"

    def __str__(self) -> str:
        return f"{self.work:g} columns of a row"


class ColumnFile(Format, frozen=True, forbid_unknown_fields=True):
    """Stands for a format of another package: files of columns; `columns` names the wanted ones."""

    name = "columns_of_tests"
    endings = (".cols",)
    numbered_keys = True
    recuts = True
    columns: tuple[str, ...] = ()

    def survey(self, accepted, others):
        """Reads nothing."""
        yield from ()
        fields = tuple(
            FieldSpec(name, kind) for name, kind in _KINDS.items() if not self.columns or name in self.columns
        )
        return Survey([Source(record) for record in accepted], Facts(fields), read_bytes=_ROWS.size * len(accepted))

    def index(self, source, facts, start=0):
        """Cuts runs of rows."""
        if source.record.size < _ROWS.size:
            raise ManifestError(f"{source.record.url} has {source.record.size} bytes")
        (rows,) = _ROWS.unpack((yield Need(0, _ROWS.size)))
        if source.record.size != _ROWS.size + 2 * WIDTH * rows:
            raise ManifestError(f"{source.record.url} has {source.record.size} bytes, and {rows} rows")
        together = max(1, source.chunk_bytes // (WIDTH * len(facts.fields)))
        for first in range(0, rows, together):
            count = min(together, rows - first)
            places = [list(_KINDS).index(spec.name) for spec in facts.fields]
            begins = [_ROWS.size + WIDTH * (rows * place + first) for place in places]
            ranges = [(begin, begin + WIDTH * count) for begin in begins]
            yield Block(_joined(ranges), count, WIDTH * count * len(facts.fields), b"h264")

    def opener(self, facts):
        """Opens rows."""
        return _RowOpener(facts)

    def recoder(self, facts):
        """Puts rows together."""
        return _RowRecoder(len(facts.fields))

    def narrow(self, facts: Facts, fields: Collection[str]) -> ColumnFile:
        """Returns the format with the wanted columns alone; a column is a range."""
        return ColumnFile(columns=tuple(sorted(fields)))

    def find_codecs(self, hint: bytes) -> list[str]:
        """Says what the index wrote."""
        return [hint.decode()]

    def find_sample_bytes(self, manifest):
        """Returns the bytes of rows, which all have one length."""
        return np.full(manifest.samples, WIDTH * len(manifest.facts.fields), np.int64)

    def find_decode_cost(self, manifest, ordinal=None) -> Cost:
        """Returns as many steps as fields."""
        return Cost(len(manifest.facts.fields))

    def find_packer(self, manifest) -> FieldPacker:
        """Writes names in capitals."""
        return pack_capitals


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found = [ranges[0]]
    for start, stop in ranges[1:]:
        if start == found[-1][1]:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def pack_capitals(field: Field, key: str) -> list[tuple[str, object]] | None:
    """Returns the name in capitals."""
    if field.name != "name":
        return None
    return [("name", str(field.content, "utf-8").upper())]


class _RowOpener:
    """Opens the columns of a row, as the openers of built-in formats do."""

    def __init__(self, facts: Facts) -> None:
        self._fields = facts.fields

    def open(self, content, name):
        """Returns the columns of a row."""
        if len(content) != WIDTH * len(self._fields):
            raise DecodeError(f"{len(content)} bytes are not a row")
        return None, [
            Field(spec.name, content[WIDTH * place : WIDTH * (place + 1)], spec.kind)
            for place, spec in enumerate(self._fields)
        ]


class _RowRecoder:
    """Puts the columns of a row side by side, as the recoders of built-in formats do."""

    def __init__(self, columns: int) -> None:
        self._columns = columns

    def recode(self, content, samples, hint):
        """Puts the columns of a row side by side."""
        if len(content) != WIDTH * self._columns * samples:
            raise RecodeError(f"{len(content)} bytes are not {samples} rows")
        rows = np.frombuffer(content, f"V{WIDTH}").reshape(self._columns, samples).T
        return Records([np.ascontiguousarray(rows).view(np.uint8).ravel()], np.full(samples, WIDTH * self._columns))
