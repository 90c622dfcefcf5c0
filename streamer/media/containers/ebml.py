"""Elements of EBML (RFC 8794), of which Matroska and WebM consist."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from streamer.formats.failures import DamagedError

# An id of 4 bytes and a length of 8.
MAX_HEADER_BYTES = 12
_LONGEST_ID = 4


def header(content: bytes | memoryview, at: int = 0) -> tuple[int, int | None, int]:
    """Reads the header of an element: its id, the bytes of its body (None: unknown), and those of the header.

    Raises:
        DamagedError: it is not a header, or cut off.
    """
    try:
        id_bytes = 9 - content[at].bit_length()
        if id_bytes > _LONGEST_ID:
            raise DamagedError(f"an element begins with byte {content[at]:#04x}", at)
        number, length_bytes = number_at(content, at + id_bytes)
    except IndexError as error:
        raise DamagedError("an element is cut off in its header", at) from error
    length = None if number == (1 << 7 * length_bytes) - 1 else number
    return int.from_bytes(content[at : at + id_bytes], "big"), length, id_bytes + length_bytes


def number_at(content: bytes | memoryview, at: int) -> tuple[int, int]:
    """Reads a number that says its own length; returns it and its bytes."""
    count = 9 - content[at].bit_length()
    if count > 8 or at + count > len(content):
        raise DamagedError("a number is longer than what has it", at)
    return int.from_bytes(content[at : at + count], "big") & ((1 << 7 * count) - 1), count


def elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields ids and bodies of the elements in a body.

    Raises:
        DamagedError: one is longer than the body.
    """
    at = 0
    while at < len(content):
        kind, length, head = header(content, at)
        if length is None or at + head + length > len(content):
            raise DamagedError(f"element {kind:#x} is longer than the one around it", at)
        yield kind, content[at + head : at + head + length]
        at += head + length


def read_unsigned(body: memoryview | bytes) -> int:
    """Reads a whole number."""
    return int.from_bytes(body, "big")


def read_real(body: memoryview | bytes) -> float:
    """Reads a number of 4 or 8 bytes, or of none; raises DamagedError for others."""
    if len(body) not in {0, 4, 8}:
        raise DamagedError(f"a float of {len(body)} bytes")
    return float(struct.unpack(">f" if len(body) == 4 else ">d", body)[0]) if body else 0.0
