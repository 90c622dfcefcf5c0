"""Columns of records from Arrow's arrays; for recoders, which have pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from streamer.errors import RecodeError
from streamer.formats.table.writer import Column

_NO_BYTES = np.empty(0, np.uint8)


@contextmanager
def decoding(content: memoryview, samples: int, format_name: str) -> Iterator[None]:
    """Translates the errors of what decodes bytes.

    Raises:
        RecodeError: they are not so many rows of that format.
    """
    try:
        yield
    except RecodeError:
        raise
    except Exception as error:  # pyarrow has its own, and OSError, and those of Python
        raise RecodeError(
            f"{len(content)} bytes are not {samples} rows of {format_name}: {type(error).__name__}: {error}",
            samples=samples,
            bytes=len(content),
        ) from error


def nulls_of(values: pa.Array) -> NDArray[np.bool_] | None:
    """The rows without a value, as `Column` has them."""
    if not values.null_count:
        return None
    found: NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return found


def bytes_column(values: pa.Array) -> Column:
    """Makes a column of byte strings or texts. Copies nothing, unless strings of one length are null."""
    kind, nulls, rows = values.type, nulls_of(values), len(values)
    if pa.types.is_fixed_size_binary(kind):
        width = kind.byte_width
        content = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width :][: rows * width]
        if nulls is None:
            return Column(content, np.full(rows, width, np.int64))
        return Column(content.reshape(-1, width)[~nulls].reshape(-1), np.where(nulls, 0, width), nulls)
    offset_dtype = np.int64 if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind) else np.int32
    _, offsets, content = values.buffers()
    edges = np.frombuffer(offsets, offset_dtype)[values.offset : values.offset + rows + 1].astype(np.int64)
    found = _NO_BYTES if content is None else np.frombuffer(content, np.uint8)[edges[0] : edges[-1]]
    return Column(found, np.diff(edges), nulls)


def json_column(values: Sequence[object]) -> Column:
    """Makes a column of JSON, row by row."""
    return listed_column([None if value is None else msgspec.json.encode(value) for value in values])


def listed_column(contents: Sequence[bytes | None]) -> Column:
    """Makes a column of byte strings, of which those of null rows are None."""
    nulls = np.array([content is None for content in contents], np.bool_)
    found = [content or b"" for content in contents]
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    return Column(np.frombuffer(b"".join(found), np.uint8), lengths, nulls if nulls.any() else None)
