"""Transforms of images: where they write, what they draw, and which types they take, with OpenCV and with Pillow."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.decode import scaling
from streamer.decode.transforms import CenterCrop, HorizontalFlip, OnField, RandomResizedCrop, Resize, flip, resize
from streamer.errors import ConfigError


@pytest.fixture(params=["cv2", "Pillow"])
def _resizer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes resizing use OpenCV, or Pillow as where OpenCV is not installed."""
    found = scaling.library
    if request.param == "Pillow":
        monkeypatch.setattr(scaling, "library", lambda name: None if name == "cv2" else found(name))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.usefixtures("_resizer")
@pytest.mark.parametrize("size", [(30, 40), (120, 160), (17, 93), (60, 80)])
def test_resize_writes_into_out(image, size):
    """`resize` fills and returns an array of the right shape, with the same result as without one."""
    out = np.zeros((*size, 3), np.uint8)
    assert resize(image, *size, out) is out
    assert np.array_equal(out, resize(image, *size))


@pytest.mark.usefixtures("_resizer")
@pytest.mark.parametrize(
    "make",
    [lambda: np.full((31, 40, 3), 7, np.uint8), lambda: np.full((30, 80, 3), 7, np.uint8)[:, ::2]],
    ids=["shape", "strides"],
)
def test_resize_leaves_an_array_alone_that_does_not_fit(image, make):
    """`resize` leaves an array alone that has another shape or strides of which OpenCV would take a copy."""
    out = make()
    assert resize(image, 30, 40, out).shape == (30, 40, 3)
    assert (out == 7).all()


@pytest.mark.usefixtures("_resizer")
def test_resize_keeps_what_a_smooth_image_shows(image):
    """A smooth image of half the size is the mean of four pixels, within two levels."""
    small = resize(image, 30, 40)
    mean = image.reshape(30, 2, 40, 2, 3).mean(axis=(1, 3))
    assert np.abs(small - mean).max() <= 2


@pytest.mark.usefixtures("_resizer")
@pytest.mark.parametrize("size", [(23, 31), (29, 80), (75, 99)])
def test_without_antialiasing_each_pixel_lies_between_four(size):
    """Without antialiasing resizing is bilinear between the nearest four pixels, within two levels."""
    noise = rng().integers(0, 256, (60, 80, 3), np.uint8)
    found = resize(noise, *size, antialias=False)
    assert np.abs(found - bilinear(noise, *size)).max() <= 2
    assert np.array_equal(Resize(size, antialias=False)(noise), found)
    whole = RandomResizedCrop(*size, scale=(1, 1), ratio=(4 / 3, 4 / 3), antialias=False)
    assert np.array_equal(whole(noise, rng=rng()), found)


def bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes by the definition: between the centres of pixels, the border repeated."""
    for axis, length in enumerate((height, width)):
        last = image.shape[axis] - 1
        at = np.clip((np.arange(length) + 0.5) * image.shape[axis] / length - 0.5, 0, last)
        below = at.astype(int)
        share = np.expand_dims(at - below, (1, 2) if axis == 0 else (0, 2))
        above = np.minimum(below + 1, last)
        image = image.take(below, axis) * (1 - share) + image.take(above, axis) * share
    return image


def test_resize_by_the_shorter_side(image):
    """`Resize` with one number scales the shorter side to it and keeps the aspect ratio."""
    assert Resize(30)(image).shape == (30, 40, 3)
    assert Resize(30)(image.transpose(1, 0, 2)).shape == (40, 30, 3)
    assert Resize((20, 10))(image).shape == (20, 10, 3)


def test_centre_crop_takes_the_middle(image):
    """`CenterCrop` copies exactly the middle pixels, and scales a small image up first."""
    found = CenterCrop(20, 40)(image)
    assert np.array_equal(found, image[20:40, 20:60])
    assert not np.shares_memory(found, image)
    out = np.zeros((100, 100, 3), np.uint8)
    assert CenterCrop(100)(image, out=out) is out
    assert out.any()


@pytest.mark.parametrize(("height", "width"), [(60, 80), (300, 40), (40, 300)])
def test_random_boxes_lie_inside_and_have_the_area_and_shape_asked_for(height, width):
    """Random boxes lie inside the image, and have the area and aspect ratio asked for where the image allows it."""
    step = RandomResizedCrop(8, scale=(0.2, 0.6), ratio=(0.5, 2.0))
    for seed in range(200):
        top, left, rows, columns = step.draw(height, width, rng(seed))
        assert 0 <= top <= top + rows <= height
        assert 0 <= left <= left + columns <= width
        if height == 60:
            assert 0.15 <= rows * columns / (height * width) <= 0.65
            assert 0.45 <= columns / rows <= 2.2


def test_a_shape_that_no_box_can_have_gives_the_middle():
    """An image that no box fits is cut to the widest box in its middle, as a strip of 10 x 1000 pixels."""
    assert RandomResizedCrop(8, scale=(1.0, 1.0)).draw(10, 1000, rng()) == (0, 493, 10, 13)


def test_the_same_rng_gives_the_same_image(image):
    """The same seed draws the same crop, another seed another one, also when it is written into `out`."""
    step, out = RandomResizedCrop(16), np.zeros((16, 16, 3), np.uint8)
    assert step(image, rng=rng(1), out=out) is out
    assert np.array_equal(out, step(image, rng=rng(1)))
    assert not np.array_equal(out, step(image, rng=rng(2)))


def test_flip_mirrors_in_place_and_elsewhere(image):
    """`flip` mirrors an image into itself or into a new array."""
    mirrored = image[:, ::-1].copy()
    held = image.copy()
    assert flip(held, held) is held
    assert np.array_equal(held, mirrored)
    assert np.array_equal(flip(image), mirrored)


def test_horizontal_flip_follows_its_probability(image):
    """`HorizontalFlip` never flips at 0, always at 1, and about half the time at 0.5."""
    flipped = [np.array_equal(HorizontalFlip()(image, rng=rng(s)), image[:, ::-1]) for s in range(400)]
    assert 160 < sum(flipped) < 240
    assert HorizontalFlip(0.0)(image, rng=rng()) is image
    assert np.array_equal(HorizontalFlip(1.0)(image, rng=rng()), image[:, ::-1])


def test_on_field_changes_one_field(image):
    """`OnField` changes one field of a new sample, and the given sample stays as it was."""
    sample = {"__key__": "k", "jpg": image, "cls": 3}
    found = OnField("jpg", Resize(30), HorizontalFlip(1.0))(sample, rng=rng())
    assert np.shape(found["jpg"]) == (30, 40, 3)
    assert (found["cls"], found["__key__"]) == (3, "k")
    assert sample["jpg"] is image


def test_on_field_without_a_image_names_what_there_is():
    """`OnField` of a missing field raises ConfigError that names the fields there are."""
    with pytest.raises(ConfigError, match="__key__, png"):
        OnField("jpg", Resize(30))({"__key__": "k", "png": b""}, rng=rng())


def test_steps_may_be_any_functions_of_a_image(image):
    """A step may be any function of an image; it gets `rng` if it has such a parameter."""

    def noisy(found: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return found + rng.integers(0, 9, found.shape, np.uint8)

    made = OnField("jpg", Resize(30), noisy, lambda found: found[::2])({"jpg": image}, rng=rng(3))["jpg"]
    assert np.array_equal(made, noisy(Resize(30)(image), rng(3))[::2])


@pytest.mark.parametrize("field", ["jpg", "seg.PNG", "image"])
def test_image_is_the_image_of_a_sample(image, field):
    """The field "image" is the sample's one image whatever its extension, and is delivered under that name."""
    sample = {"__key__": "a", field: image, "label": 3}
    made = OnField("image", Resize((10, 20)))(sample, rng=rng())
    assert list(made) == ["__key__", "image", "label"]
    assert made["image"].shape == (10, 20, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"jpg": 1, "seg.png": 2}, "sample 'a' has no field 'image'; it has __key__, jpg, seg.png: name one of them"),
        ({"cls": 1}, "sample 'a' has no field 'image'; it has __key__, cls: none of them is an image"),
    ],
)
def test_image_must_be_one_image(fields, message):
    """The field "image" raises ConfigError for a sample with no image or several."""
    with pytest.raises(ConfigError, match=message):
        OnField("image")({"__key__": "a", **fields}, rng=rng())


def test_a_missing_field_names_the_way_to_any_image(image):
    """The error for a missing field names 'image', as for a folder with jpg and png."""
    with pytest.raises(ConfigError, match=r"has no field 'jpg'; .*'image' is the image of a sample, whatever"):
        OnField("jpg")({"__key__": "a", "png": image}, rng=rng())


@pytest.mark.parametrize("step", [Resize((8, 8)), CenterCrop(8), HorizontalFlip(1.0), HorizontalFlip(0.0)])
@pytest.mark.parametrize("shape", [(16, 16), (16, 16, 3), (8, 8, 3)])
def test_images_of_another_type_are_not_written_to_the_row(step, shape):
    """An image of another type than its row's is returned by itself, and the row is left alone."""
    deep = np.full(shape, 40_000, np.uint16)
    row = np.full((8, 8, 3), 7, np.uint8)
    found = step(deep, rng=rng(), out=row)
    assert found.dtype == np.uint16
    assert (found == 40_000).all()
    assert (row == 7).all()


@pytest.mark.usefixtures("_resizer")
@pytest.mark.parametrize("bands", [0, 1, 2, 3, 4, 5, 13])
@pytest.mark.parametrize("dtype", ["u1", "u2", "i2", "f4", "f8", "i4", "i8", "u4", "f2", "?"])
@pytest.mark.parametrize("size", [(9, 7), (40, 30)])
def test_images_of_any_type_and_bands(dtype, bands, size):
    """Images of any number of bands are flipped exactly and scaled band by band, or their type is refused."""
    made = (rng().normal(100, 20, (16, 20, *([bands] if bands else []))) * (1 if dtype == "u1" else 3)).astype(dtype)
    assert np.array_equal(flip(made), made[:, ::-1])
    assert flip(made).dtype == made.dtype
    assert resize(made, *size, nearest=True).dtype == made.dtype
    if dtype not in {"u1", "u2", "i2", "f4", "f8"}:
        with pytest.raises(ConfigError, match="is not scaled, because its values cannot be averaged"):
            resize(made, *size)
        return
    for antialias in (True, False):
        found = resize(made, *size, antialias=antialias)
        assert (found.shape, found.dtype) == ((*size, *made.shape[2:]), made.dtype)
        for band in range(bands):
            alone = resize(np.ascontiguousarray(made[:, :, band]), *size, antialias=antialias)
            assert np.abs(alone.astype(float) - found[:, :, band]).max() <= 1
