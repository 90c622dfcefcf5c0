"""Reads the directory of a TIFF: size, bands, types and places of what it stores. No pixel is decoded here.

`decode/images.py` reads it first, to refuse images that are too large, and `decode/tiff.py` decodes the values.

Source: TIFF 6.0 (Adobe, 1992), its technical notes, and BigTIFF (libtiff.gitlab.io/libtiff/specification/bigtiff.html).
"""

from __future__ import annotations

import math
import struct
from typing import Literal, NamedTuple

import numpy as np

Content = bytes | bytearray | memoryview

# First bytes of TIFFs and BigTIFFs of both orders of bytes.
MAGICS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

# Letters of struct by the types of values that directories have.
_LETTERS = {1: "B", 2: "s", 3: "H", 4: "I", 6: "b", 7: "s", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q", 18: "Q"}
# Tags of a directory.
_WIDTH = 256
_HEIGHT = 257
_BITS = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_FILL_ORDER = 266
_STRIP_OFFSETS = 273
_SAMPLES = 277
_STRIP_ROWS = 278
_STRIP_COUNTS = 279
_PLANAR = 284
_T4_OPTIONS = 292
_T6_OPTIONS = 293
_PREDICTOR = 317
_COLORMAP = 320
_TILE_WIDTH = 322
_TILE_HEIGHT = 323
_TILE_OFFSETS = 324
_TILE_COUNTS = 325
_INK_SET = 332
_EXTRA_SAMPLES = 338
_SAMPLE_FORMAT = 339
_JPEG_TABLES = 347
_SUBSAMPLING = 530
_DEPTH = 32997
_NODATA = 42113
# Values of tags: bands that are stored together, unsigned values, and numpy's letters of the formats of values.
_ONE_PLANE = 1
_UNSIGNED = 1
_KINDS = {_UNSIGNED: "u", 2: "i", 3: "f", 6: "c"}
# Numbers of bits that are read, by numpy's letter.
_BITS_OF_KIND = {"u": frozenset(range(1, 17)) | {32, 64}, "i": {8, 16, 32, 64}, "f": {16, 32, 64}, "c": {64, 128}}
_PHOTOMETRIC_MISSING = -1
_MAX_ENTRIES = 4096
_NO_COMPRESSION = 1
# Ending of errors for TIFFs that are not read here.
WAY_OUT = "decode={'tif': your_function} reads it with any library, tifffile for example"


class TiffPage(NamedTuple):
    """The first image of a TIFF, as its directory describes it.

    Attributes:
        order: order of bytes, "<" or ">".
        height: number of rows.
        width: number of columns.
        samples: number of bands of a pixel.
        bits: number of bits of each value.
        kind: numpy's letter of the values: u, i, f or c.
        photometric: number of the meaning of the bands, or -1 if the file does not say it.
        compression: number of the compression.
        predictor: number of the prediction before the compression.
        planar: whether the bands are stored one after the other.
        reversed_bits: whether the first pixel of a byte is in its lowest bit.
        extra: meanings of the bands beyond the colours: 0 unspecified, 1 multiplied alpha, 2 alpha.
        cell: rows and columns of a strip or a tile. The last strip may have fewer rows.
        tiled: whether there are tiles, all of one size, and not strips.
        places: offset and length in bytes of each strip or tile. One of length 0 is not stored.
        colormap: red, green and blue of a palette: all red values, then all green and all blue ones, of 16 bits. () if
            there is none.
        jpeg_tables: tables that the JPEG strips have in common, or b"".
        subsampling: subsampling of chroma, across and down.
        fax_options: options of CCITT's compressions, by their tag.
        ink_set: 1 for cyan, magenta, yellow and black.
        fill: value of strips and tiles that are not stored.
    """

    order: Literal["<", ">"]
    height: int
    width: int
    samples: int
    bits: int
    kind: str
    photometric: int
    compression: int
    predictor: int
    planar: bool
    reversed_bits: bool
    extra: tuple[int, ...]
    cell: tuple[int, int]
    tiled: bool
    places: tuple[tuple[int, int], ...]
    colormap: tuple[int, ...]
    jpeg_tables: bytes
    subsampling: tuple[int, ...]
    fax_options: dict[int, int]
    ink_set: int
    fill: float

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Smallest type, in this machine's order of bytes, that holds the values."""
        return np.dtype(f"{self.kind}{max(1, math.ceil(2 ** math.ceil(math.log2(self.bits)) / 8))}")

    @property
    def cells_of_plane(self) -> tuple[int, int]:
        """Number of strips or tiles from top to bottom, and from left to right."""
        return math.ceil(self.height / self.cell[0]), math.ceil(self.width / self.cell[1])


class _TiffDirectory:
    """The values of the first directory of a file, by tag. A ValueError is raised for what lies outside of the file."""

    def __init__(self, content: Content) -> None:
        view = memoryview(content)
        self.order: Literal["<", ">"] = "<" if bytes(view[:2]) == b"II" else ">"
        self._view = view
        self._big = self._number("H", 2) == 43
        letter, count_letter, entry, inline = ("Q", "Q", 20, 8) if self._big else ("I", "H", 12, 4)
        start = self._number(letter, 8 if self._big else 4)
        count = self._number(count_letter, start)
        if not 0 < count <= _MAX_ENTRIES:
            raise ValueError(f"the TIFF's directory has {count} entries")
        first = start + struct.calcsize(f"={count_letter}")
        self._entries: dict[int, tuple[int, int, int]] = {}
        for at in range(first, first + count * entry, entry):
            tag = self._number("H", at)
            type_code = self._number("H", at + 2)
            number = self._number(letter, at + 4)
            value_at = at + 4 + inline
            size = number * (struct.calcsize(_LETTERS[type_code]) if type_code in _LETTERS else 8)
            self._entries[tag] = type_code, number, value_at if size <= inline else self._number(letter, value_at)

    def values(self, tag: int, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Returns the integers of a tag, or `default` if the directory does not have the tag."""
        if tag not in self._entries:
            return default
        type_code, number, at = self._entries[tag]
        letter = _LETTERS.get(type_code, "s")
        if letter == "s":
            raise ValueError(f"tag {tag} of the TIFF is of type {type_code}, not of integers")
        size = struct.calcsize(letter) * number
        if at + size > len(self._view):
            raise ValueError(f"tag {tag} of the TIFF ends at byte {at + size} of {len(self._view)}: truncated")
        return struct.unpack_from(f"{self.order}{number}{letter}", self._view, at)

    def __contains__(self, tag: int) -> bool:
        return tag in self._entries

    def value(self, tag: int, default: int | None = None) -> int:
        """Returns the integer of a tag, whose values must all be the same. `default` is that of a missing tag."""
        found = set(self.values(tag, () if default is None else (default,)))
        if len(found) != 1:
            raise ValueError(f"tag {tag} of the TIFF has {len(found)} values where it needs one: {sorted(found)[:5]}")
        return found.pop()

    def content(self, tag: int) -> bytes:
        """Returns the bytes of a tag, or b"" if the directory does not have the tag."""
        if tag not in self._entries:
            return b""
        type_code, number, at = self._entries[tag]
        if _LETTERS.get(type_code) not in {"s", "B"} or at + number > len(self._view):
            raise ValueError(f"tag {tag} of the TIFF has no bytes within the file")
        return bytes(self._view[at : at + number])

    def _number(self, letter: str, at: int) -> int:
        if at + struct.calcsize(letter) > len(self._view):
            raise ValueError(f"the TIFF's directory ends at byte {at} of {len(self._view)}: truncated")
        return int(struct.unpack_from(f"{self.order}{letter}", self._view, at)[0])


def read_page(content: Content) -> TiffPage:
    """Reads the directory of the first image of a file.

    Raises:
        ValueError: the directory is damaged, or describes what is not read here. The text says which.
    """
    found = _TiffDirectory(content)
    height, width = found.value(_HEIGHT), found.value(_WIDTH)
    samples = found.value(_SAMPLES, 1)
    if not height or not width or not samples:
        raise ValueError(f"the TIFF is of {height} x {width} pixels of {samples} bands")
    if (depth := found.value(_DEPTH, 1)) != 1:
        raise ValueError(f"the TIFF is a volume of {depth} planes; {WAY_OUT}")
    bits = found.value(_BITS, 1)
    sample_format = found.value(_SAMPLE_FORMAT, _UNSIGNED)
    kind = _KINDS.get(sample_format, "")
    if bits not in _BITS_OF_KIND.get(kind, ()):
        raise ValueError(f"the TIFF's values are of {bits} bits and sample format {sample_format}; {WAY_OUT}")
    tiled = _TILE_OFFSETS in found
    if tiled:
        cell = found.value(_TILE_HEIGHT), found.value(_TILE_WIDTH)
    else:
        cell = min(found.value(_STRIP_ROWS, height), height), width
    if not all(cell):
        raise ValueError(f"the TIFF's strips or tiles are of {cell[0]} x {cell[1]} pixels")
    page = TiffPage(
        order=found.order,
        height=height,
        width=width,
        samples=samples,
        bits=bits,
        kind=kind,
        photometric=found.value(_PHOTOMETRIC, _PHOTOMETRIC_MISSING),
        compression=found.value(_COMPRESSION, 1),
        predictor=found.value(_PREDICTOR, 1),
        planar=samples > 1 and found.value(_PLANAR, _ONE_PLANE) != _ONE_PLANE,
        reversed_bits=found.value(_FILL_ORDER, 1) != 1,
        extra=found.values(_EXTRA_SAMPLES),
        cell=cell,
        tiled=tiled,
        places=(),
        colormap=found.values(_COLORMAP),
        jpeg_tables=found.content(_JPEG_TABLES),
        subsampling=found.values(_SUBSAMPLING, (2, 2)),
        fax_options={tag: found.value(tag) for tag in (_T4_OPTIONS, _T6_OPTIONS) if found.values(tag)},
        ink_set=found.value(_INK_SET, 1),
        fill=_fill(found.content(_NODATA)),
    )
    tags = (_TILE_OFFSETS, _TILE_COUNTS) if tiled else (_STRIP_OFFSETS, _STRIP_COUNTS)
    return page._replace(places=_places(page, found.values(tags[0]), found.values(tags[1]), len(content)))


def _fill(nodata: bytes) -> float:
    """Returns the value of strips and tiles that are not stored: GDAL's text for missing values, or 0."""
    try:
        return float(nodata.rstrip(b"\0 ") or 0)
    except ValueError:
        return 0.0


def _places(
    page: TiffPage, offsets: tuple[int, ...], counts: tuple[int, ...], size: int
) -> tuple[tuple[int, int], ...]:
    """Returns offset and length of each strip or tile that the image needs; a ValueError if one is not in the file."""
    needed = math.prod(page.cells_of_plane) * (page.samples if page.planar else 1)
    if len(offsets) < needed:
        raise ValueError(f"the TIFF has {len(offsets)} strips or tiles, its {page.height} rows need {needed}")
    if len(counts) < needed:
        if page.compression != _NO_COMPRESSION and needed > 1:
            raise ValueError(f"the TIFF has the lengths of {len(counts)} strips or tiles of {needed}")
        counts = tuple(size - offset for offset in offsets)
    places = tuple(zip(offsets[:needed], counts[:needed], strict=True))
    if (end := max(offset + count for offset, count in places)) > size:
        raise ValueError(f"the TIFF's values end at byte {end}, the file has {size}: truncated")
    return places
