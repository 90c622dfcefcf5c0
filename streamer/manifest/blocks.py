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

from streamer.manifest.model import NESTED, FieldSpec, ObjectRecord

# A chunk of blocks has one of these per block in its row of the manifest.
LONGEST_HINT = 64 << 10
# A block is fetched and recoded as a whole, in memory.
MOST_FETCH_BYTES = 256 << 20
MOST_RECORD_BYTES = 1 << 30
# The length of records is a guess: they may be this many times as long as planned, plus this much.
MOST_RATIO = 4
MOST_EXTRA_BYTES = 64 << 20


class Block(msgspec.Struct, frozen=True):
    """Bytes that can only be decoded together (a row group, a compressed shard).

    Attributes:
        ranges: half-open byte ranges of the object, in the order in which the recoder gets them.
        record_bytes: total length of the samples' records, or of their heads and the parts that they share, as far as
            the index can know it.
        hint: facts that the recoder needs besides the bytes and the dataset's facts; at most `LONGEST_HINT` bytes.
        objects: the object of each range if there are several (sources of the survey); empty: the indexed object.
        parts: shared parts that the recoder will make (see `formats.base.Records`), as far as the index can know it.
        part_ranges: ranges of shared parts per sample, the same in all blocks of a dataset; 0: nothing is shared.
        left_out: samples that the index leaves out because codec parameters change within them.
    """

    ranges: tuple[tuple[int, int], ...]
    samples: int
    record_bytes: int
    hint: bytes = b""
    objects: tuple[ObjectRecord, ...] = ()
    parts: int = 0
    part_ranges: int = 0
    left_out: int = 0

    @property
    def fetch_bytes(self) -> int:
        """Bytes of all ranges."""
        return sum(stop - start for start, stop in self.ranges)


class BlockHint(msgspec.Struct, frozen=True, array_like=True):
    """One block of a chunk, for the recoder: the length of its bytes in the chunk, and what the index knows of it."""

    fetch_bytes: int
    samples: int
    hint: bytes
    parts: int = 0
    part_ranges: int = 0


_HINTS = msgspec.msgpack.Decoder(list[BlockHint])


def encode_hints(blocks: Sequence[Block]) -> bytes:
    """Encodes the hint of a chunk of these blocks."""
    found = []
    for block in blocks:
        # A block that shares nothing is as in manifests of version 2.
        shared = (block.parts, block.part_ranges) if block.part_ranges else ()
        found.append((block.fetch_bytes, block.samples, block.hint, *shared))
    return msgspec.msgpack.encode(found)


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


def plan_local_bytes(blocks: Sequence[Block] | Sequence[BlockHint], record_bytes: int) -> int:
    """Bytes that a chunk of these blocks and records will have without header and the checksums of its samples.

    They are the records, their table (see `formats.chunkfile`) and the checksums of table and shared parts.
    """
    samples = sum(block.samples for block in blocks)
    parts = sum(block.parts for block in blocks)
    most = max((block.part_ranges for block in blocks), default=0)
    shared = parts + 2 * samples * most + 2 if most else 0
    return record_bytes + 4 * (samples + shared) + 4 * (parts + 1)


def recoded_chunk_key(
    format_name: str, revision: int, options: Mapping[str, object], record: ObjectRecord, blocks: Sequence[Block]
) -> bytes:
    """The name of a chunk of blocks in the cache: 16 bytes, a digest of everything that determines its records."""
    return key_of_blocks(key_head(format_name, revision, options, record), blocks)


def key_head(format_name: str, revision: int, options: Mapping[str, object], record: ObjectRecord) -> bytes:
    """Returns what the keys of all chunks of an object begin with, for `key_of_blocks`."""
    return json.dumps([format_name, revision, options, record.url, record.version], sort_keys=True).encode()


def key_of_blocks(head: bytes, blocks: Sequence[Block]) -> bytes:
    """Returns the key of a chunk from the head of its object's keys and its blocks; see `recoded_chunk_key`."""
    state = blake2b(head, digest_size=16, person=b"streamer-chunk-2")
    for block in blocks:
        state.update(msgspec.msgpack.encode([block.ranges, block.samples, block.hint]))
        if block.part_ranges:
            state.update(msgspec.msgpack.encode([block.parts, block.part_ranges]))
        if block.objects:
            state.update(json.dumps([(each.url, each.version) for each in block.objects]).encode())
    return state.digest()


def key_options(options: Mapping[str, object], fields: Sequence[FieldSpec]) -> Mapping[str, object]:
    """Returns the options of a format as keys have them: in version 0.1 nested values were JSON, other records."""
    return {**options, NESTED: 1} if any(field.kind == NESTED for field in fields) else options


def first_ranges(ranges: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Returns the first of the ranges, as many as have this length together.

    Raises:
        IndexError: all of them are shorter.
    """
    own: list[tuple[int, int]] = []
    while length > 0:
        start, stop = ranges[len(own)]
        own.append((start, stop))
        length -= stop - start
    return own
