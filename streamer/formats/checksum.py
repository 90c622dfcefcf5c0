"""The CRC-32 of chunk files: zlib's, computed with carry-less multiplication where Intel's ISA-L is installed.

The values are the same. 0.04 against 0.15 CPU s/GB of zlib 1.2.13 (one core of an AMD EPYC, 110 KB at a time,
2026-11-20); a chunk is summed twice when it is written and once when it is read. A second sum is cheaper than to join
the samples' CRCs by arithmetic: 80 joins of 10 us in Python against 0.2 ms per 8 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32

__all__ = ["crc32", "crc32_of"]


def crc32_of(parts: Iterable[memoryview | bytes]) -> int:
    """CRC-32 of the parts together."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc
