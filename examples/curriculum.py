"""A curriculum: easy samples first, then both, then hard ones; a run that was stopped goes on in its stage.

    python examples/curriculum.py
    python examples/curriculum.py --checkpoint run.pt --stop-after 3      and again, without --stop-after

The shares change by stages of epochs. They are a part of the order, so that every rank, and every run that resumes,
has the same samples in the same epoch. An epoch may be short: this one has 512 samples. A stage in which a set has the
weight 0 leaves it where it is.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from streamer import MixedDataset, StreamingDataLoader, StreamingDataset, Weights

LENGTH, CLASSES, BATCH = 64, 4, 32
NOISE = {"easy": 0.5, "hard": 2.0}
STAGES = [(0, {"easy": 1, "hard": 0}), (2, {"easy": 1, "hard": 1}), (4, {"easy": 1, "hard": 3})]
EPOCHS = 6


def make_data(folder: Path) -> None:
    """Waves of four frequencies, in class folders, under a little noise and under much."""
    rng = np.random.default_rng(0)
    for name, noise in NOISE.items():
        for number in range(1024):
            path = folder / name / f"{number % CLASSES}" / f"{number:04}.npy"
            path.parent.mkdir(parents=True, exist_ok=True)
            wave = np.sin(np.arange(LENGTH) * (1 + number % CLASSES) / 5)
            np.save(path, (wave + noise * rng.standard_normal(LENGTH)).astype(np.float32))


def run(folder: Path, checkpoint: Path, stop_after: int) -> None:
    """Trains a linear model, and saves it after each epoch."""
    sets = {name: StreamingDataset(folder / name, cache_dir=folder / "cache") for name in NOISE}
    data = MixedDataset(sets, weights=Weights(STAGES, epoch_samples=512))
    torch.manual_seed(0)
    model = torch.nn.Linear(LENGTH, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with StreamingDataLoader(data, BATCH, num_workers=1) as loader:
        begun = 0
        if checkpoint.exists():
            saved = torch.load(checkpoint)
            model.load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])
            begun = saved["epoch"] + 1
        for epoch in range(begun, stop_after):
            losses, hard = [], 0
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(model(batch["npy"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                hard += batch["__source__"].count("hard")
            print(f"epoch {epoch}: {512 - hard} easy, {hard} hard, loss {np.mean(losses):.2f}")
            torch.save({"model": model.state_dict(), "loader": loader.state_dict(), "epoch": epoch}, checkpoint)
    data.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="goes on from there (default: none)")
    parser.add_argument("--stop-after", type=int, default=EPOCHS, metavar="N", help="epochs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if arguments.checkpoint is None else arguments.checkpoint.absolute().with_suffix(".data")
        if not folder.exists() or not any(folder.iterdir()):
            make_data(folder)
        run(folder, arguments.checkpoint or folder / "run.pt", arguments.stop_after)


if __name__ == "__main__":
    main()
