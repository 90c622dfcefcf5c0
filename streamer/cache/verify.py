"""Compares a chunk file with its checksums. Synchronous; runs in a thread."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from streamer.errors import IntegrityError
from streamer.formats.checksum import crc32
from streamer.formats.chunkfile import HEADER_BYTES, ChunkHeader

_PIECE_BYTES = 1 << 20
# How often a piece is read that cannot be read: many such failures of a disk pass.
_TRIES = 3


def verify_file(path: Path, key: bytes) -> ChunkHeader:
    """Reads the whole file and compares it with its checksums.

    Raises:
        IntegrityError: it is torn, truncated, swapped or flipped; the text says which.
        FileNotFoundError: it does not exist.
        OSError: it cannot be read, each time.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        head = bytearray(HEADER_BYTES)
        count = _preadv(descriptor, memoryview(head), 0)
        header = ChunkHeader.decode(bytes(head[:count]), str(path))
        _same(path, "key", key.hex(), header.key.hex())
        _same(path, "length", header.file_bytes, os.fstat(descriptor).st_size)
        table_at = HEADER_BYTES + header.local_bytes
        _same(path, "checksum of its bytes", header.payload_crc, _crc(descriptor, HEADER_BYTES, table_at))
        _same(path, "checksum of its table", header.table_crc, _crc(descriptor, table_at, header.file_bytes))
    finally:
        os.close(descriptor)
    return header


def _same(path: Path, what: str, expected: str | int, actual: str | int) -> None:
    if expected != actual:
        raise IntegrityError(
            f"{path}: {what} is {actual}, expected {expected}", where=str(path), expected=expected, actual=actual
        )


def _crc(descriptor: int, start: int, stop: int) -> int:
    buffer = memoryview(bytearray(min(_PIECE_BYTES, max(0, stop - start))))
    crc = 0
    while start < stop:
        count = _preadv(descriptor, buffer[: stop - start], start)
        if not count:
            break
        crc = crc32(buffer[:count], crc)
        start += count
    return crc


def _preadv(descriptor: int, buffer: memoryview, offset: int) -> int:
    for _ in range(_TRIES - 1):
        with contextlib.suppress(OSError):
            return os.preadv(descriptor, [buffer], offset)
    return os.preadv(descriptor, [buffer], offset)
