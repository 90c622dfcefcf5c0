"""Transforms images of samples, and writes the result directly to its row in the batch, without an array in between.

    transform = OnField("jpg", RandomResizedCrop(224), HorizontalFlip(0.5))
    dataset = StreamingDataset(url, transform=transform)

"image" in place of "jpg" is the image of a sample, whatever its extension. Steps may also be transforms of
albumentations, or functions of an image.

The transforms are public. The loader makes the option `transform=` a function of a sample by `make_transform`
(`loader/members/member.py`), and the maker of samples calls it (`batches/samples/maker.py`).

Images are uint8 arrays (height, width, 3). Randomness comes only from `rng`, which the dataset derives from seed,
epoch and sample: the images are the same for any number of workers. OpenCV is used if it is installed (it releases
the GIL and writes in place), otherwise Pillow; the two differ by a few levels in resized pixels.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamer.decode import together
from streamer.decode.arrays import NO_ROW, Row
from streamer.decode.images import find_image_field
from streamer.decode.scaling import Box, copy_to, crop, flip, resize
from streamer.decode.watch import MAY_MOVE, RESIZES, SAMPLES, Views, warn_of_move
from streamer.errors import ConfigError
from streamer.removed import refuse_name

Image = NDArray[np.uint8]

# Number of boxes that are drawn until one fits, as in torchvision's RandomResizedCrop. Then the largest centred box of
# an allowed shape is taken.
_CROP_DRAWS = 10


class ImageTransform(Protocol):
    """A function from one image to another: the steps of this module, and those of users."""

    def __call__(self, image: Image, *, rng: np.random.Generator, out: Image | None = None) -> Image:
        """Returns the transformed image, of which no reference may be kept: its memory is used again.

        Args:
            image: the image.
            rng: random number generator of the sample.
            out: array for the result, or None. It is written and returned if it has the result's shape.
        """
        ...


class OnField:
    """Applies image transforms one after the other to one field of a sample. Used as `transform=` of a dataset.

    Under `StreamingDataLoader` the result is written to its row in the batch. A sample with boxes, keypoints or masks
    that would stay where they are while a step moves the pixels is refused. A field that is called a mask ("mask.png")
    is itself scaled by nearest pixels.

    Args:
        field: name of the field, for example "jpg". "image", if no field is called so, is the sample's image,
            whatever its extension. It is delivered as "image".
        steps: transforms of this module, transforms of albumentations, or functions of the image, in order. Steps with
            a parameter `rng` or `out` receive it. A transform of albumentations also receives the other fields that it
            knows by name ("mask", label fields, additional targets), and boxes, keypoints and masks if its parameters
            name them.
        masks: fields of the image's height and width that move with it, by nearest pixels.

    Attributes:
        field: name of the field, as it was given.
        masks: names of the masks that move with the image.
        steps: the steps. Those for an image that is a mask take nearest pixels.

    Raises:
        ConfigError: there are `masks`, and a step is a function of an image, which cannot move them.
    """

    def __init__(self, field: str, *steps: ImageTransform | Callable[..., object], masks: Sequence[str] = ()) -> None:
        self.field = field
        self.masks = (masks,) if isinstance(masks, str) else tuple(masks)
        self._is_mask = together.kind_by_name(field) == "mask"
        self.steps: tuple[Callable[..., object], ...] = tuple(map(_take_nearest, steps)) if self._is_mask else steps
        self._moving = [is_own(step) or together.moves_pixels(step) for step in steps]
        functions = [step for step in steps if not is_own(step) and not is_albumentations(step)]
        if self.masks and functions:
            raise ConfigError(
                f"OnField: masks={list(self.masks)} cannot follow {functions[0]!r}, a function of one image; use "
                "steps of streamer.decode.transforms or albumentations, or a function of the sample as transform=",
                field="transform",
            )
        self._arguments = [(is_albumentations(step), takes(step, "rng"), takes(step, "out")) for step in steps]
        self._looks_left = SAMPLES
        # Whether each step is a function of the user, whose result is compared to see whether it moves pixels.
        self._is_unknown = [
            not (moving or arguments[0] or together.is_of_library(step, "torchvision", "kornia"))
            for step, moving, arguments in zip(steps, self._moving, self._arguments, strict=True)
        ]
        # The last step that makes a new image writes it to its row; later steps change it there.
        makers = [number for number, step in enumerate(steps) if type(step) is not HorizontalFlip]
        self._placing = makers[-1] if makers else 0

    def __repr__(self) -> str:
        masks = [f"masks={self.masks!r}"] if self.masks else []
        return f"OnField({', '.join([repr(self.field), *map(repr, self.steps), *masks])})"

    def __call__(self, sample: dict[str, object], *, rng: np.random.Generator, out: Row = NO_ROW) -> dict[str, object]:
        """Returns a new dict with the image of the sample transformed.

        Args:
            sample: values by field. The dict is not changed.
            rng: random number generator of this sample.
            out: rows in the batch by field, to which the image is written if it fits.

        Raises:
            ConfigError: the sample has no such field, the field is not an image, or other fields would not move with
                it.
            Exception: an error of a step.
        """
        name = find_image_field(self.field, sample, f"transform: sample {sample.get('__key__')!r}")
        if not isinstance(sample[name], np.ndarray):
            raise ConfigError(
                f"transform: field {name!r} of sample {sample.get('__key__')!r} is {type(sample[name]).__name__}, "
                f"not an image; it has {', '.join(sample)}",
                field="transform",
            )
        made: dict[str, Any] = {self.field if other == name else other: value for other, value in sample.items()}
        row = out.get(self.field)
        place = row if row is not None and row.dtype == np.uint8 else None
        companions: dict[str, together.Kind] | None = None
        for number, step in enumerate(self.steps):
            by_keyword, rng_too, out_too = self._arguments[number]
            if companions is None and self._moving[number]:
                companions = self._find_companions(made, name)
            if by_keyword:
                together.apply_albumentations(
                    step, made, self.field, (companions or {}) if self._moving[number] else {}
                )
                continue
            if self._moving[number]:
                self._refuse_apart(step, made, companions or {})
            arguments: dict[str, object] = {"rng": rng} if rng_too else {}
            if self.masks:
                self._move_masks(step, made, rng)
            if out_too:
                arguments["out"] = place if number >= self._placing else None
            image = made[self.field]
            if not self._is_unknown[number]:
                made[self.field] = step(image, **arguments)
                continue
            shape = np.shape(image)[:2]
            before: Views | None = None
            if self._looks_left and self._find_companions(made, name):
                # The views are taken before, because the function may change the image in place. That takes 0.5 ms, and
                # is done for some samples only.
                before = Views.take(image) if isinstance(image, np.ndarray) else None
                self._looks_left -= before is not None
            moved = step(image, **arguments)
            is_resized = _has_new_size(shape, moved)
            move = RESIZES if is_resized else before.find_move(moved) if before is not None else ""
            # Fields that would stay behind are looked for only if the image has moved, which few samples have.
            left = self._find_companions(made, name) if move else {}
            if left and move != MAY_MOVE:
                self._refuse_apart(step, made, left)
            elif left:
                warn_of_move(step, move, name, left)
            made[self.field] = moved
        return made

    def _refuse_apart(self, step: object, sample: dict[str, Any], companions: dict[str, together.Kind]) -> None:
        """Raises a ConfigError if there are companions other than `masks`: a step would leave them where they were."""
        if apart := {name: kind for name, kind in companions.items() if name not in self.masks}:
            raise together.refuse_apart(repr(step), self.field, sample.get("__key__"), apart)

    def _find_companions(self, sample: dict[str, Any], source: str) -> dict[str, together.Kind]:
        """Returns the fields that have to move with the image, with their kinds.

        There are none if the field of this transform is itself a mask: the user then transforms image and mask apart.

        Args:
            sample: values by field.
            source: name that the image's field had in the sample.

        Raises:
            ConfigError: the sample lacks a field of `masks`.
        """
        if self._is_mask and not self.masks:
            return {}
        found = together.find_companions(sample, self.field, source, np.shape(sample[self.field]))
        for mask in self.masks:
            if mask not in sample:
                raise ConfigError(
                    f"OnField: masks= names {mask!r}, which sample {sample.get('__key__')!r} does not have; it has "
                    f"{', '.join(sample)}",
                    field="transform",
                )
            found[mask] = "mask"
        return found

    def _move_masks(self, step: Callable[..., Any], sample: dict[str, Any], rng: np.random.Generator) -> None:
        """Applies a step to the masks of `sample`, with the random numbers that the image gets next; changes the dict.

        Raises:
            ConfigError: a mask does not have the height and width of the image.
        """
        shape = np.shape(sample[self.field])[:2]
        before = rng.bit_generator.state
        step = _take_nearest(step)

        def move(mask: str, value: together.Value) -> together.Value:
            """Applies the step to a mask, or to each of several masks in a list or array."""
            if isinstance(value, list):
                return [move(mask, each) for each in value]
            if np.ndim(value) == 3 and np.shape(value)[:2] != shape:
                return np.stack([move(mask, each) for each in value])
            if not isinstance(value, np.ndarray) or value.shape[:2] != shape:
                raise ConfigError(
                    f"OnField: mask {mask!r} of sample {sample.get('__key__')!r} is {type(value).__name__} of shape "
                    f"{np.shape(value)}, its image of {shape}: they cannot be moved together",
                    field="transform",
                )
            rng.bit_generator.state = before
            return step(value, rng=rng)

        for mask in self.masks:
            sample[mask] = move(mask, sample[mask])
        rng.bit_generator.state = before

    @property
    def is_own(self) -> bool:
        """Whether all steps are of this module, which draw random numbers from `rng` only."""
        return all(map(is_own, self.steps))


def is_own(step: object) -> bool:
    """Whether `step` is a step of this module. All of these move pixels."""
    return type(step) in {Resize, CenterCrop, RandomResizedCrop, HorizontalFlip}


def _take_nearest(step: Callable[..., object]) -> Callable[..., object]:
    """Returns a step of this module that scales as one that takes nearest pixels, and any other step as it is."""
    return replace(step, nearest=True) if type(step) in {Resize, CenterCrop, RandomResizedCrop} else step  # type: ignore[type-var]


def _has_new_size(shape: tuple[int, ...], image: object) -> bool:
    """Whether an array or tensor has another height and width than `shape`, wherever the axis of its colours is."""
    sides = tuple(getattr(image, "shape", shape))
    return shape not in (sides[:2], sides[-2:])


def make_transform(transform: Callable[..., object] | None) -> Callable[..., object] | None:
    """Returns the argument `transform=` of a dataset as a function of a sample, or None if it is None.

    A transform of albumentations is applied to the image of the sample. One of torchvision or kornia is wrapped in a
    `WholeStep`, which checks the sample first. Others are returned as they are.

    Raises:
        ConfigError: a function of an image is used with masks, which it cannot move.
    """
    if transform is not None and is_albumentations(transform):
        return OnField("image", transform)
    return together.check_whole_step("transform", transform)


def is_albumentations(transform: object) -> bool:
    """Whether `transform` is a transform of albumentations, or of a class that is derived from one."""
    return any(kind.__module__.partition(".")[0] == "albumentations" for kind in type(transform).__mro__)


def takes(transform: Callable[..., object] | None, name: str) -> bool:
    """Whether the user's function has a parameter that can be passed by this name. False for None."""
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
        size: (height, width) in pixels, or the length of the shorter side.
        antialias: see `resize`.
        nearest: see `resize`.
    """

    size: int | tuple[int, int]
    antialias: bool = True
    nearest: bool = False

    def __call__(self, image: Image, *, rng: np.random.Generator | None = None, out: Image | None = None) -> Image:
        """Returns the scaled image, in `out` if it fits; `rng` is not used."""
        height, width = image.shape[:2]
        if isinstance(self.size, tuple):
            height, width = self.size
        elif height <= width:
            width = max(1, int(width * self.size / height))
            height = self.size
        else:
            height = max(1, int(height * self.size / width))
            width = self.size
        return resize(image, height, width, out, antialias=self.antialias, nearest=self.nearest)


@dataclass(frozen=True)
class CenterCrop:
    """Cuts out the centre; scales a smaller image up first until it covers the size.

    Attributes:
        height: rows of the result.
        width: columns of the result, or 0 for as many as rows.
        nearest: see `resize`.
    """

    height: int
    width: int = 0
    nearest: bool = False

    def __call__(self, image: Image, *, rng: np.random.Generator | None = None, out: Image | None = None) -> Image:
        """Returns the centre of the image, in `out` if it fits; `rng` is not used."""
        height, width = self.height, self.width or self.height
        scale = max(height / image.shape[0], width / image.shape[1])
        if scale > 1:
            rows, columns = math.ceil(image.shape[0] * scale), math.ceil(image.shape[1] * scale)
            image = resize(image, rows, columns, None, nearest=self.nearest)
        top = (image.shape[0] - height) // 2
        left = (image.shape[1] - width) // 2
        return copy_to(crop(image, (top, left, height, width)), out)


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cuts out a box of random area and shape and scales it: the usual augmentation for training on ImageNet.

    Attributes:
        height: rows of the result.
        width: columns of the result, or 0 for as many as rows.
        scale: least and largest share of the image's area that the box has.
        ratio: least and largest width / height of the box.
        antialias: see `resize`.
        nearest: see `resize`.
    """

    height: int
    width: int = 0
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    antialias: bool = True
    nearest: bool = False

    def __call__(self, image: Image, *, rng: np.random.Generator, out: Image | None = None) -> Image:
        """Returns a random box of the image, scaled, in `out` if it fits."""
        box = self.draw(image.shape[0], image.shape[1], rng)
        height, width = self.height, self.width or self.height
        return resize(crop(image, box), height, width, out, antialias=self.antialias, nearest=self.nearest)

    def draw(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """Returns a random box within an image of `height` rows and `width` columns.

        Source: torchvision.transforms.RandomResizedCrop.get_params (same distribution, another generator).
        """
        lowest = math.log(self.ratio[0])
        highest = math.log(self.ratio[1])
        for _ in range(_CROP_DRAWS):
            area = height * width * rng.uniform(*self.scale)
            shape = math.exp(rng.uniform(lowest, highest))
            columns, rows = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < columns <= width and 0 < rows <= height:
                top = int(rng.integers(0, height - rows + 1))
                return top, int(rng.integers(0, width - columns + 1)), rows, columns
        shape = min(max(width / height, self.ratio[0]), self.ratio[1])
        rows, columns = min(height, round(width / shape)), min(width, round(height * shape))
        return (height - rows) // 2, (width - columns) // 2, rows, columns


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirrors left and right, with a given probability.

    Attributes:
        probability: probability that an image is mirrored, 0 to 1.
    """

    probability: float = 0.5

    def __call__(self, image: Image, *, rng: np.random.Generator, out: Image | None = None) -> Image:
        """Returns the image, mirrored or not, in `out` if it fits. `out` may be the image itself."""
        if rng.random() >= self.probability:
            return copy_to(image, out)
        return flip(image, out)


def __getattr__(name: str) -> object:
    refuse_name(__name__, name)
