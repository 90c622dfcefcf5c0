"""Images drawn in a terminal with half blocks."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.cli.images import fit_size, half_blocks, shrunk


def test_a_character_shows_two_rows() -> None:
    """A character's colour is the upper pixel, its background the lower one; each line ends without colour."""
    image = np.zeros((2, 1, 3), np.uint8)
    image[0], image[1] = (255, 0, 10), (0, 128, 0)
    assert list(half_blocks(image, 80, 24)) == ["\x1b[38;2;255;0;10;48;2;0;128;0m▀\x1b[0m"]


@pytest.mark.parametrize(
    ("size", "room", "fitted"),
    [
        ((400, 400), (80, 48), (48, 48)),
        ((100, 400), (80, 48), (20, 80)),
        ((10, 12), (80, 48), (10, 12)),
        ((1, 500), (80, 48), (2, 80)),
    ],
)
def test_the_shape_is_kept(size: tuple[int, int], room: tuple[int, int], fitted: tuple[int, int]) -> None:
    """An image keeps its shape, is never enlarged and has an even number of rows."""
    assert fit_size(*size, *room) == fitted


def test_shrinking_takes_means_of_areas() -> None:
    """A smaller image has the means of areas, and an image of a single row can be drawn."""
    image = np.zeros((4, 4, 3), np.uint8)
    image[:2, :2], image[2:, 2:] = 200, 100
    assert shrunk(image, 2, 2)[:, :, 0].tolist() == [[200, 0], [0, 100]]
    assert len(list(half_blocks(np.full((1, 30, 3), 7, np.uint8), 10, 10))) == 1
