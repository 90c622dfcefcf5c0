"""Makes masks of the segmentation in COCO's annotations: polygons or run lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError, DecodeError

RunLengths: TypeAlias = dict[str, Any]
Segmentation: TypeAlias = list[list[float]] | RunLengths

# A polygon has at least three points.
_LEAST_NUMBERS = 6


def coco_masks(sample: Mapping[str, Any]) -> NDArray[np.uint8]:
    """Returns the masks of a sample's objects: uint8 (objects, height, width), 1 inside.

        annotations=Annotations(url, fields=["boxes", "labels", "segmentation", "height", "width"])

    Args:
        sample: a sample with "segmentation", "height" and "width".

    Raises:
        ConfigError: pycocotools is not installed, or the sample lacks one of them.
        DecodeError: an object has only a box, no segmentation.
    """
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ConfigError(
            "coco_masks needs pycocotools: pip install 'streamer-data[coco]'", field="annotations"
        ) from error
    missing = [name for name in ("segmentation", "height", "width") if sample.get(name) is None]
    if missing:
        raise ConfigError(f"coco_masks: the sample has no {missing[0]!r}; name it in fields=", field="fields")
    height, width = sample["height"], sample["width"]
    if boxes := [number for number, each in enumerate(sample["segmentation"]) if not each]:
        raise DecodeError(
            f"coco_masks: {len(boxes)} of {len(sample['segmentation'])} objects have no segmentation (the first is "
            f"number {boxes[0]}); leave such objects out before, with their boxes and labels",
            sample=str(sample.get("__key__", "")),
            field="segmentation",
        )
    encoded = [_encoded(segmentation, height, width) for segmentation in sample["segmentation"]]
    found = np.zeros((len(encoded), height, width), np.uint8)
    for number, runs in enumerate(encoded):
        if runs is not None:
            found[number] = mask.decode(runs)
    return found


def _encoded(segmentation: Segmentation, height: int, width: int) -> RunLengths | None:
    """Returns the run lengths of an object; None if it has no area."""
    from pycocotools import mask

    if isinstance(segmentation, list):
        # Some polygons have two points; pycocotools takes them for boxes.
        polygons = [polygon for polygon in segmentation if len(polygon) >= _LEAST_NUMBERS]
        merged: RunLengths | None = mask.merge(mask.frPyObjects(polygons, height, width)) if polygons else None
        return merged
    if isinstance(segmentation["counts"], list):
        packed: RunLengths = mask.frPyObjects(segmentation, height, width)
        return packed
    return segmentation
