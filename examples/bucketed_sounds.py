"""A model on sounds of any length: batches of like lengths, as many sounds as a budget of frames allows.

    python examples/bucketed_sounds.py
    python examples/bucketed_sounds.py --budget 40000 --workers 8

A sound is an array of frames; how many it has, `measure_lengths` counts once. After that the batches of every epoch
are planned before the first byte is read, so all ranks of a job make the same number of steps.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

from streamer import Buckets, StreamingDataLoader, StreamingDataset, measure_lengths

BANDS, WORDS = 8, 4


def make_sounds(folder: Path, count: int) -> None:
    """Noise in eight bands, 20 to 200 frames; which band is loud is the word."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        word = number % WORDS
        sound = rng.normal(0, 1, (int(rng.integers(20, 201)), BANDS)).astype(np.float32)
        sound[:, word] += 1
        np.save(folder / f"{word}-{number:04}.npy", sound)


def with_word(sample: dict[str, object]) -> dict[str, object]:
    return {"sound": sample["npy"], "word": int(Path(sample["__key__"]).name[0])}


def train(dataset: StreamingDataset, arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    model = nn.Linear(BANDS, WORDS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    with StreamingDataLoader(dataset, batch_size=1, num_workers=arguments.workers) as loader:
        for epoch in range(arguments.epochs):
            sounds, frames, places, losses = 0, 0, 0, []
            for batch in loader:
                # Only frames that are there: the padding behind them is 0.
                inside = torch.arange(batch["sound"].shape[1]) < batch["lengths"][:, None]
                pooled = (batch["sound"] * inside[:, :, None]).sum(1) / batch["lengths"][:, None]
                loss = nn.functional.cross_entropy(model(pooled), batch["word"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                sounds += len(batch["lengths"])
                frames += int(batch["lengths"].sum())
                places += inside.numel()
            print(
                f"epoch {epoch}: {sounds} sounds in {len(losses)} batches of at most {arguments.budget} frames, "
                f"{1 - frames / places:.1%} padding, loss {losses[0]:.2f} -> {losses[-1]:.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=int, default=2000, help="frames of a batch, padded (default: 2000)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, costs, cache = Path(scratch) / "sounds", Path(scratch) / "frames.npy", Path(scratch) / "cache"
        make_sounds(folder, 400)
        every = StreamingDataset(folder, cache_dir=cache, transform=with_word)
        measure_lengths(every, "sound", path=costs, num_workers=arguments.workers)
        every.close()
        packing = Buckets(arguments.budget, lengths=str(costs))
        dataset = StreamingDataset(folder, cache_dir=cache, transform=with_word, packing=packing)
        train(dataset, arguments)
        dataset.close()


if __name__ == "__main__":
    main()
