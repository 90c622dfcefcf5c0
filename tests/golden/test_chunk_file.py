"""The bytes of a chunk file: a change without a new version would make every cache unreadable."""

from __future__ import annotations

from streamer.formats import chunkfile
from streamer.formats.chunkfile import ChunkHeader

KEY = bytes(range(16))
HEADER = ChunkHeader(key=KEY, local_bytes=8_388_608, samples=77, table_crc=0xDEADBEEF, payload_crc=0xCAFEF00D)
RAW = bytes.fromhex(
    "5354524d43484e4b010000004d000000000102030405060708090a0b0c0d0e0f"
    "0000800000000000efbeadde0df0feca0000000000000000000000001d0f0ddb"
)


def test_header():
    """64 bytes, field by field."""
    assert HEADER.encode() == RAW
    assert ChunkHeader.decode(RAW, "file") == HEADER


def test_places():
    """Header, bytes, then a CRC of 4 bytes per sample; the name is the key."""
    assert (chunkfile.MAGIC, chunkfile.VERSION, chunkfile.HEADER_BYTES, chunkfile.CRC_BYTES) == (b"STRMCHNK", 1, 64, 4)
    assert chunkfile.file_bytes(1000, 3) == 64 + 1000 + 12
    assert chunkfile.crc_offset(1000, 2) == 64 + 1000 + 8
    assert chunkfile.relative_path(KEY) == "chunks/0/000102030405060708090a0b0c0d0e0f.chunk"
