"""Columns of whole numbers in hints, compressed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MAX_BYTES = 256 << 20


def pack_columns(columns: Sequence[NDArray[np.int64]]) -> bytes:
    """Returns columns as bytes."""
    # The bytes of like weight beside each other: a third of the length.
    raw = b"".join(column.astype("<i8").view("u1").reshape(-1, 8).T.tobytes() for column in columns)
    return zlib.compress(raw, 6)


def unpack_columns(content: bytes, lengths: Sequence[int]) -> list[NDArray[np.int64]]:
    """Returns the columns of these lengths; raises ValueError if the bytes have others."""
    total = 8 * sum(lengths)
    if min(lengths) < 0 or total > _MAX_BYTES:
        raise ValueError(f"a hint of columns of {lengths}")
    try:
        raw = zlib.decompressobj().decompress(content, total + 1)
    except zlib.error as error:
        raise ValueError(f"the columns of a hint are damaged: {error}") from error
    if len(raw) != total:
        raise ValueError(f"a hint of columns of {lengths} has {len(raw)} bytes")
    columns = list[NDArray[np.int64]]()
    at = 0
    for length in lengths:
        column = np.frombuffer(raw, "u1", 8 * length, at).reshape(8, length).T.copy().view("<i8").reshape(length)
        columns.append(column)
        at += 8 * length
    return columns
