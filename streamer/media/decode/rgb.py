"""Converts frames of PyAV to RGB, and resizes and turns them, for `video.py`.

Frames of their own size are bit by bit those of `frame.to_ndarray(format="rgb24")` with bicubic interpolation. Those
that are resized differ by at most 5 of 255, and by 1 in the mean, unless they are noise. Frames with all 256 levels of
luma (yuvj) differ by up to 15 in single pixels.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np

from streamer.decode.base import Array

if TYPE_CHECKING:
    from av import VideoFrame
    from av.video.plane import VideoPlane

# Numbers of the planes of gbrp that are red, green and blue.
_RED_GREEN_BLUE = (2, 0, 1)
# Swscale converts frames of these formats to three planes with the values of rgb24. That is three times as fast as
# taking packed RGB apart. Rows must be multiples of 32 columns and heights even: swscale leaves out the rest.
_TO_PLANES = frozenset(["yuv420p", "yuvj420p", "yuv422p", "yuvj422p"])
_STEP_COLUMNS = 32
# Frames of these formats are resized in another format of YUV, with as much chroma as swscale uses for resizing to RGB.
# That takes a third of the time (2026-11-28).
_RESIZED_AS = {"yuv420p": "yuv422p", "yuv422p": "yuv422p", "yuvj420p": "yuvj422p", "yuvj422p": "yuvj422p"}
# Frames that become smaller by a larger factor are resized to RGB: sums over more rows are rounded otherwise.
_MAX_SHRUNK = 8
# The version of PyAV from which on reformatters take a number of threads.
_WITH_THREADS = 17
# Reformatters of each thread; and those that a parent process had before a fork, kept so that they are not freed.
_kept = threading.local()
_of_parent: list[dict[str, object]] = []


def write_rgb(frame: VideoFrame, size: tuple[int, int] | None, rotation: int, target: Array, *, planar: bool) -> None:
    """Writes a frame as RGB.

    Args:
        frame: the frame.
        size: height and width in `target`, or None for those of the frame.
        rotation: degrees counterclockwise by which the frame is turned: 0, 90, 180 or 270.
        target: uint8 [3, height, width] or, unless `planar`, [height, width, 3], which is written.
        planar: whether `target` has a plane for each colour.

    Raises:
        ValueError: FFmpeg does not convert the frame to RGB.
    """
    height, width = turn_size(size, rotation) or (frame.height, frame.width)
    has_other_size = (frame.height, frame.width) != (height, width)
    resized_as = _RESIZED_AS.get(frame.format.name)
    if has_other_size and resized_as and width % 2 == 0 and frame.height <= _MAX_SHRUNK * height:
        frame = _reformat(frame, width, height, resized_as)
        has_other_size = False
    is_even = frame.width % _STEP_COLUMNS == 0 and frame.height % 2 == 0
    if planar and not has_other_size and is_even and frame.format.name in _TO_PLANES:
        planes = _reformat(frame, width, height, "gbrp").planes
        for colour, number in enumerate(_RED_GREEN_BLUE):
            plane = _plane(planes[number], height, width, 1)[..., 0]
            target[colour] = np.rot90(plane, rotation // 90) if rotation else plane
        return
    image = _plane(_reformat(frame, width, height, "rgb24").planes[0], height, width, 3)
    if rotation:
        image = np.rot90(image, rotation // 90)
    target[...] = np.moveaxis(image, -1, 0) if planar else image


def turn_size(size: tuple[int, int] | None, rotation: int) -> tuple[int, int] | None:
    """Returns the (height, width) before a rotation of a frame that has `size` after it; None stays None."""
    return size[::-1] if size is not None and rotation % 180 else size


def _plane(plane: VideoPlane, height: int, width: int, channels: int) -> Array:
    """Returns a view of a plane, [height, width, channels]; raises ValueError if its rows are fewer or shorter."""
    length = plane.line_size
    if plane.height != height or length < width * channels or plane.buffer_size < length * height:
        raise ValueError(
            f"FFmpeg gives a frame of {plane.height} rows of {length} bytes, {height} rows of {width * channels} are "
            "needed"
        )
    rows: Array = np.frombuffer(plane, np.uint8, length * height)  # type: ignore[call-overload]  # a buffer
    return rows.reshape(height, length)[:, : width * channels].reshape(height, width, channels)


def _leave_behind() -> None:
    """Forgets the reformatters of the parent process after a fork, without freeing them: their threads are not here."""
    _of_parent.append(dict(_kept.__dict__))
    _kept.__dict__.clear()


os.register_at_fork(after_in_child=_leave_behind)


def _reformat(frame: VideoFrame, width: int, height: int, form: str) -> VideoFrame:
    """Returns the frame in this size and format of pixels (bicubic); raises ValueError if FFmpeg cannot make it."""
    import av
    from av.video.reformatter import Interpolation, VideoReformatter

    # There is one reformatter for each format of the result. A new one is made where anything else changes, because
    # PyAV before 17 keeps some of it.
    known: dict[str, tuple[object, VideoReformatter]] = _kept.__dict__.setdefault("reformatters", {})
    key = (frame.format.name, frame.width, frame.height, frame.colorspace, frame.color_range, width, height)
    if form not in known or known[form][0] != key:
        known[form] = key, VideoReformatter()
    # Reformatters of PyAV 16 have no threads; later ones have one for each core, unless a number is given.
    one = {"threads": 1} if int(av.__version__.partition(".")[0]) >= _WITH_THREADS else {}
    try:
        return known[form][1].reformat(frame, width, height, form, interpolation=Interpolation.BICUBIC, **one)
    except (av.FFmpegError, OSError) as error:
        raise ValueError(f"FFmpeg does not turn {frame.format.name} to RGB: {error}") from error
