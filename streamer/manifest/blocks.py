"""Makes chunks of blocks, which are bytes that can only be decoded together: cuts, hints and keys.

Formats that have blocks make `Block`s (`formats/`, `tables/`, `media/`), `indexing/` makes chunks of them, and
`recode/` and formats read their hints. `manifest/validation.py` computes their keys again, and `peers/client.py` asks
for the limits. A chunk of blocks is recoded once, between fetch and publish: see `formats.base.Recoder`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.manifest.model import NESTED, FieldSpec, ObjectRecord

# Most bytes of the hint of one block: the manifest has the hints of all blocks.
LONGEST_HINT = 64 << 10
# Most bytes of a block, and of its records: a block is fetched and recoded as a whole, in memory.
MOST_FETCH_BYTES = 256 << 20
MOST_RECORD_BYTES = 1 << 30
# The planned length of records is a guess: they may be `MOST_RATIO` times as long, and `MOST_EXTRA_BYTES` more.
MOST_RATIO = 4
MOST_EXTRA_BYTES = 64 << 20


class Block(msgspec.Struct, frozen=True):
    """Bytes that can only be decoded together (a row group, a compressed shard).

    Attributes:
        ranges: half-open byte ranges in the objects, in the order in which the recoder gets them.
        samples: number of samples that the recoder makes of it.
        record_bytes: total length of the samples' records, or of their heads and shared parts, a guess where the index
            cannot know it.
        hint: what the recoder needs besides the bytes and the dataset's facts, at most `LONGEST_HINT` bytes.
        objects: object of each range, empty if all are of the object that is indexed.
        parts: number of shared parts that the recoder will make (see `formats.base.Records`), a guess where the index
            cannot know it.
        part_ranges: ranges of shared parts per sample, the same in all blocks of a dataset, or 0 if nothing is shared.
        left_out: number of samples that the index leaves out because codec parameters change within them. It is not
            stored.
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
    """One block of a chunk as the recoder gets it; a chunk has one for each of its blocks, in order.

    Attributes:
        fetch_bytes: length of its bytes in the chunk.
        samples, hint, parts, part_ranges: the same as in `Block`.
    """

    fetch_bytes: int
    samples: int
    hint: bytes
    parts: int = 0
    part_ranges: int = 0


_HINTS = msgspec.msgpack.Decoder(list[BlockHint])


def encode_hints(blocks: Sequence[Block]) -> bytes:
    """Returns `Chunk.hint` of a chunk of these blocks: a `BlockHint` for each, as MessagePack."""
    found = []
    for block in blocks:
        # A block that shares nothing is encoded as in manifests of version 2.
        shared = (block.parts, block.part_ranges) if block.part_ranges else ()
        found.append((block.fetch_bytes, block.samples, block.hint, *shared))
    return msgspec.msgpack.encode(found)


def decode_hints(hint: bytes) -> list[BlockHint]:
    """Returns the blocks of a chunk from its `Chunk.hint`.

    Raises:
        msgspec.MsgspecError: `encode_hints` did not write these bytes.
    """
    return _HINTS.decode(hint)


def cut_blocks(blocks: Sequence[Block], chunk_bytes: int) -> NDArray[np.int64]:
    """Cuts the blocks of an object into chunks.

    A chunk takes blocks until the next one would make it longer than `chunk_bytes` (as fetched), and at least one. So
    more blocks at the end of an object leave the earlier cuts as they are.

    Returns:
        The number of the first block of each chunk, and the number of blocks: int64, shape (m + 1,).
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
    """Returns how long the file of a chunk of these blocks will be, without its header and its samples' checksums.

    The sum has the records, their table (see `formats.chunkfile`), and the checksums of table and shared parts.

    Args:
        blocks: the blocks of the chunk.
        record_bytes: total length of their records, or of heads and shared parts.
    """
    samples = sum(block.samples for block in blocks)
    parts = sum(block.parts for block in blocks)
    most = max((block.part_ranges for block in blocks), default=0)
    shared = parts + 2 * samples * most + 2 if most else 0
    return record_bytes + 4 * (samples + shared) + 4 * (parts + 1)


def recoded_chunk_key(
    format_name: str, revision: int, options: Mapping[str, object], record: ObjectRecord, blocks: Sequence[Block]
) -> bytes:
    """Returns the key of a chunk of blocks, its name in the cache: a digest of all that determines its records.

    Args:
        format_name: name of the format.
        revision: revision of the format's index and recoder.
        options: options of the format, see `key_options`.
        record: the object whose index has found the blocks.
        blocks: the blocks of the chunk.

    Returns:
        16 bytes.
    """
    return key_of_blocks(key_head(format_name, revision, options, record), blocks)


def key_head(format_name: str, revision: int, options: Mapping[str, object], record: ObjectRecord) -> bytes:
    """Returns the part that the keys of all chunks of an object have in common; arguments as `recoded_chunk_key`."""
    return json.dumps([format_name, revision, options, record.url, record.version], sort_keys=True).encode()


def key_of_blocks(head: bytes, blocks: Sequence[Block]) -> bytes:
    """Returns the key of a chunk (16 bytes) from `key_head` of its object and its blocks; see `recoded_chunk_key`."""
    state = blake2b(head, digest_size=16, person=b"streamer-chunk-2")
    for block in blocks:
        state.update(msgspec.msgpack.encode([block.ranges, block.samples, block.hint]))
        if block.part_ranges:
            state.update(msgspec.msgpack.encode([block.parts, block.part_ranges]))
        if block.objects:
            state.update(json.dumps([(each.url, each.version) for each in block.objects]).encode())
    return state.digest()


def key_options(options: Mapping[str, object], fields: Sequence[FieldSpec]) -> Mapping[str, object]:
    """Returns the options of a format as keys of chunks have them: with a mark if a field is nested.

    Version 0.1 of streamer made other records of nested values (JSON), whose chunks must have other keys.
    """
    return {**options, NESTED: 1} if any(field.kind == NESTED for field in fields) else options


def first_ranges(ranges: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Returns the first ranges that together have `length` bytes or more; no part of a range.

    Raises:
        IndexError: all ranges together are shorter.
    """
    own: list[tuple[int, int]] = []
    while length > 0:
        start, stop = ranges[len(own)]
        own.append((start, stop))
        length -= stop - start
    return own
