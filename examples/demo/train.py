"""The program of each rank: an ordinary training script on the public interface of streamer.

    torchrun --nproc-per-node 2 -m examples.demo.train settings.json

Each step and each epoch prints a line of JSON for the demo; without `say` it is a training script as any other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset

# An eighth of the edge of the images. With it an epoch takes one core 0.9 s and the loss falls to 0.05 in four;
# with 64 pixels 2.8 s and 0.23 (2026-11-20): the cores are wanted for the data here.
EDGE_PIXELS = 32
CLASSES = 8


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    """Scales the image of one sample down to 32 x 32, still uint8, channels first. Runs in the workers."""
    image = sample["jpg"]
    factor = image.shape[0] // EDGE_PIXELS
    small = image.reshape(EDGE_PIXELS, factor, EDGE_PIXELS, factor, 3).mean(axis=(1, 3), dtype=np.float32)
    return {
        "key": str(sample["__key__"]),
        "image": np.ascontiguousarray(small.astype(np.uint8).transpose(2, 0, 1)),
        "label": int(sample["cls"]),
    }


def make_network() -> nn.Module:
    """Returns four small convolutions, which learn the shapes in four epochs."""
    layers: list[nn.Module] = []
    for channels, more in itertools.pairwise((3, 16, 32, 64, 64)):
        layers += [
            nn.Conv2d(channels, more, 3, padding=1, bias=False),
            nn.BatchNorm2d(more),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def say(**event: object) -> None:
    """Prints one line of JSON in one write: lines of two ranks do not mix."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def main(settings: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(settings["seed"])
    dist.init_process_group("gloo")
    dataset = StreamingDataset(
        settings["url"],
        manifest=settings["manifest"],
        storage_options=settings["storage_options"],
        cache_bytes=settings["cache_bytes"],
        seed=settings["seed"],
        transform=prepare,
    )
    loader = StreamingDataLoader(
        dataset,
        batch_size=settings["batch_size"],
        num_workers=1,
        # Half of the default: each batch under way holds chunks open in a cache that is as small as the data.
        prefetch_batches=4,
    )
    model = nn.parallel.DistributedDataParallel(make_network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    say(rank=dist.get_rank(), batches=len(loader))
    for epoch in range(settings["epochs"]):
        train_epoch(epoch, loader, model, optimizer)
    dist.destroy_process_group()


def train_epoch(epoch: int, loader: StreamingDataLoader, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    keys = hashlib.blake2b(digest_size=16)
    right = 0
    samples_read = 0
    start = ready = time.monotonic()
    for number, batch in enumerate(loader):
        wait_seconds = time.monotonic() - ready
        scores = model(batch["image"].float().div_(255).sub_(0.5))
        loss = nn.functional.cross_entropy(scores, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Samples that fill the last batch were read before; they are not counted twice.
        new = ~torch.tensor(loader.repeated)
        samples = int(new.sum())
        samples_read += samples
        right += int((scores.argmax(1) == batch["label"])[new].sum())
        keys.update("\n".join(batch["key"]).encode())
        # Every eighth batch and the last one: what the engine of this machine keeps.
        asks = dist.get_rank() == 0 and (number % 8 == 7 or number + 1 == len(loader))
        engine = loader.stats().engine if asks else None
        say(
            rank=dist.get_rank(),
            epoch=epoch,
            batch=number,
            samples=samples,
            loss=loss.item(),
            wait_seconds=wait_seconds,
            at_seconds=time.monotonic(),
            kept_share=engine and engine.hit_bound,
        )
        ready = time.monotonic()
    seconds = time.monotonic() - start
    say(rank=dist.get_rank(), epoch=epoch, samples=samples_read, right=right, seconds=seconds, keys=keys.hexdigest())


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
