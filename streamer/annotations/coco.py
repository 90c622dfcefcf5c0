"""Parses COCO's JSON of instances, keypoints or captions to one row per image. Called by `parse.py`, in a recoder.

| field | |
| --- | --- |
| boxes | float32 (n, 4): x1, y1, x2, y2 in pixels |
| labels | int64 (n,): 0 to classes - 1, in the order of the category ids |
| area | float32 (n,) |
| iscrowd | uint8 (n,) |
| image_id | int64 of the image; texts if an id of the file is a text |
| height, width | int32 of the image, in pixels |
| category_ids | int64 (n,): as the file has them |
| keypoints | float32 (n, k, 3): x, y, visibility |
| segmentation | a list: polygons or run lengths of each object, as the file has them |
| captions | a list of texts |

The objects of an image are in the order of the file. Decoding all of them at once takes eight times the memory of the
file. Therefore they are cut apart first (`msgspec.Raw`, views of the file) and decoded 10,000 at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.annotations.options import USUAL_KEY, Parsed, TableOptions, choose_fields
from streamer.errors import ConfigError, RecodeError
from streamer.formats.base import FieldSpec
from streamer.formats.table.rows import explain_bad_json
from streamer.formats.table.writer import Column

_Item = TypeVar("_Item")

_BATCH_ITEMS = 10_000
# An error quotes this many bytes of a wrong item.
_QUOTED = 200

_SIZES = ("height", "width")
_OF_IMAGES = ("image_id", *_SIZES)
_INSTANCES = ("boxes", "labels", "area", "iscrowd", *_OF_IMAGES)
_CAPTIONS = ("captions", *_OF_IMAGES)
_KNOWN = (*_INSTANCES, "category_ids", "keypoints", "segmentation", "captions")
# Dtype and shape of the fields of an object; keypoints have an axis of points before.
_ITEMS: dict[str, tuple[str, tuple[int, ...]]] = {
    "boxes": ("<f4", (4,)),
    "labels": ("<i8", ()),
    "area": ("<f4", ()),
    "iscrowd": ("u1", ()),
    "category_ids": ("<i8", ()),
    "keypoints": ("<f4", (3,)),
}


class _CocoFile(msgspec.Struct):
    """Names the lists of a file, which are decoded later."""

    images: msgspec.Raw
    annotations: msgspec.Raw = msgspec.Raw(b"[]")
    categories: msgspec.Raw = msgspec.Raw(b"[]")


class _Image(msgspec.Struct):
    """Names the values that are read of an image."""

    id: int | str
    file_name: str = ""
    # LVIS has this instead.
    coco_url: str = ""
    height: int | None = None
    width: int | None = None

    @property
    def name(self) -> str:
        """Name of the image's file; of LVIS the last part of its url."""
        return self.file_name or self.coco_url.rpartition("/")[2]


class _Category(msgspec.Struct):
    """Names the values that are read of a category."""

    id: int
    name: str = ""
    keypoints: list[str] = []


class _Object(msgspec.Struct):
    """Names the values that are read of an annotation: an object in an image, or a caption."""

    image_id: int | str
    category_id: int = -1
    bbox: tuple[float, float, float, float] | None = None
    area: float = 0.0
    iscrowd: int = 0
    keypoints: list[float] = []
    segmentation: msgspec.Raw = msgspec.Raw(b"null")
    # Panoptic files have it.
    segments_info: msgspec.Raw = msgspec.Raw()
    caption: str = ""


class _Objects:
    """Collects the columns of the wanted fields of all objects.

    Args:
        fields: names of the wanted fields; those of images are ignored.
        images: number of each image, by its id.
        categories: categories in the order of their ids.
    """

    def __init__(self, fields: Sequence[str], images: dict[int | str, int], categories: Sequence[_Category]) -> None:
        self._images = images
        self._labels = {category.id: number for number, category in enumerate(categories)}
        self._points = max((len(category.keypoints) for category in categories), default=0)
        makers: dict[str, Callable[[Sequence[_Object]], object]] = {
            "boxes": self._boxes,
            "labels": self._numbers,
            "area": lambda some: np.array([each.area for each in some], np.float32),
            "iscrowd": lambda some: _whole_numbers([each.iscrowd for each in some], np.uint8, "iscrowd"),
            "category_ids": lambda some: _whole_numbers([each.category_id for each in some], np.int64, "category_id"),
            "keypoints": self._keypoints,
            "segmentation": lambda some: [bytes(each.segmentation) for each in some],
            "captions": lambda some: [msgspec.json.encode(each.caption) for each in some],
        }
        self._makers = {name: makers[name] for name in fields if name in makers}
        self._found: dict[str, list[object]] = {name: [] for name in self._makers}
        self._image: list[NDArray[np.int64]] = [np.empty(0, np.int64)]

    def add(self, some: Sequence[_Object]) -> None:
        """Adds some objects, in the order of the file.

        Raises:
            RecodeError: an object is of no image or category, or a value of a wanted field is missing or out of range.
        """
        try:
            numbers = [self._images[each.image_id] for each in some]
        except KeyError as error:
            raise RecodeError(
                f"an annotation is of image_id {error.args[0]!r}, which no image has; is the file cut, or made of two?"
            ) from error
        self._image.append(np.array(numbers, np.int64))
        for name, make in self._makers.items():
            self._found[name].append(make(some))

    def columns(self) -> dict[str, tuple[str, Column]]:
        """Returns kind and column of each field, one value per image. To be called once: it drops the objects."""
        image = np.concatenate(self._image)
        order = np.argsort(image, kind="stable")
        counts = np.bincount(image, minlength=len(self._images)).astype(np.int64)
        return {name: self._column(name, order, counts) for name in self._makers}

    def _column(self, name: str, order: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[str, Column]:
        """Returns kind and column of a field; `order` sorts objects by image, `counts` are those of each image."""
        found = self._found.pop(name)
        if name in {"segmentation", "captions"}:
            texts: list[bytes] = list(chain.from_iterable(found))  # type: ignore[arg-type]
            # The JSON values of each image become a JSON list.
            rows = []
            at = 0
            placed = order.tolist()
            for count in counts.tolist():
                rows.append(b"[%b]" % b",".join([texts[place] for place in placed[at : at + count]]))
                at += count
            return "json", Column(np.frombuffer(b"".join(rows), np.uint8), np.array(list(map(len, rows)), np.int64))
        dtype, shape = _ITEMS[name]
        if name == "keypoints":
            shape = (self._points, *shape)
        values = np.concatenate([np.empty((0, *shape), dtype), *found])[order]
        size = int(values.itemsize * np.prod(shape, dtype=np.int64))
        lengths = f"-1,{','.join(map(str, shape))}" if shape else ""
        return f"{dtype}[{lengths}]", Column(np.ascontiguousarray(values).reshape(-1).view(np.uint8), counts * size)

    def _boxes(self, some: Sequence[_Object]) -> NDArray[np.float32]:
        """Returns the boxes of objects as x1, y1, x2, y2; raises RecodeError for an object without one."""
        if any(each.bbox is None for each in some):
            example = next(each for each in some if each.bbox is None)
            if bytes(example.segments_info):
                raise RecodeError(
                    "these are panoptic annotations, whose segments are in images of their own (segments_info): they "
                    "are not read as objects; put the PNG of each image beside it in a tar, or join its instances file"
                )
            raise RecodeError(f"an object of image {example.image_id!r} has no bbox; fields= takes what the file has")
        boxes = np.array([each.bbox for each in some], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        return boxes.astype(np.float32)

    def _numbers(self, some: Sequence[_Object]) -> NDArray[np.int64]:
        """Returns the labels of objects; raises RecodeError for a category that the file does not have."""
        try:
            return np.array([self._labels[each.category_id] for each in some], np.int64)
        except KeyError as error:
            raise RecodeError(
                f"an object is of category_id {error.args[0]}, which is none of the file's {len(self._labels)} "
                "categories"
            ) from error

    def _keypoints(self, some: Sequence[_Object]) -> NDArray[np.float32]:
        """Returns the keypoints of objects; raises RecodeError for an object with another number of points."""
        if wrong := [each for each in some if len(each.keypoints) != 3 * self._points]:
            raise RecodeError(
                f"an object of image {wrong[0].image_id!r} has {len(wrong[0].keypoints)} numbers as keypoints; the "
                f"file's categories have {self._points} points, with 3 numbers each"
            )
        return np.array([each.keypoints for each in some], np.float32).reshape(-1, self._points, 3)


def parse_coco(content: memoryview, options: TableOptions) -> Parsed:
    """Returns one row for each image of a file, in the order of the file, with arrays or lists over its objects.

    Args:
        content: bytes of the file.
        options: options of the parser.

    Raises:
        RecodeError: the file is not COCO's, is inconsistent, or lacks a value.
        ConfigError: the key is not "file_name", or no field has a name that the user gives.
    """
    if options.key not in {None, USUAL_KEY}:
        raise ConfigError(f"key={options.key!r}: images of COCO are named by {USUAL_KEY!r}", field="key")
    try:
        file = msgspec.json.decode(content, type=_CocoFile)
    except (ValueError, RecursionError) as error:
        raise RecodeError(
            f"not COCO's JSON, an object with images, annotations and categories: {error}{explain_bad_json(content)}"
        ) from error
    images = [image for some in _decode_items(file.images, _Image, "image") for image in some]
    if (nameless := next((image for image in images if not image.name), None)) is not None:
        raise RecodeError(f"image {nameless.id!r} has neither a file_name nor a coco_url, by which it would be joined")
    found = (category for some in _decode_items(file.categories, _Category, "category") for category in some)
    categories = sorted(found, key=lambda category: category.id)
    for first, second in pairwise(categories):
        if first.id == second.id:
            raise RecodeError(
                f"two categories have the id {first.id}, {first.name!r} and {second.name!r}; give each an id of its own"
            )
    numbers = {image.id: number for number, image in enumerate(images)}
    if len(numbers) < len(images):
        raise RecodeError(f"{len(images)} images have {len(numbers)} ids: two of them have the same id")
    # A file has captions or instances.
    begin = bytes(memoryview(file.annotations)[:1_000_000]).partition(b"}")[0]
    usual = _CAPTIONS if b'"caption"' in begin and b'"bbox"' not in begin else _INSTANCES
    lacking = _find_absent_sizes(images, options)
    fields = choose_fields(options, _KNOWN, [name for name in usual if name not in lacking])
    objects = _Objects(fields, numbers, categories)
    for some in _decode_items(file.annotations, _Object, "annotation"):
        objects.add(some)
    known = {**objects.columns(), **_image_columns(images)}
    return Parsed(
        keys=[image.name for image in images],
        fields=[FieldSpec(name, known[name][0]) for name in fields],
        columns=[known[name][1] for name in fields],
        classes=tuple(category.name for category in categories),
    )


def _find_absent_sizes(images: Sequence[_Image], options: TableOptions) -> list[str]:
    """Returns the fields of `_SIZES` that no image has; raises RecodeError for one that only some have."""
    lacking = []
    for name in _SIZES:
        without = [image for image in images if getattr(image, name) is None]
        if not without or (options.fields is not None and name not in options.fields):
            continue
        if len(without) < len(images) or options.fields is not None:
            raise RecodeError(
                f"{len(without):,} of {len(images):,} images have no {name}, the first is {without[0].id!r}; write it, "
                f"or choose fields= without {name!r}"
            )
        lacking.append(name)
    return lacking


def _decode_items(raw: msgspec.Raw, kind: type[_Item], what: str) -> Iterator[Sequence[_Item]]:
    """Yields the items of a list, some thousand at a time; raises RecodeError, which quotes an item."""
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise RecodeError(f"its list of {what}s: {error}") from error
    decoder = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    for first in range(0, len(items), _BATCH_ITEMS):
        some = items[first : first + _BATCH_ITEMS]
        try:
            yield decoder.decode(b"[%b]" % b",".join(some))
        except (ValueError, RecursionError) as error:
            _refuse(some, first, kind, what)
            raise RecodeError(f"its {what}s from number {first} on: {error}") from error


def _refuse(items: Sequence[msgspec.Raw], first: int, kind: type, what: str) -> None:
    """Raises RecodeError, which names and quotes the first item that cannot be decoded; returns if each can."""
    for number, item in enumerate(items, first):
        try:
            msgspec.json.decode(item, type=kind)
        except (ValueError, RecursionError) as error:
            quoted = bytes(memoryview(item)[:_QUOTED]).decode(errors="replace")
            raise RecodeError(f"{what} number {number} is not as COCO has it: {error}: {quoted}") from error


def _image_columns(images: Sequence[_Image]) -> dict[str, tuple[str, Column]]:
    """Returns kind and column of the fields of images; "image_id" is a text if an id is no number."""
    ids = [image.id for image in images]
    sizes = {
        name: ("<i4", Column(_whole_numbers([getattr(image, name) or 0 for image in images], np.int32, name)))
        for name in _SIZES
    }
    if all(isinstance(found, int) for found in ids):
        return {"image_id": ("<i8", Column(_whole_numbers(ids, np.int64, "image id"))), **sizes}
    texts = [str(found).encode() for found in ids]
    lengths = np.array(list(map(len, texts)), np.int64)
    return {"image_id": ("txt", Column(np.frombuffer(b"".join(texts), np.uint8), lengths)), **sizes}


def _whole_numbers(values: Sequence[int | str], dtype: type[np.integer[Any]], what: str) -> NDArray[np.integer[Any]]:
    """Returns the values as an array; raises RecodeError for a number that the dtype cannot hold."""
    try:
        return np.array(values, dtype)
    except OverflowError as error:
        limits = np.iinfo(dtype)
        wrong = next(value for value in values if not limits.min <= int(value) <= limits.max)
        raise RecodeError(f"the {what} {wrong} does not fit into {np.dtype(dtype)}; number them anew") from error
