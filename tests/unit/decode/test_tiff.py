"""TIFFs of every type, number of bands and layout are decoded to the values of the file, or refused.
Files are written byte by byte here, or by Pillow."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from streamer.decode.images import ImageDecoder, decode_image
from tests.unit.decode.tiffs import GREY, INKS, RGB, write_tiff

stored = ImageDecoder(mode="stored")
TYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def drawn(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Draws any bits of a type; floats are finite numbers."""
    rng = np.random.default_rng(seed)
    if dtype[0] == "f":
        return rng.normal(0, 100, shape).astype(dtype)
    return rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]


@settings(max_examples=150, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 7)),
    dtype=st.sampled_from(TYPES),
    planar=st.booleans(),
    deflate=st.booleans(),
    predicted=st.booleans(),
    cell=st.sampled_from([None, (16, 16), (32, 16)]),
    strip_rows=st.integers(0, 9),
    order=st.sampled_from("<>"),
    photometric=st.sampled_from([0, GREY, RGB, INKS, 32803]),
    orientation=st.integers(1, 8),
)
def test_stored_values_are_those_of_the_file(
    shape, dtype, planar, deflate, predicted, cell, strip_rows, order, photometric, orientation
):
    """mode="stored" returns the values of every type, number of bands, strip, tile and plane, and does not rotate."""
    values = drawn(shape, dtype)
    content = write_tiff(
        values,
        planar=planar,
        photometric=photometric,
        deflate=deflate,
        predicted=predicted and deflate,
        cell=cell,
        strip_rows=min(strip_rows, shape[0]),
        order=order,
        more=[(274, 3, [orientation])],
    )
    found = stored(content)
    expected = values if shape[2] > 1 else values[:, :, 0]
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("extra", [0, 2])
@pytest.mark.parametrize("bands", [3, 4, 6])
def test_bands_beyond_the_colours_are_dropped(extra, planar, bands):
    """Bands beyond the colours are dropped. Regression: near infrared and alpha were multiplied with the colours."""
    values = drawn((24, 32, bands), "u1")
    content = write_tiff(values, photometric=RGB, extra=extra, planar=planar)
    assert np.array_equal(decode_image(content), values[:, :, :3])


@pytest.mark.parametrize(
    ("photometric", "bands", "extra"),
    [(0, 1, 0), (GREY, 1, 0), (GREY, 2, 2), (INKS, 4, 0), (RGB, 4, 1)],
    ids=["inverted grey", "grey", "grey and alpha", "inks", "colours and alpha"],
)
def test_the_default_is_what_pillow_makes(photometric, bands, extra):
    """The default decodes grey, inverted grey, inks and premultiplied alpha as Pillow does."""
    content = write_tiff(drawn((24, 32, bands), "u1"), photometric=photometric, extra=extra)
    with Image.open(io.BytesIO(content)) as image:
        assert np.array_equal(decode_image(content), np.array(image.convert("RGB"))), (photometric, bands)


@pytest.mark.parametrize(
    ("bands", "dtype", "photometric", "message"),
    [
        (2, "u1", GREY, "2 bands have no meaning as colours"),
        (5, "u1", GREY, "5 bands have no meaning"),
        (3, "u1", 8, "CIELab"),
        (1, "i1", GREY, "values are int8"),
        (4, "u2", RGB, "values are of 16 bits.*rgb8"),
        (1, "f8", GREY, "values are of 64 bits"),
    ],
)
def test_values_that_are_no_colours_are_refused_with_the_way_out(bands, dtype, photometric, message):
    """Values that are no colours are refused by default, and the error names the mode that keeps them."""
    content = write_tiff(drawn((8, 8, bands), dtype), photometric=photometric)
    with pytest.raises(ValueError, match=rf"{message}.*mode='stored'\) keeps them|{message}"):
        decode_image(content)
    assert stored(content).shape[:2] == (8, 8)


@pytest.mark.parametrize(
    "options", [{}, {"compression": "tiff_lzw"}, {"compression": "packbits"}, {"compression": "zstd"}]
)
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK"])
def test_what_pillow_writes(image, encode, mode, options):
    """TIFFs of Pillow are decoded, also with compression that only libtiff reads; palettes are indices if stored."""
    image = Image.fromarray(image).convert(mode)
    try:
        content = encode(image, "TIFF", **options)
    except OSError as error:
        if options != {"compression": "zstd"}:
            raise
        pytest.skip(f"the libtiff of this Pillow has no zstd: {error}")
    assert np.array_equal(decode_image(content), np.array(image.convert("RGB")))
    expected = np.array(image.convert("L") if mode == "1" else image)
    assert np.array_equal(stored(content), expected)


def test_faxes_and_jpegs_within_a_tiff(image, encode):
    """Fax and JPEG compression within a TIFF are decoded like Pillow does."""
    fax = Image.fromarray(image).convert("1")
    for compression in ("group3", "group4"):
        assert np.array_equal(stored(encode(fax, "TIFF", compression=compression)), np.array(fax.convert("L")))
    for photo in (Image.fromarray(image), Image.fromarray(image).convert("L")):
        content = encode(photo, "TIFF", compression="jpeg")
        with Image.open(io.BytesIO(content)) as read:
            assert np.array_equal(decode_image(content), np.array(read.convert("RGB")))


def test_damaged_and_cut_strips_are_errors():
    """Every flipped bit of a deflated strip, and every cut of a file, raises ValueError."""
    values = drawn((40, 30, 3), "u1")
    content = write_tiff(values, photometric=RGB, deflate=True, strip_rows=7)
    end = content.rindex(b"\0\0\0\0") - 200
    rng = np.random.default_rng(0)
    for at in rng.integers(8, end - 200, 60):
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(rng.integers(8))
        with pytest.raises(ValueError, match=r"damaged|cut off|need"):
            decode_image(bytes(damaged))
    plain = write_tiff(values, photometric=RGB)
    for cut in rng.integers(1, len(plain), 40):
        with pytest.raises(ValueError, match=r"truncated|entries|need|not an image|cut off"):
            decode_image(plain[:cut])


@pytest.mark.parametrize("tag", [258, 277, 257, 256, 278])
def test_headers_that_contradict_the_strips_are_refused(tag):
    """A TIFF whose header contradicts its strips raises ValueError, so that unfilled memory is never delivered."""
    content = bytearray(write_tiff(drawn((16, 16, 1), "u1"), strip_rows=4))
    start = int.from_bytes(content[4:8], "little")
    for at in range(start + 2, start + 2 + 12 * int.from_bytes(content[start : start + 2], "little"), 12):
        if int.from_bytes(content[at : at + 2], "little") == tag:
            number = int.from_bytes(content[at + 4 : at + 8], "little")
            if number == 1:
                content[at + 8 : at + 10] = (64).to_bytes(2, "little")
            else:
                content[at + 4 : at + 8] = (number - 1).to_bytes(4, "little")
    with pytest.raises(ValueError, match=r"need|has|end at|64"):
        stored(bytes(content))


def test_tiffs_of_other_methods_name_the_way_out(image):
    """A TIFF of an unknown compression raises ValueError that names the method and the way out."""
    content = bytearray(write_tiff(image, photometric=RGB))
    at = content.index((259).to_bytes(2, "little") + (3).to_bytes(2, "little"))
    content[at + 8 : at + 10] = (34712).to_bytes(2, "little")
    with pytest.raises(ValueError, match=r"method 34712.*decode=\{'tif': your_function\}"):
        decode_image(bytes(content))
