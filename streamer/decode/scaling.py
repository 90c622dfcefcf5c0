"""Scales, cuts and mirrors images: arrays (height, width) or (height, width, bands).

The steps of `decode/transforms.py` are made of it. It uses OpenCV if that is installed, otherwise Pillow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamer.decode.base import library
from streamer.decode.images import place
from streamer.errors import ConfigError

Image = NDArray[np.uint8]
# A part of an image: top, left, height, width in pixels.
Box = tuple[int, int, int, int]

# Types of values that OpenCV scales, and the largest number of bands that it scales at once.
_SCALED_TYPES = frozenset(["u1", "u2", "i2", "f4", "f8"])
_MAX_BANDS = 4


def resize(
    image: Image,
    height: int,
    width: int,
    out: Image | None = None,
    *,
    antialias: bool = True,
    nearest: bool = False,
) -> Image:
    """Scales to height x width: averages areas of pixels when shrinking, interpolates when growing.

    Args:
        image: (rows, columns) or (rows, columns, bands) of a type in `_SCALED_TYPES`. It may be a view.
        height: rows of the result.
        width: columns of the result.
        out: array that is written and returned if it is C-contiguous and has the result's shape and type.
        antialias: False interpolates between four pixels when shrinking, too, as `cv2.resize` does by default. 500 x
            375 to 224 x 224 then takes 0.1 ms instead of 1.1, which is as long as the decoder takes (2026-11-22). If an
            image shrinks to less than half its size, pixels are lost.
        nearest: True takes the nearest pixel, of any type, so that a mask has no new classes.

    Returns:
        `out` if it fits. Otherwise the image itself if it has the size already, or a new array.

    Raises:
        ConfigError: values of this type cannot be averaged, or neither OpenCV nor Pillow is installed.
    """
    if image.shape[:2] == (height, width):
        return copy_to(image, out)
    if nearest:
        rows = ((np.arange(height) + 0.5) * image.shape[0] / height).astype(np.intp)
        columns = ((np.arange(width) + 0.5) * image.shape[1] / width).astype(np.intp)
        return place(np.ascontiguousarray(image[rows][:, columns]), out)
    if image.dtype.str[1:] not in _SCALED_TYPES:
        raise ConfigError(
            f"an image of {image.dtype} is not scaled, because its values cannot be averaged; convert it in a step "
            "before, or scale it by nearest=True",
            field="transform",
        )
    if image.ndim > 2 and not 1 < image.shape[2] <= _MAX_BANDS:
        # OpenCV drops the axis of a single band, and knows at most four bands.
        starts = range(0, image.shape[2], _MAX_BANDS)
        parts = [image[:, :, start : start + _MAX_BANDS] for start in starts]
        parts = [part[:, :, 0] if part.shape[2] == 1 else part for part in map(np.ascontiguousarray, parts)]
        scaled = [resize(part, height, width, antialias=antialias) for part in parts]
        return place(np.dstack(scaled), out)
    fits = out is not None and _fits((height, width, *image.shape[2:]), image, out)
    cv2 = library("cv2")
    if cv2 is None:
        return place(_resize_by_pillow(image, height, width, antialias), out if fits else None)
    averages = antialias and height * width < image.shape[0] * image.shape[1]
    # OpenCV silently allocates another array if `dst` does not fit: hence `fits`.
    found: Image = cv2.resize(
        image,
        (width, height),
        dst=out if fits else None,
        interpolation=cv2.INTER_AREA if averages else cv2.INTER_LINEAR,
    )
    return out if fits and out is not None else found


def crop(image: Image, box: Box) -> Image:
    """Returns a part of an image as a view, without copying."""
    top, left, height, width = box
    return image[top : top + height, left : left + width]


def flip(image: Image, out: Image | None = None) -> Image:
    """Mirrors left and right. Returns `out` if it fits, which may be the image itself, otherwise a new array."""
    cv2 = library("cv2")
    if cv2 is None or image.size == 0 or image.dtype != np.uint8 or (image.ndim > 2 and image.shape[2] not in (3, 4)):
        # numpy does it here, since OpenCV makes int32 of int64, and drops the axis of a single band.
        return copy_to(image[:, ::-1], out)
    # 4 us for 224 x 224 where numpy takes 190 (2026-11-20).
    fits = out is not None and _fits(image.shape, image, out)
    if fits and not np.may_share_memory(image, out):
        cv2.flip(image, 1, dst=out)
        return out  # type: ignore[return-value]
    return copy_to(cv2.flip(image, 1), out)


def copy_to(image: Image, out: Image | None) -> Image:
    """Copies the image to `out` and returns that, if its shape and type are those of the image.

    Otherwise it returns the image, or a copy of a view, which would keep the memory of the whole image.
    """
    if out is not None and out.shape == image.shape and out.dtype == image.dtype:
        # numpy copies through a buffer if the two overlap.
        np.copyto(out, image)
        return out
    return image if image.base is None and image.flags.c_contiguous else image.copy()


def _fits(shape: tuple[int, ...], image: Image, out: Image) -> bool:
    """Whether OpenCV writes a result of this shape to `out`, which must have that shape and the image's type."""
    return out.shape == shape and out.dtype == image.dtype and out.flags.c_contiguous


def _resize_by_pillow(image: Image, height: int, width: int, antialias: bool) -> Image:
    """Scales without OpenCV, each band by itself unless the image is RGB of 8 bits; a ConfigError without Pillow."""
    pillow = library("PIL.Image")
    if pillow is None:
        raise ConfigError("resizing needs OpenCV or Pillow; `pip install 'streamer-data[images]'`", field="transform")
    if image.ndim > 2 and (image.dtype != np.uint8 or image.shape[2] != 3):
        # Pillow would multiply colours by a fourth band.
        bands = [_resize_by_pillow(image[:, :, band], height, width, antialias) for band in range(image.shape[2])]
        return np.dstack(bands)
    if image.dtype.kind in "iu" and image.dtype != np.uint8:
        # Pillow averages no integers of 16 bits.
        return np.rint(_resize_by_pillow(image.astype(np.float32), height, width, antialias)).astype(image.dtype)
    whole = np.ascontiguousarray(image, np.float32 if image.dtype.kind == "f" else None)
    source = pillow.fromarray(whole)
    (rows, columns) = image.shape[:2]
    bilinear = pillow.Resampling.BILINEAR
    if not antialias:  # Pillow's `resize` always averages
        steps = (columns / width, 0, 0, 0, rows / height, 0)
        moved = source.transform((width, height), pillow.Transform.AFFINE, steps, bilinear)
        return np.array(moved).astype(image.dtype, copy=False)
    how = pillow.Resampling.BOX if height * width < rows * columns else bilinear
    return np.array(source.resize((width, height), how)).astype(image.dtype, copy=False)
