"""Draws images as coloured characters, and the frames of a clip as one image, for `streamer show`. No I/O.

A character of the terminal shows two pixels: the upper one as an upper half block, the lower one as background.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

Image = npt.NDArray[np.uint8]

_UPPER_HALF = "▀"
_RESET = "\x1b[0m"
# Sizes of a contact sheet in pixels: a frame has at most this width, and a line of the built-in font is below it.
_MAX_WIDTH = 320
_TEXT_HEIGHT = 14


def half_blocks(image: Image, columns: int, lines: int) -> Iterator[str]:
    """Yields lines of characters, with control sequences for colours, that show an image.

    The image is scaled down to fit, and keeps its shape.

    Args:
        image: uint8 (height, width, 3).
        columns: characters of a line, at most.
        lines: number of lines, at most; each shows two rows of pixels.
    """
    height, width = fit_size(image.shape[0], image.shape[1], columns, 2 * lines)
    small = shrunk(image, height, width)
    for top in range(0, height - height % 2, 2):
        yield "".join(map(_character, small[top], small[top + 1])) + _RESET


def fit_size(height: int, width: int, columns: int, rows: int) -> tuple[int, int]:
    """Returns height and width of an image scaled down to fit; they keep its shape, and the height is even.

    Args:
        height: rows of pixels of the image.
        width: columns of pixels of the image.
        columns: columns of pixels, at most.
        rows: rows of pixels, at most.
    """
    scale = min(columns / width, rows / height, 1.0)
    fitted = max(2, int(height * scale))
    return fitted - fitted % 2, max(1, int(width * scale))


def shrunk(image: Image, height: int, width: int) -> Image:
    """Returns an image scaled down to (height, width, 3): each pixel is the mean of the area that it stands for.

    That is good enough for looking, and needs no library.
    """
    rows = np.linspace(0, image.shape[0], height + 1).astype(int)
    columns = np.linspace(0, image.shape[1], width + 1).astype(int)
    return np.array([[_mean(image, rows[i : i + 2], columns[j : j + 2]) for j in range(width)] for i in range(height)])


def _mean(image: Image, rows: npt.NDArray[np.int_], columns: npt.NDArray[np.int_]) -> Image:
    top = min(rows[0], image.shape[0] - 1)
    left = min(columns[0], image.shape[1] - 1)
    area = image[top : max(rows[1], top + 1), left : max(columns[1], left + 1)]
    colour: Image = area.reshape(-1, 3).mean(axis=0).round().astype(np.uint8)
    return colour


def _character(upper: Image, lower: Image) -> str:
    (r, g, b) = upper.tolist()
    (lr, lg, lb) = lower.tolist()
    return f"\x1b[38;2;{r};{g};{b};48;2;{lr};{lg};{lb}m{_UPPER_HALF}"


def contact_sheet(frames: Image, times: Sequence[float]) -> Image:
    """Draws the frames of a clip side by side in rows, with the time below each.

    Args:
        frames: uint8 (frames, height, width, 3).
        times: time of each frame in seconds; if empty, no times are drawn.

    Returns:
        One image, uint8 (height, width, 3).

    Raises:
        ImportError: Pillow is not installed.
    """
    from PIL import Image as PillowImage
    from PIL import ImageDraw

    width = min(frames.shape[2], _MAX_WIDTH)
    height = max(1, round(frames.shape[1] * width / frames.shape[2]))
    columns = math.ceil(math.sqrt(len(frames)))
    rows = math.ceil(len(frames) / columns)
    sheet = PillowImage.new("RGB", (columns * width, rows * (height + _TEXT_HEIGHT)))
    draw = ImageDraw.Draw(sheet)
    for number, frame in enumerate(frames):
        left = number % columns * width
        top = number // columns * (height + _TEXT_HEIGHT)
        sheet.paste(PillowImage.fromarray(frame).resize((width, height)), (left, top))
        if len(times):
            draw.text((left + 2, top + height + 1), f"{times[number]:.3f} s", fill="white")
    return np.asarray(sheet)
