"""Three sets of images in shares of .7, .2 and .1, in every batch.

    python examples/three_sets.py
    python examples/three_sets.py --epochs 5 --batch-size 40 --workers 2

The sets are in different folders (in production: stores with their own storage_options) and have images of different
sizes; each has a transform of its own, after which the samples collate. The largest set makes part of a pass in an
epoch, the smallest one several; each goes on in the next epoch where it stopped.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset, Weights

EDGE = 32
WEIGHTS = {"photos": 0.7, "drawings": 0.2, "scans": 0.1}
# Images and their edge.
SETS = {"photos": (600, 48), "drawings": (100, 32), "scans": (20, 64)}


def make_data(folder: Path) -> None:
    """Grey noise in two classes."""
    rng = np.random.default_rng(0)
    for name, (images, edge) in SETS.items():
        for number in range(images):
            path = folder / name / ("dark", "light")[number % 2] / f"{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 128, (edge, edge, 3), np.uint8) + np.uint8(number % 2 * 127)).save(path)


def cropped(sample: Mapping[str, object], rng: np.random.Generator) -> dict[str, object]:
    """A random crop."""
    image = np.asarray(sample["png"])
    top, left = rng.integers(0, image.shape[0] - EDGE + 1, 2)
    return {**sample, "png": image[top : top + EDGE, left : left + EDGE]}


def halved(sample: Mapping[str, object]) -> dict[str, object]:
    """Every second row and column."""
    return {**sample, "png": np.asarray(sample["png"])[::2, ::2]}


def run(folder: Path, arguments: argparse.Namespace) -> None:
    """Trains on nothing: counts."""
    options = {"cache_dir": folder / "cache"}
    sets = {
        "photos": StreamingDataset(folder / "photos", transform=cropped, **options),
        "drawings": StreamingDataset(folder / "drawings", **options),
        "scans": StreamingDataset(folder / "scans", transform=halved, **options),
    }
    data = MixedDataset(sets, weights=Weights(WEIGHTS, epoch_samples=400))
    print(data.explain(arguments.batch_size))
    with StreamingDataLoader(data, arguments.batch_size, arguments.workers) as loader:
        for epoch in range(arguments.epochs):
            counts = []
            for batch in loader:
                assert batch["png"].shape[1:] == (EDGE, EDGE, 3)
                counts.append([batch["__source__"].count(name) for name in WEIGHTS])
            ranges = zip(WEIGHTS, np.sum(counts, axis=0), np.min(counts, axis=0), np.max(counts, axis=0), strict=True)
            print(
                f"epoch {epoch}:", ", ".join(f"{name} {n} ({low} to {high} a batch)" for name, n, low, high in ranges)
            )
        for name, member in loader.stats().members.items():
            print(f"{name}: {member.drawn} samples drawn, {member.passes:.2f} passes")
    data.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        make_data(Path(scratch))
        run(Path(scratch), arguments)


if __name__ == "__main__":
    main()
