"""Blocks, bytes that can only be decoded together, and the chunks made of them.

A chunk of blocks is recoded once, between fetch and publish: see `streamer.formats.base.Recoder`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.manifest.model import ObjectRecord

# A chunk of blocks has one of these per block in its row of the manifest.
LONGEST_HINT = 64 << 10
# A block is fetched and recoded as a whole, in memory.
MOST_FETCH_BYTES = 256 << 20
MOST_RECORD_BYTES = 1 << 30


class Block(msgspec.Struct, frozen=True):
    """Bytes that can only be decoded together (a row group, a compressed shard).

    Attributes:
        ranges: half-open byte ranges of the object, in the order in which the recoder gets them.
        record_bytes: total length of the samples' records, as far as the index can know it.
        hint: facts that the recoder needs besides the bytes and the dataset's facts; at most `LONGEST_HINT` bytes.
        objects: the object of each range if there are several (sources of the survey); empty: the indexed object.
    """

    ranges: tuple[tuple[int, int], ...]
    samples: int
    record_bytes: int
    hint: bytes = b""
    objects: tuple[ObjectRecord, ...] = ()

    @property
    def fetch_bytes(self) -> int:
        """Bytes of all ranges."""
        return sum(stop - start for start, stop in self.ranges)


class BlockHint(msgspec.Struct, frozen=True, array_like=True):
    """One block of a chunk, for the recoder: the length of its bytes in the chunk, its samples, and its hint."""

    fetch_bytes: int
    samples: int
    hint: bytes


_HINTS = msgspec.msgpack.Decoder(list[BlockHint])


def encode_hints(blocks: Sequence[Block]) -> bytes:
    """Encodes the hint of a chunk of these blocks."""
    return msgspec.msgpack.encode([BlockHint(block.fetch_bytes, block.samples, block.hint) for block in blocks])


def decode_hints(hint: bytes) -> list[BlockHint]:
    """Decodes the blocks of a chunk.

    Raises:
        msgspec.MsgspecError: `encode_hints` did not write it.
    """
    return _HINTS.decode(hint)


def cut_blocks(blocks: Sequence[Block], chunk_bytes: int) -> NDArray[np.int64]:
    """The numbers of the blocks with which chunks begin, closed by the number of blocks: int64, shape (m + 1,).

    A chunk takes blocks until the next one would make it longer than `chunk_bytes` (as fetched), and at least one. The
    blocks behind it do not matter.
    """
    firsts: list[int] = []
    filled = 0
    for number, block in enumerate(blocks):
        if not firsts or filled + block.fetch_bytes > chunk_bytes:
            firsts.append(number)
            filled = 0
        filled += block.fetch_bytes
    return np.array([*firsts, len(blocks)], np.int64)


def planned_bytes(record_bytes: Sequence[int], samples: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes that chunks of these records will have without header and checksums: records and the table of starts.

    The table is the last entry of the chunk file and has a checksum like a sample: uint32 each.
    """
    return np.asarray(record_bytes, np.int64) + 4 * samples + 4


def recoded_chunk_key(
    format_name: str, revision: int, options: Mapping[str, object], record: ObjectRecord, blocks: Sequence[Block]
) -> bytes:
    """The name of a chunk of blocks in the cache: 16 bytes, a digest of everything that determines its records."""
    state = blake2b(digest_size=16, person=b"streamer-chunk-2")
    head = [format_name, revision, options, record.url, record.version]
    state.update(json.dumps(head, sort_keys=True).encode())
    for block in blocks:
        state.update(msgspec.msgpack.encode([block.ranges, block.samples, block.hint]))
        if block.objects:
            state.update(json.dumps([(each.url, each.version) for each in block.objects]).encode())
    return state.digest()
