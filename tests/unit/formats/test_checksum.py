"""The checksums of chunk files are zlib's CRC-32, computed by isal or by zlib: `crc32` and `join_crc32`."""

from __future__ import annotations

import subprocess
import sys
import zlib

import numpy as np
import pytest

from streamer.formats.checksum import crc32, crc32_of, join_crc32

WITHOUT_ISAL = """
import sys
sys.modules["isal"] = sys.modules["isal.isal_zlib"] = None
from streamer.formats.checksum import crc32, join_crc32
sums = [crc32(b"1234"), crc32(b"56789")]
print(crc32.__module__, crc32(b"123456789"), join_crc32(sums, [4, 5], [b"123456789"]))
"""


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 255, 5_000, 6_000, 110_001, 1 << 20])
def test_same_as_zlib(length: int) -> None:
    """`crc32` of bytes of any length and alignment, whole or carried on over pieces, equals `zlib.crc32`."""
    body = memoryview(np.random.default_rng(length).bytes(length + 3))[3:]
    assert crc32(body) == zlib.crc32(body)
    assert crc32_of([body[: length // 3], b"", body[length // 3 :]]) == zlib.crc32(body)


def test_check_value() -> None:
    """`crc32` gives the check value that the catalogue of CRCs has for CRC-32/ISO-HDLC."""
    assert crc32(b"123456789") == 0xCBF43926


@pytest.mark.process
def test_zlib_where_isal_is_not_installed() -> None:
    """Without the isal module, zlib computes the same checksums, so that files are the same on each platform."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_ISAL], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["zlib", str(0xCBF43926), str(0xCBF43926)]


@pytest.mark.parametrize("lengths", [[], [0], [1, 0, 5], [100_000], [100_000, 0, 1, 70_001], [10] * 50, [20_000] * 70])
def test_joined_sums_are_those_of_the_whole(lengths: list[int]) -> None:
    """`join_crc32` makes the CRC-32 of the whole from those of its pieces, large, small, empty or none."""
    body = np.random.default_rng(len(lengths)).bytes(sum(lengths))
    stops = np.cumsum(lengths, dtype=int)
    sums = [zlib.crc32(body[stop - length : stop]) for stop, length in zip(stops, lengths, strict=True)]
    assert join_crc32(sums, lengths, [body[:7], body[7:]]) == zlib.crc32(body)
