"""Pictures: encoded bytes -> height x width x 3 uint8 RGB arrays.

The result is the same for every installed library, within one level (tests/unit/decode/test_images.py):

* grey, palette, black-and-white and 16-bit pictures become 8-bit RGB; 16 bits keep their high byte;
* CMYK and YCCK become RGB; transparency is dropped, not blended (like `convert("RGB")` of Pillow);
* EXIF orientation is *not* applied: the pixels are as stored, like in torchvision's ImageFolder;
* of an animation only the first frame is decoded;
* a truncated or damaged file is an error, never a partly grey picture.

JPEG is decoded by simplejpeg (0.96 ms for 500x375, releases the GIL, writes into the caller's array; 2026-11-20), other
pictures by OpenCV. Both are strict; pictures that they refuse are decoded by Pillow. Pillow alone is sufficient.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError
from streamer.formats.names import PICTURES

Picture = NDArray[np.uint8]
Content = bytes | bytearray | memoryview

# In place of a field's name: the picture of a sample, whatever its extension.
IMAGE = "image"

_JPEG_MAGIC = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
# OpenCV 4 fills a truncated JPEG with grey and only prints a warning; the end mark must be near the end
# (some cameras pad with a block of zeros).
_JPEG_TAIL_BYTES = 4096
_Attempt = Callable[[Content, "ImageDecoder", Picture | None], Picture]


def picture_field(name: str, fields: Iterable[object], where: str) -> str:
    """The field of a name; for "image", where there is no such field, that of the only picture, whatever its extension.

    Args:
        name: of the field.
        fields: the names that exist.
        where: begins the error.

    Raises:
        ConfigError: there is none, or several.
    """
    found = [str(field) for field in fields]
    if name in found:
        return name
    pictures = [field for field in found if field.rpartition(".")[2].lower() in PICTURES]
    if name == IMAGE and len(pictures) == 1:
        return pictures[0]
    if name == IMAGE and pictures:
        advice = "name one of them"
    elif pictures:
        advice = f"{IMAGE!r} is the picture of a sample, whatever its extension"
    else:
        advice = "none of them is a picture"
    raise ConfigError(f"{where} has no field {name!r}; it has {', '.join(found)}: {advice}", field="transform")


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes any picture to an array of shape (height, width, 3), uint8, RGB.

    Attributes:
        min_height: JPEGs are decoded at the smallest scale of 1/8 .. 8/8 with at least this many rows; 0: full size.
        min_width: the same for columns.
    """

    min_height: int = 0
    min_width: int = 0

    def __call__(self, content: Content, out: Picture | None = None) -> Picture:
        """Decodes.

        Args:
            content: the file's bytes.
            out: C-contiguous uint8 array; written and returned if the picture has its shape.

        Returns:
            `out` when it fits, else a fresh array.

        Raises:
            ValueError: no decoder can read it; the message has each decoder's reason.
            ConfigError: neither simplejpeg, OpenCV nor Pillow is installed.
        """
        refusals: list[str] = []
        for name, attempt in _attempts(bytes(content[:3]) == _JPEG_MAGIC):
            try:
                return attempt(content, self, out)
            except Exception as refusal:  # noqa: BLE001 - each library has its own; all are reported below
                refusals.append(f"{name}: {refusal}")
        raise ValueError("; ".join(refusals))


decode_image = ImageDecoder()


def _attempts(is_jpeg: bool) -> Iterator[tuple[str, _Attempt]]:
    """The installed decoders, fastest first."""
    chain: tuple[tuple[str, _Attempt], ...] = (("cv2", _by_opencv), ("PIL.Image", _by_pillow))
    if is_jpeg:
        chain = (("simplejpeg", _by_simplejpeg), *chain)
    found = False
    for name, attempt in chain:
        if library(name) is not None:
            found = True
            yield name, attempt
    if not found:
        raise ConfigError(
            "no picture decoder is installed; `pip install 'streamer-data[images]'`, or pass decode=None for raw bytes",
            field="decode",
        )


@cache
def library(name: str) -> ModuleType | None:
    """The optional module `name`, or None where it is not installed."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    if name == "cv2":
        # One thread per worker process: OpenCV's pool would fight the other workers for the cores.
        module.setNumThreads(1)
    return module


def place(picture: Picture, out: Picture | None) -> Picture:
    """Copies `picture` into `out` where the shapes agree."""
    if out is None or picture is out or picture.shape != out.shape:
        return picture
    np.copyto(out, picture)
    return out


def _loaded(name: str) -> ModuleType:
    module = library(name)
    if module is None:
        raise ConfigError(f"{name} is not installed", field="decode")
    return module


def _by_simplejpeg(content: Content, decoder: ImageDecoder, out: Picture | None) -> Picture:
    simplejpeg = _loaded("simplejpeg")
    scale = {"min_height": decoder.min_height, "min_width": decoder.min_width, "min_factor": 1}
    if out is not None and out.flags.c_contiguous and not (decoder.min_height or decoder.min_width):
        height, width, _, _ = simplejpeg.decode_jpeg_header(content)
        if out.shape == (height, width, 3):
            simplejpeg.decode_jpeg(content, "RGB", buffer=out)
            return out
    picture: Picture = simplejpeg.decode_jpeg(content, "RGB", **scale)
    return place(picture, out)


def _by_opencv(content: Content, decoder: ImageDecoder, out: Picture | None) -> Picture:
    cv2 = _loaded("cv2")
    raw = np.frombuffer(content, np.uint8)
    if raw.size == 0:
        raise ValueError("no bytes")
    if bytes(raw[:3]) == _JPEG_MAGIC and _JPEG_END not in bytes(raw[-_JPEG_TAIL_BYTES:]):
        raise ValueError("the JPEG's end is missing")
    picture = cv2.imdecode(raw, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if picture is None:
        raise ValueError("not a picture that OpenCV reads")
    cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=picture)
    return place(picture, out)


def _by_pillow(content: Content, decoder: ImageDecoder, out: Picture | None) -> Picture:
    image_module = _loaded("PIL.Image")
    try:
        opened = image_module.open(io.BytesIO(content))
    except _loaded("PIL").UnidentifiedImageError:
        # Its message names the object in memory.
        raise ValueError("not a picture that Pillow reads") from None
    with opened as image:
        if decoder.min_height or decoder.min_width:
            # draft() never goes below the requested size in either direction; other formats ignore it.
            image.draft("RGB", (max(1, decoder.min_width), max(1, decoder.min_height)))
        if image.mode.startswith("I;16") or image.mode == "I":
            return place(_high_bytes(np.asarray(image)), out)
        return place(np.array(image.convert("RGB")), out)


def _high_bytes(grey: NDArray[np.integer]) -> Picture:
    # Pillow's own conversion of 16-bit grey clips at 255: everything would be white.
    high = (np.clip(grey, 0, 65535) >> 8).astype(np.uint8)
    return np.repeat(high[:, :, None], 3, axis=2)
