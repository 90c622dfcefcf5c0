"""The layout of a chunk file on the SSD: written by the cache, read by every trainer.

    offset 0            header, 64 bytes (below)
    offset 64           the chunk's bytes, `local_bytes`
    64 + local_bytes    one little-endian uint32 CRC-32 (zlib's) per sample, `samples` of them

The samples of a chunk of codec 0 are its entries. A recoded chunk (codec 1 or 2) has other entries, too: the table of
its records, which is the last one, and with codec 2 the parts that records share. `samples` counts all entries there,
each has a checksum, and `local_bytes` includes the table, whose numbers are little-endian uint32:

    codec 1 (RECORDS)   the start of each record
    codec 2 (SHARED)    the start of each shared part, then of each head
                        samples x k x (first part, part behind the last) | number of parts | k

With codec 2 a sample's record is its head, which it has alone, and the parts of its k half-open ranges, joined in this
order; a part is stored once, however many samples have it. The entries of the file are the parts, the heads and the
table, each with its checksum. Everybody but the reader of chunk files sees whole records, at their `bounds`.

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
from streamer.manifest.model import Codec

MAGIC = b"STRMCHNK"
VERSION = 1
HEADER_BYTES = 64
CRC_BYTES = 4
SUFFIX = ".chunk"

# magic, version, codec, samples, key, local_bytes, table_crc, payload_crc; then 12 spare bytes and the header's CRC
_FIELDS = struct.Struct("<8sHHI16sQII")
_CRC = struct.Struct("<I")

_NUMBER = np.dtype("<u4")
# Number of parts and of ranges per sample, which say how long a table is.
COUNTS_BYTES = 2 * _NUMBER.itemsize


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
        body = raw[: HEADER_BYTES - _CRC.size]
        check = raw[HEADER_BYTES - _CRC.size : HEADER_BYTES]
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
        return cls(
            key=key, local_bytes=local_bytes, samples=samples, table_crc=table_crc, payload_crc=payload_crc, codec=codec
        )


def file_bytes(local_bytes: int, samples: int) -> int:
    """Returns the length of a chunk file in bytes."""
    return HEADER_BYTES + local_bytes + samples * CRC_BYTES


def crc_offset(local_bytes: int, sample: int) -> int:
    """Returns the offset of the CRC of the chunk's `sample`-th sample in the file."""
    return HEADER_BYTES + local_bytes + sample * CRC_BYTES


def relative_path(key: bytes) -> str:
    """Returns the name of a chunk below the cache folder: `chunks/a/abcdef....chunk`."""
    # 16 folders: 256 would take 1 MiB of blocks, 5 % of a 20 MB cache.
    name = key.hex()
    return f"chunks/{name[0]}/{name}{SUFFIX}"


class RecordTable(msgspec.Struct, frozen=True):
    """Where the records of a recoded chunk are.

    Attributes:
        starts: int64, shape (entries + 1,): the boundaries of parts, heads (or records) and table in the chunk's bytes.
        ranges: uint32, shape (samples, k, 2): ranges of the parts of each sample; k is 0 where nothing is shared.
        bounds: int64, shape (samples + 1,): the boundaries of the records as if they were stored one after the other,
            which they are where nothing is shared.
    """

    starts: NDArray[np.int64]
    ranges: NDArray[np.uint32]
    bounds: NDArray[np.int64]

    @classmethod
    def decode(cls, content: bytes | memoryview, samples: int, codec: int, local_bytes: int) -> RecordTable:
        """Reads the table of a chunk.

        Args:
            content: the end of the chunk's bytes, with the whole table.
            samples: number of samples in the chunk.
            codec: Codec of its file.
            local_bytes: length of all its bytes, table included.

        Raises:
            ValueError: it is not the table of such a chunk; says why.
        """
        if codec not in (Codec.RECORDS, Codec.SHARED):
            raise ValueError(f"chunks of codec {codec} have no records")
        parts, k = counts_of(content) if codec == Codec.SHARED else (0, 0)
        size = table_bytes(samples, parts, k)
        if not size <= min(len(content), local_bytes):
            raise ValueError(f"a table of {size} bytes in {local_bytes}")
        numbers = np.frombuffer(content[len(content) - size :], _NUMBER)
        edge = samples + parts
        starts = np.concatenate([numbers[:edge], [local_bytes - size, local_bytes]]).astype(np.int64)
        if starts[0] != 0 or (starts[1:] < starts[:-1]).any():
            raise ValueError("records overlap")
        # Copied: a recoder's memory, of which it is a part, is written again.
        ranges = numbers[edge : edge + 2 * samples * k].reshape(samples, k, 2).copy()
        if (wrong := outside(ranges, parts)) >= 0:
            raise ValueError(f"sample {wrong} has the parts {ranges[wrong].tolist()} of {parts}")
        bounds = starts[:-1]
        if k:
            lengths = np.diff(starts[parts:-1]) + (starts[ranges[..., 1]] - starts[ranges[..., 0]]).sum(axis=1)
            bounds = np.concatenate([[0], np.cumsum(lengths)])
        return cls(starts, ranges, bounds)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.bounds) - 1

    @property
    def entries(self) -> int:
        """Number of parts, heads (or records) and table."""
        return len(self.starts) - 1

    @property
    def parts(self) -> int:
        """Number of shared parts."""
        return self.entries - self.samples - 1

    @property
    def is_shared(self) -> bool:
        """Whether records have shared parts."""
        return bool(self.ranges.shape[1])

    @property
    def local_bytes(self) -> int:
        """Length of the chunk's bytes."""
        return int(self.starts[-1])

    def entries_of(self, sample: int) -> list[tuple[int, int]]:
        """The half-open ranges of entries that are the record of a sample, in order: its head, then its parts."""
        head = self.parts + sample
        return [(head, head + 1), *map(tuple, self.ranges[sample].tolist())]

    def record(self, sample: int, content: memoryview) -> memoryview:
        """The record of a sample, out of the chunk's bytes: copied where it has parts."""
        if not self.is_shared:
            return content[self.bounds[sample] : self.bounds[sample + 1]]
        spans = [(self.starts[first], self.starts[stop]) for first, stop in self.entries_of(sample)]
        return memoryview(b"".join([content[start:stop] for start, stop in spans]))


def encode_table(lengths: NDArray[np.int64], part_lengths: NDArray[np.int64], part_ranges: NDArray[np.int64]) -> bytes:
    """Returns the table of a chunk of less than 4 GiB; see `formats.base.Records` for the arguments."""
    ends = np.cumsum(np.concatenate([part_lengths, lengths]))
    starts = np.concatenate([[0], ends[:-1]]).astype(_NUMBER).tobytes() if len(ends) else b""
    if not part_ranges.shape[1]:
        return starts
    counts = np.array([len(part_lengths), part_ranges.shape[1]], _NUMBER)
    return starts + part_ranges.astype(_NUMBER).tobytes() + counts.tobytes()


def table_bytes(samples: int, parts: int = 0, k: int = 0) -> int:
    """Returns the length of a table."""
    return _NUMBER.itemsize * (samples + (parts + 2 * samples * k + 2 if k else 0))


def counts_of(tail: bytes | memoryview) -> tuple[int, int]:
    """Reads the numbers of parts and of ranges per sample from the end of a chunk with shared parts.

    Raises:
        ValueError: it is too short, or has no ranges.
    """
    parts, k = np.frombuffer(tail[-COUNTS_BYTES:], _NUMBER, 2).tolist()
    if not k:
        raise ValueError("its samples have no ranges of parts")
    return parts, k


def outside(ranges: NDArray[np.integer], parts: int) -> int:
    """The first sample with a range (samples, k, 2) that is not one of this many parts; -1 if there is none."""
    first = ranges[..., 0]
    stop = ranges[..., 1]
    wrong = ((first < 0) | (first > stop) | (stop > parts)).any(axis=1)
    return int(np.argmax(wrong)) if wrong.any() else -1
