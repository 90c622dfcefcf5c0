"""The program of each rank of the demo: an ordinary training script on the public API.

    torchrun --nproc-per-node 2 -m streamer.tools.demo.train settings.json

It sends events to the demo; without those lines it is an ordinary training script.
"""

from __future__ import annotations

import hashlib
import itertools
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypedDict, cast

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset
from streamer.tools.demo.events import MAX_ERROR_CHARACTERS, EpochEnd, Failed, Indexed, Settings, Step, send

# An eighth of the edge of the images. With it an epoch takes one core 0.9 s and the loss falls to 0.05 in four;
# with 64 pixels 2.8 s and 0.23 (2026-11-20): the cores are wanted for the data here.
EDGE_PIXELS = 32
CLASSES = 8
WIDTH = 16
LEARNING_RATE = 3e-3
# Half of the default: each batch under way holds chunks open in a cache that is as small as the data.
PREFETCH_BATCHES = 4


class Batch(TypedDict):
    """A batch of the loader: one entry per sample."""

    key: list[str]
    image: torch.Tensor
    label: torch.Tensor


def prepare(sample: Mapping[str, object]) -> dict[str, object]:
    """Prepares one sample: the image is scaled down to 32 x 32, still uint8, channels first."""
    image = cast("np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]", sample["jpg"])
    factor = image.shape[0] // EDGE_PIXELS
    small = image.reshape(EDGE_PIXELS, factor, EDGE_PIXELS, factor, 3).mean(axis=(1, 3), dtype=np.float32)
    label = sample["cls"] if "cls" in sample else sample["label"]
    return {
        "key": str(sample["__key__"]),
        "image": np.ascontiguousarray(small.astype(np.uint8).transpose(2, 0, 1)),
        "label": int(cast(int, label)),
    }


def network() -> nn.Module:
    """Returns four small convolutions, which learn the shapes in four epochs."""
    widths = (3, WIDTH, 2 * WIDTH, 4 * WIDTH, 4 * WIDTH)
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Conv2d(narrow, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


class Trainer:
    """One rank's training, and what it measures."""

    def __init__(self, settings: Settings, demo: socket.socket) -> None:
        self._settings = settings
        self._demo = demo
        self._rank = dist.get_rank()
        self._dataset = StreamingDataset(
            settings.url,
            manifest=settings.manifest,
            storage_options=settings.storage_options,
            cache_bytes=settings.cache_bytes,
            seed=settings.seed,
            transform=prepare,
        )
        self._loader = StreamingDataLoader(
            self._dataset,
            batch_size=settings.batch_size,
            num_workers=settings.workers,
            prefetch_batches=PREFETCH_BATCHES * settings.workers or None,
        )
        self._model = nn.parallel.DistributedDataParallel(network())
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)

    def run(self) -> None:
        """Trains all epochs."""
        send(self._demo, Indexed(rank=self._rank, batches=len(self._loader)))
        for epoch in range(self._settings.epochs):
            send(self._demo, self._epoch(epoch))

    def _epoch(self, epoch: int) -> EpochEnd:
        start = time.monotonic()
        waits = []
        losses = []
        right = 0
        samples = 0
        keys = hashlib.blake2b(digest_size=16)
        for number, (batch, wait_seconds) in enumerate(self._batches()):
            fresh = ~torch.tensor(self._loader.repeated)
            loss, hits = self._step(batch)
            waits.append(wait_seconds)
            losses.append(loss)
            right += int(hits[fresh].sum())
            samples += int(fresh.sum())
            keys.update("\n".join(batch["key"]).encode())
            step = Step(
                rank=self._rank,
                epoch=epoch,
                batch=number,
                samples=int(fresh.sum()),
                loss=loss,
                wait_seconds=wait_seconds,
                at_seconds=time.monotonic(),
            )
            send(self._demo, step)
        return EpochEnd(
            rank=self._rank,
            epoch=epoch,
            samples=samples,
            loss=sum(losses) / len(losses),
            right=right,
            seconds=time.monotonic() - start,
            wait_seconds=sum(waits),
            longest_wait_seconds=max(waits),
            keys=keys.hexdigest(),
        )

    def _batches(self) -> Iterator[tuple[Batch, float]]:
        """Yields the loader's batches, each with the seconds that it was waited for."""
        batches = iter(self._loader)
        while True:
            start = time.monotonic()
            batch = next(batches, None)
            if batch is None:
                return
            yield cast(Batch, batch), time.monotonic() - start

    def _step(self, batch: Batch) -> tuple[float, torch.Tensor]:
        """Makes one optimizer step; returns the loss, and which samples were classified correctly."""
        images = batch["image"].float().div_(255).sub_(0.5)
        scores = self._model(images)
        loss = nn.functional.cross_entropy(scores, batch["label"])
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item(), scores.argmax(1) == batch["label"]


def main(path: Path) -> None:
    """Trains as one of the ranks that torchrun started."""
    settings = msgspec.json.decode(path.read_bytes(), type=Settings)
    torch.set_num_threads(1)
    torch.manual_seed(settings.seed)
    dist.init_process_group("gloo")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as demo:
        demo.connect(settings.events)
        try:
            Trainer(settings, demo).run()
        except Exception:
            send(demo, Failed(rank=dist.get_rank(), error=traceback.format_exc()[-MAX_ERROR_CHARACTERS:]))
            raise
        finally:
            dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
