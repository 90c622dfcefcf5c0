"""Fixtures of the decoders' tests: images drawn here, smooth so that lossy formats stay close, and library sets."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

Encode = Callable[..., bytes]


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    """Draws an RGB image of 60 x 80, smooth, with other values in every channel."""
    rows, columns = np.mgrid[0:60, 0:80]
    channels = [rows * 4, columns * 3, (rows + columns) * 2 % 256]
    return np.stack(channels, axis=2).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def encode() -> Encode:
    """Returns a function that writes an array or a Pillow image as a file of a format."""

    def write(image: np.ndarray | Image.Image, kind: str, **options: object) -> bytes:
        stream = io.BytesIO()
        (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(stream, kind, **options)
        return stream.getvalue()

    return write


@pytest.fixture(params=["all", "cv2 and Pillow", "Pillow"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes decoding run as on machines where only some of the libraries are installed."""
    from streamer.decode import base, images

    found = images.library
    gone = {"all": (), "cv2 and Pillow": ("simplejpeg",), "Pillow": ("simplejpeg", "cv2")}[request.param]
    for module in (images, base):
        monkeypatch.setattr(module, "library", lambda name: None if name in gone else found(name))
    return str(request.param)
