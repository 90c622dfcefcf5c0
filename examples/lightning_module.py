"""A LightningModule on a streamed dataset (pip install lightning).

    python examples/lightning_module.py

The loaders go to the Trainer as they are. Lightning saves and restores the state of the training loader with its
checkpoints, so that a run that was stopped in the middle of an epoch goes on at the next sample.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset
from streamer.loader.device import Normalize

try:
    import lightning
except ImportError as error:
    raise SystemExit("this example needs Lightning: pip install lightning") from error

CLASSES = 4


def make_data(folder: Path, images: int) -> None:
    """Noise around a colour, one colour per class."""
    rng = np.random.default_rng(0)
    for number in range(images):
        label = number % CLASSES
        path = folder / f"shade-{label}" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 64, (32, 32, 3), np.uint8) + np.uint8(50 * label)).save(path)


class Classifier(lightning.LightningModule):
    """Learns the shades."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, CLASSES))
        self.normalize = Normalize((0.5,) * 3, (0.25,) * 3, key="png")

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        batch = self.normalize(batch)
        loss = nn.functional.cross_entropy(self.network(batch["png"]), batch["label"])
        self.log("loss", loss, on_epoch=True, on_step=False, batch_size=len(batch["label"]))
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], number: int) -> None:
        batch = self.normalize(batch)
        right = self.network(batch["png"]).argmax(1) == batch["label"]
        self.log("accuracy", right.float().mean(), batch_size=len(right))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


def train(url: str, cache: Path, arguments: argparse.Namespace) -> None:
    everything = StreamingDataset(url, cache_dir=cache)
    # Random parts that have no sample in common.
    train_part, val_part = everything.select(fraction=(0, 0.8)), everything.select(fraction=(0.8, 1))
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    with (
        StreamingDataLoader(train_part, 16, arguments.workers) as train_loader,
        StreamingDataLoader(val_part, 16) as val_loader,
    ):
        trainer.fit(Classifier(), train_loader, val_loader)
    metrics = {name: round(float(value), 3) for name, value in trainer.callback_metrics.items()}
    print(f"{trainer.global_step} steps: {metrics}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="class folders of .png files; default: made here")
    parser.add_argument("--images", type=int, default=256, help="how many to make (default: 256)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    # Lightning knows torch's own loader only and advises it more workers.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    with tempfile.TemporaryDirectory() as scratch:
        url = arguments.url
        if url is None:
            url = f"{scratch}/images/"
            make_data(Path(url), arguments.images)
        train(url, Path(scratch) / "cache", arguments)


if __name__ == "__main__":
    main()
