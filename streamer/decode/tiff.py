"""Decodes the values of TIFFs, and makes images of them: as they are stored, or RGB of 8 bits.

`decode/images.py` decodes TIFFs with it, after `decode/tiff_page.py` has read their directory.

Every strip or tile is decompressed to exactly its size, then placed. The values are those of tifffile, whatever their
type, bands and order of planes (tests/formats/test_pictures.py). What is not read here is refused. Values that are not
compressed, or by deflate, are read by numpy and zlib. Other compressions are undone by the libtiff inside Pillow, which
gets the compressed bytes as a plain grey image of bytes, so that it does not interpret the values.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.base.system_limits import raise_shortage
from streamer.decode.base import require_library
from streamer.decode.tiff_page import WAY_OUT, Content, TiffPage

Values = NDArray[Any]

# Compressions, by their numbers in TIFFs.
_NONE = 1
_CCITT = (2, 3, 4)
_LZW = 5
_JPEG = 7
_DEFLATE = (8, 32946)
_PACKBITS = 32773
_LZMA = 34925
_ZSTD = 50000
_BY_PILLOW = frozenset([_LZW, _PACKBITS, _LZMA, _ZSTD])
# Predictors.
_NO_PREDICTOR = 1
_HORIZONTAL = 2
_FLOATING = 3
# Photometrics, which say what the bands mean.
_GREY = 1
_RGB = 2
_INKS = 5
_YCBCR = 6
# Photometrics that are read of JPEGs, by their number of bands, and of JPEGs of single planes.
_JPEG_COLOURS = {1: (0, _GREY), 3: (_GREY, _RGB, _YCBCR), 4: (_INKS,)}
_JPEG_PLANES = (0, _GREY, _RGB, _INKS)
# All bytes with their bits in reverse order.
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_ZLIB_HEADER = 15


def read_values(content: Content, page: TiffPage) -> Values:
    """Returns the values of an image: (height, width, bands), of `page.dtype`.

    Args:
        content: bytes of the file.
        page: directory of the image.

    Raises:
        ValueError: the values are damaged, cut off, or compressed in a way that is not read here.
        ConfigError: Pillow is needed, and not installed.
    """
    _check_page(page)
    page = _merge_strips(page)
    bands = 1 if page.planar else page.samples
    below, beside = page.cells_of_plane
    found = np.empty((page.height, page.width, page.samples), page.dtype)
    covered = 0
    for numbers, values in _read_cells(memoryview(content), page):
        if values.shape[3] != bands or values.dtype != found.dtype or len(values) != len(numbers):
            raise AssertionError(f"strips of {values.dtype} {values.shape} for {found.dtype} {found.shape}")
        for number, cell in zip(numbers, values, strict=True):
            plane, place = divmod(number, below * beside)
            top = place // beside * page.cell[0]
            left = place % beside * page.cell[1]
            rows = min(page.height - top, cell.shape[0])
            columns = min(page.width - left, cell.shape[1])
            planes = slice(plane, plane + 1) if page.planar else slice(None)
            # Values beyond the image are left out.
            found[top : top + rows, left : left + columns, planes] = cell[:rows, :columns]
            covered += int(rows * columns * cell.shape[2])
    if covered != found.size:
        raise AssertionError(f"{covered} of {found.size} values of a TIFF are written")
    return found


def _check_page(page: TiffPage) -> None:
    """Raises a ValueError for a compression, prediction or kind of values that would not be decoded right."""
    if page.compression == _JPEG:
        known = page.bits == 8 and page.kind == "u" and page.predictor == _NO_PREDICTOR
        colours = _JPEG_PLANES if page.planar else _JPEG_COLOURS.get(page.samples, ())
        if not known or page.photometric not in colours:
            raise ValueError(
                f"the TIFF is a JPEG of {page.samples} bands of {page.bits} bits, photometric {page.photometric}; "
                f"{WAY_OUT}"
            )
        return
    if page.compression in _CCITT:
        if (page.bits, page.samples, page.kind) != (1, 1, "u") or page.tiled:
            raise ValueError(f"the TIFF is a fax of {page.samples} bands of {page.bits} bits; {WAY_OUT}")
        return
    if page.compression not in {_NONE, *_DEFLATE, *_BY_PILLOW}:
        raise ValueError(f"the TIFF is compressed by method {page.compression}, which is not read here; {WAY_OUT}")
    whole = page.bits in {8, 16, 32, 64} and page.kind in "uif"
    predictors = {_NO_PREDICTOR, *([_HORIZONTAL] if whole else []), *([_FLOATING] if page.kind == "f" else [])}
    if page.compression == _NONE or page.compression == _PACKBITS:
        # libtiff knows no prediction for these, and neither does any writer.
        predictors = {_NO_PREDICTOR}
    if page.predictor not in predictors:
        raise ValueError(
            f"the TIFF's values are predicted by method {page.predictor} (compression {page.compression}, "
            f"{page.bits} bits of {page.kind!r}), which is not read here; {WAY_OUT}"
        )
    if page.photometric == _YCBCR and page.subsampling != (1, 1):
        raise ValueError(f"the TIFF's chroma is subsampled by {page.subsampling} without JPEG; {WAY_OUT}")


def _merge_strips(page: TiffPage) -> TiffPage:
    """Returns the page with one strip for each plane, if its strips lie one after the other without compression.

    Any other page is returned as it is.
    """
    if page.compression != _NONE or page.tiled or page.cell[0] == page.height:
        return page
    rows = math.ceil(page.height / page.cell[0])
    size = _row_bytes(page)
    places = np.array(page.places, np.int64)
    for plane in places.reshape(-1, rows, 2):
        lengths = np.full(rows, size * page.cell[0])
        lengths[-1] = size * (page.height - page.cell[0] * (rows - 1))
        if (plane[:, 1] != lengths).any() or (plane[1:, 0] != plane[:-1, 0] + lengths[:-1]).any():
            return page
    merged = tuple((offset, size * page.height) for offset, _ in page.places[::rows])
    return page._replace(cell=(page.height, page.width), places=merged)


def _row_bytes(page: TiffPage) -> int:
    """Returns the number of bytes of a row of a strip or tile, without compression."""
    return math.ceil(page.cell[1] * (1 if page.planar else page.samples) * page.bits / 8)


def _read_cells(view: memoryview, page: TiffPage) -> Iterator[tuple[list[int], Values]]:
    """Yields all strips or tiles in groups of one shape: their numbers, and their values (cells, rows, columns, bands).

    A strip or tile that is not stored has the fill value of the page.
    """
    groups: dict[int, list[int]] = {}
    per_plane = math.prod(page.cells_of_plane)
    for number, (_, count) in enumerate(page.places):
        top = number % per_plane // page.cells_of_plane[1] * page.cell[0]
        rows = page.cell[0] if page.tiled else min(page.cell[0], page.height - top)
        groups.setdefault(rows if count else -rows, []).append(number)
    for rows, numbers in groups.items():
        shape = (len(numbers), abs(rows), page.cell[1], 1 if page.planar else page.samples)
        if rows < 0:
            yield numbers, np.full(shape, page.fill, page.dtype)
            continue
        parts = [view[offset : offset + count] for offset, count in (page.places[number] for number in numbers)]
        if page.reversed_bits and page.compression not in _CCITT:
            parts = [memoryview(bytes(part).translate(_REVERSED)) for part in parts]
        if page.compression == _JPEG or page.compression in _CCITT:
            yield numbers, _read_images(parts, page, rows).reshape(shape)
            continue
        plain = _decompress(parts, page.compression, rows, _row_bytes(page))
        yield numbers, _decode_values(plain, page, shape)


def _decompress(parts: list[memoryview], compression: int, rows: int, row_bytes: int) -> NDArray[np.uint8]:
    """Decompresses strips or tiles of `rows` rows: uint8 (parts, rows, bytes of a row); a ValueError for damage."""
    shape = (len(parts), rows, row_bytes)
    if compression in _BY_PILLOW:
        page = {256: row_bytes, 257: rows * len(parts), 258: 8, 259: compression, 262: _GREY, 277: 1, 278: rows}
        found = _read_by_pillow(page, parts)
        return found.reshape(shape)
    size = rows * row_bytes
    if compression in _DEFLATE:
        parts = [_inflate(part, size) for part in parts]
    for part in parts:
        if len(part) < size:
            raise ValueError(f"a strip or tile of the TIFF has {len(part)} bytes, its {rows} rows need {size}")
    if len(parts) == 1:
        return np.frombuffer(parts[0], np.uint8, size).reshape(shape)
    return np.frombuffer(b"".join(part[:size] for part in parts), np.uint8).reshape(shape)


def _inflate(part: memoryview, size: int) -> memoryview:
    """Decompresses a strip or tile to `size` bytes by deflate; a ValueError if it is damaged or its checksum wrong."""
    # Imported here, since most images are not compressed by deflate.
    from streamer.formats.compressed import inflate

    stream = inflate.decompressobj(_ZLIB_HEADER)
    try:
        # The limit is one byte more, because the checksum is only compared at the end.
        found = stream.decompress(part, size + 1)
    except inflate.error as error:
        raise ValueError(f"a strip or tile of the TIFF is damaged: {error}") from error
    if len(found) == size and not stream.eof:
        raise ValueError("a strip or tile of the TIFF is cut off before its checksum")
    return memoryview(found)[:size]


def _decode_values(plain: NDArray[np.uint8], page: TiffPage, shape: tuple[int, ...]) -> Values:
    """Makes values of the decompressed bytes: undoes the prediction, the packing of bits and the order of bytes."""
    cells, rows, columns, bands = shape
    if page.bits not in {8, 16, 32, 64, 128}:
        packed = np.unpackbits(plain, axis=2, count=columns * bands * page.bits)
        packed = packed.reshape(cells, rows, columns * bands, page.bits)
        found = np.zeros(packed.shape[:3], page.dtype)
        for bit in range(page.bits):
            found <<= 1
            found |= packed[..., bit]
        return found.reshape(shape)
    if page.predictor == _FLOATING:
        # A row has the first bytes of all values, then the second ones, and so on, as differences.
        size = page.bits // 8
        summed = np.cumsum(plain.reshape(cells, rows, -1, bands), axis=2, dtype=np.uint8)
        mixed = summed.reshape(cells, rows, size, columns * bands)
        ordered = np.ascontiguousarray(np.moveaxis(mixed, 2, 3))
        return ordered.view(f">f{size}").astype(page.dtype).reshape(shape)
    found = plain.reshape(-1).view(page.dtype.newbyteorder(page.order)).reshape(shape)
    found = found.astype(page.dtype, copy=False)
    if page.predictor == _HORIZONTAL:
        unsigned = np.dtype(f"u{page.dtype.itemsize}")
        found = np.cumsum(found.view(unsigned), axis=2, dtype=unsigned).view(page.dtype)
    return found


def _read_images(parts: list[memoryview], page: TiffPage, rows: int) -> NDArray[np.uint8]:
    """Decodes strips or tiles that are JPEGs or faxes, of `rows` rows each: all of them, one below the other."""
    bands = 1 if page.planar else page.samples
    photometric = _GREY if bands == 1 else page.photometric if page.photometric != _GREY else _RGB
    tags: dict[int, object] = {
        256: page.cell[1],
        257: rows * len(parts),
        258: (page.bits,) * bands,
        259: page.compression,
        262: photometric,
        266: 2 if page.reversed_bits else 1,
        277: bands,
        278: rows,
        **page.fax_options,
    }
    if photometric == _YCBCR:
        tags[530] = page.subsampling
    if page.jpeg_tables:
        tags[347] = page.jpeg_tables
    return _read_by_pillow(tags, parts).astype(np.uint8)


def _read_by_pillow(tags: dict[int, Any], parts: list[memoryview]) -> Values:
    """Decodes strips with the libtiff inside Pillow: (rows, columns), or (rows, columns, bands).

    Pillow gets a TIFF with these tags and nothing else, so that it applies no orientation and converts no colours.

    Raises:
        ValueError: the strips are damaged.
        ConfigError: Pillow is not installed.
    """
    plugin = require_library("PIL.TiffImagePlugin")
    try:
        found = np.array(plugin.TiffImageFile(io.BytesIO(_write_tiff(tags, parts))))
    except Exception as error:  # a library of its own errors, below SyntaxError, OSError and others
        raise_shortage(error)
        raise ValueError(
            f"a strip or tile of the TIFF is damaged, or libtiff does not read it: {error}; {WAY_OUT}"
        ) from error
    if found.shape[:2] != (tags[257], tags[256]):
        raise ValueError(f"Pillow reads {found.shape} of a TIFF of {tags[257]} x {tags[256]}")
    return found


def _write_tiff(tags: dict[int, Any], parts: list[memoryview]) -> bytes:
    """Returns the bytes of a little-endian TIFF with these tags and strips."""
    joined = b"".join(parts)
    offsets = []
    end = 8
    for part in parts:
        offsets.append(end)
        end += len(part)
    fields = {**tags, 273: tuple(offsets), 279: tuple(map(len, parts))}
    directory = [struct.pack("<H", len(fields))]
    more = []
    after = end + 2 + 12 * len(fields) + 4
    for tag, value in sorted(fields.items()):
        if isinstance(value, bytes):
            type_code = 7
            count = len(value)
            packed = value
        else:
            numbers = value if isinstance(value, tuple) else (value,)
            # Pillow compares some tags with tuples of shorts.
            type_code, letter = (3, "H") if tag in {258, 259, 262, 266, 277, 530} else (4, "I")
            count = len(numbers)
            packed = struct.pack(f"<{len(numbers)}{letter}", *numbers)
        if len(packed) > 4:
            more.append(packed)
            offset = after
            after += len(packed)
            packed = struct.pack("<I", offset)
        directory.append(struct.pack("<HHI", tag, type_code, count) + packed.ljust(4, b"\0"))
    return b"".join([struct.pack("<2sHI", b"II", 42, end), joined, *directory, bytes(4), *more])


_WHITE_IS_ZERO = 0
_PALETTE = 3
# Words for photometrics that do not become RGB.
_NAMES = {
    4: "a mask",
    6: "YCbCr",
    8: "CIELab",
    9: "CIELab",
    10: "CIELab",
    32803: "a colour filter array",
    -1: "not said",
}
# Number of bands that are colours, by photometric.
_COLOURS = {_WHITE_IS_ZERO: 1, _GREY: 1, _RGB: 3, _PALETTE: 1, _INKS: 4, _YCBCR: 3}
# Meanings of bands beyond the colours: not said, and an alpha that the colours are multiplied with.
_UNSPECIFIED = 0
_MULTIPLIED = 1
_KEEP = "decode= with ImageDecoder(mode='stored') keeps them"


def arrange_values(values: Values, page: TiffPage) -> Values:
    """Returns the values as mode "stored" delivers them: (height, width), or (height, width, bands) for several bands.

    Values of fewer than 8 bits are scaled to 0 to 255, unless they are indices of a palette.
    """
    if page.bits < 8 and page.photometric != _PALETTE:
        values = _scale(values, page.bits)
    return values[:, :, 0] if page.samples == 1 else values


def convert_to_rgb(values: Values, page: TiffPage) -> NDArray[np.uint8]:
    """Converts values to RGB of 8 bits: uint8 (height, width, 3).

    Of values with more bits the 8 highest are kept. Colours are divided by an alpha that they are multiplied with. Then
    alpha and other bands beyond the colours are dropped.

    Args:
        values: (height, width, bands), unsigned, of at most 16 bits.
        page: directory of the image.

    Raises:
        ValueError: the file does not say what the bands mean, they are no colours, or its palette is damaged.
        ConfigError: the colours are inks, and Pillow is not installed.
    """
    count = check_colours(page)
    bits = page.bits
    if page.photometric == _PALETTE:
        entries = 2**bits
        if len(page.colormap) != 3 * entries:
            raise ValueError(f"its palette has {len(page.colormap)} numbers, {page.bits} bits need {3 * entries}")
        palette = (np.array(page.colormap, np.uint16) >> 8).astype(np.uint8)
        found: NDArray[np.uint8] = np.ascontiguousarray(palette.reshape(3, entries).T)[values[:, :, 0]]
        return found
    if bits > 8:
        values = (values >> (bits - 8)).astype(np.uint8)
    elif bits < 8:
        values = _scale(values, bits)
    colours = values[:, :, :count]
    if page.photometric == _WHITE_IS_ZERO:
        colours = 255 - colours
    if page.extra[:1] == (_MULTIPLIED,) and count < page.samples:
        # Colours are divided by the alpha that they are multiplied with, as Pillow does.
        alpha = values[:, :, count : count + 1].astype(np.uint16)
        divided = np.minimum(colours.astype(np.uint16) * 255 // np.maximum(alpha, 1), 255)
        colours = np.where(alpha == 0, 0, divided).astype(np.uint8)
    if page.photometric == _INKS:
        inks = require_library("PIL.Image").fromarray(np.ascontiguousarray(colours), "CMYK")
        return np.array(inks.convert("RGB"))
    return np.repeat(colours, 3, axis=2) if count == 1 else np.ascontiguousarray(colours)


def check_colours(page: TiffPage) -> int:
    """Returns the number of bands that are colours: 1, 3 or 4.

    Raises:
        ValueError: the bands are not colours that become RGB, or their meaning is not known.
    """
    count = _COLOURS.get(page.photometric, 0)
    ours = count and not (page.photometric == _YCBCR and page.compression != _JPEG)
    if not ours or page.samples < count or (page.photometric == _INKS and page.ink_set != 1):
        name = _NAMES.get(page.photometric, f"photometric {page.photometric}")
        raise ValueError(f"its {page.samples} bands ({name}) are not colours that become RGB; {_KEEP}")
    extra = page.extra or (_UNSPECIFIED,) * (page.samples - count)
    if count == 1 and page.samples > 1 and (page.samples > 2 or extra[0] == _UNSPECIFIED):
        raise ValueError(f"its {page.samples} bands have no meaning as colours; {_KEEP}")
    return count


def _scale(values: Values, bits: int) -> NDArray[np.uint8]:
    """Scales values of fewer than 8 bits to 0 to 255."""
    highest = 2**bits - 1
    table = (np.arange(highest + 1) * 255 + highest // 2) // highest
    found: NDArray[np.uint8] = table.astype(np.uint8)[values]
    return found
