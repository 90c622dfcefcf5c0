"""Depth cameras of LeRobot: videos of 12 bits whose numbers stand for distances. No I/O.

Source: lerobot 0.6, configs/video.py (DepthEncoderConfig) and datasets/depth_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

# How the kinds of fields of depth begin.
DEPTH = "depth:"
_MARKS = ("is_depth_map", "video.is_depth_map")


class Depth(msgspec.Struct, frozen=True):
    """How distances were stored, in metres: linearly from `depth_min` to `depth_max`, or the logarithms of them.

    Attributes:
        depth_min, depth_max: distances of the least and of the largest number.
        shift: what was added before the logarithm.
        use_log: whether logarithms are stored.
    """

    # The defaults of lerobot.
    depth_min: float = 0.01
    depth_max: float = 10.0
    shift: float = 3.5
    use_log: bool = True

    def __post_init__(self) -> None:
        numbers = (self.depth_min, self.depth_max, self.shift)
        if not all(map(math.isfinite, numbers)) or self.depth_max <= self.depth_min:
            raise ValueError(f"depth_min={self.depth_min}, depth_max={self.depth_max}, shift={self.shift}")
        if self.use_log and self.depth_min + self.shift <= 0:
            raise ValueError(f"the logarithm of depth_min + shift = {self.depth_min + self.shift}")

    @property
    def kind(self) -> str:
        """Kind of the field."""
        return DEPTH + msgspec.json.encode(self).decode()


def depth_of(info: Mapping[str, Any]) -> Depth | None:
    """Reads the `info` of a feature; returns None if it is not one of depth.

    Raises:
        ValueError: It is, and says distances that cannot be.
    """
    if not any(info.get(mark) is True for mark in _MARKS):
        return None
    found = {}
    for name in Depth.__struct_fields__:
        value = info.get(f"video.{name}", info.get(name))
        if value is not None:
            found[name] = value
    try:
        return msgspec.convert(found, Depth)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def read_kind(kind: str) -> Depth:
    """Returns what a kind says."""
    return msgspec.json.decode(kind.removeprefix(DEPTH), type=Depth)
