"""Reads samples out of chunk files: preadv into own buffers, every byte used is checked.

No mmap: reading cold pages through a mapping holds the GIL for 13-15 ms at a time. No open files are kept: an open
costs 8 us, and an evicted file that somebody still holds open would take space that the cache believes free.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from streamer.errors import IntegrityError
from streamer.formats import chunkfile

_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One sample of a chunk: its number in the chunk and its chunk-local half-open byte range."""

    sample: int
    start: int
    stop: int


class ChunkReader:
    """Reads from the cache folder and the read-only layers below it. Stateless: any thread or process.

    Args:
        roots: cache folders, the writable one first.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [os.fspath(root) for root in roots]

    def __repr__(self) -> str:
        return f"ChunkReader({self._roots!r})"

    def read(self, key: bytes, local_bytes: int, samples: int, wanted: Sequence[Wanted]) -> list[memoryview]:
        """Returns the bytes of each wanted sample, checked.

        Args:
            key: the chunk's 16 bytes.
            local_bytes: the chunk's length according to the manifest.
            samples: the number of samples in the chunk.
            wanted: samples of this chunk, in any order.

        Raises:
            FileNotFoundError: the chunk is not local: lease it again.
            IntegrityError: the file is not what it claims to be: reject the chunk.
        """
        buffers = [memoryview(bytearray(item.stop - item.start)) for item in wanted]
        self.read_into(key, local_bytes, samples, list(zip(wanted, buffers, strict=True)))
        return buffers

    def read_into(
        self, key: bytes, local_bytes: int, samples: int, wanted: Sequence[tuple[Wanted, memoryview]]
    ) -> None:
        """As `read`, into the caller's buffers, each as long as its sample."""
        descriptor, path = self._open(key)
        try:
            _check_header(descriptor, path, (key, local_bytes, samples))
            for item, buffer in wanted:
                _read_sample(descriptor, path, local_bytes, item, buffer)
        finally:
            os.close(descriptor)

    def _open(self, key: bytes) -> tuple[int, str]:
        name = chunkfile.relative_path(key)
        for root in self._roots:
            try:
                return os.open(f"{root}/{name}", os.O_RDONLY | os.O_CLOEXEC), f"{root}/{name}"
            except FileNotFoundError:
                continue
        raise FileNotFoundError(2, "chunk is not in the cache", name)


def _check_header(descriptor: int, path: str, expected: tuple[bytes, int, int]) -> None:
    header = chunkfile.ChunkHeader.decode(os.pread(descriptor, chunkfile.HEADER_BYTES, 0), path)
    found = (header.key, header.local_bytes, header.samples)
    if found != expected:
        raise IntegrityError(
            f"{path}: header says {found[1]} bytes, {found[2]} samples, key {found[0].hex()}; the manifest says "
            f"{expected[1]} bytes, {expected[2]} samples, key {expected[0].hex()}",
            where=path,
            expected=expected[1],
            actual=found[1],
        )


def _read_sample(descriptor: int, path: str, local_bytes: int, item: Wanted, buffer: memoryview) -> None:
    got = 0
    while got < len(buffer):
        count = os.preadv(descriptor, [buffer[got:]], chunkfile.HEADER_BYTES + item.start + got)
        if count == 0:
            raise IntegrityError(
                f"{path}: sample {item.sample} ends after {got} of {len(buffer)} bytes: the file is truncated",
                where=path,
                expected=len(buffer),
                actual=got,
            )
        got += count
    stored = os.pread(descriptor, chunkfile.CRC_BYTES, chunkfile.crc_offset(local_bytes, item.sample))
    actual = zlib.crc32(buffer)
    if len(stored) != chunkfile.CRC_BYTES or _CRC.unpack(stored)[0] != actual:
        raise IntegrityError(
            f"{path}: sample {item.sample} (bytes {item.start}..{item.stop}) does not match its checksum",
            where=path,
            expected=_CRC.unpack(stored)[0] if len(stored) == chunkfile.CRC_BYTES else -1,
            actual=actual,
        )
