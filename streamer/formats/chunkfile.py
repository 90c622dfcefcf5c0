"""Defines the layout of a chunk file on the SSD, with which it is written and read.

The cache (`cache/chunk_files.py`) writes chunk files and trainers read them (`client/chunk_reader.py`). Recoders
(`recode/work.py`) make the tables of recoded chunks, peers send whole files (`peers/`), and the engine and `streamer
warm` ask for their names and lengths.

    offset 0            header, 64 bytes (below)
    offset 64           the chunk's bytes, `local_bytes`
    64 + local_bytes    one little-endian uint32 CRC-32 (zlib's) per entry, `samples` of them

A chunk's bytes consist of entries, each of which has a CRC. With codec 0 the entries are the samples. A recoded chunk
(codec 1 or 2) has other entries, too: the table of its records, which is the last one, and with codec 2 the parts that
records share. In such a file the header's `samples` counts all entries, and `local_bytes` includes the table. The
numbers of the table are little-endian uint32:

    codec 1 (RECORDS)   the start of each record
    codec 2 (SHARED)    the start of each shared part, then of each head
                        samples x k x (first part, part behind the last) | number of parts | k

With codec 2 the record of a sample is its head, which no other sample has, and behind it the parts of its k half-open
ranges. A part is stored once, however many samples have it. The entries of the file are the parts, the heads and the
table. Only recoders and readers of chunk files know of parts: the rest of the package sees whole records, at their
`bounds`.

The header repeats key and lengths and ends with its own CRC, so that a torn or swapped file is found. With the CRC of
each entry a reader checks just the bytes that it uses (4 us per 100 KB, 2026-11-20).
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
# Bytes of the last two numbers of a table of codec 2: number of parts, and of ranges per sample.
COUNTS_BYTES = 2 * _NUMBER.itemsize


class ChunkHeader(msgspec.Struct, frozen=True):
    """The first 64 bytes of a chunk file.

    Attributes:
        key: name of the chunk, 16 bytes.
        local_bytes: length of the chunk's bytes, table of records included.
        samples: number of entries, which are the samples if `codec` is 0.
        table_crc: CRC-32 of all CRCs at the end of the file.
        payload_crc: CRC-32 of all the chunk's bytes. With it the file is checked without its manifest, in which the
            places of the samples are.
        codec: a value of `Codec`.
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
        """Returns the 64 bytes of the header."""
        lengths = (self.codec, self.samples, self.key, self.local_bytes)
        body = _FIELDS.pack(MAGIC, VERSION, *lengths, self.table_crc, self.payload_crc)
        body = body.ljust(HEADER_BYTES - _CRC.size, b"\0")
        return body + _CRC.pack(crc32(body))

    @classmethod
    def decode(cls, raw: bytes, where: str) -> ChunkHeader:
        """Reads the header at the beginning of `raw`.

        Args:
            raw: the first bytes of a file.
            where: name of the file, for the error.

        Raises:
            IntegrityError: the header is torn, of another version, or not of a chunk file.
        """
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
    """Returns the length of a chunk file in bytes; `samples` is the number of its entries."""
    return HEADER_BYTES + local_bytes + samples * CRC_BYTES


def crc_offset(local_bytes: int, sample: int) -> int:
    """Returns the offset in the file of the CRC of entry `sample` (from 0)."""
    return HEADER_BYTES + local_bytes + sample * CRC_BYTES


def relative_path(key: bytes) -> str:
    """Returns the path of a chunk file below the cache folder: `chunks/a/abcdef....chunk`."""
    # 16 folders: 256 would take 1 MiB of blocks, 5 % of a 20 MB cache.
    name = key.hex()
    return f"chunks/{name[0]}/{name}{SUFFIX}"


class RecordTable(msgspec.Struct, frozen=True):
    """The table of a recoded chunk: it says where the records of the samples are in the chunk's bytes.

    Attributes:
        starts: int64, shape (entries + 1,): the boundaries of parts, heads (or records) and table in the chunk's bytes.
        ranges: uint32, shape (samples, k, 2): half-open ranges of the parts of each sample; k is 0 if no parts are
            shared.
        bounds: int64, shape (samples + 1,): the boundaries of whole records, as if these were stored one after the
            other. Without shared parts they are stored so.
    """

    starts: NDArray[np.int64]
    ranges: NDArray[np.uint32]
    bounds: NDArray[np.int64]

    @classmethod
    def decode(cls, content: bytes | memoryview, samples: int, codec: int, local_bytes: int) -> RecordTable:
        """Reads the table of a chunk.

        Args:
            content: the end of the chunk's bytes, with the whole table.
            samples: number of samples in the chunk (not of entries).
            codec: Codec of its file.
            local_bytes: length of all the chunk's bytes, table included.

        Raises:
            ValueError: the bytes are not the table of such a chunk. The text says why.
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
        # A copy is made, because `content` may lie in memory that a recoder writes again.
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
        """Number of entries: parts, heads (or records), and the table itself."""
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
        """Length of the chunk's bytes, table included."""
        return int(self.starts[-1])

    def entries_of(self, sample: int) -> list[tuple[int, int]]:
        """Returns the half-open ranges of entries of which a sample's record consists: its head, then its parts."""
        head = self.parts + sample
        return [(head, head + 1), *map(tuple, self.ranges[sample].tolist())]

    def record(self, sample: int, content: memoryview) -> memoryview:
        """Returns the record of a sample: a view of `content`, the chunk's bytes, or a copy if parts are shared."""
        if not self.is_shared:
            return content[self.bounds[sample] : self.bounds[sample + 1]]
        spans = [(self.starts[first], self.starts[stop]) for first, stop in self.entries_of(sample)]
        return memoryview(b"".join([content[start:stop] for start, stop in spans]))


def encode_table(lengths: NDArray[np.int64], part_lengths: NDArray[np.int64], part_ranges: NDArray[np.int64]) -> bytes:
    """Returns the encoded table of a chunk of less than 4 GiB.

    Args:
        lengths: bytes of each record (or head).
        part_lengths: bytes of each shared part.
        part_ranges: ranges of parts of each sample, shape (samples, k, 2), as in `formats.base.Records`.
    """
    ends = np.cumsum(np.concatenate([part_lengths, lengths]))
    starts = np.concatenate([[0], ends[:-1]]).astype(_NUMBER).tobytes() if len(ends) else b""
    if not part_ranges.shape[1]:
        return starts
    counts = np.array([len(part_lengths), part_ranges.shape[1]], _NUMBER)
    return starts + part_ranges.astype(_NUMBER).tobytes() + counts.tobytes()


def table_bytes(samples: int, parts: int = 0, k: int = 0) -> int:
    """Returns the length of a table in bytes; `k` is the number of ranges per sample."""
    return _NUMBER.itemsize * (samples + (parts + 2 * samples * k + 2 if k else 0))


def counts_of(tail: bytes | memoryview) -> tuple[int, int]:
    """Returns the number of parts and of ranges per sample, from the end of a chunk with shared parts.

    Raises:
        ValueError: `tail` has less than `COUNTS_BYTES`, or says that there are no ranges.
    """
    parts, k = np.frombuffer(tail[-COUNTS_BYTES:], _NUMBER, 2).tolist()
    if not k:
        raise ValueError("its samples have no ranges of parts")
    return parts, k


def outside(ranges: NDArray[np.integer], parts: int) -> int:
    """Returns the number of the first sample with a range that is not within `parts` parts; -1 if there is none.

    Args:
        ranges: half-open ranges of parts, shape (samples, k, 2).
        parts: number of parts.
    """
    first = ranges[..., 0]
    stop = ranges[..., 1]
    wrong = ((first < 0) | (first > stop) | (stop > parts)).any(axis=1)
    return int(np.argmax(wrong)) if wrong.any() else -1
