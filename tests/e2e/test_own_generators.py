"""Transforms with random generators of their own, in real workers and loaders: a sample's draws depend on it alone."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode.transforms import OnField

# By value: workers would import this module otherwise, and torch with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SAMPLES, BATCH = 60, 4
Drawn = dict[str, bytes]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, standing_engine: Callable[[Path], None]) -> Path:
    """Returns small images of noise, with an engine."""
    data = tmp_path_factory.mktemp("own") / "data"
    data.mkdir()
    rng = np.random.default_rng(0)
    for number in range(SAMPLES):
        Image.fromarray(rng.integers(0, 255, (24, 24, 3), np.uint8)).save(data / f"{number:02d}.png")
    standing_engine(data)
    return data


class Jitter:
    """A transform that adds noise from generators of two kinds."""

    def __init__(self) -> None:
        self.shift = np.random.default_rng(3)
        self.scale = [np.random.RandomState(4)]

    def __call__(self, sample: dict[str, object]) -> dict[str, object]:
        picture = np.asarray(sample["png"], np.float64) * self.scale[0].rand() + self.shift.normal()
        return {"__key__": sample["__key__"], "image": picture}


def drawn(batches: Iterable[dict[str, object]]) -> Drawn:
    """Returns the pixels of each sample, by key."""
    with warnings.catch_warnings():
        # This machine has fewer cores than some tests have workers.
        warnings.simplefilter("ignore", UserWarning)
        return {
            key: np.asarray(image).tobytes()
            for batch in batches
            for key, image in zip(batch["__key__"], batch["image"], strict=True)  # type: ignore[call-overload]
        }


def epochs(dataset: StreamingDataset, workers: int) -> list[Drawn]:
    with StreamingDataLoader(dataset, BATCH, workers) as loader:
        return [drawn(loader) for _ in range(2)]


def check(found: list[Drawn], expected: list[Drawn]) -> None:
    assert found == expected
    assert len(found[0]) == SAMPLES
    assert all(found[0][key] != found[1][key] for key in found[0])
    assert len(set(found[0].values())) == SAMPLES


def test_the_same_for_any_reader(pictures: Path, closing: Callable[[StreamingDataset], StreamingDataset]) -> None:
    """A transform with generators of its own draws the same for a sample inline, in workers and in a stock DataLoader.

    A sample read one by one draws the same, too.
    """
    expected = epochs(closing(StreamingDataset(pictures, transform=Jitter())), 0)
    check(epochs(closing(StreamingDataset(pictures, transform=Jitter())), 2), expected)
    stock = closing(StreamingDataset(pictures, transform=Jitter(), batch_size=BATCH))
    for workers in (0, 2):
        stock.set_epoch(0)
        loader = DataLoader(stock, BATCH, num_workers=workers)
        check([drawn(loader) for _ in range(2)], expected)
    stock.set_epoch(0)
    one = stock[7]
    assert one["image"].tobytes() == expected[0][one["__key__"]]


@pytest.mark.slow
@pytest.mark.parametrize("as_it_is", [True, False], ids=["transform", "OnField"])
def test_albumentations(
    pictures: Path,
    closing: Callable[[StreamingDataset], StreamingDataset],
    as_it_is: bool,
) -> None:
    """A composition of albumentations makes the same pixels with 0, 1, 2 and 4 workers, and others in each epoch."""
    import albumentations

    expected: list[Drawn] = []
    for workers in (0, 1, 2, 4):
        # With a seed of its own, each composition begins with the same numbers.
        composed = albumentations.Compose(
            [
                albumentations.RandomResizedCrop((16, 16)),
                albumentations.HorizontalFlip(p=0.5),
                albumentations.OneOf([albumentations.ColorJitter(), albumentations.GaussNoise()], p=1.0),
            ],
            seed=137,
        )
        dataset = closing(StreamingDataset(pictures, transform=composed if as_it_is else OnField("image", composed)))
        found = epochs(dataset, workers)
        expected = expected or found
        check(found, expected)
