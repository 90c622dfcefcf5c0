"""Fields compressed with gzip: `txt.gz` is unpacked, then decoded as `txt`, as WebDataset does."""

from __future__ import annotations

import zlib
from collections.abc import Callable

Content = bytes | bytearray | memoryview

# deflate compresses zeros 1,000 to 1 (zlib.net, "Maximum Compression Factor"): without a limit, 10 MB of a tar become
# 10 GB in every worker. A medical volume has up to 600 MB.
MOST_BYTES = 1 << 30
_GZIP = 31


def gunzip(content: Content) -> bytes:
    """Unpacks all streams of a gzip file, at most 1 GiB; raises ValueError, and zlib.error for damaged bytes."""
    parts: list[bytes] = []
    room, rest = MOST_BYTES, bytes(content)
    while rest:
        unpack = zlib.decompressobj(_GZIP)
        parts.append(unpack.decompress(rest, room + 1))
        room -= len(parts[-1])
        if room < 0:
            raise ValueError(f"more than {MOST_BYTES} bytes when unpacked, from {len(content)}")
        if not unpack.eof:
            raise ValueError("cut off")
        # gzip(1) ignores zeros behind the last stream, too
        rest = unpack.unused_data.lstrip(b"\0")
    return b"".join(parts)


def unpacking(reader: Callable[[memoryview], object], name: str) -> Callable[[memoryview], object]:
    """Makes a decoder of a field whose unpacked bytes `reader` decodes; `name` is the reader's, for errors."""

    def decode(content: memoryview) -> object:
        return reader(memoryview(gunzip(content)))

    decode.__qualname__ = f"gunzip + {name}"
    return decode
