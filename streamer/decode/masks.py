"""Masks from the segmentation that COCO's annotations have: polygons or run lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError


def coco_masks(sample: Mapping[str, Any]) -> NDArray[np.uint8]:
    """The masks of a sample's objects: uint8 (objects, height, width), 1 inside.

        annotations=Annotations(url, fields=["boxes", "labels", "segmentation", "height", "width"])

    Args:
        sample: with "segmentation", "height" and "width".

    Raises:
        ConfigError: pycocotools is not installed, or the sample lacks one of them.
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
    if not sample["segmentation"]:
        return np.zeros((0, height, width), np.uint8)
    encoded = []
    for segmentation in sample["segmentation"]:
        if isinstance(segmentation, list):
            encoded.append(mask.merge(mask.frPyObjects(segmentation, height, width)))
        elif isinstance(segmentation["counts"], list):
            encoded.append(mask.frPyObjects(segmentation, height, width))
        else:
            encoded.append(segmentation)
    return np.ascontiguousarray(mask.decode(encoded).transpose(2, 0, 1))
