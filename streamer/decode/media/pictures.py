"""Frames of PyAV as RGB, equal to torchcodec's."""

from __future__ import annotations

import os
import threading
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from streamer.decode.media.decoder import Array

if TYPE_CHECKING:
    from av import VideoFrame
    from av.video.plane import VideoPlane

_EIGHT_BITS = 8
# Planes of gbrp that are red, green and blue.
_RED_GREEN_BLUE = (2, 0, 1)
# Of PyAV, whose reformatters take a number of threads.
_WITH_THREADS = 17
_kept = threading.local()
_of_parent: list[dict[str, object]] = []


def write_rgb(frame: VideoFrame, size: tuple[int, int] | None, rotation: int, target: Array, *, planar: bool) -> None:
    """Writes a frame as RGB.

    Pictures are resized before they are turned to RGB, so that both orders of dimensions are equal. Those of more than
    8 bits go through FFmpeg's filter, which rounds as torchcodec does.

    Args:
        frame: the frame.
        size: height and width in `target`; None: those of the frame.
        rotation: degrees counterclockwise.
        target: uint8 [3, height, width] or, unless `planar`, [height, width, 3].
        planar: see `target`.
    """
    height, width = turned(size, rotation) or (frame.height, frame.width)
    if frame.format.components[0].bits > _EIGHT_BITS:
        found = _plane(_filtered(frame, width, height).planes[0], height, width, 3)
        found = np.moveaxis(found, -1, 0) if planar else found
        _put(found, rotation, target, planar=planar)
        return
    if (frame.height, frame.width) != (height, width):
        frame = _reformat(frame, width, height, frame.format.name)
    if not planar:
        _put(
            _plane(_reformat(frame, width, height, "rgb24").planes[0], height, width, 3), rotation, target, planar=False
        )
        return
    planes = _reformat(frame, width, height, "gbrp").planes
    for colour, number in enumerate(_RED_GREEN_BLUE):
        plane = _plane(planes[number], height, width, 1)[..., 0]
        target[colour] = np.rot90(plane, rotation // 90) if rotation else plane


def turned(size: tuple[int, int] | None, rotation: int) -> tuple[int, int] | None:
    """Returns height and width before a rotation."""
    return size[::-1] if size is not None and rotation % 180 else size


def _put(picture: Array, rotation: int, target: Array, *, planar: bool) -> None:
    target[...] = np.rot90(picture, rotation // 90, (1, 2) if planar else (0, 1)) if rotation else picture


def _plane(plane: VideoPlane, height: int, width: int, channels: int) -> Array:
    rows: Array = np.frombuffer(plane, np.uint8, plane.line_size * height)  # type: ignore[call-overload]  # a buffer
    return rows.reshape(height, plane.line_size)[:, : width * channels].reshape(height, width, channels)


def _leave_behind() -> None:
    """Forgets what the parent process has made: its threads do not exist in this one, which must not free it either."""
    _of_parent.append(dict(_kept.__dict__))
    _kept.__dict__.clear()


os.register_at_fork(after_in_child=_leave_behind)


def _reformat(frame: VideoFrame, width: int, height: int, form: str) -> VideoFrame:
    import av
    from av.video.reformatter import Interpolation, VideoReformatter

    known: VideoReformatter | None = _kept.__dict__.get("reformatter")
    if known is None:
        known = _kept.__dict__["reformatter"] = VideoReformatter()
    # Before PyAV 17 it has no threads; from then on it has one for each core, unless it is told.
    one = {"threads": 1} if int(av.__version__.partition(".")[0]) >= _WITH_THREADS else {}
    return known.reformat(frame, width, height, form, interpolation=Interpolation.BICUBIC, **one)


def _filtered(frame: VideoFrame, width: int, height: int) -> VideoFrame:
    import av

    key = (frame.format.name, frame.width, frame.height, width, height)
    known, ends = _kept.__dict__.get("graph", (None, []))
    if known != key:
        graph = av.filter.Graph()
        # PyAV before 18 cannot be told: then it has a thread for each core.
        if hasattr(graph, "threads"):
            graph.threads = 1
        source = graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 1000)
        )
        ends = [
            source,
            graph.add("scale", f"{width}:{height}:flags=bicubic"),
            graph.add("format", "pix_fmts=rgb24"),
            graph.add("buffersink"),
        ]
        graph.link_nodes(*ends).configure()
        # Its filters refer to the graph, but do not keep it.
        _kept.graph = key, [*ends, graph]
    ends[0].push(frame)
    pulled: VideoFrame = ends[3].pull()
    return pulled
