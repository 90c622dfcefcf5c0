"""Tests of samples that make no batch: the error names the field, the samples and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from streamer import StreamingDataLoader
from streamer.batches.batch.mismatch import explain
from streamer.errors import ConfigError
from tests.fake_dataset import FakeDataset


def picture(height: int, width: int) -> np.ndarray:
    return np.zeros((height, width, 3), np.uint8)


def keyed(*samples: dict[str, object]) -> list[dict[str, object]]:
    return [{"__key__": f"{number}", **sample} for number, sample in enumerate(samples)]


CASES = {
    "fields": (
        keyed({"jpg": picture(2, 2), "label": 1}, {"png": picture(2, 2), "label": 2}),
        "a batch has samples of different fields: __key__, jpg, label in '0'; __key__, label, png in '1'. To make one, "
        'return the same fields for every sample in the transform (OnField("image", ...) of '
        "streamer.decode.transforms delivers the image as 'image', whatever its extension), or pass a collate_fn",
    ),
    "no pictures": (
        keyed({"a": {"x": 1}}, {"a": {"y": 1}}),
        "a batch has samples of different fields at 'a': x in '0'; y in '1'. To make one, return the same fields for "
        "every sample in the transform, or pass a collate_fn",
    ),
    "pictures": (
        keyed(*({"label": np.int64(1) if size % 2 else 1, "jpg": picture(size, 9)} for size in range(3, 9))),
        "field 'jpg' has different shapes in a batch: (3, 9, 3) in '0'; (4, 9, 3) in '1'; (5, 9, 3) in '2'; and 3 "
        "more. To make one, pad or cut it to one shape in the transform, images with "
        'OnField("jpg", RandomResizedCrop(224)) of streamer.decode.transforms, or pass a collate_fn',
    ),
    "tensors": (
        [(torch.zeros(3), 1), (torch.zeros(4), 1)],
        "field '[0]' has different shapes in a batch: (3,) in sample 0 of the batch; (4,) in sample 1 of the batch. "
        "To make one, pad or cut it to one shape in the transform, or pass a collate_fn",
    ),
    "types": (
        keyed({"box": 1.0}, {"box": None}),
        "field 'box' has different types in a batch: float in '0'; NoneType in '1'. To make one, return one type in "
        "the transform, or pass a collate_fn",
    ),
    "lengths": (
        keyed({"boxes": [1, 2]}, {"boxes": [1]}),
        "field 'boxes' has different lengths in a batch: 2 in '0'; 1 in '1'. To make one, pad or cut it to one length "
        "in the transform, or pass a collate_fn",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=[pytest.mark.process, pytest.mark.slow])])
def test_the_loader_explains_it(case, workers):
    """Samples that make no batch are a `ConfigError` with the field, the samples and what to do.

    So they are inline and from a worker.
    """
    samples, message = CASES[case]
    dataset = FakeDataset(len(samples), lambda epoch, ordinal: samples[ordinal])
    with StreamingDataLoader(dataset, len(samples), workers) as loader, pytest.raises(ConfigError) as caught:
        next(iter(loader))
    assert caught.value.message == message


def test_what_no_rule_takes():
    """A field of a type that cannot make a batch is refused with the reason of torch's `default_collate`."""
    message = r"field 'jpg' cannot make a batch \(PIL\.Image\.Image: default_collate: .*\): return arrays, tensors"
    with pytest.raises(ConfigError, match=message):
        raise explain(keyed({"jpg": Image.new("RGB", (2, 2))})) or AssertionError


def test_a_users_function_raises_its_own_error():
    """A user's `collate_fn` raises its own error, as its samples need not make a batch."""

    def collate(samples):
        raise KeyError("mine")

    with (
        StreamingDataLoader(FakeDataset(4, lambda e, o: {o: o}), 4, collate_fn=collate) as loader,
        pytest.raises(KeyError, match="mine"),
    ):
        next(iter(loader))
