"""The layout of a chunk file on the SSD: written by the cache, read by every trainer.

    offset 0            header, 64 bytes (below)
    offset 64           the chunk's bytes, `local_bytes`
    64 + local_bytes    one little-endian uint32 CRC-32 (zlib's) per sample, `samples` of them

A recoded chunk (codec 1) has one entry more than samples: the last one, with a checksum like the others, is the table
of their starts, a little-endian uint32 each. So `samples` counts one more there, and `local_bytes` includes the table.

The header repeats key and lengths and ends with its own CRC, so a torn or swapped file is found; the CRC of
each sample lets a reader check just the bytes it uses (4 us per 100 KB, 2026-11-20).
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.errors import IntegrityError
from streamer.formats.checksum import crc32

MAGIC = b"STRMCHNK"
VERSION = 1
HEADER_BYTES = 64
CRC_BYTES = 4
START_BYTES = 4
SUFFIX = ".chunk"

# magic, version, codec, samples, key, local_bytes, table_crc, payload_crc; then 12 spare bytes and the header's CRC
_FIELDS = struct.Struct("<8sHHI16sQII")
_CRC = struct.Struct("<I")


class ChunkHeader(msgspec.Struct, frozen=True):
    """The first 64 bytes of a chunk file.

    Attributes:
        table_crc: CRC-32 of the table of the samples' CRCs.
        payload_crc: CRC-32 of the chunk's bytes: the file can be checked without its manifest, which alone knows
            where its samples begin (joined from the samples' sums when it is written).
    """

    key: bytes
    local_bytes: int
    samples: int
    table_crc: int
    payload_crc: int
    codec: int = 0

    @property
    def file_bytes(self) -> int:
        """Length of the whole file in bytes."""
        return file_bytes(self.local_bytes, self.samples)

    def encode(self) -> bytes:
        """Returns the 64 bytes."""
        lengths = (self.codec, self.samples, self.key, self.local_bytes)
        body = _FIELDS.pack(MAGIC, VERSION, *lengths, self.table_crc, self.payload_crc)
        body = body.ljust(HEADER_BYTES - _CRC.size, b"\0")
        return body + _CRC.pack(crc32(body))

    @classmethod
    def decode(cls, raw: bytes, where: str) -> ChunkHeader:
        """Reads a header; raises IntegrityError for one that is not of a chunk file, of another version, or torn."""
        body, check = raw[: HEADER_BYTES - _CRC.size], raw[HEADER_BYTES - _CRC.size : HEADER_BYTES]
        if len(raw) < HEADER_BYTES or _CRC.unpack(check)[0] != crc32(body):
            raise IntegrityError(f"{where}: torn or foreign chunk header", where=where)
        magic, version, codec, samples, key, local_bytes, table_crc, payload_crc = _FIELDS.unpack_from(body)
        if magic != MAGIC or version != VERSION:
            raise IntegrityError(
                f"{where}: chunk file of version {version}, expected {VERSION}",
                where=where,
                expected=VERSION,
                actual=version,
            )
        return cls(key, local_bytes, samples, table_crc, payload_crc, codec)


def file_bytes(local_bytes: int, samples: int) -> int:
    """Returns the length of a chunk file in bytes."""
    return HEADER_BYTES + local_bytes + samples * CRC_BYTES


def crc_offset(local_bytes: int, sample: int) -> int:
    """Returns the offset of the CRC of the chunk's `sample`-th sample in the file."""
    return HEADER_BYTES + local_bytes + sample * CRC_BYTES


def encode_starts(lengths: NDArray[np.int64]) -> bytes:
    """Returns the table of starts of records of these lengths, less than 4 GiB together."""
    return (np.cumsum(lengths) - lengths).astype("<u4").tobytes()


def decode_starts(table: bytes | memoryview, local_bytes: int) -> NDArray[np.int64]:
    """Returns the boundaries of a recoded chunk's entries: int64, shape (samples + 2,); the last entry is the table.

    `local_bytes` are those of records and table.
    """
    starts = np.frombuffer(table, "<u4")
    return np.concatenate([starts, [local_bytes - len(table), local_bytes]]).astype(np.int64)


def relative_path(key: bytes) -> str:
    """Returns the name of a chunk below the cache folder: `chunks/a/abcdef....chunk`."""
    # 16 folders: 256 would take 1 MiB of blocks, 5 % of a 20 MB cache.
    name = key.hex()
    return f"chunks/{name[0]}/{name}{SUFFIX}"
