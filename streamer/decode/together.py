"""Finds the fields of a sample that have to move with its image (boxes, masks, keypoints), and moves them with it.

`decode/transforms.py` applies transforms of albumentations with it, and `decode/watch.py` finds such fields. The loader
checks steps of torchvision and kornia with it, for samples and for batches on a device (`loader/device/prefetcher.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from streamer.errors import ConfigError
from streamer.formats.names import IMAGES, field_name

# An array or list of any kind, or a transform of albumentations.
Value = Any
# The kinds of fields that have to move with an image. "" stands for any other field.
Kind = Literal["boxes", "keypoints", "outlines", "mask", ""]

# Kinds of fields by the words of their names.
_WORDS: dict[str, Kind] = {
    **dict.fromkeys(["box", "boxes", "bbox", "bboxes", "bndbox", "obb", "roi", "rois", "rect", "rects"], "boxes"),
    **dict.fromkeys(["keypoint", "keypoints", "kpts", "landmark", "landmarks", "joints"], "keypoints"),
    **dict.fromkeys(["polygon", "polygons", "polys", "quad", "quads", "contours", "segmentation", "rle"], "outlines"),
    **dict.fromkeys(["mask", "masks", "seg", "segmentations", "semantic", "instance", "panoptic", "trimap"], "mask"),
}
_WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Depth to which dicts and lists of dicts are searched, as annotations in JSON have them.
_MAX_NESTED = 4
# A text that contains this has boxes in XML, as Pascal VOC writes them.
_IN_XML = "<bndbox"
# Fields of annotations with one entry for each box.
_OF_OBJECTS = ("labels", "area", "iscrowd", "category_ids")
# Formats of boxes in pixels, and the parts of a pixel to which results are rounded. albumentations calculates boxes as
# shares of the sides in float32: 8 comes back as 7.9999995.
_IN_PIXELS = frozenset(["pascal_voc", "coco"])
_PARTS_OF_PIXEL = 1024
# Axes of an image in colours.
_IMAGE_AXES = 3
_BOXES_FORMAT = "pascal_voc"
# Beginnings of the names of fields that kornia moves in a dict. It passes all others on as they are.
_KORNIA_IMAGES = ("image", "input")
_KORNIA_FIELDS = (*_KORNIA_IMAGES, "mask", "bbox", "keypoints")
# Beginnings of the names of kornia's classes that move pixels, and of those that only change colours.
_KORNIA_MOVING = ("GeometricAugmentationBase", "MixAugmentationBase", "RigidAffineAugmentationBase3D")
_KORNIA_COLOURS = "IntensityAugmentationBase"
# Steps of torchvision that move nothing.
_COLOUR_STEPS = frozenset(
    [
        *("ToTensor", "PILToTensor", "ToImage", "ToPILImage", "ToDtype", "ToPureTensor", "ConvertImageDtype"),
        *("Normalize", "ColorJitter", "Grayscale", "RandomGrayscale", "RGB", "GaussianBlur", "GaussianNoise"),
        *("RandomInvert", "RandomPosterize", "RandomSolarize", "RandomAdjustSharpness", "RandomAutocontrast"),
        *(
            "RandomEqualize",
            "RandomPhotometricDistort",
            "RandomChannelPermutation",
            "RandomErasing",
            "JPEG",
            "Identity",
        ),
    ]
)


@lru_cache(maxsize=1000)
def kind_by_name(name: str) -> Kind:
    """Returns what a field is by the words of its name ("mask.png" is a mask), or "" if it need not move."""
    words = (word.lower() for word in _WORDS_OF_NAME.findall(name))
    found = {_WORDS[word] for word in words if word in _WORDS}
    if "mask" in found or ("outlines" in found and is_image_name(name)):
        return "mask"
    return found.pop() if len(found) == 1 else "boxes" if found else ""


@lru_cache(maxsize=1000)
def is_image_name(name: str) -> bool:
    """Whether the last extension of a field's name is that of an image."""
    return field_name(name).rpartition(".")[2] in IMAGES


def find_companions(sample: Mapping[str, object], field: str, source: str, shape: tuple[int, ...]) -> dict[str, Kind]:
    """Returns the fields that would have to move with an image, with their kinds.

    Boxes, keypoints and outlines are found by their names, also inside of dicts and lists of dicts, and boxes in texts
    of XML. A mask is one of these:
    * a field that is called a mask, and is an image or an array of the image's height and width,
    * a two-dimensional array of that height and width beside an image of colours,
    * an image of that size without another name than its extension, as `0.png` beside `0.jpg`.

    Args:
        sample: values by field.
        field: name of the image's field.
        source: name that this field had in the sample before, with its extension.
        shape: shape of the image.
    """
    found: dict[str, Kind] = {}
    for name, value in sample.items():
        if name == field or value is None or isinstance(value, int | float):
            continue
        if isinstance(value, str):
            if _IN_XML in value:
                found[name] = "boxes"
            continue
        kind = kind_by_name(name)
        if kind == "mask":
            if _is_map_of(value, shape) or (is_image_name(name) and isinstance(value, bytes | np.ndarray)):
                found[name] = "mask"
        elif kind:
            if isinstance(value, list | tuple | Mapping | np.ndarray) and len(value):
                found[name] = kind
        elif isinstance(value, np.ndarray):
            unnamed = "." not in name and "." not in source and is_image_name(name) and field_name(name) != "jpg"
            if (unnamed or (value.ndim == 2 and len(shape) > 2)) and _is_map_of(value, shape):
                found[name] = "mask"
        elif inside := _find_inner(value, _MAX_NESTED):
            found[name] = inside
    return found


def _find_inner(value: object, depth: int) -> Kind:
    """Returns the kind of the first boxes, keypoints or outlines in dicts and lists of dicts, or "" for none."""
    if isinstance(value, list | tuple):
        value = value[0] if value else None
    if not isinstance(value, Mapping) or not depth:
        return ""
    for name, inner in value.items():
        kind = kind_by_name(str(name))
        if kind not in {"", "mask"} and isinstance(inner, list | tuple | Mapping | np.ndarray) and len(inner):
            return kind
    return next((kind for inner in value.values() if (kind := _find_inner(inner, depth - 1))), "")


def _is_map_of(value: object, shape: tuple[int, ...]) -> bool:
    """Whether a value has a number for each pixel of an image of this shape.

    It may be an array of the image's height and width, also with colours, or with one map (or a list) for each object.
    """
    if isinstance(value, list | tuple):
        return bool(value) and _is_map_of(value[0], shape)
    own = getattr(value, "shape", ())
    return len(own) >= 2 and shape[:2] in (tuple(own[:2]), tuple(own[-2:]))


def moves_pixels(step: Callable[..., object]) -> bool:
    """Whether a step of albumentations, torchvision or kornia may move pixels.

    It is False for functions of the user, whose results are compared instead (`decode/watch.py`).
    """
    inner = getattr(step, "transforms", None)
    if isinstance(inner, Iterable):
        return any(moves_pixels(each) for each in inner if callable(each))
    kinds = type(step).__mro__
    roots = {kind.__module__.partition(".")[0] for kind in kinds}
    if "albumentations" in roots:
        return any(kind.__name__ in {"DualTransform", "Transform3D"} for kind in kinds)
    if "kornia" in roots:
        names = [kind.__name__ for kind in kinds]
        if any(name.startswith(_KORNIA_COLOURS) for name in names):
            return False
        if any(name.startswith(_KORNIA_MOVING) for name in names):
            return True
        module: Value = step
        children = [child for child in module.children() if "kornia.augmentation" in type(child).__module__]
        return any(map(moves_pixels, children)) if children else True
    return "torchvision" in roots and type(step).__name__ not in _COLOUR_STEPS


def refuse_apart(what: str, field: str, key: object, apart: Mapping[str, Kind]) -> ConfigError:
    """Returns the error for fields that would stay where they were while the image is moved.

    Args:
        what: text that names the step which moves the image.
        field: name of the image's field.
        key: key of the sample.
        apart: fields that would stay, with their kinds.
    """
    names = ", ".join(apart)
    advice = []
    if masks := [name for name, kind in apart.items() if kind == "mask"]:
        advice.append(f"OnField({field!r}, ..., masks={masks}) moves masks with it, by nearest pixels")
    if set(apart.values()) & {"boxes", "keypoints"}:
        advice.append(
            "A.Compose([...], bbox_params=A.BboxParams('pascal_voc', label_fields=['labels']), keypoint_params=...) of "
            "albumentations moves boxes and keypoints"
        )
    if "outlines" in apart.values():
        advice.append("streamer.decode.coco_masks makes masks of outlines, in a function of the sample before")
    advice.append(
        "a function of the sample as transform= moves them itself; without these fields, Annotations(fields=[...]) or "
        "a function that removes them, the image moves alone"
    )
    return ConfigError(
        f"transform: {what} moves the pixels of field {field!r} of sample {key!r}, and {names} would stay where they "
        f"were: {'; '.join(advice)}",
        field="transform",
    )


def apply_albumentations(step: Value, sample: dict[str, Any], field: str, together: Mapping[str, Kind]) -> None:
    """Applies a transform of albumentations to an image and to the fields that have to move with it.

    The transform gets fields under the names that it knows ("mask", "bboxes", label fields, additional targets). With
    `bbox_params` it gets the sample's boxes as "bboxes", with `keypoint_params` its keypoints as "keypoints". It gets
    masks of other names as "mask" or "masks". Labels and other annotations of boxes that it leaves out are left out.

    Args:
        step: transform of albumentations.
        sample: values by field. The dict is changed: it gets the results.
        field: name of the image's field.
        together: fields that have to move with the image, with their kinds, or {} if the transform moves no pixels.

    Raises:
        ConfigError: fields would stay where they were, or are not what the parameters say.
    """
    targets = _name_targets(step, sample, field, together)
    handed = {name for names in targets.values() for name in names}
    if apart := {name: kind for name, kind in together.items() if name not in handed}:
        raise refuse_apart(type(step).__name__, field, sample.get("__key__"), apart)
    values = {target: sample[names[0]] for target, names in targets.items() if target != "masks"}
    if "masks" in targets:
        names = targets["masks"]
        values["masks"] = sample[names[0]] if len(names) == 1 else [sample[name] for name in names]
    boxes: Value = values.get("bboxes")
    numbered = isinstance(boxes, list | np.ndarray) and (len(boxes) == 0 or np.shape(boxes)[1:] == (4,))
    if numbered:
        # Columns beyond the fourth stay with their boxes.
        rows = np.asarray(boxes, np.float32).reshape(-1, 4)
        values["bboxes"] = np.column_stack([rows, np.arange(len(rows))]).astype(np.float32)
    points: Value = values.get("keypoints")
    if np.ndim(points) == 3:
        values["keypoints"] = _flatten_points(step, points)
    changed = step(image=sample[field], **values)
    assert isinstance(changed, dict)
    sample[field] = changed.pop("image")
    if np.ndim(points) == 3:
        changed["keypoints"] = _reshape_points(changed["keypoints"], np.asarray(points))
    if numbered:
        _follow_boxes(sample, changed, len(boxes), handed)
        if step.processors["bboxes"].params.format in _IN_PIXELS:
            changed["bboxes"] = np.round(changed["bboxes"] * _PARTS_OF_PIXEL) / np.float32(_PARTS_OF_PIXEL)
        if isinstance(boxes, list):
            changed["bboxes"] = changed["bboxes"].tolist()
    for target, value in changed.items():
        names = targets.get(target, (target,))
        if target == "masks" and len(names) > 1:
            sample.update(zip(names, value, strict=True))
        else:
            sample[names[0]] = _restore_type(sample.get(names[0]), value)


def _name_targets(
    step: Value, sample: Mapping[str, Value], field: str, together: Mapping[str, Kind]
) -> dict[str, tuple[str, ...]]:
    """Returns which fields a transform of albumentations gets, by the names that it has for them.

    Each name has one field, but "masks" may have several. The arguments are those of `apply_albumentations`.

    Raises:
        ConfigError: the parameters for boxes name another format, or label fields that the sample does not have.
    """
    processors = getattr(step, "processors", {})
    # Boxes without their parameters would be taken for shares of the image's sides.
    known = set(step.available_keys) - {field, "image"} - ({"bboxes", "keypoints"} - processors.keys())
    labels = {name for processor in processors.values() for name in processor.params.label_fields or ()}
    known -= set(_OF_OBJECTS) - labels
    targets: dict[str, tuple[str, ...]] = {name: (name,) for name in sample if name in known}
    for target, kind in (("bboxes", "boxes"), ("keypoints", "keypoints")):
        others = [name for name, other in together.items() if other == kind and name not in targets]
        if target in processors and target not in targets and len(others) == 1:
            targets[target] = (others[0],)
    for target, processor in processors.items():
        format_ = processor.params.format
        fields = [targets[name][0] for name in processor.data_fields if name in targets]
        if target == "bboxes" and "boxes" in fields and format_ != _BOXES_FORMAT:
            raise ConfigError(
                f"transform: bbox_params say {format_!r}, but 'boxes' are x1, y1, x2, y2 in pixels, as annotations= "
                f"delivers them: A.BboxParams({_BOXES_FORMAT!r}); call boxes in another format 'bboxes'",
                field="transform",
            )
        if fields and (missing := [name for name in processor.params.label_fields or () if name not in sample]):
            raise ConfigError(
                f"transform: label_fields name {', '.join(missing)}, which sample {sample.get('__key__')!r} does not "
                f"have; it has {', '.join(sample)}",
                field="transform",
            )
    masks = [name for name, kind in together.items() if kind == "mask" and name not in targets]
    if all(isinstance(sample[name], np.ndarray | list) for name in masks):
        shape = np.shape(sample[field])[:2]
        single = len(masks) == 1 and np.shape(sample[masks[0]])[:2] == shape
        target = "mask" if single and "mask" not in targets else "masks"
        if masks and target in known and target not in targets:
            targets[target] = tuple(masks)
    return targets


def _follow_boxes(sample: dict[str, Any], changed: dict[str, Any], count: int, handed: Collection[str]) -> None:
    """Leaves out the entries of boxes that the transform left out, in the fields with one entry for each box.

    Args:
        sample: values by field. The dict gets shorter labels, areas and such.
        changed: results of the transform by its names. In "bboxes", (boxes, 5), the last column is the number that the
            box had before. It is removed.
        count: number of boxes before the transform.
        handed: names of the fields that the transform got, and has changed itself.
    """
    boxes = np.asarray(changed["bboxes"], np.float32).reshape(-1, 5)
    left = boxes[:, 4].astype(np.int64)
    changed["bboxes"] = boxes[:, :4]
    if "keypoints" in changed and np.ndim(changed["keypoints"]) == 3 and len(changed["keypoints"]) == count:
        changed["keypoints"] = changed["keypoints"][left]
    for name in _OF_OBJECTS:
        value = sample.get(name)
        if name not in handed and isinstance(value, list | np.ndarray) and len(value) == count:
            sample[name] = value[left] if isinstance(value, np.ndarray) else [value[number] for number in left]


def _flatten_points(step: Value, points: Value) -> Value:
    """Returns the points (objects, points, 3) of annotations as rows (n, 3), which albumentations takes.

    Raises:
        ConfigError: with the parameters of the transform, points could be left out.
    """
    params = step.processors["keypoints"].params
    if params.format != "xy" or params.remove_invisible or params.label_fields:
        raise ConfigError(
            "transform: keypoints of annotations are x, y, visibility for each point of each object; they need "
            "A.KeypointParams('xy', remove_invisible=False) without label_fields, so that none is left out",
            field="transform",
        )
    return np.asarray(points, np.float32).reshape(-1, np.shape(points)[2])


def _reshape_points(rows: Value, before: Value) -> Value:
    """Returns moved rows in the shape and type of the points before. Points that are not labelled stay at 0, 0."""
    moved = np.asarray(rows, before.dtype).reshape(before.shape)
    if before.shape[2] > 2:
        moved[before[:, :, 2] == 0] = 0
    return moved


def _restore_type(before: object, value: Value) -> Value:
    """Returns a result of the transform as a value of the kind that it got (`before`).

    Where it got a list of integers, the result is one, too. Where it got an array, a list becomes an array, and floats
    get the dtype of `before`.
    """
    if isinstance(before, list) and isinstance(value, list) and all(type(each) is int for each in before):
        return [int(each) for each in value]
    if not isinstance(before, np.ndarray) or not isinstance(value, list | np.ndarray):
        return value
    if isinstance(value, list) and len(value) and isinstance(value[0], np.ndarray) and value[0].ndim:
        return np.stack(value)
    if isinstance(value, np.ndarray) and (value.dtype == before.dtype or before.dtype.kind in "iub"):
        return value
    found = np.asarray(value, before.dtype)
    return found if len(found) else found.reshape(0, *before.shape[1:])


class WholeStep:
    """Applies a step of torchvision or kornia that moves pixels, after checking the first dict that it gets.

    The v2 transforms of torchvision move images of PIL and their own tensors. Of plain tensors they move only the first
    one, so that boxes and masks beside a batch of images stay where they were. Arrays stay as they are. Kornia moves
    the fields of a dict whose names begin as its data keys.

    Args:
        option: Name of the user's option that has the step, for errors.
        step: The step, which takes a whole sample or batch.
    """

    def __init__(self, option: str, step: Callable[[Any], object]) -> None:
        self._option = option
        self._step = step
        self._is_checked = False

    def __repr__(self) -> str:
        return f"WholeStep({self._option!r}, {self._step!r})"

    def __call__(self, value: object) -> object:
        """Returns what the step makes of a sample or batch.

        Raises:
            ConfigError: The step would not move the image, or would leave a field behind.
        """
        if not self._is_checked and isinstance(value, Mapping):
            self._check(value)
            self._is_checked = True
        return self._step(value)

    def _check(self, fields: Mapping[str, Any]) -> None:
        """Raises a ConfigError if the step would not move the image, or would leave a field behind."""
        roots = {name: type(value).__module__.partition(".")[0] for name, value in fields.items()}
        if not is_of_library(self._step, "torchvision"):
            behind = [name for name in fields if kind_by_name(name) and not name.lower().startswith(_KORNIA_FIELDS)]
            has_image = any(name.lower().startswith(_KORNIA_IMAGES) for name in fields)
            if not has_image or behind:
                stays = f"leaves {', '.join(behind)} where they were"
                what = stays if has_image else f"moves none of {', '.join(fields)}"
                raise ConfigError(
                    f"{self._option}: {type(self._step).__name__} of kornia {what}: it moves the fields of a dict "
                    f"whose names begin with {', '.join(_KORNIA_FIELDS)}. Give a function that calls it with the "
                    "values, in the shapes that it has for them",
                    field=self._option,
                )
            return
        if {"torchvision", "PIL"}.intersection(roots.values()):
            # A function of the user has made images or tensors that say what each field is.
            return
        tensors = [name for name, root in roots.items() if root == "torch"]
        what = f"{self._option}: {type(self._step).__name__} of torchvision"
        if not tensors:
            raise ConfigError(
                f"{what} does nothing to images that are arrays: give it OnField('image', ...), which hands it the "
                "image, or a function of the sample",
                field=self._option,
            )
        belonging = [name for name in fields if name != tensors[0] and kind_by_name(name)]
        if fields[tensors[0]].ndim < _IMAGE_AXES or belonging:
            left = f", and {', '.join(belonging)} would stay where they were" if belonging else ""
            raise ConfigError(
                f"{what} moves the first tensor alone, which is {tensors[0]!r} of {', '.join(fields)}{left}: give a "
                "function that applies it to the image, or that makes torchvision.tv_tensors of the fields before",
                field=self._option,
            )


def check_whole_step(option: str, step: Callable[[Any], object] | None) -> Callable[[Any], object] | None:
    """Returns a step of torchvision or kornia that moves pixels as a `WholeStep`. Others, and None, stay as they are.

    Args:
        option: name of the user's option, for errors.
        step: the step, which takes a whole sample or batch, or None.
    """
    if step is None or not is_of_library(step, "torchvision", "kornia") or not moves_pixels(step):
        return step
    return WholeStep(option, step)


def is_of_library(step: object, *libraries: str) -> bool:
    """Whether `step` is of one of these libraries (names of packages), or is a composition of only such steps."""
    inner = getattr(step, "transforms", None)
    if isinstance(inner, list | tuple):
        return all(is_of_library(each, *libraries) for each in inner)
    return any(kind.__module__.partition(".")[0] in libraries for kind in type(step).__mro__)
