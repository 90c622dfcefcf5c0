"""Decodes videos of depth of LeRobot, as `LeRobotDataset` does: float32 millimetres [1, height, width]."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from streamer.decode.target import Array
from streamer.media.containers.tables import Integers
from streamer.media.decode.decoder import memory_for
from streamer.media.decode.video import Frames, decode_frames
from streamer.media.decode.video_packets import VideoPackets
from streamer.media.lerobot.depth import Depth

if TYPE_CHECKING:
    pass

_BITS = 12
_MAX = (1 << _BITS) - 1
_MM_PER_METRE = 1000.0
_MAX_MM = 65_535.0


@dataclass(frozen=True)
class DepthFrames(Frames):
    """Decodes the frames of a depth camera: whole millimetres as float32, [frames, 1, height, width].

    Attributes:
        depth: How distances were stored.
    """

    depth: Depth = field(default_factory=Depth)

    def decode_video(self, video: VideoPackets, pts: Integers, shape: tuple[int, ...], out: Array | None) -> Array:
        """Decodes the frames of these times, which get this shape."""
        frames = decode_frames(video, pts.tolist())
        first = frames[0]
        made = memory_for((*shape, 1, first.height, first.width), np.float32, out)
        for frame, target in zip(frames, made.reshape(-1, first.height, first.width), strict=True):
            if (frame.height, frame.width) != (first.height, first.width):
                raise ValueError(f"its frames change from {first.width}x{first.height} to {frame.width}x{frame.height}")
            # The numbers of a frame are its luma.
            luma = frame.format.components[0]
            if luma.bits != _BITS or not frame.format.name.endswith("le") or frame.format.is_rgb:
                raise ValueError(
                    f"a depth camera has frames of {_BITS} bits, and these are {frame.format.name}: leave it out "
                    "(LeRobot(cameras=...)), or record it again"
                )
            plane = frame.planes[0]
            rows: NDArray[np.uint16] = np.frombuffer(memoryview(plane), "<u2").reshape(-1, plane.line_size // 2)
            target[...] = self._millimetres(rows[: frame.height, : frame.width])
        return made

    def _millimetres(self, codes: NDArray[np.uint16]) -> NDArray[np.float32]:
        depth = self.depth
        low, high = depth.depth_min, depth.depth_max
        if depth.use_log:
            low, high = math.log(low + depth.shift), math.log(high + depth.shift)
        found = codes.astype(np.float32)
        found *= np.float32((high - low) / _MAX)
        found += np.float32(low)
        if depth.use_log:
            np.exp(found, out=found)
            found -= np.float32(depth.shift)
        np.clip(found, depth.depth_min, depth.depth_max, out=found)
        found *= np.float32(_MM_PER_METRE)
        np.rint(found, out=found)
        return np.clip(found, 0, _MAX_MM, out=found)
