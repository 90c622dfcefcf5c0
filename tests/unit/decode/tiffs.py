"""Writes TIFFs of any bands, types and layouts, without a library: what tests read is known to the byte."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

DEFLATE = 8
GREY, RGB, PALETTE, INKS = 1, 2, 3, 5
_KINDS = {"u": 1, "i": 2, "f": 3}


def write_tiff(
    values: np.ndarray,
    *,
    planar: bool = False,
    photometric: int = GREY,
    extra: int = 0,
    deflate: bool = False,
    predicted: bool = False,
    cell: tuple[int, int] | None = None,
    strip_rows: int = 0,
    order: str = "<",
    more: Sequence[tuple[int, int, Sequence[int]]] = (),
) -> bytes:
    """Returns a file of values (height, width, bands), in strips, or in tiles of the shape `cell`.

    Args:
        values: numbers of any type.
        planar: whether bands come one after the other.
        photometric: meaning of the bands.
        extra: meaning of the first band beyond the colours.
        deflate: whether strips are compressed.
        predicted: whether differences of neighbours are stored.
        cell: rows and columns of tiles.
        strip_rows: rows of strips; 0: all.
        order: "<" or ">".
        more: tag, type (3 or 4) and numbers of other entries.
    """
    height, width, bands = values.shape
    rows, columns = cell or (strip_rows or height, width)
    stored = []
    for plane in np.moveaxis(values, 2, 0)[..., None] if planar else [values]:
        for top in range(0, height, rows):
            for left in range(0, width, columns):
                part = plane[top : top + rows, left : left + columns]
                if cell:
                    part = np.pad(part, [(0, rows - part.shape[0]), (0, columns - part.shape[1]), (0, 0)])
                if predicted:
                    whole = (
                        part.view(f"u{part.itemsize}")
                        if part.flags.c_contiguous
                        else part.copy().view(f"u{part.itemsize}")
                    )
                    part = np.diff(whole, axis=1, prepend=np.zeros_like(whole[:, :1]))
                content = part.astype(part.dtype.newbyteorder(order)).tobytes()
                stored.append(zlib.compress(content) if deflate else content)
    colours = {RGB: 3, INKS: 4}.get(photometric, 1)
    entries = [
        (256, 4, [width]),
        (257, 4, [height]),
        (258, 3, [values.itemsize * 8] * bands),
        (259, 3, [DEFLATE if deflate else 1]),
        (262, 3, [photometric]),
        (277, 3, [bands]),
        (284, 3, [2 if planar else 1]),
        (317, 3, [2 if predicted else 1]),
        (339, 3, [_KINDS[values.dtype.kind]] * bands),
        *([(322, 4, [columns]), (323, 4, [rows])] if cell else [(278, 4, [rows])]),
        (324 if cell else 273, 4, np.cumsum([8, *map(len, stored)])[:-1].tolist()),
        (325 if cell else 279, 4, list(map(len, stored))),
        *([(338, 3, [extra] + [0] * (bands - colours - 1))] if bands > colours else []),
        *more,
    ]
    return _joined(sorted(entries), b"".join(stored), order)


def _joined(entries: Sequence[tuple[int, int, Sequence[int]]], stored: bytes, order: str) -> bytes:
    """Joins header, strips and directory of a file."""
    start = 8 + len(stored)
    after, tail, directory = start + 2 + 12 * len(entries) + 4, b"", struct.pack(f"{order}H", len(entries))
    for tag, kind, numbers in entries:
        packed = struct.pack(f"{order}{len(numbers)}{'H' if kind == 3 else 'I'}", *numbers)
        if len(packed) > 4:
            tail, packed = tail + packed, struct.pack(f"{order}I", after + len(tail))
        directory += struct.pack(f"{order}HHI", tag, kind, len(numbers)) + packed.ljust(4, b"\0")
    magic = b"II" if order == "<" else b"MM"
    return struct.pack(f"{order}2sHI", magic, 42, start) + stored + directory + bytes(4) + tail
