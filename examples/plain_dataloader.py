"""A swap-in under torch's own DataLoader: only the dataset changes.

    python examples/plain_dataloader.py
    python examples/plain_dataloader.py --url s3://bucket/train/ --workers 8

Before:  dataset = torchvision.datasets.ImageFolder("/data/train", transform)
After:   dataset = StreamingDataset("s3://bucket/train/", transform=transform, batch_size=32)

Two epochs over class folders of small JPEGs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader

from streamer import StreamingDataset
from streamer.decode.transforms import HorizontalFlip, OnField, RandomResizedCrop


def make_data(folder: Path, images: int) -> None:
    """Images of noise around a colour, one colour per class."""
    rng = np.random.default_rng(0)
    for number in range(images):
        label = number % 4
        path = folder / f"class-{label}" / f"{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = rng.integers(0, 64, (96, 128, 3), np.uint8)
        Image.fromarray(noise + np.uint8(40 * label)).save(path)


def train(url: str, cache: Path, batch_size: int, workers: int) -> None:
    """Two epochs; the second one finds everything in the cache."""
    dataset = StreamingDataset(
        url,
        cache_dir=cache,
        # The dataset must know the batch size to yield whole batches in the same order for any number of workers.
        batch_size=batch_size,
        transform=OnField("jpg", RandomResizedCrop(64), HorizontalFlip()),
    )
    loader = DataLoader(dataset, batch_size=batch_size, num_workers=workers)
    for epoch in range(2):
        started, samples, classes = time.perf_counter(), 0, [0] * len(dataset.classes)
        for batch in loader:
            samples += len(batch["label"])
            for label in batch["label"].tolist():
                classes[label] += 1
        seconds = time.perf_counter() - started
        print(f"epoch {epoch}: {samples} samples in {seconds:.2f} s, per class {classes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="class folders of JPEGs; default: made here")
    parser.add_argument("--images", type=int, default=256, help="how many to make (default: 256)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url
        if url is None:
            url = f"{scratch}/images/"
            make_data(Path(url), arguments.images)
        train(url, Path(scratch) / "cache", arguments.batch_size, arguments.workers)


if __name__ == "__main__":
    main()
