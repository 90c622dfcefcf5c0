"""Decoded images of every kind, with each set of installed libraries, compared with Pillow or with what was stored."""

from __future__ import annotations

import base64
import io
import struct
import sys

import numpy as np
import pytest
from PIL import Image

from streamer.decode import base, images
from streamer.decode import image_headers as headers
from streamer.decode.images import ImageDecoder, decode_image
from streamer.errors import ConfigError

pytestmark = pytest.mark.usefixtures("installed")


def close(found: np.ndarray, expected: np.ndarray, levels: int) -> bool:
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    return int(np.abs(found.astype(int) - expected.astype(int)).max()) <= levels


def pillow_rgb(content: bytes) -> np.ndarray:
    return np.array(Image.open(io.BytesIO(content)).convert("RGB"))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"quality": 40}])
def test_a_jpeg_is_the_same_with_every_decoder(image, encode, options):
    """Baseline, progressive and differently subsampled JPEGs agree with Pillow within one level."""
    content = encode(image, "JPEG", **options)
    assert close(decode_image(content), pillow_rgb(content), 1)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_images_come_back_exactly(image, encode, kind):
    """A lossless image is decoded to the same pixels that were written."""
    assert np.array_equal(decode_image(encode(image, kind)), image)


def test_webp_and_gif_agree_with_pillow(image, encode):
    """WebP agrees with Pillow within one level, and a GIF's palette exactly."""
    webp, gif = encode(image, "WEBP"), encode(Image.fromarray(image).quantize(16), "GIF")
    assert close(decode_image(webp), pillow_rgb(webp), 1)
    assert close(decode_image(gif), pillow_rgb(gif), 0)


@pytest.mark.parametrize(("mode", "kind"), [("L", "JPEG"), ("L", "PNG"), ("1", "PNG"), ("LA", "PNG")])
def test_grey_and_black_and_white_become_rgb(image, encode, mode, kind):
    """Grey and black-and-white images become RGB with three equal channels."""
    content = encode(Image.fromarray(image).convert(mode), kind)
    found = decode_image(content)
    assert close(found, pillow_rgb(content), 1), (mode, kind)
    assert np.array_equal(found[:, :, 0], found[:, :, 2])


def test_cmyk_becomes_rgb(image, encode):
    """A CMYK JPEG as Adobe's programs write it is not inverted, and agrees with Pillow within one level."""
    content = encode(Image.fromarray(image).convert("CMYK"), "JPEG", quality=95)
    assert close(decode_image(content), pillow_rgb(content), 1)
    assert close(decode_image(content), image, 24)


VALUES = np.array([[0, 1, 255, 256, 300, 65535]], np.uint16)


def deep_images() -> dict[str, tuple[bytes, np.ndarray]]:
    """Returns images of more than 8 bits, and what is stored in them."""
    import cv2

    colours = np.stack([VALUES, VALUES // 2, VALUES // 3], axis=2)
    floats, whole = (VALUES / 7).astype(np.float32), VALUES.astype(np.int32) * 100
    clear = np.dstack([colours, VALUES])

    # OpenCV 4.9 would write colours of floats in a lossy way otherwise.
    plain = [cv2.IMWRITE_TIFF_COMPRESSION, 1]

    def written(ending: str, values: np.ndarray) -> bytes:
        return cv2.imencode(ending, values, plain if ending == ".tif" else [])[1].tobytes()

    return {
        "grey png": (written(".png", VALUES), VALUES),
        "grey tiff": (written(".tif", VALUES), VALUES),
        "grey pgm": (written(".pgm", VALUES), VALUES),
        "rgb png": (written(".png", colours[:, :, ::-1]), colours),
        "rgb tiff": (written(".tif", colours[:, :, ::-1]), colours),
        "rgb ppm": (written(".ppm", colours[:, :, ::-1]), colours),
        "rgba png": (written(".png", clear[:, :, [2, 1, 0, 3]]), clear),
        "pgm to 1000": (b"P5\n2 1\n1000\n\x01\x00\x03\xe8", np.array([[256, 1000]], np.uint16)),
        "floats": (written(".tif", floats), floats),
        "integers": (written(".tif", whole), whole),
        "rgb floats": (written(".tif", np.dstack([floats] * 3)), np.dstack([floats] * 3)),
    }


@pytest.mark.parametrize("name", deep_images())
def test_more_than_eight_bits_are_never_reduced_without_a_word(installed, name):
    """Images of more than 8 bits are refused by default; mode="stored" returns their values or is an error."""
    content, expected = deep_images()[name]
    with pytest.raises(ValueError, match=r"ImageDecoder\(mode='stored'\) keeps them") as refused:
        decode_image(content)
    alone = installed == "Pillow"
    assert "mode='stored'" in str(refused.value)
    assert ("mode='rgb8'" in str(refused.value)) == (name not in {"floats", "integers", "rgb floats"})
    if alone and name in {"rgb png", "rgba png"}:
        with pytest.raises(ValueError, match="Pillow"):
            ImageDecoder(mode="stored")(content)
    else:
        found = ImageDecoder(mode="stored")(content)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert np.array_equal(found, expected)
        assert found.dtype.isnative


def test_sixteen_bits_become_eight_where_that_is_asked_for(image):
    """mode="rgb8" reduces 16-bit images to 8 bits without clipping; floats and 32-bit integers are refused."""
    import cv2

    reduce, deep = ImageDecoder(mode="rgb8"), image.astype(np.uint16) * 257
    grey = cv2.imencode(".png", deep[:, :, 1])[1].tobytes()
    colour = cv2.imencode(".png", deep[:, :, ::-1])[1].tobytes()
    assert np.array_equal(reduce(grey), np.repeat(image[:, :, 1:2], 3, axis=2))
    assert np.array_equal(reduce(colour), image)
    for name in ("floats", "integers"):
        with pytest.raises(ValueError, match="values are of 32 bits"):
            reduce(deep_images()[name][0])


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF"])
def test_the_indices_of_a_palette_are_kept_where_that_is_asked_for(encode, kind):
    """mode="stored" returns the indices of a palette, which in a mask are the classes, for PNG, GIF and TIFF."""
    classes = np.arange(12, dtype=np.uint8).reshape(3, 4) % 7
    mask = Image.fromarray(classes).convert("P")
    mask.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200, 9, 9, 9, 8, 8, 8, 7, 7, 7, 6, 6, 6])
    content = encode(mask, kind)
    found = ImageDecoder(mode="stored")(content)
    assert (found.dtype, found.tolist()) == (np.uint8, classes.tolist()), kind
    assert close(decode_image(content), pillow_rgb(content), 0)


def test_eight_bits_as_they_are_stored(image, encode):
    """mode="stored" keeps grey without colours, transparency, and black and white as 0 and 255; CMYK becomes RGB."""
    stored = ImageDecoder(mode="stored")
    grey = Image.fromarray(image).convert("L")
    assert np.array_equal(stored(encode(grey, "PNG")), np.array(grey))
    clear = np.dstack([image, image[:, :, 0]])
    assert np.array_equal(stored(encode(clear, "PNG")), clear)
    white = stored(encode(grey.convert("1"), "PNG"))
    assert (white.dtype, set(white.flat)) == (np.uint8, {0, 255})
    cmyk = encode(Image.fromarray(image).convert("CMYK"), "JPEG", quality=95)
    assert close(stored(cmyk), pillow_rgb(cmyk), 1)
    large = encode(np.zeros((400, 640), np.uint8), "JPEG")
    assert ImageDecoder(min_height=100, min_width=120, mode="stored")(large).shape == (100, 160)


def test_a_place_of_another_type_is_left_alone():
    """An image of 16 bits is not written into a row of 8 bits."""
    content, expected = deep_images()["grey png"]
    place = np.full(VALUES.shape, 7, np.uint8)
    assert np.array_equal(ImageDecoder(mode="stored")(content, place), expected)
    assert (place == 7).all()


def test_a_mode_that_there_is_not():
    """An unknown mode raises ConfigError that names the known ones."""
    with pytest.raises(ConfigError, match="mode='grey' must be one of rgb, rgb8, stored"):
        ImageDecoder(mode="grey")


def test_values_as_stored_need_pillow(monkeypatch):
    """mode="stored" without Pillow raises ConfigError, since OpenCV alone returns the colours of a palette."""
    found = images.library
    content = deep_images()["grey png"][0]
    for module in (images, base):
        monkeypatch.setattr(module, "library", lambda name: None if name == "PIL.Image" else found(name))
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r"decoding images needs PIL in .*pip install 'streamer-data\[images\]'"):
        ImageDecoder(mode="stored")(content)


def test_transparency_is_dropped_not_blended(image, encode):
    """Transparency is dropped without blending: the colours under a transparent pixel are those stored."""
    clear = np.dstack([image, np.zeros(image.shape[:2], np.uint8)])
    assert np.array_equal(decode_image(encode(clear, "PNG")), image)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_not_applied(image, encode, kind):
    """EXIF orientation is not applied: pixels and shape are those stored."""
    turned = Image.Exif()
    turned[0x0112] = 6
    content = encode(image, kind, exif=turned)
    assert decode_image(content).shape == (60, 80, 3)
    assert ImageDecoder(mode="stored")(content).shape == (60, 80, 3)


def test_the_bytes_decide_not_the_name(image, encode):
    """The bytes decide the format of an image, not its name: a PNG called .jpg is a PNG (one in ImageNet is)."""
    assert np.array_equal(decode_image(memoryview(bytearray(encode(image, "PNG")))), image)


def test_an_odd_jpeg_falls_through_the_strict_decoders(image, encode):
    """A JPEG that simplejpeg refuses, with bytes between two segments, is read by another decoder."""
    content = encode(image, "JPEG")
    table = content.index(b"\xff\xdb", 4)
    odd = content[:table] + b"\x00\x00" + content[table:]
    found = decode_image(odd)
    assert close(found, pillow_rgb(content), 1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_truncated_image_is_an_error(image, encode, kind):
    """A truncated image raises ValueError with each decoder's reason, and is never an image with a grey rest."""
    content = encode(image, kind)
    with pytest.raises(ValueError, match="PIL"):
        decode_image(content[: len(content) // 2])


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff"])
def test_what_is_no_image_is_an_error(content):
    """Empty and foreign bytes raise ValueError without the address of an object in memory."""
    with pytest.raises(ValueError, match="PIL") as error:
        decode_image(content)
    assert "0x" not in str(error.value)


def damaged_but_read(image: np.ndarray, encode) -> dict[str, bytes]:
    """Returns images of which libpng and libjpeg write warnings, and which they read."""
    png, jpeg = encode(image, "PNG"), encode(image, "JPEG")
    at = png.index(b"IDAT") - 4
    gamma = struct.pack(">I4sII", 4, b"gAMA", 45455, 1)
    return {
        "a colour profile": encode(image, "PNG", icc_profile=b"x" * 200),
        "a checksum": png[:at] + gamma + png[at:],
        "a checksum at the end": png[:-12] + gamma + png[-12:],
        "bytes at the end": jpeg[:-2] + bytes([0, 1, 2]) * 10 + jpeg[-2:],
        "bytes before the data": jpeg.replace(b"\xff\xda", bytes(7) + b"\xff\xda", 1),
    }


def test_decoders_write_nothing_of_a_image_that_is_read(installed, image, encode, capfd):
    """Decoders write nothing to stderr for an image that they read.
    Regression: libpng and libjpeg wrote lines to stderr that name no sample."""
    for name, content in damaged_but_read(image, encode).items():
        if installed == "Pillow" and "checksum" in name:  # it refuses these
            continue
        found, damage = decode_image.decode(content)
        is_png = content.startswith(b"\x89PNG")
        assert close(found, image, 0 if is_png else 255), name
        assert bool(damage) is (installed == "all" and not is_png), name
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_damage_of_a_jpeg_is_reported_in_stored_mode_too(installed, image, encode, mode):
    """Damage of a JPEG is reported in mode="stored" as well. Regression: Pillow alone passed over it."""
    image = Image.fromarray(image).convert(mode)
    jpeg = encode(image, "JPEG")
    assert np.array_equal(ImageDecoder(mode="stored")(jpeg), np.array(Image.open(io.BytesIO(jpeg))))
    damaged = jpeg[:-2] + bytes([0, 1, 2]) * 10 + jpeg[-2:]
    assert bool(ImageDecoder(mode="stored").decode(damaged)[1]) is (installed == "all")


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_out_is_written_when_it_fits(image, encode, kind):
    """An array of the right shape is filled and returned; one of another shape is left alone."""
    content = encode(image, kind)
    fits, other = np.zeros((60, 80, 3), np.uint8), np.full((61, 80, 3), 7, np.uint8)
    assert decode_image(content, fits) is fits
    assert close(fits, pillow_rgb(content), 1)
    assert decode_image(content, other) is not other
    assert (other == 7).all()


def test_out_may_be_a_strided_view(image, encode):
    """A strided view, as a row of a padded slot, is filled in place."""
    slot = np.zeros((60, 100, 3), np.uint8)
    content = encode(image, "JPEG")
    assert decode_image(content, slot[:, :80]).base is slot
    assert close(slot[:, :80], pillow_rgb(content), 1)
    assert not slot[:, 80:].any()


def test_a_jpeg_is_decoded_at_a_smaller_scale(encode, request):
    """A JPEG is decoded at the smallest scale that covers the least size, or in full by OpenCV, which has none."""
    content = encode(np.zeros((400, 640, 3), np.uint8), "JPEG")
    found = ImageDecoder(min_height=100, min_width=120)(content)
    assert found.shape[0] >= 100
    assert found.shape[1] >= 120
    if request.node.callspec.params["installed"] != "cv2 and Pillow":
        assert found.shape == (100, 160, 3)


@pytest.mark.parametrize("maxval", [1, 15, 100, 255])
@pytest.mark.parametrize("letter", [b"P5", b"P6"])
def test_white_is_white_for_every_maxval(letter, maxval):
    """Binary PGM and PPM are scaled by their maxval to 8 bits. Regression: files of few levels were dark."""
    values = np.arange(2 * 3 * (1 if letter == b"P5" else 3), dtype=np.uint8) % np.uint16(maxval + 1)
    content = letter + b" # a comment\n3 2\n%d\n" % maxval + values.astype(np.uint8).tobytes()
    assert np.array_equal(decode_image(content), pillow_rgb(content))
    assert np.array_equal(
        ImageDecoder(mode="stored")(content), np.rint(values / maxval * 255).reshape(2, 3, -1).squeeze()
    )


def test_sixteen_bits_of_a_small_maxval_become_eight(image):
    """mode="rgb8" scales 16-bit values by their maxval. Regression: the white of 12 bits was 15."""
    deep = image.astype(np.uint16) * 16
    content = b"P6\n80 60\n4080\n" + deep.astype(">u2").tobytes()
    assert close(ImageDecoder(mode="rgb8")(content), image, 1)
    assert np.array_equal(ImageDecoder(mode="stored")(content), deep)


@pytest.mark.parametrize(("bands", "kind"), [(3, b"RGB"), (4, b"RGB_ALPHA")], ids=["RGB", "RGB_ALPHA"])
def test_pam_keeps_its_order_of_colours(image, bands, kind):
    """PAM images keep their order of colours. Regression: "stored" gave blue first."""
    values = np.dstack([image, image[:, :, 0]])[:, :, :bands]
    head = b"P7\nWIDTH 80\nHEIGHT 60\nDEPTH %d\nMAXVAL 255\nTUPLTYPE %s\nENDHDR\n" % (bands, kind)
    assert np.array_equal(decode_image(head + values.tobytes()), image)
    assert np.array_equal(ImageDecoder(mode="stored")(head + values.tobytes()), values)


@pytest.mark.parametrize("mode", ["rgb", "stored"])
def test_a_png_with_a_wrong_checksum_is_an_error(encode, mode):
    """A PNG with a flipped bit raises ValueError. Regression: Pillow read what libpng refused, with other pixels."""
    rows, columns = np.mgrid[0:60, 0:80]
    classes = ((columns // 13 + rows // 11) % 5).astype(np.uint8)
    content = encode(classes, "PNG")
    whole, rng = ImageDecoder(mode=mode)(content), np.random.default_rng(0)
    for at in rng.integers(content.index(b"IDAT") + 4, len(content) - 12, 60):
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(ValueError, match=r"checksum|PNG"):
            ImageDecoder(mode=mode)(bytes(damaged))
    assert np.array_equal(whole[:, :, 0] if mode == "rgb" else whole, classes)


Image.init()
KINDS = ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000"]
if "AVIF" in Image.SAVE:  # Pillow has it from 11.3 on
    KINDS.append("AVIF")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["rgb", "stored"])
def test_images_of_too_many_pixels_are_refused_by_their_header(image, encode, kind, mode):
    """An image above max_pixels is refused by its header before memory is taken, and the error names the option."""
    content = encode(image, kind)
    with pytest.raises(
        ValueError, match=r"60 x 80 pixels, more than max_pixels=4,799 .* ImageDecoder\(max_pixels=\.\.\.\)"
    ):
        ImageDecoder(mode=mode, max_pixels=4799)(content)
    if mode == "rgb":
        assert ImageDecoder(max_pixels=4800)(content).shape == (60, 80, 3)


def test_the_limit_of_pixels_does_not_depend_on_pillows(installed, image, encode, monkeypatch):
    """Pillow's own limit of pixels has no effect, except for WebP where only Pillow is installed."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    for kind in set(KINDS) - ({"WEBP"} if installed == "Pillow" else set()):
        assert decode_image(encode(image, kind)).shape == (60, 80, 3)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None])
def test_an_invalid_limit_of_pixels(limit):
    """An invalid max_pixels raises ConfigError when the decoder is made."""
    with pytest.raises(ConfigError, match="max_pixels"):
        ImageDecoder(max_pixels=limit)


@pytest.mark.parametrize("kind", ["EPS", "TGA", "PCX", "ICO"])
@pytest.mark.parametrize("mode", ["rgb", "stored"])
def test_other_formats_of_pillow_are_not_tried(image, encode, kind, monkeypatch, mode):
    """Formats beyond the documented ones are not tried: for EPS Pillow would start a program."""
    monkeypatch.setattr("subprocess.Popen", None)
    content = encode(image, kind)
    with pytest.raises(ValueError, match="not an image"):
        ImageDecoder(mode=mode)(content)


def test_no_image_depends_on_the_one_before(image, encode):
    """Each image is decoded to the same bits alone and after any other image."""
    contents = [encode(image, kind) for kind in KINDS]
    contents += [encode(Image.fromarray(image).convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGBA")]
    contents += [encode(Image.fromarray(image).convert("CMYK"), kind) for kind in ("JPEG", "TIFF")]
    contents += [content for content, _ in deep_images().values()]
    contents += [content[: len(content) // 2] for content in contents]

    def decoded(content: bytes) -> bytes:
        try:
            return ImageDecoder(mode="stored")(content).tobytes() + ImageDecoder(mode="rgb8")(content).tobytes()
        except ValueError as error:
            return str(error).encode()

    alone = [decoded(content) for content in contents]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(contents))
        assert all(decoded(contents[number]) == alone[number] for number in order)


def test_no_decoder_at_all_says_what_to_install(monkeypatch):
    """Without any image library the error says what to install."""
    monkeypatch.setattr(images, "library", lambda name: None)
    with pytest.raises(ConfigError, match=r"streamer-data\[images\]"):
        decode_image(b"\xff\xd8\xff")


# Lossless, 4 x 4 pixels: red 4095, green 4090, blue 0, 273, ... 4095, of 12 bits; grey 0 to 15, of 4 bits.
DEEP_JPEG_2000 = base64.b64decode(
    "/0//UQAvAAAAAAAEAAAABAAAAAAAAAAAAAAABAAAAAQAAAAAAAAAAAADCwEBCwEBCwEB/1IADAAAAAEAAAQEAAH/XAAEQGD/ZAAl"
    "AAFDcmVhdGVkIGJ5IE9wZW5KUEVHIHZlcnNpb24gMi41LjT/kAAKAAAAAABBAAH/k8/kEBQAXK/P5DAUAFynRaAAAvxOXVHf4GgS"
    "GjluoYLW+iSx5X39kRPYAGqGhb5YzdD/f//Z"
)
FLAT_JPEG_2000 = base64.b64decode(
    "/0//UQApAAAAAAAEAAAABAAAAAAAAAAAAAAABAAAAAQAAAAAAAAAAAABAwEB/1IADAAAAAEAAAQEAAH/XAAEQCD/ZAAlAAFDcmVh"
    "dGVkIGJ5IE9wZW5KUEVHIHZlcnNpb24gMi41LjT/kAAKAAAAAAAaAAH/k98gkBIPhJZC4bpt8f/Z"
)


def test_jpeg_2000_of_other_depths_than_eight(installed):
    """JPEG 2000 of 12 and 4 bits keeps its values or is scaled to 8 bits.
    With Pillow alone 12 bits are refused: it makes almost white black."""
    ramp = np.arange(16).reshape(4, 4)
    deep = np.dstack([np.full((4, 4), 4095), np.full((4, 4), 4090), ramp * 273])
    with pytest.raises(ValueError, match=r"mode='stored'\) keeps them, mode='rgb8'"):
        decode_image(DEEP_JPEG_2000)
    if installed == "Pillow":
        for mode in ("rgb8", "stored"):
            with pytest.raises(ValueError, match="Pillow"):
                ImageDecoder(mode=mode)(DEEP_JPEG_2000)
    else:
        assert np.array_equal(ImageDecoder(mode="stored")(DEEP_JPEG_2000), deep)
        assert np.array_equal(ImageDecoder(mode="rgb8")(DEEP_JPEG_2000), deep >> 4)
    assert np.array_equal(ImageDecoder(mode="stored")(FLAT_JPEG_2000), ramp * 17)
    assert np.array_equal(decode_image(FLAT_JPEG_2000)[:, :, 1], ramp * 17)


def test_floats_have_no_eight_bits(installed):
    """Images of floats are refused as RGB and kept in mode="stored". Regression: OpenCV clipped them."""
    values = np.array([[[400, 5, 6]], [[1, 2, 3]]], np.float32)
    content = b"PF\n1 2\n-1.0\n" + values[::-1].tobytes()
    if installed == "Pillow":
        with pytest.raises(ValueError, match="Pillow"):
            ImageDecoder(mode="stored")(content)
        return
    for mode in ("rgb", "rgb8"):
        with pytest.raises(ValueError, match=r"float32.*mode='stored'\) keeps them$"):
            ImageDecoder(mode=mode)(content)
    assert np.array_equal(ImageDecoder(mode="stored")(content), values)


def test_a_chunk_of_a_png_that_is_longer_than_the_file(image, encode):
    """A PNG chunk longer than the file raises ValueError; bytes behind the end are ignored.
    Regression: OpenCV allocated 4 GiB, 2 s of CPU for 175 bytes."""
    png = encode(image, "PNG")
    at = png.index(b"IDAT") - 4
    damaged = png[:at] + b"\xff" * 4 + png[at + 4 :]
    with pytest.raises(ValueError, match=f"chunk at byte {at} ends 4,29.* bytes behind the end"):
        headers.png_pixels(damaged)
    with pytest.raises(ValueError, match="PNG's chunk"):
        ImageDecoder()(damaged)
    assert (ImageDecoder()(png + b"\xff" * 20) == image).all()
