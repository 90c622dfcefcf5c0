"""Boxes, masks and keypoints move with their image, or the sample is refused with the way out.
albumentations is the real library; torchvision, kornia and torch are fakes known by the names of their modules."""

from __future__ import annotations

import importlib
import pickle
import re
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from streamer.decode.together import check_whole_step, find_companions, moves_pixels
from streamer.decode.transforms import CenterCrop, HorizontalFlip, OnField, RandomResizedCrop, Resize, make_transform
from streamer.decode.watch import SampleWatch
from streamer.errors import ConfigError

STEPS = [HorizontalFlip(1.0), RandomResizedCrop(16), Resize((16, 16)), CenterCrop(16)]
MASK = np.repeat(np.array([[0, 4, 255]], np.uint8), 20, axis=1).repeat(40, axis=0)
IMAGE = np.dstack([MASK] * 3)
BOXES = np.array([[0, 0, 20, 40], [40, 0, 60, 40]], np.float32)


@pytest.fixture(scope="module")
def A() -> ModuleType:
    """Imports albumentations here, not in the other processes of pytest: 1.5 s of CPU each (2026-11-26)."""
    return importlib.import_module("albumentations")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


BELONGS = {
    "boxes": BOXES,
    "bboxes": BOXES.tolist(),
    "mask.png": MASK,
    "seg.PNG": IMAGE,
    "masks": MASK[None],
    "png": MASK,
    "tif": IMAGE,
    "depth": MASK.astype(np.float32),
    "keypoints": np.ones((2, 3, 3), np.float32),
    "segmentation": [[[0, 0, 5, 0, 5, 5]]],
    "objects": {"bbox": BOXES.tolist(), "category": [1, 2]},
    "json": [{"bbox": [0, 0, 1, 1]}],
    "sa.json": {"image": {"width": 60}, "annotations": [{"segmentation": {"size": [40, 60], "counts": "x"}}]},
    "xml": "<annotation><object><bndbox><xmin>1</xmin></bndbox></object></annotation>",
    "boundingBox": [0, 0, 1, 1],
    "objects.rects": BOXES,
    "pose_kpts": np.ones((2, 3)),
    "GTBoxes": BOXES,
    "undecoded_mask.png": b"bytes",
}
APART = {
    "labels": np.arange(2),
    "txt": "boxes",
    "box_count": 3,
    "attention_mask": np.ones(60, np.int64),
    "boxes": np.zeros((0, 4), np.float32),
    "json": {"width": 60, "bbox_count": 3, "objects": [{"name": "box", "boxes": []}]},
    "xml": "<annotation><size/></annotation>",
    "rectifier": [1, 2],
    "thumb.jpg": IMAGE[:10, :10],
    "right.jpg": IMAGE,
    "embedding.npy": np.zeros((3, 7)),
    "mask": None,
}


@pytest.mark.parametrize("step", STEPS, ids=repr)
@pytest.mark.parametrize("name", BELONGS)
def test_a_field_that_would_stay_where_it_was_is_refused(name, step):
    """A step that moves pixels refuses a sample with boxes, masks or keypoints that would stay.
    Regression: the image was mirrored or cut, and its boxes and masks were not."""
    sample = {"__key__": "k", "jpg": IMAGE, name: BELONGS[name]}
    with pytest.raises(ConfigError, match=rf"pixels of field 'jpg' of sample 'k', and {name} would stay"):
        OnField("jpg", step)(sample, rng=rng())


@pytest.mark.parametrize("name", APART)
def test_other_fields_are_left_alone(name):
    """A step that moves pixels leaves labels, texts, tokens and other images alone."""
    for field, key in (("jpg", "jpg"), ("image", "only.png")):
        sample = {"__key__": "k", key: IMAGE, name: APART[name]}
        if field == "image" and name.endswith("jpg"):
            continue
        assert OnField(field, HorizontalFlip(1.0))(sample, rng=rng())[name] is APART[name]


def test_functions_are_seen_by_their_results():
    """A function that changes colours or layout is accepted; one that changes the size of the image is refused."""
    sample = {"__key__": "k", "jpg": IMAGE, "boxes": BOXES}
    assert OnField("jpg", lambda found: found // 2)(sample, rng=rng())["boxes"] is BOXES
    assert OnField("jpg", lambda found: found.transpose(2, 0, 1))(sample, rng=rng())["jpg"].shape == (3, 40, 60)
    with pytest.raises(ConfigError, match="boxes would stay"):
        OnField("jpg", lambda found: found[:20])(sample, rng=rng())


PHOTO = np.random.default_rng(1).integers(0, 255, (10, 15, 3), np.uint8).repeat(30, 0).repeat(30, 1)


def mirror_in_place(image: np.ndarray) -> np.ndarray:
    """Stands for a user's function that mirrors the image in its own memory."""
    image[...] = image[:, ::-1].copy()
    return image


def test_a_function_may_return_an_image_of_pillow():
    """A function may return an image of Pillow.
    Regression: the step after it ended with an AttributeError, as images of Pillow have no shape."""
    steps = OnField("jpg", Image.fromarray, lambda image: np.asarray(image)[::2])
    assert steps({"__key__": "k", "jpg": PHOTO}, rng=rng())["jpg"].shape == PHOTO[::2].shape
    with pytest.raises(ConfigError, match="boxes would stay where they were"):
        steps({"__key__": "k", "jpg": PHOTO, "boxes": BOXES}, rng=rng())


@pytest.mark.parametrize("square", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda image: image[:, ::-1],
        lambda image: image[::-1].copy(),
        lambda image: (255 - image[::-1, ::-1] // 2).astype(np.float32),
        lambda image: (image[:, ::-1] / 255).transpose(2, 0, 1),
        lambda image: image[:, ::-1].mean(axis=2),
        mirror_in_place,
    ],
)
def test_functions_that_mirror_are_refused(function, square):
    """A function that mirrors, or turns a square image, is refused beside boxes, whatever it does to colours.
    Regression: only another size was seen."""
    image = PHOTO[:, :300] if square else PHOTO
    functions = [function, lambda found: found.transpose(1, 0, 2)] if square else [function]
    for each in functions:
        sample = {"__key__": "k", "jpg": image.copy(), "boxes": BOXES}
        with pytest.raises(ConfigError, match="boxes would stay where they were"):
            OnField("jpg", each)(sample, rng=rng())
        assert OnField("jpg", each)({"__key__": "k", "jpg": image.copy()}, rng=rng())["jpg"] is not None


@pytest.mark.parametrize(
    "function",
    [
        lambda image: image,
        lambda image: 255 - image,
        lambda image: np.clip(image * 1.4 - 30, 0, 255).astype(np.uint8),
        lambda image: ((image / 255 - 0.5) / 0.25).astype(np.float32).transpose(2, 0, 1),
        lambda image: image[:, :, ::-1],
        lambda image: image.mean(axis=2),
        lambda image: np.zeros_like(image),
    ],
)
def test_functions_of_colours_are_left_alone(function, caplog):
    """A function of colours is neither refused nor logged, also for images of one colour."""
    for image in (PHOTO, np.full_like(PHOTO, 7)):
        sample = {"__key__": "k", "jpg": image.copy(), "boxes": BOXES, "mask.png": image[:, :, 0]}
        if function(image).any():
            OnField("jpg", function)(sample, rng=rng())
            watch(sample, lambda found: {**found, "jpg": function(found["jpg"])})
    assert not caplog.records


def watch(sample: dict[str, object], function) -> object:
    """Watches a function of samples as a loader does, for two samples."""
    looking = SampleWatch(function)
    for _ in range(2):
        seen = looking.look(sample)
        made = function(dict(sample))
        if seen is not None:
            looking.compare(seen, made)
    return made


def test_a_function_that_may_move_pixels_is_named(caplog):
    """A function whose result is like no mirror image, as a shift, is one warning with the fields that it leaves."""
    step = OnField("jpg", lambda found: np.roll(found, 200, axis=1))
    for _ in range(3):
        step({"__key__": "k", "jpg": PHOTO, "boxes": BOXES}, rng=rng())
    [record] = caplog.records
    assert "seems to move pixels of the image 'jpg' of a sample, and leaves boxes as before" in record.getMessage()


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda found: {**found, "jpg": found["jpg"][:, ::-1]}, "mirrors or turns .*leaves boxes, mask.png as before"),
        (
            lambda found: {**found, "jpg": found["jpg"][:99], "boxes": found["boxes"] / 2},
            "resizes .*leaves mask.png as",
        ),
        (lambda found: (found["jpg"][::-1], {"boxes": found["boxes"]}), "mirrors or turns .*leaves boxes as before"),
        (lambda found: {"image": found["jpg"][:99], "boxes": found["boxes"]}, "resizes .*leaves boxes as before"),
        (lambda found: {**found, "jpg": mirror_in_place(found["jpg"])}, "mirrors or turns .*leaves boxes, mask.png as"),
        (lambda found: {"jpg": found["jpg"][:, ::-1]}, ""),
        (lambda found: {**found, "jpg": found["jpg"][::-1], "boxes": found["boxes"] + 1, "mask.png": MASK}, ""),
        (lambda found: found["jpg"][::-1], ""),
    ],
)
def test_what_a_function_of_samples_leaves_behind_is_named(function, line, caplog):
    """A function of samples that moves the image and leaves boxes or masks is one warning, which names them.
    Regression: nothing was said. Fields that the function moves or does not deliver are not named."""
    watch(
        {"__key__": "k", "jpg": PHOTO.copy(), "boxes": BOXES, "mask.png": PHOTO[:, :, 0].copy(), "label": 3}, function
    )
    assert len(caplog.records) == bool(line)
    if line:
        assert re.search(line, caplog.records[0].getMessage())


@pytest.mark.parametrize("step", STEPS, ids=repr)
@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "i8", "f4"])
def test_masks_move_with_the_image(step, dtype):
    """Masks get the image's crop and flip and no new class; several masks and stacks of them move together."""
    sample = {"__key__": "k", "jpg": IMAGE, "mask.png": MASK.astype(dtype), "masks": np.stack([MASK, MASK // 2])}
    transform = pickle.loads(pickle.dumps(OnField("jpg", step, HorizontalFlip(), masks=["mask.png", "masks"])))
    for seed in range(10):
        made = transform(sample, rng=rng(seed))
        assert made["mask.png"].dtype == np.dtype(dtype)
        assert set(np.unique(made["mask.png"])) <= {0, 4, 255}
        assert made["mask.png"].shape == made["jpg"].shape[:2]
        assert made["masks"].shape == (2, *made["jpg"].shape[:2])
        assert np.array_equal(made["masks"][0], made["mask.png"])
        # The images has the mask's values; where they are mixed, at the borders, it differs.
        assert (made["jpg"][:, :, 0] == made["mask.png"]).mean() > 0.8
        alone = OnField("jpg", step, HorizontalFlip())({"jpg": IMAGE}, rng=rng(seed))
        assert np.array_equal(made["jpg"], alone["jpg"])


@pytest.mark.parametrize("step", [Resize((16, 16)), Resize((100, 90)), RandomResizedCrop(16), CenterCrop(80)], ids=repr)
def test_a_mask_alone_is_scaled_by_nearest_pixels(step):
    """A field named as a mask, or a step with nearest=True, is scaled by nearest pixels, into its row, too."""
    for field in ("mask.png", "seg.tif"):
        found = OnField(field, step)({field: MASK, "jpg": IMAGE}, rng=rng())[field]
        assert set(np.unique(found)) <= {0, 4, 255}
    assert set(np.unique(type(step)(16, nearest=True)(MASK, rng=rng()))) <= {0, 4, 255}
    row = np.zeros((16, 16), np.uint8)
    assert Resize((16, 16), nearest=True)(MASK, out=row) is row
    assert np.array_equal(row, Resize((16, 16), nearest=True)(MASK))


def test_masks_that_cannot_follow_are_refused():
    """A mask of another size, a missing one, and masks beside steps that are functions raise ConfigError."""
    sample = {"__key__": "k", "jpg": IMAGE, "mask.png": MASK[:20]}
    with pytest.raises(ConfigError, match=r"mask 'mask.png' of sample 'k' is ndarray of shape \(20, 60\)"):
        OnField("jpg", HorizontalFlip(1.0), masks=["mask.png"])(sample, rng=rng())
    with pytest.raises(ConfigError, match=r"names 'seg.png', which sample 'k' does not have"):
        OnField("jpg", HorizontalFlip(1.0), masks=["seg.png"])(sample, rng=rng())
    with pytest.raises(ConfigError, match=r"cannot follow .* a function of one image"):
        OnField("jpg", lambda found: found, masks=["mask.png"])


def annotated() -> dict[str, object]:
    """Makes a sample as annotations= delivers it: its image has two objects, the mask their places."""
    return {
        "__key__": "k",
        "jpg": IMAGE,
        "boxes": BOXES,
        "labels": np.array([3, 5]),
        "area": np.array([800, 801], np.float32),
        "iscrowd": np.array([0, 1], np.uint8),
        "image_id": 7,
    }


@pytest.mark.parametrize("whole", [True, False], ids=["transform=", "OnField"])
@pytest.mark.parametrize("labels", [["labels"], ["labels", "area", "iscrowd"], []])
def test_boxes_of_annotations_move_under_albumentations(A, whole, labels):
    """Boxes, labels and other fields of annotations= follow a composition of albumentations and keep their types.
    Regression: they were given by other names, so they stayed."""
    flip = A.Compose(
        [A.HorizontalFlip(p=1), A.Crop(0, 0, 30, 40)], bbox_params=A.BboxParams("pascal_voc", label_fields=labels)
    )
    made = (make_transform(flip) if whole else OnField("jpg", flip))(annotated(), rng=rng())
    assert made["boxes"].tolist() == [[0, 0, 20, 40]]
    assert (made["labels"].tolist(), made["area"].tolist(), made["iscrowd"].tolist()) == ([5], [801], [1])
    assert [made[name].dtype.str for name in ("boxes", "labels", "area", "iscrowd")] == ["<f4", "<i8", "<f4", "|u1"]
    assert "bboxes" not in made
    assert made["image_id"] == 7
    none = A.Compose([A.Crop(25, 0, 35, 40)], bbox_params=A.BboxParams("pascal_voc", label_fields=labels))
    made = OnField("jpg", none)(annotated(), rng=rng())
    assert (made["boxes"].shape, made["labels"].shape, made["labels"].dtype) == ((0, 4), (0,), np.int64)
    empty = {**annotated(), "boxes": BOXES[:0], "labels": np.zeros(0, np.int64), "area": BOXES[:0, 0]}
    empty["iscrowd"] = np.zeros(0, np.uint8)
    made = OnField("jpg", flip)(empty, rng=rng())
    assert (made["boxes"].shape, made["labels"].shape) == ((0, 4), (0,))


def test_masks_and_keypoints_move_under_albumentations(A):
    """One mask, two masks and keypoints follow a composition of albumentations; unlabelled points stay at 0, 0."""
    flip = A.Compose([A.HorizontalFlip(p=1)], keypoint_params=A.KeypointParams("xy", remove_invisible=False))
    points = np.array([[[1, 2, 2], [0, 0, 0]], [[50, 30, 1], [59, 39, 2]]], np.float32)
    sample = {"__key__": "k", "jpg": IMAGE, "keypoints": points, "mask.png": MASK}
    made = OnField("jpg", flip)(sample, rng=rng())
    assert np.array_equal(made["mask.png"], MASK[:, ::-1])
    assert made["keypoints"].shape == points.shape
    assert np.allclose(made["keypoints"], [[[58, 2, 2], [0, 0, 0]], [[9, 30, 1], [0, 39, 2]]], atol=1e-3)
    made = OnField("jpg", flip)({**sample, "seg.png": MASK // 2}, rng=rng())
    assert np.array_equal(made["mask.png"], MASK[:, ::-1])
    assert np.array_equal(made["seg.png"], MASK[:, ::-1] // 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda A: A.HorizontalFlip(p=1), "boxes would stay where they were.*bbox_params"),
        (lambda A: A.Compose([A.OneOf([A.HorizontalFlip(p=1)])]), "boxes would stay"),
        (lambda A: A.Compose([A.NoOp()], bbox_params=A.BboxParams("coco")), "'boxes' are x1, y1, x2, y2 in pixels"),
        (
            lambda A: A.Compose([A.NoOp()], bbox_params=A.BboxParams("pascal_voc", label_fields=["kinds"])),
            "label_fields name kinds, which sample 'k' does not have",
        ),
    ],
)
def test_compositions_that_leave_boxes_are_refused(A, make, message):
    """A composition without parameters for boxes, with another format's, or with missing labels is refused."""
    with pytest.raises(ConfigError, match=message):
        OnField("jpg", make(A))(annotated(), rng=rng())


@pytest.mark.parametrize(
    "make",
    [
        lambda A: A.RandomBrightnessContrast(p=1),
        lambda A: A.Compose([A.Normalize(), A.OneOf([A.InvertImg()])]),
    ],
    ids=["single", "composition"],
)
def test_transforms_of_colours_leave_all_fields(A, make):
    """Transforms of colours of albumentations move no pixels and refuse no sample."""
    step = make(A)
    assert not moves_pixels(step)
    made = OnField("jpg", step)({**annotated(), "mask.png": MASK}, rng=rng())
    assert made["boxes"] is BOXES
    assert made["mask.png"] is MASK


def test_steps_of_torchvision_are_known_by_their_names():
    """Steps of torchvision move pixels unless they are known to change colours only; compositions are looked into."""
    step = type(
        "RandomHorizontalFlip", (), {"__module__": "torchvision.transforms.v2", "__call__": lambda self, x: x}
    )()
    jitter = type("ColorJitter", (), {"__module__": "torchvision.transforms.v2", "__call__": lambda self, x: x})()
    compose = type("Compose", (), {"__module__": "torchvision.transforms.v2", "__call__": lambda self, x: x})()
    compose.transforms = [jitter, step]
    assert [moves_pixels(each) for each in (step, jitter, compose)] == [True, False, True]
    with pytest.raises(ConfigError, match="boxes would stay"):
        OnField("jpg", compose)(annotated(), rng=rng())


def test_a_image_without_a_name_beside_another_is_its_mask():
    """A `0.png` beside `0.jpg` is its mask; two photographs are not."""
    assert find_companions({"jpg": IMAGE, "png": IMAGE}, "jpg", "jpg", IMAGE.shape) == {"png": "mask"}
    assert find_companions({"a.jpg": IMAGE, "b.png": IMAGE}, "a.jpg", "a.jpg", IMAGE.shape) == {}


class FakeTensor:
    """Stands for a tensor of torch, which is known by the module of its type; it has dimensions and no values."""

    __module__ = "torch"

    def __init__(self, *shape: int) -> None:
        self.ndim = len(shape)


def test_steps_of_torchvision_for_whole_samples():
    """Steps of torchvision for whole samples are refused where they would leave arrays or other tensors unmoved."""
    kinds = {"__module__": "torchvision.transforms.v2", "__call__": lambda self, fields: "moved"}
    flip = type("RandomHorizontalFlip", (), kinds)()
    step = make_transform(flip)
    with pytest.raises(ConfigError, match=r"transform: RandomHorizontalFlip .* does nothing to .* arrays"):
        step({"jpg": IMAGE})
    step = check_whole_step("device_transform", flip)
    batch = {"jpg": FakeTensor(2, 3, 8, 8), "label": FakeTensor(2), "__key__": ["a", "b"]}
    with pytest.raises(ConfigError, match=r"device_transform: .* 'jpg' of .*, and boxes, mask\.png would stay"):
        step({**batch, "boxes": FakeTensor(2, 1, 4), "mask.png": FakeTensor(2, 8, 8)})
    with pytest.raises(ConfigError, match=r"moves the first tensor alone, which is 'label'"):
        step({"label": FakeTensor(2), **batch})
    boxes = type("BoundingBoxes", (), {"__module__": "torchvision.tv_tensors"})()
    for right in (batch, {**batch, "boxes": boxes}, FakeTensor(2, 3, 8, 8)):
        assert check_whole_step("device_transform", flip)(right) == "moved"
    jitter = type("ColorJitter", (), kinds)()
    own = lambda fields: fields  # noqa: E731
    for unchanged in (None, jitter, own, type("Compose", (), {**kinds, "transforms": [own, flip]})()):
        assert check_whole_step("transform", unchanged) is unchanged


def of_kornia(name: str, base: str, *children: object) -> object:
    """Stands for a module of kornia, which is known by the names and modules of its classes; it moves nothing."""
    module = {"__module__": "kornia.augmentation"}
    above = type(base, (), {"__module__": "kornia.augmentation._2d.base"})
    return type(name, (above,), {**module, "children": lambda self: children, "__call__": lambda self, x: "moved"})()


def test_steps_of_kornia():
    """Steps of kornia that move pixels refuse batches with fields that kornia leaves; colours move nothing.
    Regression: a dict's `boxes` stayed, because kornia moves `bbox`."""
    flip = of_kornia("RandomHorizontalFlip", "GeometricAugmentationBase2D")
    jitter = of_kornia("ColorJitter", "IntensityAugmentationBase2D")
    colours = of_kornia("AugmentationSequential", "ImageSequential", jitter)
    both = of_kornia("AugmentationSequential", "ImageSequential", jitter, flip)
    assert [moves_pixels(step) for step in (flip, jitter, colours, both)] == [True, False, False, True]
    assert check_whole_step("device_transform", colours) is colours
    batch = {"image": FakeTensor(2, 3, 8, 8), "mask": FakeTensor(2, 1, 8, 8), "label": FakeTensor(2)}
    for step in (flip, both):
        assert check_whole_step("device_transform", step)(batch) == "moved"
        assert check_whole_step("device_transform", step)(FakeTensor(2, 3, 8, 8)) == "moved"
        with pytest.raises(ConfigError, match=r"device_transform: .* of kornia leaves boxes, seg\.png where they were"):
            check_whole_step("device_transform", step)({**batch, "boxes": BOXES, "seg.png": MASK})
        with pytest.raises(ConfigError, match=r"of kornia moves none of jpg, label"):
            check_whole_step("device_transform", step)({"jpg": batch["image"], "label": batch["label"]})
        with pytest.raises(ConfigError, match="boxes would stay"):
            OnField("jpg", step)(annotated(), rng=rng())
