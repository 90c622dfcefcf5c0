"""Image transforms that write directly to their target: no intermediate array, no allocation in steady state.

    transform = OnField("jpg", RandomResizedCrop(224), HorizontalFlip(0.5))
    dataset = StreamingDataset(url, transform=transform)

"image" in place of "jpg" is the picture of a sample, whatever its extension. Steps may also be transforms of
albumentations, or functions of a picture.

Pictures are uint8 arrays (height, width, 3). Randomness comes only from `rng`, which the dataset derives from seed,
epoch and sample: the pictures are the same for any number of workers. OpenCV is used if it is installed (it releases
the GIL and writes in place), otherwise Pillow; the two differ by a few levels in resized pixels.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.decode.arrays import NO_ROW, Row
from streamer.decode.images import picture_field, place
from streamer.decode.libraries import library
from streamer.errors import ConfigError

Picture = NDArray[np.uint8]
# top, left, height, width in pixels.
Box = tuple[int, int, int, int]

# As in torchvision's RandomResizedCrop: ten draws, then the largest centred box of an allowed shape.
_CROP_DRAWS = 10


class ImageTransform(Protocol):
    """A function from one picture to another."""

    def __call__(self, picture: Picture, *, rng: np.random.Generator, out: Picture | None = None) -> Picture:
        """Returns the transformed picture, in `out` if that is given and has its shape. The result must not be kept."""
        ...


class OnField:
    """Applies image transforms one after the other to one field of a sample. Used as `transform=` of a dataset.

    Under `StreamingDataLoader` the result is written to its row in the batch.

    Args:
        field: name of the field, for example "jpg". "image", if no field is called so, is the sample's picture,
            whatever its extension; it is delivered as "image".
        steps: transforms of this module, transforms of albumentations (which also receive the other fields that they
            know by name: "mask", "bboxes", additional targets), or functions of the picture, in order. Steps with a
            parameter `rng` or `out` receive it.
    """

    def __init__(self, field: str, *steps: ImageTransform | Callable[..., object]) -> None:
        self.field = field
        self.steps: tuple[Callable[..., object], ...] = steps
        self._arguments = [(is_albumentations(step), takes(step, "rng"), takes(step, "out")) for step in steps]
        # The last step that makes a new picture writes it to its row; later steps change it there.
        makers = [number for number, step in enumerate(steps) if type(step) is not HorizontalFlip]
        self._placing = makers[-1] if makers else 0

    def __repr__(self) -> str:
        return f"OnField({self.field!r}, {', '.join(map(repr, self.steps))})"

    def __call__(self, sample: dict[str, object], *, rng: np.random.Generator, out: Row = NO_ROW) -> dict[str, object]:
        """Replaces the field's picture.

        Args:
            sample: values by field.
            rng: generator of this sample.
            out: rows in the batch by field.

        Raises:
            ConfigError: the sample has no such field, or the field is not a picture.
        """
        name = picture_field(self.field, sample, f"transform: sample {sample.get('__key__')!r}")
        if not isinstance(sample[name], np.ndarray):
            raise ConfigError(
                f"transform: field {name!r} of sample {sample.get('__key__')!r} is {type(sample[name]).__name__}, "
                f"not a picture; it has {', '.join(sample)}",
                field="transform",
            )
        made = {self.field if other == name else other: value for other, value in sample.items()}
        row = out.get(self.field)
        place = row if row is not None and row.dtype == np.uint8 else None
        for number, step in enumerate(self.steps):
            by_keyword, rng_too, out_too = self._arguments[number]
            if by_keyword:
                self._compose(step, made)
                continue
            arguments: dict[str, object] = {"rng": rng} if rng_too else {}
            if out_too:
                arguments["out"] = place if number >= self._placing else None
            made[self.field] = step(made[self.field], **arguments)
        return made

    def _compose(self, step: Callable[..., object], sample: dict[str, object]) -> None:
        """Applies a transform of albumentations, which accepts only keywords."""
        known = step.available_keys - {self.field, "image"}  # type: ignore[attr-defined]
        changed = step(image=sample[self.field], **{name: value for name, value in sample.items() if name in known})
        assert isinstance(changed, dict)
        sample[self.field] = changed.pop("image")
        sample.update(changed)

    @property
    def is_own(self) -> bool:
        """Whether all steps are of this module, whose only randomness is `rng`."""
        return all(type(step) in {Resize, CentreCrop, RandomResizedCrop, HorizontalFlip} for step in self.steps)


def as_transform(transform: Callable[..., object] | None) -> Callable[..., object] | None:
    """Makes a transform of samples: applies one of albumentations to the picture; returns others unchanged."""
    return OnField("image", transform) if transform is not None and is_albumentations(transform) else transform


def is_albumentations(transform: object) -> bool:
    """Whether it is a transform of albumentations, or of a subclass."""
    return any(kind.__module__.partition(".")[0] == "albumentations" for kind in type(transform).__mro__)


def takes(transform: Callable[..., object] | None, name: str) -> bool:
    """Whether the user's function has a parameter that can be passed by this name."""
    if transform is None:
        return False
    try:
        parameter = inspect.signature(transform).parameters.get(name)
    except (TypeError, ValueError):  # some callables of C extensions have no signature
        return False
    return parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY


@dataclass(frozen=True)
class Resize:
    """Scales to a fixed size, or so that the shorter side has a given length.

    Attributes:
        size: (height, width), or the length of the shorter side.
        antialias: see `resize`.
    """

    size: int | tuple[int, int]
    antialias: bool = True

    def __call__(
        self, picture: Picture, *, rng: np.random.Generator | None = None, out: Picture | None = None
    ) -> Picture:
        """Scales; uses no randomness."""
        height, width = self._target(picture)
        return resize(picture, height, width, out, antialias=self.antialias)

    def _target(self, picture: Picture) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        height, width = picture.shape[:2]
        if height <= width:
            return self.size, max(1, int(width * self.size / height))
        return max(1, int(height * self.size / width)), self.size


@dataclass(frozen=True)
class CentreCrop:
    """Cuts out the centre; scales a smaller picture up first until it covers the size.

    Attributes:
        height: rows of the result.
        width: columns of the result; 0: equal to the rows.
    """

    height: int
    width: int = 0

    def __call__(
        self, picture: Picture, *, rng: np.random.Generator | None = None, out: Picture | None = None
    ) -> Picture:
        """Cuts; uses no randomness."""
        height, width = self.height, self.width or self.height
        scale = max(height / picture.shape[0], width / picture.shape[1])
        if scale > 1:
            rows, columns = math.ceil(picture.shape[0] * scale), math.ceil(picture.shape[1] * scale)
            picture = resize(picture, rows, columns, None)
        top, left = (picture.shape[0] - height) // 2, (picture.shape[1] - width) // 2
        return _copied(crop(picture, (top, left, height, width)), out)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts out a box of random area and shape and scales it: the usual augmentation for training on ImageNet.

    Attributes:
        height: rows of the result.
        width: columns of the result; 0: equal to the rows.
        scale: least and largest share of the picture's area.
        ratio: least and largest width / height of the box.
        antialias: see `resize`.
    """

    height: int
    width: int = 0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    antialias: bool = True

    def __call__(self, picture: Picture, *, rng: np.random.Generator, out: Picture | None = None) -> Picture:
        """Cuts and scales in one step, into `out`."""
        box = self.draw(picture.shape[0], picture.shape[1], rng)
        return resize(crop(picture, box), self.height, self.width or self.height, out, antialias=self.antialias)

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """Draws a box within a picture of this size.

        Source: torchvision.transforms.RandomResizedCrop.get_params (same distribution, another generator).
        """
        lowest, highest = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(_CROP_DRAWS):
            area = height * width * rng.uniform(*self.scale)
            shape = math.exp(rng.uniform(lowest, highest))
            columns, rows = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < columns <= width and 0 < rows <= height:
                top = int(rng.integers(0, height - rows + 1))
                return top, int(rng.integers(0, width - columns + 1)), rows, columns
        return self._middle(height, width)

    def _middle(self, height: int, width: int) -> Box:
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        rows, columns = min(height, round(width / shape)), min(width, round(height * shape))
        return (height - rows) // 2, (width - columns) // 2, rows, columns


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirrors left and right, with a given probability.

    Attributes:
        probability: 0..1.
    """

    probability: float = 0.5

    def __call__(self, picture: Picture, *, rng: np.random.Generator, out: Picture | None = None) -> Picture:
        """Mirrors or copies; `out` may be the picture itself."""
        if rng.random() >= self.probability:
            return _copied(picture, out)
        return flip(picture, out)


def resize(picture: Picture, height: int, width: int, out: Picture | None = None, *, antialias: bool = True) -> Picture:
    """Scales to height x width: averages areas of pixels when shrinking, interpolates when growing.

    Args:
        picture: uint8 (rows, columns, 3); may be a view.
        height: rows of the result.
        width: columns of the result.
        out: written and returned if it is C-contiguous and of the result's shape.
        antialias: False interpolates between four pixels when shrinking, too, as `cv2.resize` does by default: 500 x
            375 to 224 x 224 in 0.1 ms instead of 1.1, which is as long as the decoder takes (2026-11-22). If a picture
            shrinks to less than half its size, pixels are lost.
    """
    if picture.shape[:2] == (height, width):
        return _copied(picture, out)
    fits = out is not None and _fits((height, width, *picture.shape[2:]), picture, out)
    cv2 = library("cv2")
    if cv2 is None:
        return place(_resize_by_pillow(picture, height, width, antialias), out if fits else None)
    averages = antialias and height * width < picture.shape[0] * picture.shape[1]
    # OpenCV silently allocates another array if `dst` does not fit: hence `fits`.
    scaled: Picture = cv2.resize(
        picture,
        (width, height),
        dst=out if fits else None,
        interpolation=cv2.INTER_AREA if averages else cv2.INTER_LINEAR,
    )
    return out if fits and out is not None else scaled


def crop(picture: Picture, box: Box) -> Picture:
    """Returns the box as a view, without copying."""
    top, left, height, width = box
    return picture[top : top + height, left : left + width]


def flip(picture: Picture, out: Picture | None = None) -> Picture:
    """Mirrors left and right, into `out` (which may be the picture itself) or a new array."""
    cv2 = library("cv2")
    if cv2 is None or picture.size == 0:
        return _copied(picture[:, ::-1], out)
    # 4 us for 224 x 224 where numpy takes 190 (2026-11-20).
    fits = out is not None and _fits(picture.shape, picture, out)
    if fits and not np.may_share_memory(picture, out):
        cv2.flip(picture, 1, dst=out)
        return out  # type: ignore[return-value]
    return _copied(cv2.flip(picture, 1), out)


def _copied(picture: Picture, out: Picture | None) -> Picture:
    """Copies to `out` if it fits; otherwise copies the view, so that it does not keep the whole picture."""
    if out is not None and out.shape == picture.shape and out.dtype == picture.dtype:
        # numpy copies through a buffer if the two overlap.
        np.copyto(out, picture)
        return out
    return picture if picture.base is None and picture.flags.c_contiguous else picture.copy()


def _fits(shape: tuple[int, ...], picture: Picture, out: Picture) -> bool:
    """Whether OpenCV writes a result of this shape to `out`: pictures may have another type, or no colours."""
    return out.shape == shape and out.dtype == picture.dtype and out.flags.c_contiguous


def _resize_by_pillow(picture: Picture, height: int, width: int, antialias: bool) -> Picture:
    image = library("PIL.Image")
    if image is None:
        raise ConfigError("resizing needs OpenCV or Pillow; `pip install 'streamer-data[images]'`", field="transform")
    source, (rows, columns) = image.fromarray(np.ascontiguousarray(picture)), picture.shape[:2]
    bilinear = image.Resampling.BILINEAR
    if not antialias:  # `Image.resize` always does so
        steps = (columns / width, 0, 0, 0, rows / height, 0)
        return np.array(source.transform((width, height), image.Transform.AFFINE, steps, bilinear))
    how = image.Resampling.BOX if height * width < rows * columns else bilinear
    return np.array(source.resize((width, height), how))
