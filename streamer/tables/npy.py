"""The formats "npy" and "raw": rows of `.npy` files, and of files of numbers without a header, are samples.

`formats/registry.py` makes them for engine, recoders and workers. Tokens read headers of `.npy` files with it
(`read_heads`), and `tables/tiles.py` and zarr describe rows that are stored as they are with it (`ArrayRows`,
`RowOpener`).
"""

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

# Bytes of the first read. numpy pads headers to a multiple of 64 bytes, and headers of plain arrays have 128.
_HEAD_BYTES = 512
# Max bytes of a header. numpy refuses longer ones, too, because they are parsed as Python literals.
_LONGEST_HEAD_BYTES = 10_000
FIELD = "array"


class ArrayRows(msgspec.Struct, frozen=True):
    """A run of rows that are stored one after the other in an object.

    Attributes:
        start: byte of the object at which the first row begins.
        row_bytes: bytes of each row.
        count: number of rows.
    """

    start: int
    row_bytes: int
    count: int

    def spans(self, start: int) -> Generator[Span, Answer, None]:
        """Yields the rows from the one that begins at byte `start` of the object on."""
        first = max(0, start - self.start) // self.row_bytes
        for row in range(first, self.count):
            begin = self.start + row * self.row_bytes
            yield Span(begin, begin + self.row_bytes)


class NpyHead(msgspec.Struct, frozen=True):
    """What the header of an `.npy` file says: the places of its rows, and their kind as a field."""

    rows: ArrayRows
    kind: str


class Npy(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Reads `.npy` files: a sample is a row along axis 0, as the field "array". All rows have one dtype and shape."""

    name = "npy"
    numbered_keys = True
    endings = (".npy",)

    def survey_rows(self, accepted: Sequence[ObjectRecord], others: Mapping[str, ObjectRecord]) -> Surveying:
        """Reads the headers of all files, at least one.

        Raises:
            ManifestError: as `read_heads`, or a file has rows of another dtype or shape.
        """
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
        """Yields the rows, which the survey has found; reads nothing."""
        yield from msgspec.msgpack.decode(source.notes, type=ArrayRows).spans(start)

    def open_rows(self, facts: Facts) -> Opener:
        """Returns what opens rows."""
        return RowOpener(facts.fields[0].kind)


class RawArrays(RowFormat, frozen=True, forbid_unknown_fields=True):
    """Reads files of numbers in C order without a header: a sample is an array of one dtype and shape, "array".

    Attributes:
        dtype: numpy's name of the dtype, for example "<u2".
        shape: shape of a sample; () for a single number.
        header_bytes: number of bytes before the first sample of each file, which are left out.
    """

    name = "raw"
    numbered_keys = True
    dtype: str = "u1"
    shape: tuple[int, ...] = ()
    header_bytes: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError for a dtype that is not of numbers, and for a shape, header or window that cannot be."""
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
        """Whether an object is neither hidden nor a document (`names.COMPANIONS`)."""
        return not is_hidden(key) and base_name(key).lower().rpartition(".")[2] not in COMPANIONS

    def index_rows(self, source: Source, facts: Facts, start: int) -> Indexing:
        """Yields the rows of a file; reads nothing. Raises ManifestError if its length is not that of whole samples."""
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
        # The options say the field if there are no windows: manifests of version 0.1 have no fields, and stay valid.
        fields = (FieldSpec(FIELD, self._kind),) if self.window is not None else ()
        return Survey([Source(record) for record in accepted], Facts(fields=fields), read_bytes=0)

    def open_rows(self, facts: Facts) -> Opener:
        """Returns what opens samples, by the options."""
        return RowOpener(self._kind)

    @property
    def _kind(self) -> str:
        return kind_of_rows(np.dtype(self.dtype), self.shape)


class RowOpener:
    """Opens samples that are rows of one array.

    Args:
        kind: kind of the field that a row is.
        name: name of the field.
    """

    def __init__(self, kind: str, name: str = FIELD) -> None:
        self._kind = kind
        self._name = name
        dtype = find_dtype(kind)
        assert dtype is not None, "rows are of one length"
        self._row_bytes = dtype.itemsize

    def open(self, content: memoryview, name: SampleName) -> tuple[None, Sequence[Field]]:
        """Returns no key, and the field; raises DecodeError for another number of bytes."""
        if len(content) != self._row_bytes:
            raise DecodeError(f"{len(content)} bytes are not a row of {self._kind}, {self._row_bytes} bytes", offset=0)
        return None, [Field(self._name, content, self._kind)]


def kind_of_rows(dtype: np.dtype[np.generic], shape: Sequence[int]) -> str:
    """Returns the kind of a field of arrays with this dtype and shape; () is the shape of a single number."""
    lengths = f"[{','.join(map(str, shape))}]" if shape else ""
    return f"{dtype.str.replace('|', '')}{lengths}"


def read_heads(accepted: Sequence[ObjectRecord]) -> Reading[list[tuple[ObjectRecord, NpyHead]]]:
    """Reads the headers of `.npy` files together, and returns them in the same order.

    Raises:
        ManifestError: a file is not an array of numbers in C order with rows of a byte or more, or has another length.
    """
    if empty := next((record for record in accepted if not record.size), None):
        raise make_refusal(empty, "has no bytes, not even the header of an .npy file")
    answers = yield from read_ranges([Need(0, min(_HEAD_BYTES, record.size), record) for record in accepted])
    found = []
    for record, content in zip(accepted, answers, strict=True):
        found.append((record, (yield from _head(record, content))))
    return found


def _head(record: ObjectRecord, content: memoryview) -> Reading[NpyHead]:
    """Parses the header of a file from its first bytes, and reads the rest of a longer one; raises ManifestError."""
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
