"""Pictures: encoded bytes become height x width x 3 uint8 RGB arrays.

The result is the same with every installed library, within one level (tests/unit/decode/test_images.py):

* grey, palette and black-and-white pictures become RGB, as do CMYK and YCCK;
* values of more than 8 bits (PNG, TIFF and PGM of 16, TIFF of floats) are refused, because 8 bits cannot hold them:
  `ImageDecoder(mode="stored")` returns values, and palettes' indices, as stored; `mode="rgb8"` reduces 16 bits;
* transparency is dropped, not blended (like Pillow's `convert("RGB")`);
* EXIF orientation is *not* applied: the pixels are returned as stored, like in torchvision's ImageFolder;
* only the first frame of an animation is decoded;
* a truncated file is an error, never a partly grey picture; damage inside a JPEG that libjpeg ignores is reported.

JPEG is decoded by simplejpeg (0.96 ms for 500x375, releases the GIL, writes into the caller's array; 2026-11-20), other
pictures by OpenCV. Both are strict; pictures that they refuse are decoded by Pillow. Pillow alone suffices.

libjpeg and libpng inside OpenCV write warnings to stderr without naming the file. JPEGs that simplejpeg refuses
therefore go to Pillow first, which is silent, and PNGs go to OpenCV without the chunks that do not affect their pixels.
"""

from __future__ import annotations

import importlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamer.errors import ConfigError
from streamer.formats.names import PICTURES

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Picture = NDArray[np.uint8]
# Other types and shapes occur in mode "stored".
Stored = NDArray[Any]
Content = bytes | bytearray | memoryview

# In place of a field's name: the picture of a sample, whatever its extension.
IMAGE = "image"

_JPEG_MAGIC = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
# OpenCV 4 fills a truncated JPEG with grey and only prints a warning; the end mark must be near the end (some cameras
# pad with a block of zeros).
_JPEG_TAIL_BYTES = 4096
# How libjpeg begins its warnings about damage that it ignores and simplejpeg refuses.
_DAMAGE = "Corrupt JPEG data"
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
# The bit of the first letter of a chunk's name that marks optional chunks, and the optional chunks that OpenCV reads.
_ANCILLARY, _OF_PIXELS = 0x20, frozenset([b"tRNS", b"acTL", b"fcTL", b"fdAT"])
_Attempt = Callable[[Content, "ImageDecoder", Picture | None], Stored]
_MODES = ("rgb", "rgb8", "stored")
# Pillow's modes of more than 8 bits, its names of 16-bit data, PPM's names that it scales, and those it reads as 8.
_DEEP_MODES, _DEEP_DATA = ("I", "F"), ";16"
_SCALED, _MOST_8 = re.compile(r"'(?:L|RGB)', (\d+)"), 255
_PERHAPS_REDUCED = frozenset(["JPEG2000", "AVIF"])
_STORED_MODES = frozenset(["L", "P", "LA", "RGB", "RGBA"])


class TooDeepError(ValueError):
    """Raised for a picture whose values do not fit into 8 bits."""

    def __init__(self, what: str, *, has_16: bool) -> None:
        shorter = ", mode='rgb8' makes RGB of 8 bits" if has_16 else ""
        super().__init__(
            f"its values are {what}, which 8 bits do not hold; decode= with ImageDecoder(mode='stored') keeps them"
            f"{shorter}"
        )


def picture_field(name: str, fields: Iterable[object], where: str) -> str:
    """Returns the field for a name; for "image", if no field is called so, the only picture, whatever its extension.

    Raises:
        ConfigError: there is no such field, or there are several; begins with `where`.
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

        StreamingDataset(url, decode={"png": ImageDecoder(mode="stored")})  # masks with a palette, depths of 16 bits

    Attributes:
        min_height: JPEGs are decoded at the smallest scale of 1/8 .. 8/8 with at least this many rows; 0: full size.
        min_width: the same for columns.
        mode: "rgb": as above; values of more than 8 bits are refused. "rgb8": 16 bits are reduced to 8. "stored":
            values as they are stored: (height, width) for grey, and for palettes, whose indices are kept; with a third
            axis for RGB and RGBA; uint8, uint16, int32 or float32. Grey of fewer than 8 bits is scaled to 0 to 255.
            Needs Pillow, and OpenCV for RGB of 16 bits and for several floats.

    Raises:
        ConfigError: there is no such mode.
    """

    min_height: int = 0
    min_width: int = 0
    mode: Literal["rgb", "rgb8", "stored"] = "rgb"

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigError(f"ImageDecoder: mode={self.mode!r} must be one of {', '.join(_MODES)}", field="decode")

    def __call__(self, content: Content, out: Picture | None = None) -> Stored:
        """Decodes a picture.

        Args:
            content: bytes of the file.
            out: C-contiguous uint8 array; written and returned if the picture has its shape and type.

        Returns:
            `out` if it fits, otherwise a new array.

        Raises:
            ValueError: no decoder can read it; the text has each decoder's reason.
            ConfigError: neither simplejpeg, OpenCV nor Pillow is installed.
        """
        return self.decode(content, out)[0]

    def decode(self, content: Content, out: Picture | None = None) -> tuple[Stored, str]:
        """Decodes like a call, and also returns the damage for which another decoder refused the picture, or ""."""
        refusals: list[str] = []
        for name, attempt in _attempts(bytes(content[:3]) == _JPEG_MAGIC, self.mode == "stored"):
            try:
                return attempt(content, self, out), next((text for text in refusals if _DAMAGE in text), "")
            except TooDeepError:  # another decoder might silently change values
                raise
            except Exception as refusal:  # noqa: BLE001 - each library has its own; all are reported below
                refusals.append(f"{name}: {refusal}")
        raise ValueError("; ".join(refusals))


decode_image = ImageDecoder()


def _attempts(is_jpeg: bool, stored: bool) -> Iterator[tuple[str, _Attempt]]:
    """Yields the installed decoders, fastest first."""
    chain: tuple[tuple[str, _Attempt], ...] = (("cv2", _by_opencv), ("PIL.Image", _by_pillow))
    if stored:
        # OpenCV does not return the indices of palettes.
        _loaded("PIL.Image")
        chain = (("PIL.Image", _stored_by_pillow), ("cv2", _stored_by_opencv))
    elif is_jpeg:
        chain = (("simplejpeg", _by_simplejpeg), *reversed(chain))
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
    """Returns the optional module `name`, or None if it is not installed."""
    if name == "cv2":
        # Its log names no sample; the error that a decoder raises does.
        os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    if name == "cv2":
        # One thread per worker process: OpenCV's pool would compete with the other workers for the cores.
        module.setNumThreads(1)
    return module


def place(picture: Stored, out: Stored | None) -> Stored:
    """Copies `picture` to `out` if shapes and types agree."""
    if out is None or picture is out or picture.shape != out.shape or picture.dtype != out.dtype:
        return picture
    np.copyto(out, picture)
    return out


def _loaded(name: str) -> ModuleType:
    module = library(name)
    if module is None:
        raise ConfigError(f"{name} is not installed; `pip install 'streamer-data[images]'`", field="decode")
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
    # Without the depth it reduces 16 bits to 8.
    depth = 0 if decoder.mode == "rgb8" else cv2.IMREAD_ANYDEPTH
    picture = _read_by_opencv(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION | depth)
    if picture.dtype != np.uint8:
        raise TooDeepError(str(picture.dtype), has_16=picture.dtype == np.uint16)
    cv2.cvtColor(picture, cv2.COLOR_BGR2RGB, dst=picture)
    return place(picture, out)


def _stored_by_opencv(content: Content, decoder: ImageDecoder, out: Picture | None) -> Stored:
    picture = _read_by_opencv(content, _loaded("cv2").IMREAD_UNCHANGED)
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(picture.shape[-1] if picture.ndim == 3 else 0)
    return place(picture if order is None else np.ascontiguousarray(picture[:, :, order]), out)


def _read_by_opencv(content: Content, flags: int) -> Stored:
    raw = np.frombuffer(_pixels(content), np.uint8)
    if raw.size == 0:
        raise ValueError("no bytes")
    if bytes(raw[:3]) == _JPEG_MAGIC and _JPEG_END not in bytes(raw[-_JPEG_TAIL_BYTES:]):
        raise ValueError("the JPEG's end is missing")
    picture: Stored | None = _loaded("cv2").imdecode(raw, flags)
    if picture is None:
        raise ValueError("not a picture that OpenCV reads")
    return picture


def _pixels(content: Content) -> Content:
    """Returns a PNG without the chunks that do not affect its pixels: libpng warns about damaged ones."""
    if content[:8] != _PNG_MAGIC:
        return content
    view, parts, kept, at = memoryview(content), list[memoryview](), 0, 8
    while at + 12 <= len(view):
        end = at + 12 + int.from_bytes(view[at : at + 4], "big")
        if view[at + 4] & _ANCILLARY and bytes(view[at + 4 : at + 8]) not in _OF_PIXELS:
            parts.append(view[kept:at])
            kept = end
        at = end
    return b"".join([*parts, view[kept:]]) if parts else content


def _by_pillow(content: Content, decoder: ImageDecoder, out: Picture | None) -> Picture:
    with _opened(content, decoder) as image:
        deep = image.mode.startswith(_DEEP_MODES)
        if not deep and not _is_reduced(image):
            return place(np.array(image.convert("RGB")), out)
        has_32 = image.mode == "F" or "32" in _data(image)
        if decoder.mode != "rgb8" or has_32:
            raise TooDeepError("of 32 bits" if has_32 else "of 16 bits", has_16=not has_32)
        return place(_high_bytes(np.asarray(image)) if deep else np.array(image.convert("RGB")), out)


def _stored_by_pillow(content: Content, decoder: ImageDecoder, out: Picture | None) -> Stored:
    with _opened(content, decoder) as image:
        if _is_reduced(image) or image.format in _PERHAPS_REDUCED:
            raise ValueError(f"Pillow may change the values of this picture to its mode {image.mode}")
        if image.mode not in _STORED_MODES and not image.mode.startswith(_DEEP_MODES):
            return place(np.array(image.convert("L" if image.mode == "1" else "RGB")), out)
        # Pillow makes int32 of PGM, and of PNG in older versions.
        short, found = image.mode == "I" and _DEEP_DATA in _data(image), np.array(image)
        return place(found.astype(np.uint16 if short else found.dtype.newbyteorder("="), copy=False), out)


def _opened(content: Content, decoder: ImageDecoder) -> ImageFile:
    image_module = _loaded("PIL.Image")
    try:
        image: ImageFile = image_module.open(io.BytesIO(content))
    except _loaded("PIL").UnidentifiedImageError:
        # Its message names the object in memory.
        raise ValueError("not a picture that Pillow reads") from None
    if decoder.min_height or decoder.min_width:
        # draft() never goes below the requested size in either direction; other formats ignore it.
        image.draft("RGB", (max(1, decoder.min_width), max(1, decoder.min_height)))
    return image


def _data(image: ImageFile) -> str:
    """Returns Pillow's name of the data of a picture, and details."""
    return str(image.tile[0][3]) if image.tile else ""


def _is_reduced(image: ImageFile) -> bool:
    """Whether Pillow returns other values than the file's: 8 bits of 16 in colours, scaled ones, 32 of 64."""
    data = _data(image)
    if image.format == "PPM" and (scaled := _SCALED.search(data)) is not None:
        return int(scaled[1]) > _MOST_8
    return "64F" in data or (_DEEP_DATA in data and not image.mode.startswith(_DEEP_MODES))


def _high_bytes(grey: NDArray[np.integer]) -> Picture:
    # Pillow's own conversion of 16-bit grey clips at 255: everything would be white.
    high = (np.clip(grey, 0, 65535) >> 8).astype(np.uint8)
    return np.repeat(high[:, :, None], 3, axis=2)
