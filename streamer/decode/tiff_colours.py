"""Makes images of the values of TIFFs: as they are stored, or RGB of 8 bits where the file says what they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.decode.libraries import require_library
from streamer.decode.tiff_page import TiffPage

Values = NDArray[Any]

_WHITE_IS_ZERO = 0
_GREY = 1
_RGB = 2
_PALETTE = 3
_INKS = 5
_YCBCR = 6
_NAMES = {
    4: "a mask",
    6: "YCbCr",
    8: "CIELab",
    9: "CIELab",
    10: "CIELab",
    32803: "a colour filter array",
    -1: "not said",
}
_COLOURS = {_WHITE_IS_ZERO: 1, _GREY: 1, _RGB: 3, _PALETTE: 1, _INKS: 4, _YCBCR: 3}
_UNSPECIFIED = 0
_MULTIPLIED = 1
_JPEG = 7
_KEEP = "decode= with ImageDecoder(mode='stored') keeps them"


def arrange_values(values: Values, page: TiffPage) -> Values:
    """Returns the values: (height, width), of several bands (height, width, bands); fewer than 8 bits as 0 to 255."""
    if page.bits < 8 and page.photometric != _PALETTE:
        values = _scale(values, page.bits)
    return values[:, :, 0] if page.samples == 1 else values


def convert_to_rgb(values: Values, page: TiffPage) -> NDArray[np.uint8]:
    """Converts values of 8 bits, or the high bytes of 16, to RGB; alpha and other bands beyond the colours are dropped.

    Raises:
        ValueError: the file does not say what the bands mean, or they are no colours.
    """
    count = check_colours(page)
    bits = page.bits
    if page.photometric == _PALETTE:
        return _look_up(values[:, :, 0], page)
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
    """Returns the number of bands that are colours; refuses bands whose meaning is not known."""
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


def _look_up(indices: Values, page: TiffPage) -> NDArray[np.uint8]:
    """Returns the colours of a palette."""
    count = 2**page.bits
    if len(page.colormap) != 3 * count:
        raise ValueError(f"its palette has {len(page.colormap)} numbers, {page.bits} bits need {3 * count}")
    palette = (np.array(page.colormap, np.uint16) >> 8).astype(np.uint8)
    found: NDArray[np.uint8] = np.ascontiguousarray(palette.reshape(3, count).T)[indices]
    return found
