"""Arrays whose rows are samples: `.npy` files, and files of numbers without a header."""

from __future__ import annotations

import io
import math
from collections.abc import Generator, Mapping, Sequence

import msgspec
import numpy as np

from streamer.errors import ConfigError, DecodeError, ManifestError
from streamer.formats.base import Facts, Field, FieldSpec, Opener, SampleName
from streamer.formats.failures import make_refusal
from streamer.formats.names import COMPANIONS, base_name
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.formats.table.records import find_dtype, is_dtype
from streamer.formats.windows import RowFormat
from streamer.manifest.beside import is_hidden
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Answer, Indexing, Need, Source, Span, Survey, Surveying

# numpy pads its header to 64 bytes; those of plain arrays have 128.
_HEAD_BYTES = 512
# numpy refuses longer ones, too: they are parsed as Python literals.
_LONGEST_HEAD_BYTES = 10_000
FIELD = "array"


class ArrayRows(msgspec.Struct, frozen=True):
    """The rows of an object: byte of the first, bytes of each, and how many."""

    start: int
    row_bytes: int
    count: int

    def spans(self, start: int) -> Generator[Span, Answer, None]:
        """Yields the rows from the one that begins at byte `start` on."""
        first = max(0, start - self.start) // self.row_bytes
        for row in range(first, self.count):
            begin = self.start + row * self.row_bytes
            yield Span(begin, begin + self.row_bytes)


class NpyHead(msgspec.Struct, frozen=True):
    """The header of an `.npy` file: its rows, and their kind."""

    rows: ArrayRows
    kind: str


class Npy(RowFormat, frozen=True, forbid_unknown_fields=True):
    """`.npy` files: a sample is a row along axis 0, the field "array". All files have rows of one dtype and shape."""

    name = "npy"
    numbered_keys = True
    endings = (".npy",)

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the headers of all files, whose rows must be of one kind."""
        found = yield from read_heads(accepted)
        kind = found[0][1].kind
        for record, head in found:
            if head.kind != kind:
                raise ManifestError(
                    f"{record.url} has rows of {head.kind}, {accepted[0].url} of {kind}; a dataset has rows "
                    "of one dtype and shape: name the others as a dataset of their own",
                    url=record.url,
                )
        sources = [Source(record, msgspec.msgpack.encode(head.rows)) for record, head in found]
        return Survey(sources, Facts(fields=(FieldSpec(FIELD, kind),)), read_bytes=0)

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the rows; reads nothing."""
        yield from msgspec.msgpack.decode(source.notes, type=ArrayRows).spans(start)

    def open_rows(self, facts: Facts) -> Opener:
        """Opens rows."""
        return RowOpener(facts.fields[0].kind)


class RawArrays(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Files of numbers in C order: a sample is an array of one dtype and shape, the field "array".

    Attributes:
        dtype: numpy's name, for example "<u2".
        shape: shape of a sample; () is a single number.
        header_bytes: bytes before the first sample of each file, which are left out.
    """

    name = "raw"
    numbered_keys = True
    dtype: str = "u1"
    shape: tuple[int, ...] = ()
    header_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuses a dtype that is not of numbers, and lengths that are not positive."""
        super().__post_init__()
        if not is_dtype(self.dtype, "biufc"):
            raise ConfigError(f"RawArrays: dtype={self.dtype!r} is not a type of numbers", field="format")
        if any(length < 1 for length in self.shape):
            raise ConfigError(f"RawArrays: shape={self.shape}; every length must be at least 1", field="format")
        if self.header_bytes < 0:
            raise ConfigError(f"RawArrays: header_bytes={self.header_bytes} is negative", field="format")

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def accepts(self, key: str) -> bool:
        """Accepts all but hidden files and documents."""
        return not is_hidden(key) and base_name(key).lower().rpartition(".")[2] not in COMPANIONS

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Finds the rows of a file, which must be as long as whole samples; reads nothing."""
        record = source.record
        count, rest = divmod(record.size - self.header_bytes, self.row_bytes)
        if count < 0 or rest:
            raise make_refusal(
                record,
                f"is not {self.header_bytes} bytes of header and samples of {self.row_bytes} bytes ({self.dtype}, "
                f"shape {self.shape}): {rest} bytes are left; give RawArrays dtype, shape and header_bytes of the file",
                record.size - rest,
            )
        yield from ArrayRows(self.header_bytes, self.row_bytes, count).spans(start)

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Takes all objects, and reads nothing."""
        yield from ()
        # The options say it if there are no windows; manifests of version 0.1 have no fields.
        fields = (FieldSpec(FIELD, self._kind),) if self.window is not None else ()
        return Survey([Source(record) for record in accepted], Facts(fields=fields), read_bytes=0)

    def open_rows(self, facts: Facts) -> Opener:
        """Opens samples as the options describe them."""
        return RowOpener(self._kind)

    @property
    def _kind(self) -> str:
        return kind_of_rows(np.dtype(self.dtype), self.shape)


class RowOpener:
    """Opens rows: each is a field of this kind."""

    def __init__(self, kind: str, name: str = FIELD) -> None:
        self._kind = kind
        self._name = name
        dtype = find_dtype(kind)
        assert dtype is not None, "rows are of one length"
        self._row_bytes = dtype.itemsize

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns one field; the sample has no key."""
        if len(content) != self._row_bytes:
            raise DecodeError(f"{len(content)} bytes are not a row of {self._kind}, {self._row_bytes} bytes", offset=0)
        return None, [Field(self._name, content, self._kind)]


def kind_of_rows(dtype: np.dtype[np.generic], shape: Sequence[int]) -> str:
    """Returns the kind of a field: of arrays of a shape, or of single numbers."""
    lengths = f"[{','.join(map(str, shape))}]" if shape else ""
    return f"{dtype.str.replace('|', '')}{lengths}"


def read_heads(accepted: Sequence[ObjectRecord]) -> Reading[list[tuple[ObjectRecord, NpyHead]]]:
    """Reads the headers of `.npy` files together; raises ManifestError if one is not an array of numbers in C order."""
    if empty := next((record for record in accepted if not record.size), None):
        raise make_refusal(empty, "has no bytes, not even the header of an .npy file")
    answers = yield from read_ranges([Need(0, min(_HEAD_BYTES, record.size), record) for record in accepted])
    found = []
    for record, content in zip(accepted, answers, strict=True):
        found.append((record, (yield from _head(record, content))))
    return found


def _head(record: ObjectRecord, content: memoryview) -> Reading[NpyHead]:
    """Parses the header of a file, of which the first bytes are known."""
    start = bytes(content[:12])
    if len(start) < 12:
        length = _LONGEST_HEAD_BYTES + 1
    elif start[6] == 1:
        length = 10 + int.from_bytes(start[8:10], "little")
    else:
        length = 12 + int.from_bytes(start[8:12], "little")
    if length > _LONGEST_HEAD_BYTES or length > record.size or not start.startswith(b"\x93NUMPY"):
        raise make_refusal(
            record,
            "is not an .npy file, or it is cut off in its header; tokens without a header are read by "
            "Tokens(sequence_length=..., dtype=...), rows by RawArrays(dtype, shape)",
        )
    if length > len(content):
        content = yield from read_range(0, length, record)
    stream = io.BytesIO(content[:length])
    try:
        read = np.lib.format.read_array_header_1_0 if start[6] == 1 else np.lib.format.read_array_header_2_0
        np.lib.format.read_magic(stream)
        shape, fortran_order, dtype = read(stream, max_header_size=_LONGEST_HEAD_BYTES)
    except Exception as error:  # numpy's parser of literals raises whatever Python's does
        raise make_refusal(record, f"is not an .npy file: {error}") from error
    if dtype.kind not in "biufc":
        raise make_refusal(record, f"holds {dtype}, not plain numbers" + (" but pickles" if dtype.hasobject else ""))
    if fortran_order and len(shape) > 1:
        raise make_refusal(record, "is in Fortran order, in which rows are scattered; save np.ascontiguousarray(array)")
    if not shape or min(shape[1:], default=1) < 1:
        raise make_refusal(record, f"has shape {shape}, which has no rows of a byte or more")
    row_bytes = dtype.itemsize * math.prod(shape[1:])
    if length + shape[0] * row_bytes != record.size:
        raise make_refusal(
            record, f"has {record.size - length} bytes of numbers; shape {shape} of {dtype} has {shape[0] * row_bytes}"
        )
    return NpyHead(ArrayRows(length, row_bytes, shape[0]), kind_of_rows(dtype, shape[1:]))
