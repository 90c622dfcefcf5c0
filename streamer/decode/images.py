"""Decodes images: encoded bytes become height x width x 3 uint8 RGB arrays.

`decode/dispatch.py` decodes fields with it, and so do `decode/values.py` and `tables/foreign.py` for images inside of
values. The loader finds the image of a sample by it (`loader/device/prefetcher.py`). `ImageDecoder` and `decode_image`
are public.

The result is the same with every installed library, within one level (tests/unit/decode/test_images.py):

* grey, palette and black-and-white images become RGB, as do CMYK and YCCK;
* values of more than 8 bits (PNG, TIFF and PGM of 16, TIFF of floats) are refused, because 8 bits cannot hold them:
  `ImageDecoder(mode="stored")` returns values, and palettes' indices, as stored; `mode="rgb8"` reduces 16 bits;
* transparency is dropped, not blended (like Pillow's `convert("RGB")`);
* EXIF orientation is *not* applied: the pixels are returned as stored, like in torchvision's ImageFolder;
* only the first frame of an animation is decoded;
* a truncated file is an error, never a partly grey image; damage inside a JPEG that libjpeg ignores is reported;
* an image of more pixels than `max_pixels` is refused by its header, before memory is taken for it.

The first bytes choose the decoder, not the name. JPEG is decoded by simplejpeg (0.96 ms for 500x375, releases the GIL,
writes into the caller's array; 2026-11-20), PNG and WebP by OpenCV, TIFF by `streamer.decode.tiff`, binary PGM, PPM and
PAM by `streamer.decode.netpbm`, others by Pillow. An image that its decoder finds damaged is not given to another one,
which might decode it without an error. There are three exceptions. A JPEG that simplejpeg refuses goes to Pillow, and
the refusal is reported as damage. A PNG or WebP that OpenCV does not read goes to Pillow, a PNG only if its checksums
are right. An image that Pillow would change or does not know goes to OpenCV.

libjpeg and libpng inside OpenCV write warnings to stderr without naming the file. JPEGs that simplejpeg refuses
therefore go to Pillow, which is silent, and PNGs go to OpenCV without the chunks that do not affect their pixels.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from streamer.base.system_limits import raise_shortage
from streamer.decode import image_headers as headers
from streamer.decode.base import library, require_library
from streamer.errors import ConfigError
from streamer.formats.names import IMAGES

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Image = NDArray[np.uint8]
# An image of mode "stored", which may have another type or shape.
Stored = NDArray[Any]
Content = bytes | bytearray | memoryview

# Name that stands for the only image of a sample, whatever the extension of its field.
IMAGE = "image"

_JPEG_END = b"\xff\xd9"
# Number of last bytes in which a JPEG must have its end mark: some cameras add a block of zeros. OpenCV 4 fills a
# truncated JPEG with grey, and only prints a warning.
_JPEG_TAIL_BYTES = 4096
# Errors of simplejpeg for images that it does not decode although they are whole.
_NOT_DECODED = re.compile(r"unsupported|not supported|not implemented|precision", re.IGNORECASE)
_MODES = ("rgb", "rgb8", "stored")
# Formats that are decoded by Pillow. Not all of its formats are: it would start Ghostscript for EPS.
_BY_PILLOW = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "PPM", "AVIF", "JPEG2000")
# Beginnings of Pillow's modes of more than 8 bits.
_DEEP_MODES = ("I", "F")
# A part of Pillow's names for data of 16 bits.
_DEEP_DATA = ";16"
# Pillow's names for PPM data that it scales, with their maxval.
_SCALED = re.compile(r"'(?:L|RGB)', (\d+)")
_MAX_8 = 255
# Pillow's modes of 8 bits that keep the values as they are stored.
_STORED_MODES = frozenset(["L", "P", "LA", "RGB", "RGBA"])
# Bands of OpenCV's that a PNG has, by its type of colours: grey, RGB, grey with alpha.
_PNG_BANDS = {0: [0], 2: [2, 1, 0], 4: [0, 3]}
_WRONG_MAX_PIXELS = "ImageDecoder: max_pixels={!r} must be a number of at least 1"


# Decodes an image by one library: (bytes, decoder, `out`) -> image.
_Attempt = Callable[[Content, "ImageDecoder", Image | None], Stored]


class _UnreadError(ValueError):
    """A library does not know an image that may be whole, or would change its values: another library is tried."""


class TooDeepError(ValueError):
    """The values of an image (`what`) do not fit into 8 bits. With `has_16` the message advises mode "rgb8"."""

    def __init__(self, what: str, *, has_16: bool) -> None:
        shorter = ", mode='rgb8' makes RGB of 8 bits" if has_16 else ""
        super().__init__(
            f"its values are {what}, which 8 bits do not hold; decode= with ImageDecoder(mode='stored') keeps them"
            f"{shorter}"
        )


def find_image_field(name: str, fields: Iterable[object], where: str) -> str:
    """Returns the name of the field that is meant by `name`.

    That is the field of this name. If there is none and `name` is "image", it is the only field with an image's
    extension.

    Raises:
        ConfigError: there is no such field, or there are several images. Its text begins with `where`.
    """
    found = [str(field) for field in fields]
    if name in found:
        return name
    images = [field for field in found if field.rpartition(".")[2].lower() in IMAGES]
    if name == IMAGE and len(images) == 1:
        return images[0]
    if name == IMAGE and images:
        advice = "name one of them"
    elif images:
        advice = f"{IMAGE!r} is the image of a sample, whatever its extension"
    else:
        advice = "none of them is an image"
    raise ConfigError(f"{where} has no field {name!r}; it has {', '.join(found)}: {advice}", field="transform")


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes any image to an array of shape (height, width, 3), uint8, RGB.

        StreamingDataset(url, decode={"png": ImageDecoder(mode="stored")})  # masks with a palette, depths of 16 bits

    Attributes:
        min_height: least number of rows. A JPEG is decoded at the smallest scale of 1/8 .. 8/8 that has so many; 0
            decodes it in full size. Other formats are always decoded in full size.
        min_width: the same for columns.
        mode: "rgb" makes RGB of 8 bits, and refuses values of more bits. "rgb8" also reduces 16 bits to 8. "stored"
            keeps the values as they are stored: (height, width) for grey, and for palettes, whose indices are kept, or
            with a third axis for RGB and RGBA, of uint8, uint16, int32 or float32. Fewer than 8 bits are scaled to 0 to
            255. TIFFs keep the type and the bands of the file, (height, width, bands) for several. This mode needs
            Pillow, and OpenCV for RGB of 16 bits in PNGs.
        max_pixels: largest height x width. A TIFF of wide values or many bands may have four bytes for each of them.

    Raises:
        ConfigError: there is no such mode, or `max_pixels` is invalid.
    """

    min_height: int = 0
    min_width: int = 0
    mode: Literal["rgb", "rgb8", "stored"] = "rgb"
    max_pixels: int = headers.MAX_PIXELS

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ConfigError(f"ImageDecoder: mode={self.mode!r} must be one of {', '.join(_MODES)}", field="decode")
        if type(self.max_pixels) is not int or self.max_pixels < 1:
            raise ConfigError(_WRONG_MAX_PIXELS.format(self.max_pixels), field="decode")

    def __call__(self, content: Content, out: Image | None = None) -> Stored:
        """Decodes an image.

        Args:
            content: bytes of the file.
            out: C-contiguous uint8 array, which is written and returned if the image has its shape and type.

        Returns:
            `out` if it fits, otherwise a new array.

        Raises:
            ValueError: the image cannot be decoded. The text has each library's reason.
            ConfigError: the libraries that it needs are not installed.
        """
        return self.decode(content, out)[0]

    def decode(self, content: Content, out: Image | None = None) -> tuple[Stored, str]:
        """Returns what a call does, and the damage for which simplejpeg refused the image, or ""; see `__call__`."""
        stored = self.mode == "stored"
        if stored:
            require_library("PIL.Image")
        format_name = headers.format_of(content)
        if format_name == headers.JPEG:
            return self._decode_jpeg(content, out)
        if format_name == headers.TIFF:
            return place(self._decode_tiff(content), out), ""
        if format_name == headers.NETPBM:
            return place(self._decode_netpbm(content), out), ""
        chain: list[tuple[str, _Attempt]] = [("PIL.Image", _read_stored_by_pillow if stored else _decode_by_pillow)]
        opencv = ("cv2", _read_stored_by_opencv if stored else _decode_by_opencv)
        if format_name in {headers.PNG, headers.WEBP}:
            size = (headers.png_size if format_name == headers.PNG else headers.webp_size)(content)
            headers.check_size(*size[:2], self.max_pixels)
        is_animated = format_name == headers.WEBP and headers.webp_size(content)[2]
        if format_name in {headers.PNG, headers.WEBP} and not stored and not is_animated:
            chain = [opencv, *chain]
        else:
            chain = [*chain, opencv]
        return self._try_each(chain, content, out), ""

    def _decode_jpeg(self, content: Content, out: Image | None) -> tuple[Stored, str]:
        """Decodes a JPEG by simplejpeg, or one that it refuses by Pillow, which ignores more damage; see `decode`."""
        refusal = ""
        if library("simplejpeg") is not None:
            try:
                return _decode_by_simplejpeg(content, self, out), ""
            except (headers.TooLargeError, ConfigError):
                raise
            except Exception as error:  # noqa: BLE001 - any of the library's; reported below
                raise_shortage(error)
                refusal = f"simplejpeg: {error}"
        by_pillow = _read_stored_by_pillow if self.mode == "stored" else _decode_by_pillow
        one = ("PIL.Image", by_pillow) if library("PIL.Image") is not None else ("cv2", _decode_by_opencv)
        try:
            found = self._try_each([one], content, out)
        except (TooDeepError, headers.TooLargeError, ConfigError):
            raise
        except ValueError as error:
            raise ValueError("; ".join(filter(None, [refusal, str(error)]))) from error
        return found, "" if _NOT_DECODED.search(refusal) else refusal

    def _try_each(self, chain: Sequence[tuple[str, _Attempt]], content: Content, out: Image | None) -> Stored:
        """Decodes by the first installed library of the chain that knows the image and keeps its values.

        Raises:
            ConfigError: none of them is installed.
            ValueError: one of them finds the image damaged, or all of them refuse it.
        """
        refusals = []
        for name, attempt in chain:
            if library(name) is None:
                continue
            try:
                return attempt(content, self, out)
            except (TooDeepError, headers.TooLargeError, ConfigError):  # another library might silently change values
                raise
            except Exception as refusal:  # noqa: BLE001 - each library has its own; all are reported below
                raise_shortage(refusal)
                refusals.append(f"{name}: {refusal}")
                if not isinstance(refusal, _UnreadError):
                    break
        if not refusals:
            advice = "`pip install 'streamer-data[images]'`, or pass decode=None for raw bytes"
            raise ConfigError(f"no image decoder is installed; {advice}", field="decode")
        raise ValueError("; ".join(refusals))

    def _decode_tiff(self, content: Content) -> Stored:
        # Imported here, since few datasets have such images.
        from streamer.decode import tiff
        from streamer.decode.tiff_page import read_page

        page = read_page(content)
        headers.check_size(page.height, page.width, self.max_pixels)
        if page.height * page.width * page.samples * page.dtype.itemsize > headers.MAX_BYTES_OF_PIXEL * self.max_pixels:
            what = f" of {page.samples} bands of {page.bits} bits"
            raise headers.TooLargeError(page.height, page.width, self.max_pixels, what)
        if self.mode == "stored":
            return tiff.arrange_values(tiff.read_values(content, page), page)
        tiff.check_colours(page)
        if page.kind != "u" or page.bits > 16:
            raise TooDeepError(str(page.dtype) if page.bits == 8 else f"of {page.bits} bits", has_16=False)
        if page.bits > 8 and self.mode != "rgb8":
            raise TooDeepError(f"of {page.bits} bits", has_16=True)
        return tiff.convert_to_rgb(tiff.read_values(content, page), page)

    def _decode_netpbm(self, content: Content) -> Stored:
        from streamer.decode import netpbm

        header = netpbm.read_header(content)
        headers.check_size(header.height, header.width, self.max_pixels)
        values = netpbm.read_values(content, header)
        deep = header.maxval > _MAX_8
        if self.mode == "stored":
            found = values if deep else netpbm.scale_values(values, header.maxval, _MAX_8)
            return found[:, :, 0] if header.bands == 1 else found
        if deep and self.mode != "rgb8":
            raise TooDeepError("of 16 bits", has_16=True)
        if not header.colours:
            raise ValueError(
                f"its {header.bands} bands are neither grey nor RGB; "
                "decode= with ImageDecoder(mode='stored') keeps them"
            )
        found = netpbm.scale_values(values, header.maxval, 65535 if deep else _MAX_8)
        colours = (found >> 8).astype(np.uint8) if deep else found
        return np.repeat(colours[:, :, :1], 3, axis=2) if header.bands < 3 else np.ascontiguousarray(colours[:, :, :3])


decode_image = ImageDecoder()


def place(image: Stored, out: Stored | None) -> Stored:
    """Copies `image` to `out` and returns that, if shapes and types agree; otherwise returns `image`."""
    if out is None or image is out or image.shape != out.shape or image.dtype != out.dtype:
        return image
    np.copyto(out, image)
    return out


def _decode_by_simplejpeg(content: Content, decoder: ImageDecoder, out: Image | None) -> Image:
    simplejpeg = require_library("simplejpeg")
    height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    headers.check_size(height, width, decoder.max_pixels)
    scale = {"min_height": decoder.min_height, "min_width": decoder.min_width, "min_factor": 1}
    if decoder.mode == "stored" and colours == "Gray":
        return place(simplejpeg.decode_jpeg(content, "GRAY", **scale)[:, :, 0], out)
    scaled = decoder.min_height or decoder.min_width
    if out is not None and out.flags.c_contiguous and not scaled and out.shape == (height, width, 3):
        simplejpeg.decode_jpeg(content, "RGB", buffer=out)
        return out
    image: Image = simplejpeg.decode_jpeg(content, "RGB", **scale)
    return place(image, out)


def _decode_by_opencv(content: Content, decoder: ImageDecoder, out: Image | None) -> Image:
    cv2 = require_library("cv2")
    if decoder.mode == "rgb8" and headers.format_of(content) == headers.JPEG2000:
        # The values have as many bits as the header says, not 16. The 8 highest ones are kept.
        values = _read_stored_by_opencv(content, decoder, None)
        depths = set(headers.jpeg2000_depths(content))
        if len(depths) != 1 or (bits := depths.pop()) < 8:
            raise ValueError("its components have different depths, or signs, and are not reduced to 8 bits")
        high = (values >> (bits - 8)).astype(np.uint8)
        colours = high[:, :, None] if high.ndim == 2 else high[:, :, :3]
        rgb = np.repeat(colours, 3, axis=2) if colours.shape[2] == 1 else np.ascontiguousarray(colours)
        return place(rgb, out)
    # OpenCV reduces 16 bits to 8, and clips floats, unless it is asked for any depth.
    reduces = decoder.mode == "rgb8" and headers.format_of(content) != headers.OTHER
    depth = 0 if reduces else cv2.IMREAD_ANYDEPTH
    image = _read_by_opencv(content, decoder, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION | depth)
    if image.dtype != np.uint8:
        raise TooDeepError(str(image.dtype), has_16=image.dtype == np.uint16)
    cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)
    return place(image, out)


def _read_stored_by_opencv(content: Content, decoder: ImageDecoder, out: Image | None) -> Stored:
    image = _read_by_opencv(content, decoder, require_library("cv2").IMREAD_UNCHANGED)
    order = {3: [2, 1, 0], 4: [2, 1, 0, 3]}.get(image.shape[-1] if image.ndim == 3 else 0)
    if headers.format_of(content) == headers.PNG:
        # OpenCV repeats grey that has alpha, and makes alpha of a transparent colour.
        order = _PNG_BANDS.get(headers.png_size(content)[3], order) if image.ndim == 3 else order
    return place(image if order is None else np.ascontiguousarray(image[:, :, order]), out)


def _read_by_opencv(content: Content, decoder: ImageDecoder, flags: int) -> Stored:
    """Checks the size of an image by its header, and decodes it by OpenCV with these flags: bands as BGR or BGRA."""
    format_name = headers.format_of(content)
    if format_name == headers.PNG:
        size = headers.png_size(content)[:2]
        try:
            content = headers.png_pixels(content)
        except ValueError as error:
            # Pillow takes no memory for such a chunk, and the checksums are compared.
            raise _UnreadError(str(error)) from error
    elif format_name == headers.WEBP:
        size = headers.webp_size(content)[:2]
    elif format_name == headers.JPEG:
        if _JPEG_END not in bytes(content[-_JPEG_TAIL_BYTES:]):
            raise ValueError("the JPEG's end is missing")
        size = headers.jpeg_size(content)
    else:
        size = headers.size_for_opencv(content)
    headers.check_size(*size, decoder.max_pixels)
    image: Stored | None = require_library("cv2").imdecode(np.frombuffer(content, np.uint8), flags)
    if image is None:
        # Pillow is tried for a PNG, whose checksums tell whether it is damaged, and for a WebP, which both decode
        # alike.
        again = format_name in {headers.PNG, headers.WEBP}
        raise (_UnreadError if again else ValueError)("not an image that OpenCV reads")
    if image.shape[:2] != size:
        raise ValueError(f"OpenCV reads {image.shape[:2]} of an image of {size}")
    return image


def _decode_by_pillow(content: Content, decoder: ImageDecoder, out: Image | None) -> Image:
    with _open(content, decoder) as image:
        deep = image.mode.startswith(_DEEP_MODES)
        if not deep and not _has_fewer_bits(image, content):
            return place(_stretch_to_8_bits(np.array(image.convert("RGB")), content), out)
        has_32 = image.mode == "F"
        if decoder.mode != "rgb8" or has_32:
            raise TooDeepError("of 32 bits" if has_32 else "of 16 bits", has_16=not has_32)
        if image.format == "JPEG2000" and not deep:
            raise _UnreadError("Pillow makes black of what is almost white where it reduces these bits")
        if deep:
            # Pillow's own conversion of 16-bit grey clips at 255: everything would be white.
            high = (np.clip(np.asarray(image), 0, 65535) >> 8).astype(np.uint8)
            return place(np.repeat(high[:, :, None], 3, axis=2), out)
        return place(np.array(image.convert("RGB")), out)


def _read_stored_by_pillow(content: Content, decoder: ImageDecoder, out: Image | None) -> Stored:
    with _open(content, decoder) as image:
        if _has_fewer_bits(image, content) or (image.format == "JPEG2000" and not headers.is_plain_jpeg2000(content)):
            raise _UnreadError(f"Pillow may change the values of this image to its mode {image.mode}")
        if image.mode not in _STORED_MODES and not image.mode.startswith(_DEEP_MODES):
            return place(np.array(image.convert("L" if image.mode == "1" else "RGB")), out)
        if image.format == "JPEG2000":
            return place(_stretch_to_8_bits(np.array(image), content), out)
        # Pillow makes int32 of PNG in older versions.
        short = image.mode == "I" and _DEEP_DATA in _data(image)
        found = np.array(image)
        return place(found.astype(np.uint16 if short else found.dtype.newbyteorder("="), copy=False), out)


def _open(content: Content, decoder: ImageDecoder) -> ImageFile:
    """Opens an image by Pillow without decoding it; raises if it is too large, or if a checksum of a PNG is wrong."""
    image_module = require_library("PIL.Image")
    image_module.init()
    stream = io.BytesIO(content)
    start = stream.read(16)
    for name in _BY_PILLOW:
        # `Image.open` would also apply the limit of Pillow, which is one for all threads.
        factory, accepts = image_module.OPEN.get(name, (None, None))
        if factory is not None and accepts(start) is True:
            stream.seek(0)
            image: ImageFile = factory(stream, "")
            break
    else:
        raise _UnreadError("not an image that Pillow reads")
    headers.check_size(image.height, image.width, decoder.max_pixels)
    if image.format == "PNG":
        headers.check_png(content)
    if decoder.min_height or decoder.min_width:
        # draft() never goes below the requested size in either direction; other formats ignore it.
        image.draft("RGB", (max(1, decoder.min_width), max(1, decoder.min_height)))
    return image


def _data(image: ImageFile) -> str:
    """Returns Pillow's description of the stored data of an image, or "" if there is none."""
    return str(image.tile[0][3]) if image.tile else ""


def _has_fewer_bits(image: ImageFile, content: Content) -> bool:
    """Whether Pillow returns other values than the file's: 8 of 16 bits of colours, or values scaled to 8 bits."""
    data = _data(image)
    if image.format == "PPM" and (scaled := _SCALED.search(data)) is not None:
        return int(scaled[1]) > _MAX_8
    if image.format == "JPEG2000":
        return not image.mode.startswith(_DEEP_MODES) and max(headers.jpeg2000_depths(content), default=0) > 8
    if image.format == "AVIF":
        return headers.avif_depth(content) > 8
    return _DEEP_DATA in data and not image.mode.startswith(_DEEP_MODES)


def _stretch_to_8_bits(image: Stored, content: Content) -> Stored:
    """Returns an image of Pillow's as it is, or if it is a JPEG 2000 of fewer than 8 bits with its white as 255."""
    depths = set(headers.jpeg2000_depths(content)) if headers.format_of(content) == headers.JPEG2000 else set()
    if len(depths) != 1 or not 0 < (bits := depths.pop()) < 8:
        return image
    highest = 2**bits - 1
    table = np.rint(np.arange(highest + 1) / highest * 255).astype(np.uint8)
    scaled: Stored = table[image >> (8 - bits)]
    return scaled
