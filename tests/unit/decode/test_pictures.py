"""Frames as RGB are those of PyAV's conversion, whatever their size, subsampling, depth and order of dimensions."""

from __future__ import annotations

import os
from collections.abc import Iterator

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.media.decode.rgb import write_rgb

BICUBIC = Interpolation.BICUBIC
# The bound of images that are resized: about one of 255 in the mean; of smooth ones at most five, and of those with all
# 256 levels more in single pixels, where sharp edges reach the first or last level (`rgb.py`).
MAX_MEAN, MAX, MAX_OF_FULL_RANGE = 1.6, 5, 15
DEPTHS = {"10le": 1 << 10, "12le": 1 << 12}
USUAL = ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p10le"]
FORMATS = [
    *USUAL, "yuvj422p", "yuvj444p", "yuv420p12le", "yuv410p", "yuv411p", "yuv440p", "yuva420p", "nv12", "yuyv422",
    "gray", "gray10le", "gbrp", "gbrp10le", "rgb24", "bgr24", "bgr0", "rgba", "rgb555le", "pal8", "monow",
]  # fmt: skip
SIZES = [(340, 256), (854, 480), (1080, 1920), (1366, 768), (1920, 1080), (182, 182), (294, 165), (100, 101), (33, 3)]


def noise(form: str, width: int, height: int) -> av.VideoFrame:
    """Makes a frame whose numbers are all possible ones."""
    frame, rng = av.VideoFrame(width, height, form), np.random.default_rng(width * 4096 + height)
    below = next((most for depth, most in DEPTHS.items() if form.endswith(depth)), 0)
    for plane in frame.planes:
        bytes_of_plane = rng.integers(0, 256, plane.buffer_size, dtype=np.uint8)
        if below:
            bytes_of_plane.view("<u2")[...] %= below
        plane.update(bytes_of_plane)
    return frame


def smooth(form: str, width: int, height: int) -> av.VideoFrame:
    """Makes a frame as videos have them: colours that change slowly."""
    x, y = np.arange(width), np.arange(height)[:, None]
    image = np.stack(np.broadcast_arrays(x % 256, 2 * y % 256, (x + y) // 2 % 256), -1).astype(np.uint8)
    return av.VideoFrame.from_ndarray(image, "rgb24").reformat(format=form)


def written(frame: av.VideoFrame, size: tuple[int, int] | None, rotation: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the frame in both orders of dimensions, written to memory that had other numbers before."""
    height, width = size or (frame.height, frame.width)
    if rotation % 180 and size is None:
        height, width = width, height
    planar, packed = np.full((3, height, width), 77, np.uint8), np.full((height, width, 3), 99, np.uint8)
    write_rgb(frame, size, rotation, planar, planar=True)
    write_rgb(frame, size, rotation, packed, planar=False)
    return planar.transpose(1, 2, 0), packed


def check_own_size(form: str, width: int, height: int) -> None:
    frame = noise(form, width, height)
    expected = frame.to_ndarray(format="rgb24", interpolation=BICUBIC)
    for found in written(frame, None):
        assert np.array_equal(found, expected), (form, width, height)


def max_of(form: str) -> int:
    """Returns the largest difference that a resized smooth frame of a format may have."""
    return MAX_OF_FULL_RANGE if form.startswith("yuvj") else MAX


def check_resized(frame: av.VideoFrame, width: int, height: int, most: int) -> None:
    expected = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation=BICUBIC).astype(int)
    planar, packed = written(frame, (height, width))
    away = np.abs(packed - expected)
    said = (frame.format.name, frame.width, frame.height, width, height)
    assert np.array_equal(planar, packed), said
    assert away.mean() <= MAX_MEAN, (said, away.mean())
    assert away.max() <= most, (said, away.max())


@pytest.mark.parametrize("form", FORMATS)
def test_images_of_their_own_size_are_those_of_PyAV(form: str):
    """Frames of any width modulo 16, odd heights and common sizes are PyAV's own conversion, bit by bit."""
    for width, height in [*((32 + rest, 16 + rest % 3) for rest in range(33)), *SIZES[:2], *SIZES[5:]]:
        check_own_size(form, width, height)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.sampled_from(FORMATS), st.integers(2, 400), st.integers(2, 400))
def test_images_of_any_size_are_those_of_PyAV(form: str, width: int, height: int):
    """Frames of drawn formats and sizes are PyAV's own conversion bit by bit, in both orders of dimensions."""
    check_own_size(form, width, height)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(FORMATS), *[st.integers(2, 400)] * 4)
def test_images_that_are_resized_are_near_those_of_PyAV(form: str, width: int, height: int, wide: int, high: int):
    """Resized frames are PyAV's own within the stated bound, and all columns and rows are written."""
    frame = noise(form, width, height)
    check_resized(frame, wide, high, 255)
    if form in USUAL:
        check_resized(smooth(form, max(width, 16), max(height, 16)), wide, high, max_of(form))


@pytest.mark.parametrize("form", ["yuv420p", "yuv420p10le", "rgb24"])
@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_images_are_turned(form: str, rotation: int):
    """Frames are rotated counterclockwise after their conversion."""
    frame = noise(form, 36, 24)
    expected = np.rot90(frame.to_ndarray(format="rgb24", interpolation=BICUBIC), rotation // 90)
    for found in written(frame, None, rotation):
        assert np.array_equal(found, expected)


def test_colours_of_frames_before_do_not_matter():
    """Matrix and range of colours are those of each frame, though a reformatter is kept between frames."""
    frames = []
    for form in ("yuv420p", "yuv420p10le", "yuv444p"):
        for space, colour_range in ((1, 1), (5, 2), (9, 1), (2, 0), (6, 2)):
            frame = noise(form, 38, 22)
            frame.colorspace, frame.color_range = space, colour_range
            frames.append(frame)
    alone = [frame.to_ndarray(format="rgb24", interpolation=BICUBIC) for frame in frames]
    rng = np.random.default_rng(0)
    for number in rng.integers(len(frames), size=60).tolist():
        for found in written(frames[number], None):
            assert np.array_equal(found, alone[number]), number
        check_resized(frames[number], 20, 30, 255)


def sweep() -> Iterator[tuple[int, int]]:
    """Returns every width with several heights and every height with several widths."""
    rng = np.random.default_rng(int(os.environ.get("SEED", "0")))
    for side in range(2, 401):
        for other in (2, 3, 17, *rng.integers(2, 401, 3).tolist()):
            yield side, other
            yield other, side


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", FORMATS)
def test_all_widths_and_heights(form: str):
    """Frames of all sides from 2 to 400, the common sizes and multiples of 32 up to 1920 are PyAV's, bit by bit."""
    for width, height in [*sweep(), *SIZES, *((width, 16) for width in range(416, 1921, 32))]:
        check_own_size(form, width, height)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", USUAL)
def test_all_widths_and_heights_that_images_are_resized_to(form: str):
    """Frames of 340x256 and 65x47 that are resized to all sides from 2 to 400 are PyAV's within the bound."""
    frames = [smooth(form, 340, 256), smooth(form, 65, 47)]
    for number, (width, height) in enumerate(sweep()):
        check_resized(frames[number % 2], width, height, max_of(form))
