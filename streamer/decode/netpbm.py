"""Decodes binary PGM, PPM and PAM of 8 and 16 bits, with values up to any maxval.

`decode/images.py` decodes such files with it.

Source: https://netpbm.sourceforge.net/doc/pgm.html, ppm.html and pam.html.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Content = bytes | bytearray | memoryview

# Headers of PGM and PPM, and of PAM.
_PLAIN = re.compile(rb"P([56])(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:\s|#[^\n]*\n)+(\d+)(?:#[^\n]*\n|\s)")
_PAM = re.compile(rb"P7\n(.*?)ENDHDR\n", re.DOTALL)
# Number of bands of a pixel by TUPLTYPE of a PAM, of those that are colours.
_BANDS = {"GRAYSCALE": 1, "BLACKANDWHITE": 1, "RGB": 3, "GRAYSCALE_ALPHA": 2, "BLACKANDWHITE_ALPHA": 2, "RGB_ALPHA": 4}
_HEADER_BYTES = 1 << 14


class NetpbmHeader(NamedTuple):
    """What the header of a file says of its pixels.

    Attributes:
        height: number of rows.
        width: number of columns.
        bands: number of values of a pixel.
        maxval: value of white, 1 to 65535.
        colours: whether the bands are grey or RGB, with or without alpha.
        start: offset in bytes of the first value.
    """

    height: int
    width: int
    bands: int
    maxval: int
    colours: bool
    start: int


def read_header(content: Content) -> NetpbmHeader:
    """Reads the header of a file; raises a ValueError if it is damaged or cut off."""
    head = bytes(content[:_HEADER_BYTES])
    if (plain := _PLAIN.match(head)) is not None:
        found = NetpbmHeader(
            height=int(plain[3]),
            width=int(plain[2]),
            bands=1 if plain[1] == b"5" else 3,
            maxval=int(plain[4]),
            colours=True,
            start=plain.end(),
        )
    elif (pam := _PAM.match(head)) is not None:
        lines = [line.split(maxsplit=1) for line in pam[1].decode("latin-1").splitlines() if line[:1] != "#"]
        named = {line[0]: line[1].strip() for line in lines if len(line) == 2}
        numbers = {name: named.get(name, "") for name in ("HEIGHT", "WIDTH", "DEPTH", "MAXVAL")}
        if not all(text.isdecimal() for text in numbers.values()):
            raise ValueError(f"the header of the PAM has {numbers}, which are not four numbers")
        height, width, bands, maxval = map(int, numbers.values())
        colours = _BANDS.get(named.get("TUPLTYPE", "")) == bands
        found = NetpbmHeader(height=height, width=width, bands=bands, maxval=maxval, colours=colours, start=pam.end())
    else:
        raise ValueError("the header of the PGM, PPM or PAM is damaged or cut off")
    if not (found.height and found.width and found.bands and 0 < found.maxval < 1 << 16):
        raise ValueError(f"the header says {found.height} x {found.width} x {found.bands}, maxval {found.maxval}")
    return found


def read_values(content: Content, header: NetpbmHeader) -> NDArray[Any]:
    """Returns the values as they are stored: (height, width, bands), uint8 or for a maxval above 255 uint16.

    Raises a ValueError if the file is cut off.
    """
    dtype = np.dtype("u1" if header.maxval < 256 else ">u2")
    count = header.height * header.width * header.bands
    if len(content) - header.start < count * dtype.itemsize:
        raise ValueError(
            f"the image has {len(content) - header.start} bytes of values, {header.height} x {header.width} x "
            f"{header.bands} need {count * dtype.itemsize}: truncated"
        )
    found = np.frombuffer(content, dtype, count, header.start).reshape(header.height, header.width, header.bands)
    return found.astype(dtype.newbyteorder("="))


def scale_values(values: NDArray[Any], maxval: int, white: int) -> NDArray[Any]:
    """Scales values so that `maxval` becomes `white` (255 or 65535). Larger values become white, as in Pillow."""
    if maxval == white:
        return values
    table = np.minimum(np.rint(np.arange(int(values.max(initial=0)) + 1) / maxval * white), white)
    found: NDArray[Any] = table.astype(values.dtype)[values]
    return found
