"""The kind of a field that only its bytes tell."""

from __future__ import annotations

IMAGE, BYTES = "image", "bytes"
# JPEG, PNG, GIF, TIFF in both byte orders.
_STARTS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*")
_LONGEST = 12
# Most fields are told by one byte: 0.1 us instead of 0.6.
_FIRST_BYTES = frozenset(start[0] for start in (*_STARTS, b"RIFF", b"BM"))


def kind_of_bytes(content: memoryview) -> str:
    """Returns "image" for the beginning of a JPEG, PNG, GIF, TIFF, WebP or BMP picture, else "bytes"."""
    if not content or content[0] not in _FIRST_BYTES:
        return BYTES
    head = bytes(content[:_LONGEST])
    if head.startswith(_STARTS) or (head[:4] == b"RIFF" and head[8:] == b"WEBP"):
        return IMAGE
    # Two letters are too few to tell by: the size of the file follows them.
    if head[:2] == b"BM" and int.from_bytes(head[2:6], "little") == len(content):
        return IMAGE
    return BYTES
