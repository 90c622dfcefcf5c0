"""ImageNet-style training on several processes, with validation and resume.

    python examples/imagenet_torchrun.py
    torchrun --nproc-per-node 2 examples/imagenet_torchrun.py --data /tmp/images --checkpoint /tmp/run.pt
    torchrun --nproc-per-node 8 examples/imagenet_torchrun.py --train s3://b/train/ --val s3://b/val/ --edge 224 --flip

Class folders of JPEGs. Workers decode and crop; images stay uint8 until they are on the device and are normalised
there: a quarter of the bytes to transfer. Validation has a loader of its own. With --checkpoint a run that was
stopped (--stop-after) goes on at the very next sample, also with another number of processes that share the batch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode.transforms import CenterCrop, HorizontalFlip, OnField, RandomResizedCrop
from streamer.loader.device import Normalize

CLASSES = 4
# Of ImageNet, for values in 0..1 (torchvision's models).
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# ---------------------------------------------------------------- data


def make_data(folder: Path, images: int, seed: int) -> None:
    """Bright discs on noise; the class is the quarter they lie in."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:80, 0:80]
    for number in range(images):
        label = number % CLASSES
        top, left = 20 + 40 * (label // 2), 20 + 40 * (label % 2)
        picture = rng.integers(0, 96, (80, 80, 3), np.uint8)
        picture[(rows - top) ** 2 + (columns - left) ** 2 < 144] = rng.integers(160, 255, 3)
        path = folder / f"quarter-{label}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path, quality=90)


def shared_folder(arguments: argparse.Namespace, scratch: str) -> Path:
    """The first process makes the data; all of them learn where it is."""
    place = [arguments.data or scratch]
    if dist.get_rank() == 0 and not (Path(place[0]) / "train").exists():
        make_data(Path(place[0]) / "train", arguments.images, seed=0)
        make_data(Path(place[0]) / "val", arguments.images // 4, seed=1)
    dist.broadcast_object_list(place)
    return Path(place[0])


# ---------------------------------------------------------------- training


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for narrow, wide in ((3, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(narrow, wide, 3, stride=2, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(32 * 16, CLASSES))


class Training:
    """One process's part of the run."""

    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else "cpu"
        model = network().to(self.device)
        self.model = nn.parallel.DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        edge, cache = arguments.edge, arguments.cache_dir or folder / "cache"
        normalize = Normalize(MEAN, STD, key="jpg", channels_last=True)
        train = StreamingDataset(
            arguments.train or f"{folder}/train/",
            cache_dir=cache,
            # The box covers nearly all of the picture: the place of the disc is what is to be learnt.
            transform=OnField("jpg", RandomResizedCrop(edge, scale=(0.8, 1.0)))
            if not arguments.flip
            else OnField("jpg", RandomResizedCrop(edge), HorizontalFlip()),
        )
        val = StreamingDataset(
            arguments.val or f"{folder}/val/",
            cache_dir=cache,
            shuffle=False,
            transform=OnField("jpg", CenterCrop(edge)),
        )
        per_rank = arguments.batch_size // dist.get_world_size()
        self.train = StreamingDataLoader(
            train, per_rank, arguments.workers, device=self.device, device_transform=normalize, drop_last=True
        )
        # Nothing is dropped here: the last batch may be filled with repeats, which are left out of the score.
        self.val = StreamingDataLoader(val, per_rank, 0, device=self.device, device_transform=normalize)
        self.epoch = self.steps = 0

    def resume(self) -> None:
        """Goes on where the checkpoint was written, if there is one."""
        path = self.arguments.checkpoint
        if path is None or not path.exists():
            return
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.train.load_state_dict(saved["loader"])
        self.epoch, self.steps = saved["epoch"], saved["steps"]
        say(f"resumed in epoch {saved['loader']['epoch']} at sample {saved['loader']['position']:,}")

    def save(self, epoch: int) -> None:
        """State of the loader: a few numbers, whatever the size of the data."""
        if self.arguments.checkpoint is None or dist.get_rank():
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loader": self.train.state_dict(),
            "epoch": epoch,
            "steps": self.steps,
        }
        torch.save(state, self.arguments.checkpoint)

    def run(self) -> None:
        self.resume()
        for epoch in range(self.epoch, self.arguments.epochs):
            before = self.train.stats()
            loss = self.one_epoch()
            if self.steps == self.arguments.stop_after:
                self.save(epoch)
                say(f"stopped after {self.steps} steps")
                return
            self.save(epoch + 1)
            after = self.train.stats()
            waited = after.wait_seconds - before.wait_seconds
            busy = after.step_seconds - before.step_seconds
            say(
                f"epoch {epoch}: loss {loss:.3f}, validation {self.accuracy():.1%}, "
                f"waited {waited / max(waited + busy, 1e-9):.1%} for data"
            )

    def one_epoch(self) -> float:
        self.model.train()
        loss = torch.zeros(())
        for batch in self.train:
            loss = nn.functional.cross_entropy(self.model(batch["jpg"]), batch["label"])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.steps += 1
            if self.steps == self.arguments.stop_after:
                break
        return loss.item()

    @torch.inference_mode()
    def accuracy(self) -> float:
        self.model.eval()
        right_and_all = torch.zeros(2, device=self.device)
        for batch in self.val:
            fresh = torch.from_numpy(~self.val.repeated).to(self.device)
            # Not through DistributedDataParallel: ranks may have different numbers of fresh samples.
            right = self.model.module(batch["jpg"]).argmax(1) == batch["label"]
            right_and_all += torch.stack([right[fresh].sum(), fresh.sum()])
        dist.all_reduce(right_and_all)
        return float(right_and_all[0] / right_and_all[1])

    def close(self) -> None:
        self.train.close()
        self.val.close()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", help="class folders of JPEGs; default: made here")
    parser.add_argument("--val", help="the same for validation")
    parser.add_argument("--data", help="where to make them, and keep them (default: a temporary folder)")
    parser.add_argument("--images", type=int, default=512, help="how many to make (default: 512)")
    parser.add_argument("--edge", type=int, default=64, help="of the images that the model sees (default: 64)")
    parser.add_argument("--flip", action="store_true", help="ImageNet's augmentation: any box, mirrored")
    parser.add_argument("--batch-size", type=int, default=32, help="over all processes (default: 32)")
    parser.add_argument("--workers", type=int, default=1, help="for each process (default: 1)")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--cache-dir", help="default: beside the data made here")
    parser.add_argument("--checkpoint", type=Path, help="written after each epoch and when stopped; resumed from")
    parser.add_argument("--stop-after", type=int, help="steps; to see a resume")
    arguments = parser.parse_args()
    # Without torchrun: one process.
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("MASTER_PORT", "0")
    torch.manual_seed(0)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    with tempfile.TemporaryDirectory() as scratch:
        training = Training(shared_folder(arguments, scratch), arguments)
        training.run()
        training.close()
        # The first process made the folder: it must not remove it under the others.
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
