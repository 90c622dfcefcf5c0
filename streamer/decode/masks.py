"""Makes masks of the segmentations in COCO's annotations, which are polygons or run lengths.

`coco_masks` is public: users call it in a transform, and the advice of errors about outlines names it
(`decode/together.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamer.base.extras import require_extra
from streamer.errors import ConfigError, DecodeError

RunLengths: TypeAlias = dict[str, Any]

# Least number of coordinates of a polygon: three points.
_LEAST_NUMBERS = 6
# Largest coordinate of a polygon, and side of a mask: more than the sides of any image.
_MAX_COORDINATE = 1_000_000
# Code of the letter "0", which stands for the five bits 0 in run lengths.
_FIRST_LETTER = 48


def coco_masks(sample: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Returns the masks of a sample's objects: uint8 (objects, height, width), 1 inside of the object and 0 outside.

    Polygons of fewer than three points are left out.

        annotations=Annotations(url, fields=["boxes", "labels", "segmentation", "height", "width"])

    Args:
        sample: a sample with "segmentation" (a list with an entry for each object), "height" and "width" (of the
            image, floats without a fraction, too).

    Raises:
        ConfigError: pycocotools is not installed, or the sample lacks one of the three fields.
        DecodeError: an object has no segmentation, or one that is damaged or does not fit the image, or one of the
            three fields has a value of another type.
    """
    with require_extra("coco_masks", field="annotations"):
        from pycocotools import mask
    missing = [name for name in ("segmentation", "height", "width") if sample.get(name) is None]
    if missing:
        raise ConfigError(f"coco_masks: the sample has no {missing[0]!r}; name it in fields=", field="fields")
    height, width = _read_side(sample, "height"), _read_side(sample, "width")
    given: object = sample["segmentation"]
    if not isinstance(given, list | tuple):
        raise _refuse(sample, "segmentation", f"is of type {type(given).__name__}, not a list with an entry per object")
    if boxes := [
        number for number, each in enumerate(given) if each is None or (isinstance(each, Sized) and not len(each))
    ]:
        raise DecodeError(
            f"coco_masks: {len(boxes)} of {len(given)} objects have no segmentation (the first is number {boxes[0]}); "
            "leave such objects out before, with their boxes and labels",
            sample=str(sample.get("__key__", "")),
            field="segmentation",
        )
    found = np.zeros((len(given), height, width), np.uint8)
    for number, segmentation in enumerate(given):
        try:
            runs = _encode_runs(segmentation, height, width)
        except (ValueError, TypeError, OverflowError) as error:
            raise DecodeError(
                f"coco_masks: the segmentation of object {number} of {len(found)} is refused: {error}",
                sample=str(sample.get("__key__", "")),
                field="segmentation",
            ) from error
        if runs is not None:
            decoded = mask.decode(runs)
            if decoded.shape != (height, width):
                raise AssertionError(f"pycocotools made {decoded.shape} of run lengths of {(height, width)}")
            found[number] = decoded
    return found


def _read_side(sample: Mapping[str, Any], name: str) -> int:
    """Returns the height or the width of a sample's image; raises DecodeError if it is no whole number of pixels."""
    given: object = sample[name]
    is_number = isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)
    if not is_number or not 1 <= given <= _MAX_COORDINATE or given != int(given):  # type: ignore[operator, call-overload]
        raise _refuse(sample, name, f"is {given!r:.100}, not a whole number of pixels from 1 to {_MAX_COORDINATE}")
    return int(given)  # type: ignore[call-overload, no-any-return]


def _refuse(sample: Mapping[str, Any], name: str, what: str) -> DecodeError:
    """Makes the error of a field whose value is not what masks are made of."""
    return DecodeError(f"coco_masks: {name!r} {what}", sample=str(sample.get("__key__", "")), field=name)


def _encode_runs(segmentation: object, height: int, width: int) -> RunLengths | None:
    """Returns the run lengths of an object as pycocotools has them, or None if no polygon has three points.

    They are checked here, since pycocotools checks nothing: pixels that run lengths leave out would be memory that was
    never written.

    Raises:
        ValueError: the segmentation is damaged or does not fit the image.
        TypeError, OverflowError: it has values that are no numbers, or too large.
    """
    from pycocotools import mask

    if isinstance(segmentation, list):
        # Some polygons have only two points. They are left out, because pycocotools would take them for boxes.
        polygons = [polygon for polygon in segmentation if len(polygon) >= _LEAST_NUMBERS]
        for polygon in polygons:
            # pycocotools would take any amount of memory for other coordinates.
            corners = np.array(polygon, np.float64)
            if corners.ndim != 1 or not (np.abs(corners) <= _MAX_COORDINATE).all():
                raise ValueError(
                    f"a polygon's coordinates are not numbers from -{_MAX_COORDINATE} to {_MAX_COORDINATE}"
                )
        merged: RunLengths | None = mask.merge(mask.frPyObjects(polygons, height, width)) if polygons else None
        return merged
    if not isinstance(segmentation, dict) or not {"size", "counts"} <= segmentation.keys():
        raise ValueError("it is neither a list of polygons nor run lengths with size and counts")
    if list(segmentation["size"]) != [height, width]:
        raise ValueError(f"its run lengths are of a mask of {segmentation['size']}, the image is {[height, width]}")
    counts = segmentation["counts"]
    lengths = counts if isinstance(counts, list) else _parse_runs(counts)
    if any(type(length) is not int or length < 0 for length in lengths):
        raise ValueError("its run lengths are not all integers of at least 0")
    if sum(lengths) != height * width:
        raise ValueError(f"its run lengths add up to {sum(lengths)} pixels, the image has {height * width}")
    if isinstance(counts, list):
        encoded: RunLengths = mask.frPyObjects(segmentation, height, width)
        return encoded
    return {"size": [height, width], "counts": counts}


def _parse_runs(counts: str | bytes) -> list[int]:
    """Returns the lengths of the runs in a string of pycocotools; raises a ValueError if it is damaged.

    Each letter has five bits of a number. From the fourth number on, it is the difference to the last but one.

    Source: https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c, `rleFrString`.
    """
    letters = counts.encode("ascii") if isinstance(counts, str) else counts
    lengths: list[int] = []
    value = 0
    shift = 0
    for letter in letters:
        five = letter - _FIRST_LETTER
        if not 0 <= five < 64:
            raise ValueError(f"its run lengths have the letter {chr(letter)!r}, which has no meaning")
        value |= (five & 0x1F) << shift
        shift += 5
        if five & 0x20:
            continue
        if five & 0x10:
            value -= 1 << shift
        if len(lengths) > 2:
            value += lengths[-2]
        lengths.append(value)
        value = 0
        shift = 0
    if shift:
        raise ValueError("its run lengths are cut off inside of a number")
    return lengths
