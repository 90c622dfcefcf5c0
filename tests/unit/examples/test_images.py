"""The images that the demos draw."""

from __future__ import annotations

import io
import itertools

import pytest
from PIL import Image

from examples.bucket.images import CLASSES, EDGE_PIXELS, draw


def test_the_same_seed_draws_the_same_bytes() -> None:
    """Image and label are a function of index and seed."""
    assert draw(5, 17) == draw(5, 17)
    assert draw(5, 17).jpeg != draw(5, 18).jpeg
    assert draw(5, 17).jpeg != draw(13, 17).jpeg


@pytest.mark.parametrize("label", range(len(CLASSES)))
def test_every_class_is_a_readable_jpeg_of_the_size_that_makes_150_chunks(label: int) -> None:
    """Each class is a JPEG of at least 20 KB, so that 2,000 images are more than 150 chunks of 256 KiB."""
    drawn = draw(label, 17)
    with Image.open(io.BytesIO(drawn.jpeg)) as image:
        assert (image.format, image.size) == ("JPEG", (EDGE_PIXELS, EDGE_PIXELS))
    assert drawn.label == label
    assert 20_000 < len(drawn.jpeg) < 60_000


def test_classes_differ() -> None:
    """Two classes never draw the same image."""
    jpegs = [draw(label, 17).jpeg for label in range(len(CLASSES))]
    assert all(a != b for a, b in itertools.combinations(jpegs, 2))
