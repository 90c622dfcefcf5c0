"""Transforms of albumentations, passed as they are; the library is the real one."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from streamer.decode.transforms import HorizontalFlip, OnField, Resize, make_transform


@pytest.fixture(scope="module")
def A() -> ModuleType:
    """Imports albumentations here, not in the other processes of pytest: 1.5 s of CPU each (2026-11-26)."""
    return importlib.import_module("albumentations")


@pytest.fixture
def left(A: ModuleType) -> Any:
    """Makes a transform that cuts out the left part of an image."""
    return A.Crop(0, 0, 10, 20)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("composed", [True, False], ids=["composition", "single"])
def test_as_a_step(image, A, left, composed):
    """A transform of albumentations is a step of a field, alone and between others; the field keeps its name."""
    transform = A.Compose([left]) if composed else left
    made = OnField("jpg", transform)({"__key__": "a", "jpg": image, "label": 3}, rng=rng())
    assert list(made) == ["__key__", "jpg", "label"]
    assert np.array_equal(made["jpg"], image[:20, :10])
    made = OnField("jpg", Resize((40, 40)), transform, HorizontalFlip(1.0))({"jpg": image}, rng=rng())
    assert np.array_equal(made["jpg"], Resize((40, 40))(image)[:20, :10][:, ::-1])


def test_as_the_transform_of_a_dataset(image, A, left):
    """A transform of albumentations for whole samples gets the image as `image` and delivers it so."""
    made = make_transform(A.Compose([left]))({"__key__": "a", "png": image, "label": 3}, rng=rng())
    assert list(made) == ["__key__", "image", "label"]
    assert made["image"].shape == (20, 10, 3)
    assert make_transform(None) is None
    assert make_transform(print) is print


def test_masks_and_boxes_follow_the_image(image, A, left):
    """Masks and boxes follow the image by the names that the composition knows and by its additional targets."""
    transform = A.Compose(
        [left],
        additional_targets={"seg.png": "mask"},
        bbox_params=A.BboxParams("pascal_voc", label_fields=["kinds"]),
    )
    sample = {
        "jpg": image,
        "seg.png": image[:, :, 0],
        "mask": image[:, :, 1],
        "bboxes": np.array([[0, 0, 5, 5], [50, 50, 60, 60]], np.float32),
        "kinds": [7, 8],
        "label": 3,
    }
    made = OnField("jpg", transform)(sample, rng=rng())
    assert np.array_equal(made["seg.png"], image[:20, :10, 0])
    assert np.array_equal(made["mask"], image[:20, :10, 1])
    assert (len(made["bboxes"]), list(made["kinds"]), made["label"]) == (1, [7], 3)
    assert "image" not in made
