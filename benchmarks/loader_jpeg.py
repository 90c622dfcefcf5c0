"""JPEGs of 500 x 375 to 224 x 224: CPU an image, ours beside torch's loader with the same decoder.

Same decoder: simplejpeg at full size, then OpenCV's INTER_AREA. `alone` has no loader: two processes read, decode and
resize file after file at the same time; `in place` as well, into memory that is used again. They are what no loader
with this decoder can save: `in place` divided by the best stock loader is the least that can be reached. `ring, 5/8`
lets the decoder scale while it decodes (`ImageDecoder(min_height=224, min_width=224)`): other pixels, so in no bound.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from bounds import Bounds
from loader_ways import WARM_UP, WORKERS, Usage, all_ready, answer, apart, children, collate_copy, collate_numpy
from memory import PageCache
from torch.utils.data import DataLoader, Dataset, default_collate

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode.images import ImageDecoder
from streamer.decode.transforms import OnField, Resize

IMAGES, BATCH, BATCHES = 1024, 64, 24


def make_pictures(folder: Path) -> list[Path]:
    """Smooth noise, about 100 KB each."""
    random, paths = np.random.default_rng(7), []
    for number in range(IMAGES):
        coarse = random.integers(0, 256, (75, 100, 3), np.uint8)
        picture = cv2.resize(coarse, (500, 375), interpolation=cv2.INTER_CUBIC)
        path = folder / f"class{number % 4}" / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(picture), quality=85))
        paths.append(path)
    return paths


class Files(Dataset[object]):
    """The same for a stock loader: read, decode by simplejpeg, resize by OpenCV."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = [str(path) for path in paths]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> object:
        cv2.setNumThreads(1)
        with open(self.paths[number % len(self.paths)], "rb") as file:
            picture = simplejpeg.decode_jpeg(file.read(), "RGB")
        return {"jpg": cv2.resize(picture, (224, 224), interpolation=cv2.INTER_AREA), "label": number % 4}


def ours(url: str, cache: Path, decode: dict[str, ImageDecoder] | None = None) -> float:
    """CPU milliseconds an image of trainer, workers and engine."""
    dataset = StreamingDataset(
        url,
        cache_dir=cache,
        cache_bytes="2GB",
        transform=OnField("jpg", Resize((224, 224))),
        decode=decode or "auto",  # type: ignore[arg-type]
        batch_size=BATCH,
    )
    with StreamingDataLoader(dataset, BATCH, WORKERS, report_seconds=None) as loader:
        batches = endless(loader)
        while loader.stats().ring_slots == 0 or not all_ready(loader):
            next(batches)
        for _ in range(IMAGES // BATCH + WARM_UP):
            next(batches)
        # Workers and engine.
        spent = cpu_of(batches, [pid for pid in children() if b"streamer" in Path(f"/proc/{pid}/cmdline").read_bytes()])
    dataset.close()
    return spent


def alone(way: str, folder: Path) -> float:
    """CPU milliseconds an image without any loader."""
    processes = [apart(way, str(folder), file=__file__) for _ in range(WORKERS)]
    return statistics.mean(answer(process)[0] for process in processes)


def measure_alone(way: str, folder: Path) -> float:
    files, images = Files(sorted(folder.rglob("*.jpg"))), BATCH * BATCHES
    place, row = np.empty((375, 500, 3), np.uint8), np.empty((224, 224, 3), np.uint8)

    def in_place(number: int) -> None:
        with open(files.paths[number % len(files.paths)], "rb") as file:
            simplejpeg.decode_jpeg(file.read(), "RGB", buffer=place)
        cv2.resize(place, (224, 224), dst=row, interpolation=cv2.INTER_AREA)

    make = in_place if way == "in place" else files.__getitem__
    for number in range(WARM_UP * BATCH):
        make(number)
    before = Usage.of(os.getpid()).cpu
    for number in range(images):
        make(number)
    return (Usage.of(os.getpid()).cpu - before) / images


def stock(collate: Callable[[list[object]], object], paths: list[Path]) -> float:
    """CPU milliseconds an image of trainer and workers."""
    loader = DataLoader(
        Files(paths), BATCH, num_workers=WORKERS, collate_fn=collate, multiprocessing_context="forkserver"
    )
    batches = iter(loader)
    for _ in range(IMAGES // BATCH + WARM_UP):
        next(batches)
    return cpu_of(batches, [worker.pid for worker in batches._workers])  # type: ignore[attr-defined]


def endless(loader: StreamingDataLoader) -> Iterator[object]:
    while True:
        yield from loader


def cpu_of(batches: Iterator[object], pids: list[int]) -> float:
    processes = [os.getpid(), *pids]
    before = [Usage.of(pid).cpu for pid in processes]
    for _ in range(BATCHES):
        batch = next(batches)
        assert torch.as_tensor(batch["jpg"]).shape == (BATCH, 224, 224, 3)  # type: ignore[index]
    after = [Usage.of(pid).cpu for pid in processes]
    return (sum(after) - sum(before)) / BATCHES / BATCH


def jpeg(rounds: int, bounds: Bounds) -> None:
    """Prints the table."""
    scaled = {"jpg": ImageDecoder(min_height=224, min_width=224)}
    stocks = {"stock": default_collate, "stock+copy": collate_copy, "stock numpy": collate_numpy}
    with tempfile.TemporaryDirectory() as name, PageCache(Path(name)) as pages:
        folder = Path(name)
        paths = make_pictures(folder / "pictures")
        os.environ["STREAMER_RUNTIME_DIR"] = f"{folder}/run"
        ways: dict[str, Callable[[], float]] = {
            "in place": partial(alone, "in place", folder),
            "alone": partial(alone, "alone", folder),
            "ring": partial(ours, f"{folder}/pictures/", folder / "cache"),
            "ring, 5/8": partial(ours, f"{folder}/pictures/", folder / "cache", scaled),
            **{kind: partial(stock, collate, paths) for kind, collate in stocks.items()},
        }
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            pages.fill()
            for way, run in ways.items():
                found[way].append(run())
    medians = {way: statistics.median(values) for way, values in found.items()}
    best = min(medians[way] for way in stocks)
    print(f"\nJPEG 500 x 375 -> 224 x 224, CPU ms an image of all processes, medians of {rounds} in turn")
    for way, value in medians.items():
        print(f"{way:13}{value:8.3f}{value / best:8.2f} of the best stock loader")
    bounds.add("JPEG to 224 x 224: CPU an image, against the best stock loader", medians["ring"] / best, 0.88, "x")
    bounds.add("the least that can be reached: decoder alone, in place", medians["in place"] / best, 0.88, "x")


if __name__ == "__main__":
    print(json.dumps([measure_alone(sys.argv[1], Path(sys.argv[2]))]), flush=True)
