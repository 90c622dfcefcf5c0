"""Compares samples before and after functions of the user, to warn of a function that moves the image alone.

Boxes, keypoints and masks have to move with their image. `decode/transforms.py` compares the steps of `OnField`, and
the maker of samples compares functions of a whole sample (`batches/samples/maker.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.decode.together import Kind, find_companions, is_image_name, kind_by_name

logger = logging.getLogger(__name__)

# An array, a tensor or an image of PIL.
Image = Any
# Largest number of pixels along a side that are compared.
_LOOKED_AT_PIXELS = 64
_GREY_AXES = 2
_COLOUR_AXES = 3
_MAX_BANDS = 4
# Words of the warning for what a function does to an image.
RESIZES = "resizes"
MIRRORS = "mirrors or turns"
MAY_MOVE = "seems to move pixels of"
# A result is mirrored or turned if its correlation with such a view is above `_ALIKE`, and by `_MORE_ALIKE` above that
# with the image as it was; it may have moved if the latter is below `_MOVED`. Changes of colours, of brightness and of
# contrast leave the correlation near 1 or -1.
_MORE_ALIKE = 0.05
_ALIKE = 0.5
_MOVED = 0.9
# Number of samples with boxes or masks that are compared, of each function. One that mirrors every second sample is
# seen at once.
SAMPLES = 200
# Ids of the functions that were warned of.
_warned_of = set[int]()
# Names under which a function may return the image.
_OTHER_NAMES = ("image", "img", "pixel_values")
# Packages whose arrays, tensors and images are read.
_PACKAGES = frozenset(["numpy", "torch", "torchvision", "PIL", "kornia"])


class Views(msgspec.Struct, frozen=True):
    """Some pixels of an image as it was, mirrored and turned, each less its mean and of length 1.

    Attributes:
        size: height and width of the image.
        views: float32 [views, pixels]; the first one is of the image as it was.
    """

    size: tuple[int, int]
    views: NDArray[np.float32]

    @classmethod
    def take(cls, image: NDArray[Any]) -> Views:
        """Returns the views of an image: 4, or 8 of a square image."""
        height, width = image.shape[:2]
        turned = [image, image.swapaxes(0, 1)] if height == width else [image]
        mirrored = [view for each in turned for view in (each, each[:, ::-1], each[::-1], each[::-1, ::-1])]
        return cls((height, width), np.stack([_pick(view) for view in mirrored]))

    def find_move(self, result: Image) -> str:
        """Returns what a function did to the image, by its result: `RESIZES`, `MIRRORS`, `MAY_MOVE` or "".

        "" means that only colours changed, or that the result is nothing whose pixels are read.
        """
        pixels = _read_pixels(result)
        if pixels is None or pixels.ndim not in {_GREY_AXES, _COLOUR_AXES}:
            return ""
        if pixels.ndim == _COLOUR_AXES and pixels.shape[0] <= _MAX_BANDS < pixels.shape[2]:
            # The colours come first, as in tensors.
            pixels = np.moveaxis(pixels, 0, -1)
        if pixels.shape[:2] != self.size:
            return RESIZES
        likeness = np.abs(self.views @ _pick(pixels))
        if likeness.max() > max(_ALIKE, likeness[0] + _MORE_ALIKE):
            return MIRRORS
        return MAY_MOVE if likeness[0] < _MOVED and self.views[0].any() else ""


def _pick(image: NDArray[Any]) -> NDArray[np.float32]:
    """Returns the brightness of some pixels as a vector of mean 0 and length 1, or zeros if all of them are equal."""
    step = -(-max(image.shape[:2]) // _LOOKED_AT_PIXELS)
    thin = image[::step, ::step]
    picked = (thin if thin.ndim == _GREY_AXES else thin[:, :, :3].sum(axis=2, dtype=np.float32)).reshape(-1)
    picked = picked.astype(np.float32)
    picked -= picked.mean()
    length = float(np.sqrt(picked @ picked))
    return picked / np.float32(length) if length > 1e-6 else np.zeros_like(picked)


def _read_pixels(image: Image) -> NDArray[Any] | None:
    """Returns the pixels of an array, tensor or PIL image in this process's memory, or None for anything else."""
    if type(image).__module__.partition(".")[0] not in _PACKAGES:
        return None
    if getattr(image, "requires_grad", False) or getattr(image, "is_cuda", False):
        return None
    found = np.asarray(image)
    return found if found.dtype.kind in "biuf" else None


def warn_of_move(function: object, move: str, field: str, behind: Iterable[str]) -> None:
    """Logs that a function moves an image and leaves other fields as they were: once for each function in a process.

    Args:
        function: the function of the user.
        move: what it does: `RESIZES`, `MIRRORS` or `MAY_MOVE`.
        field: name of the image's field.
        behind: names of the fields that stay as they were.
    """
    if id(function) in _warned_of:
        return
    _warned_of.add(id(function))
    logger.warning(
        "transform: %r %s the image %r of a sample, and leaves %s as before: boxes, keypoints and masks have to move "
        "with it, unless they are shares of its sides. A function of the sample can move all of them, and so does "
        "A.Compose(...) of albumentations",
        function,
        move,
        field,
        ", ".join(behind),
    )


class Seen(msgspec.Struct, frozen=True):
    """What a sample had before a function of the user was called.

    Attributes:
        field: name of the image's field.
        image: views of the image.
        companions: kinds of the fields that would have to move with the image, by name.
        values: these fields as `_copy` returns them: copies, or some pixels of large arrays.
    """

    field: str
    image: Views
    companions: Mapping[str, Kind]
    values: Mapping[str, object]


class SampleWatch:
    """Compares samples before (`look`) and after (`compare`) a function of the user.

    Logs one warning if the function moves the image and leaves boxes, keypoints or masks as they were. It is no error:
    only the user knows whether that is right, as for boxes that are shares of the sides of a resized image.

    Args:
        function: the function, which the warning names.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self._left = SAMPLES

    def look(self, sample: Mapping[str, Any]) -> Seen | None:
        """Copies what `compare` needs of a sample, before the function gets it.

        None means that there is nothing to compare: no field would have to move, or enough samples were compared.
        """
        if not self._left:
            return None
        for field, value in sample.items():
            if isinstance(value, np.ndarray) and _is_image(field, value):
                companions = find_companions(sample, field, field, value.shape)
                if not companions:
                    return None
                values = {name: _copy(sample[name]) for name in companions}
                return Seen(field, Views.take(value), companions, values)
        return None

    def compare(self, seen: Seen, made: object) -> None:
        """Compares the function's result `made` with what `look` returned.

        Logs a warning if the image has moved, and fields stayed behind.
        """
        self._left -= 1
        fields: Mapping[str, Any]
        if isinstance(made, tuple | list) and len(made) == 2 and isinstance(made[1], Mapping):
            # It is an image and a dict of targets, as torchvision's models take.
            fields = {**made[1], seen.field: made[0]}
        else:
            fields = made if isinstance(made, Mapping) else {}
        name = next((name for name in (seen.field, *_OTHER_NAMES) if name in fields), None)
        if name is None:
            return
        behind = [each for each, value in seen.values.items() if each in fields and _is_same(value, fields[each])]
        if behind and (move := seen.image.find_move(fields[name])):
            self._left = 0
            warn_of_move(self._function, move, seen.field, behind)


def _is_image(field: str, value: NDArray[Any]) -> bool:
    """Whether a field is the image that others belong to: it is called as an image, or has colours of 8 bits."""
    if kind_by_name(field) == "mask" or not value.size or value.dtype.kind not in "uf":
        return False
    if is_image_name(field):
        return value.ndim in {_GREY_AXES, _COLOUR_AXES}
    return value.ndim == _COLOUR_AXES and value.dtype == np.uint8 and value.shape[2] <= _MAX_BANDS


def _copy(value: object) -> object:
    """Returns what a value is compared by later: shape and some pixels of an array, MessagePack of anything else."""
    if isinstance(value, np.ndarray):
        return value.shape, _thin(value).copy()
    return msgspec.msgpack.encode(value, enc_hook=lambda each: np.asarray(each).tolist())


def _thin(value: NDArray[Any]) -> NDArray[Any]:
    if value.ndim < _GREY_AXES:
        return value
    steps = [slice(None, None, -(-side // _LOOKED_AT_PIXELS)) for side in value.shape]
    return value[tuple(steps)]


def _is_same(before: object, after: object) -> bool:
    """Whether a value is unchanged; `before` is what `_copy` returned."""
    if isinstance(before, tuple):
        shape, values = before
        pixels = _read_pixels(after)
        return pixels is not None and pixels.shape == shape and bool(np.array_equal(_thin(pixels), values))
    try:
        return _copy(after) == before
    except TypeError:
        return False
