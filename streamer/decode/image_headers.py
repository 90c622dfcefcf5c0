"""Reads headers of images: the format, for some the size and the depth. It also checks the checksums of PNGs.

`decode/images.py` chooses the decoder of an image by it, and refuses images that are too large.
"""

from __future__ import annotations

import re
import zlib

from streamer.decode.tiff_page import MAGICS as TIFF_MAGICS

Content = bytes | bytearray | memoryview

# Largest number of pixels that are decoded by default. It is that of Pillow, which refuses larger images.
MAX_PIXELS = 2 * 89_478_485
# A TIFF of many bands or wide values may have this number of bytes for each pixel that `max_pixels` allows.
MAX_BYTES_OF_PIXEL = 4

# The formats that `format_of` tells apart.
JPEG = "JPEG"
PNG = "PNG"
TIFF = "TIFF"
NETPBM = "PAM"
WEBP = "WEBP"
JPEG2000 = "JPEG2000"
AVIF = "AVIF"
OTHER = ""
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_CODESTREAM = b"\xff\x4f\xff\x51"
# The bit of the first letter of a chunk's name that marks optional chunks, and the optional chunks that OpenCV reads.
_ANCILLARY = 0x20
_OF_PIXELS = frozenset([b"tRNS", b"acTL", b"fcTL", b"fdAT"])
# Formats of OpenCV that Pillow does not know: Radiance and portable float maps.
_RADIANCE = re.compile(rb"#\?(?:RADIANCE|RGBE)\n.*?\n\n[-+]Y (\d+) [-+]X (\d+)\n", re.DOTALL)
_FLOAT_MAP = re.compile(rb"P[Ff]\s+(\d+)\s+(\d+)\s")
_ISPE_BYTES = 16
_HEADER_BYTES = 1 << 16


class TooLargeError(ValueError):
    """An image has more pixels than are decoded.

    Args:
        height: rows of the image.
        width: columns of the image.
        limit: the option `max_pixels`.
        what: further words on the pixels, for the message.
    """

    def __init__(self, height: int, width: int, limit: int, what: str = "") -> None:
        super().__init__(
            f"its header says {height} x {width} pixels{what}, more than max_pixels={limit:,} allow; decode= with "
            "ImageDecoder(max_pixels=...) takes larger ones"
        )


def check_size(height: int, width: int, limit: int) -> None:
    """Raises a TooLargeError for an image of more pixels than `limit`."""
    if height * width > limit:
        raise TooLargeError(height, width, limit)


def format_of(content: Content) -> str:
    """Returns the format of an image by its first bytes: `OTHER` for all that are not told apart."""
    start = bytes(content[:12])
    if start[:3] == b"\xff\xd8\xff":
        return JPEG
    if start[:8] == _PNG_MAGIC:
        return PNG
    if start[:4] in TIFF_MAGICS:
        return TIFF
    if start[:1] == b"P" and start[1:2] in {b"5", b"6", b"7"}:
        return NETPBM
    if start[:4] == b"RIFF" and start[8:] == b"WEBP":
        return WEBP
    if start[:4] == _CODESTREAM or start == b"\0\0\0\x0cjP  \r\n\x87\n":
        return JPEG2000
    return AVIF if start[4:] in {b"ftypavif", b"ftypavis"} else OTHER


def jpeg_size(content: Content) -> tuple[int, int]:
    """Returns height and width of a JPEG; raises a ValueError if it has no header of a frame."""
    view = memoryview(content)
    at = 2
    while at + 9 <= len(view):
        marker = view[at + 1]
        if view[at] != 0xFF or marker in {0x00, 0xFF}:
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            return int.from_bytes(view[at + 5 : at + 7], "big"), int.from_bytes(view[at + 7 : at + 9], "big")
        else:
            at += 2 + int.from_bytes(view[at + 2 : at + 4], "big")
    raise ValueError("the JPEG has no frame")


def png_size(content: Content) -> tuple[int, int, int, int]:
    """Returns height, width, bits of a value and type of colours of a PNG; raises a ValueError for a damaged header."""
    if len(content) < 26 or bytes(content[12:16]) != b"IHDR":
        raise ValueError("the PNG's header is damaged or cut off")
    width, height = int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")
    return height, width, content[24], content[25]


def png_pixels(content: Content) -> Content:
    """Returns a PNG without the chunks that do not affect its pixels, since libpng prints a warning for damaged ones.

    Raises a ValueError for a chunk that says it is longer than the rest of the file: OpenCV would take memory for all
    of it, up to 4 GiB.
    """
    view = memoryview(content)
    parts = list[memoryview]()
    kept = 0
    at = 8
    while at + 12 <= len(view):
        end = at + 12 + int.from_bytes(view[at : at + 4], "big")
        if end > len(view):
            raise ValueError(f"the PNG's chunk at byte {at} ends {end - len(view):,} bytes behind the end of the file")
        if view[at + 4] & _ANCILLARY and bytes(view[at + 4 : at + 8]) not in _OF_PIXELS:
            parts.append(view[kept:at])
            kept = end
        if bytes(view[at + 4 : at + 8]) == b"IEND":
            break
        at = end
    return b"".join([*parts, view[kept:]]) if parts else content


def check_png(content: Content) -> None:
    """Raises a ValueError if a chunk that affects the pixels is cut off or has a wrong checksum.

    Pillow does not check these checksums.
    """
    view = memoryview(content)
    at = 8
    while at + 12 <= len(view):
        length = int.from_bytes(view[at : at + 4], "big")
        name = bytes(view[at + 4 : at + 8])
        end = at + 12 + length
        if not name[0] & _ANCILLARY or name in _OF_PIXELS:
            stored = int.from_bytes(view[end - 4 : end], "big")
            if end > len(view) or zlib.crc32(view[at + 4 : end - 4]) != stored:
                raise ValueError(f"the checksum of the PNG's chunk {name!r} at byte {at} is wrong: damaged")
        if name == b"IEND":
            return
        at = end


def webp_size(content: Content) -> tuple[int, int, bool]:
    """Returns height and width of a WebP, and whether it is an animation. A damaged header gives any numbers."""
    head = bytes(content[12:30]).ljust(18, b"\0")
    if head[:4] == b"VP8X":
        width, height = 1 + int.from_bytes(head[12:15], "little"), 1 + int.from_bytes(head[15:18], "little")
        return height, width, bool(head[8] & 2)
    if head[:4] == b"VP8L":
        bits = int.from_bytes(head[9:13], "little")
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF), False
    return int.from_bytes(head[16:18], "little") & 0x3FFF, int.from_bytes(head[14:16], "little") & 0x3FFF, False


def jpeg2000_depths(content: Content) -> list[int]:
    """Returns the bits of each component of a JPEG 2000, negative for signed ones, or [] if it has no header."""
    head = bytes(content[:_HEADER_BYTES])
    at = head.find(_CODESTREAM)
    if at < 0:
        return []
    count = int.from_bytes(head[at + 40 : at + 42], "big")
    sizes = head[at + 42 : at + 42 + 3 * count : 3]
    return [-((size & 0x7F) + 1) if size & 0x80 else size + 1 for size in sizes]


def is_plain_jpeg2000(content: Content) -> bool:
    """Whether Pillow returns the values of a JPEG 2000 as they are.

    It does if they are unsigned, of the same number of bits (at most 8) in each component, and without a palette.
    """
    depths = jpeg2000_depths(content)
    return len(set(depths)) == 1 and 0 < depths[0] <= 8 and b"pclr" not in bytes(content[:_HEADER_BYTES])


def avif_depth(content: Content) -> int:
    """Returns the bits of the values of an AVIF: 8, 10 or 12. It is 8 if the header is not found."""
    head = bytes(content[:_HEADER_BYTES])
    at = head.find(b"av1C")
    if at < 0 or at + 7 > len(head):
        return 8
    flags = head[at + 6]
    return 12 if flags & 0x60 == 0x60 else 10 if flags & 0x40 else 8


def size_for_opencv(content: Content) -> tuple[int, int]:
    """Returns height and width of a Radiance, float map, JPEG 2000 or AVIF, which OpenCV decodes.

    Raises a ValueError for all other formats.
    """
    head = bytes(content[:_HEADER_BYTES])
    if (found := _RADIANCE.match(head)) is not None:
        return int(found[1]), int(found[2])
    if (found := _FLOAT_MAP.match(head)) is not None:
        return int(found[2]), int(found[1])
    if format_of(head) == JPEG2000 and (at := head.find(_CODESTREAM)) >= 0:
        sides = [int.from_bytes(head[at + start : at + start + 4], "big") for start in (8, 12, 16, 20)]
        return max(0, sides[1] - sides[3]), max(0, sides[0] - sides[2])
    if format_of(head) == AVIF:
        places = [match.start() for match in re.finditer(b"ispe", head)]
        sizes = [
            (int.from_bytes(head[at + 12 : at + 16], "big"), int.from_bytes(head[at + 8 : at + 12], "big"))
            for at in places
        ]
        if sizes:
            return max(sizes, key=lambda size: size[0] * size[1])
    raise ValueError("not an image of a format that is read: JPEG, PNG, TIFF, WebP, BMP, GIF, PPM, AVIF, JPEG 2000")
