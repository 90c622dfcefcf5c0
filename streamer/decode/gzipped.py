"""Fields compressed with gzip: `txt.gz` is unpacked, then decoded as `txt`, as WebDataset does."""

from __future__ import annotations

from collections.abc import Callable

# deflate compresses zeros 1,000 to 1 (zlib.net, "Maximum Compression Factor"): without a limit, 10 MB of a tar become
# 10 GB in every worker. A medical volume has up to 600 MB.
MOST_BYTES = 1 << 30


def unpacking(reader: Callable[[memoryview], object], name: str) -> Callable[[memoryview], object]:
    """Makes a decoder of a field whose unpacked bytes, at most 1 GiB, `reader` decodes; `name` is the reader's."""

    def decode(content: memoryview) -> object:
        # Few data sets have such fields: no worker imports three decompressors for the others.
        from streamer.formats.packed.unpack import unpack

        return reader(unpack("gz", content, MOST_BYTES))

    decode.__qualname__ = f"gunzip + {name}"
    return decode
