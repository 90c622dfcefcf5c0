"""Fields compressed with gzip: `txt.gz` is decompressed, then decoded as `txt`, as WebDataset does."""

from __future__ import annotations

from collections.abc import Callable

# deflate compresses zeros 1,000 to 1 (zlib.net, "Maximum Compression Factor"): without a limit, 10 MB of a tar become
# 10 GB in every worker. A medical volume has up to 600 MB.
MAX_BYTES = 1 << 30
_GZIP_MAGIC = b"\x1f\x8b"
# Header and end of a stream without content.
_SMALLEST_BYTES = 18
# A document of "{},{},..." takes 24 times its bytes as Python objects.
MAX_JSON_BYTES = 64 << 20


def make_gzip_decoder(
    reader: Callable[[memoryview], object], name: str, *, makes_objects: bool = False
) -> Callable[[memoryview], object]:
    """Makes a decoder of a field whose decompressed bytes `reader` decodes.

    Args:
        reader: decoder of the decompressed bytes.
        name: name of the decoder, for messages.
        makes_objects: whether it makes Python objects of them: they may be 64 MiB instead of 1 GiB.
    """

    def decode(content: memoryview) -> object:
        # Few data sets have such fields: no worker imports three decompressors for the others.
        from streamer.formats.packed.unpack import UnpackError, unpack

        max_bytes = min(MAX_JSON_BYTES, MAX_BYTES) if makes_objects else MAX_BYTES
        # The length of the last stream is at the end of a file: most files that are too long take no memory.
        is_gzip = len(content) > _SMALLEST_BYTES and bytes(content[:2]) == _GZIP_MAGIC
        if is_gzip and int.from_bytes(content[-4:], "little") > max_bytes:
            raise UnpackError(f"unpacks to more than {max_bytes} bytes, or is cut off")
        return reader(unpack("gz", content, max_bytes))

    decode.__qualname__ = f"gunzip + {name}"
    return decode
