"""The bytes of a chunk file: a change without a new version would make every cache unreadable."""

from __future__ import annotations

import numpy as np

from streamer.formats import chunkfile
from streamer.formats.chunkfile import ChunkHeader, RecordTable, encode_table
from streamer.manifest.blocks import Block, encode_hints, plan_local_bytes
from streamer.manifest.model import Codec

KEY = bytes(range(16))
HEADER = ChunkHeader(key=KEY, local_bytes=8_388_608, samples=77, table_crc=0xDEADBEEF, payload_crc=0xCAFEF00D)
RAW = bytes.fromhex(
    "5354524d43484e4b010000004d000000000102030405060708090a0b0c0d0e0f"
    "0000800000000000efbeadde0df0feca0000000000000000000000001d0f0ddb"
)


def test_header():
    """The header of a chunk file encodes to these 64 bytes, and these bytes decode to the header."""
    assert HEADER.encode() == RAW
    assert ChunkHeader.decode(RAW, "file") == HEADER


def test_places():
    """A chunk file holds header, bytes, then a CRC of 4 bytes per sample; its path is made from the chunk's key."""
    assert (chunkfile.MAGIC, chunkfile.VERSION, chunkfile.HEADER_BYTES, chunkfile.CRC_BYTES) == (b"STRMCHNK", 1, 64, 4)
    assert chunkfile.file_bytes(1000, 3) == 64 + 1000 + 12
    assert chunkfile.crc_offset(1000, 2) == 64 + 1000 + 8
    assert chunkfile.relative_path(KEY) == "chunks/0/000102030405060708090a0b0c0d0e0f.chunk"


def test_a_chunk_with_shared_parts():
    """A chunk of codec 2 holds parts, heads and a table; its hints name parts and ranges only for blocks with parts."""
    lengths, part_lengths = np.array([1, 2]), np.array([3, 4, 5])
    ranges = np.array([[[0, 2], [2, 2]], [[1, 3], [0, 1]]])
    table = encode_table(lengths, part_lengths, ranges)
    assert table.hex() == (
        "0000000003000000070000000c0000000d000000"  # parts at 0, 3, 7; heads at 12, 13
        "00000000020000000200000002000000"  # of the first: parts 0 and 1, nothing
        "01000000030000000000000001000000"  # of the second: parts 1 and 2, part 0
        "0300000002000000"  # 3 parts, 2 ranges each
    )
    found = RecordTable.decode(table, 2, Codec.SHARED, 15 + len(table))
    assert found.starts.tolist() == [0, 3, 7, 12, 13, 15, 75]
    assert found.bounds.tolist() == [0, 1 + 7, 8 + 2 + 9 + 3]
    assert encode_table(lengths, part_lengths[:0], np.empty((0, 0, 2))).hex() == "0000000001000000"
    shared = Block(((0, 9),), 2, 15, b"h", parts=3, part_ranges=2)
    assert encode_hints([shared]).hex() == "91950902c401680302"
    assert encode_hints([Block(((0, 9),), 2, 15, b"h")]).hex() == "91930902c40168"
    assert plan_local_bytes([shared], 15) == 15 + len(table) + 4 * (3 + 1)
    assert plan_local_bytes([Block(((0, 9),), 2, 15)], 15) == 15 + 2 * 4 + 4
