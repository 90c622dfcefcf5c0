"""Reads boxes of ISO base media files (ISO/IEC 14496-12), of which mp4, mov and m4a consist.

The readers of these files beside it use it: `movie.py`, `fragments.py`, `tables.py` and `entries.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.formats.failures import DamagedError

# A header has a length of 4 bytes and a type. A long one has its length in 8 bytes after them.
HEADER_BYTES = 8
LONG_HEADER_BYTES = 16


def header(content: memoryview | bytes, at: int, left: int) -> tuple[bytes, int, int]:
    """Reads the header of a box.

    Args:
        content: bytes with the header.
        at: where it begins in them.
        left: bytes from there to the end of what the box is in.

    Returns:
        The type, the length of the header, and that of the whole box, which may reach over the end.

    Raises:
        DamagedError: the header is cut off, or the box is shorter than its header.
    """
    size, kind = numbers(">I4s", content, at)
    head = HEADER_BYTES
    if size == 1:
        [size] = numbers(">Q", content, at + HEADER_BYTES)
        head = LONG_HEADER_BYTES
    elif size == 0:  # the box reaches to the end
        size = left
    if size < head:
        raise DamagedError(f"box {name_of(kind)} has a length of {size}", at)
    return kind, head, size


def boxes(content: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yields type and body of the boxes in a body; fewer than 8 bytes at its end are ignored, as QuickTime writes them.

    Raises:
        DamagedError: a box is longer than the body, or shorter than its header.
    """
    at = 0
    end = len(content)
    while at + HEADER_BYTES <= end:
        kind, head, size = header(content, at, end - at)
        if at + size > end:
            raise DamagedError(f"box {name_of(kind)} of {size} bytes is longer than the one around it", at)
        yield kind, content[at + head : at + size]
        at += size


def numbers(layout: str, content: memoryview | bytes, at: int = 0) -> tuple[Any, ...]:
    """Unpacks numbers of the `struct` layout at byte `at`; raises DamagedError if the content ends before them."""
    try:
        return struct.unpack_from(layout, content, at)
    except struct.error as error:
        raise DamagedError(f"a box of {len(content)} bytes ends in its numbers") from error


def table(name: str, content: memoryview, dtype: str, count: int, at: int) -> NDArray[Any]:
    """Returns the numbers of a table in a box, without a copy.

    Args:
        name: name of the box, for the error.
        content: body of the box.
        dtype: dtype of an entry: a number, or a row of numbers.
        count: number of entries.
        at: byte of the body at which the table begins.

    Raises:
        DamagedError: the body is shorter than the table.
    """
    kind = np.dtype(dtype)
    if at + count * kind.itemsize > len(content):
        raise DamagedError(f"{name} has {count} entries, more than fit into its {len(content)} bytes")
    return np.frombuffer(content, kind, count, at)


def name_of(kind: bytes) -> str:
    """Returns the type of a box as quoted text, for messages."""
    return repr(kind.decode("latin-1"))
