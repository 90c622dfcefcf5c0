"""Scales, cuts and mirrors pictures: arrays (height, width) or (height, width, bands)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamer.decode.images import place
from streamer.decode.libraries import library
from streamer.errors import ConfigError

Picture = NDArray[np.uint8]
# top, left, height, width in pixels.
Box = tuple[int, int, int, int]

# What OpenCV scales: types, and bands of a pixel.
_SCALED_TYPES = frozenset(["u1", "u2", "i2", "f4", "f8"])
_MAX_BANDS = 4


def resize(
    picture: Picture,
    height: int,
    width: int,
    out: Picture | None = None,
    *,
    antialias: bool = True,
    nearest: bool = False,
) -> Picture:
    """Scales to height x width: averages areas of pixels when shrinking, interpolates when growing.

    Args:
        picture: uint8 (rows, columns, 3); may be a view.
        height: rows of the result.
        width: columns of the result.
        out: written and returned if it is C-contiguous and of the result's shape.
        antialias: False interpolates between four pixels when shrinking, too, as `cv2.resize` does by default: 500 x
            375 to 224 x 224 in 0.1 ms instead of 1.1, which is as long as the decoder takes (2026-11-22). If a picture
            shrinks to less than half its size, pixels are lost.
        nearest: True takes the nearest pixel, of any type: a mask has no classes that were not there before.
    """
    if picture.shape[:2] == (height, width):
        return copied(picture, out)
    if nearest:
        rows = ((np.arange(height) + 0.5) * picture.shape[0] / height).astype(np.intp)
        columns = ((np.arange(width) + 0.5) * picture.shape[1] / width).astype(np.intp)
        return place(np.ascontiguousarray(picture[rows][:, columns]), out)
    if picture.dtype.str[1:] not in _SCALED_TYPES:
        raise ConfigError(
            f"a picture of {picture.dtype} is not scaled, because its values cannot be averaged; convert it in a step "
            "before, or scale it by nearest=True",
            field="transform",
        )
    if picture.ndim > 2 and not 1 < picture.shape[2] <= _MAX_BANDS:
        # OpenCV drops the axis of one band, and knows four at most.
        starts = range(0, picture.shape[2], _MAX_BANDS)
        parts = [picture[:, :, start : start + _MAX_BANDS] for start in starts]
        parts = [part[:, :, 0] if part.shape[2] == 1 else part for part in map(np.ascontiguousarray, parts)]
        scaled = [resize(part, height, width, antialias=antialias) for part in parts]
        return place(np.dstack(scaled), out)
    fits = out is not None and _fits((height, width, *picture.shape[2:]), picture, out)
    cv2 = library("cv2")
    if cv2 is None:
        return place(_resize_by_pillow(picture, height, width, antialias), out if fits else None)
    averages = antialias and height * width < picture.shape[0] * picture.shape[1]
    # OpenCV silently allocates another array if `dst` does not fit: hence `fits`.
    found: Picture = cv2.resize(
        picture,
        (width, height),
        dst=out if fits else None,
        interpolation=cv2.INTER_AREA if averages else cv2.INTER_LINEAR,
    )
    return out if fits and out is not None else found


def crop(picture: Picture, box: Box) -> Picture:
    """Returns the box as a view, without copying."""
    top, left, height, width = box
    return picture[top : top + height, left : left + width]


def flip(picture: Picture, out: Picture | None = None) -> Picture:
    """Mirrors left and right, into `out` (which may be the picture itself) or a new array."""
    cv2 = library("cv2")
    if (
        cv2 is None
        or picture.size == 0
        or picture.dtype != np.uint8
        or (picture.ndim > 2 and picture.shape[2] not in (3, 4))
    ):
        # OpenCV makes int32 of int64, and drops the axis of one band.
        return copied(picture[:, ::-1], out)
    # 4 us for 224 x 224 where numpy takes 190 (2026-11-20).
    fits = out is not None and _fits(picture.shape, picture, out)
    if fits and not np.may_share_memory(picture, out):
        cv2.flip(picture, 1, dst=out)
        return out  # type: ignore[return-value]
    return copied(cv2.flip(picture, 1), out)


def copied(picture: Picture, out: Picture | None) -> Picture:
    """Copies to `out` if it fits; otherwise copies the view, so that it does not keep the whole picture."""
    if out is not None and out.shape == picture.shape and out.dtype == picture.dtype:
        # numpy copies through a buffer if the two overlap.
        np.copyto(out, picture)
        return out
    return picture if picture.base is None and picture.flags.c_contiguous else picture.copy()


def _fits(shape: tuple[int, ...], picture: Picture, out: Picture) -> bool:
    """Whether OpenCV writes a result of this shape to `out`: pictures may have another type, or no colours."""
    return out.shape == shape and out.dtype == picture.dtype and out.flags.c_contiguous


def _resize_by_pillow(picture: Picture, height: int, width: int, antialias: bool) -> Picture:
    image = library("PIL.Image")
    if image is None:
        raise ConfigError("resizing needs OpenCV or Pillow; `pip install 'streamer-data[images]'`", field="transform")
    if picture.ndim > 2 and (picture.dtype != np.uint8 or picture.shape[2] != 3):
        # Pillow would multiply colours by a fourth band.
        bands = [_resize_by_pillow(picture[:, :, band], height, width, antialias) for band in range(picture.shape[2])]
        return np.dstack(bands)
    if picture.dtype.kind in "iu" and picture.dtype != np.uint8:
        # Pillow averages no integers of 16 bits.
        return np.rint(_resize_by_pillow(picture.astype(np.float32), height, width, antialias)).astype(picture.dtype)
    whole = np.ascontiguousarray(picture, np.float32 if picture.dtype.kind == "f" else None)
    source = image.fromarray(whole)
    (rows, columns) = picture.shape[:2]
    bilinear = image.Resampling.BILINEAR
    if not antialias:  # `Image.resize` always does so
        steps = (columns / width, 0, 0, 0, rows / height, 0)
        moved = source.transform((width, height), image.Transform.AFFINE, steps, bilinear)
        return np.array(moved).astype(picture.dtype, copy=False)
    how = image.Resampling.BOX if height * width < rows * columns else bilinear
    return np.array(source.resize((width, height), how)).astype(picture.dtype, copy=False)
