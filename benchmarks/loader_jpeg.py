"""JPEGs of 500 x 375 to 224 x 224: CPU an image, ours beside torch's loader with the same decoder.

Same decoder: simplejpeg at full size. Then OpenCV scales, as `cv2.resize` does unless it is told otherwise
(INTER_LINEAR: a tenth of the decoder's time), and in a table of its own by areas (INTER_AREA: as long as the decoder
takes, so there is less that a loader could save). `alone` has no loader: two processes read, decode and resize file
after file at the same time; `in place` as well, into memory that is used again. They are what no loader with this
decoder can save: `in place` divided by the best stock loader is the least that can be reached. `ring, 5/8` lets the
decoder scale while it decodes (`ImageDecoder(min_height=224, min_width=224)`): other pixels, so in no bound.

The pictures stand for a data set of more than 4 GB: they are indexed in chunks of 8 MB, as that would be. 105 MB alone
are cut into chunks of 256 kB, two pictures each, of which the engine has thirty to look after for each batch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
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
from loader_ways import WARM_UP, Usage, all_ready, answer, apart, children, collate_copy, collate_numpy
from torch.utils.data import DataLoader, Dataset, default_collate

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode.images import ImageDecoder
from streamer.decode.transforms import OnField, Resize

IMAGES, BATCH, BATCHES, WORKERS = 1024, 64, 64, 2
# OpenCV's, by what `Resize` calls it.
INTERPOLATION = {False: cv2.INTER_LINEAR, True: cv2.INTER_AREA}


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

    def __init__(self, paths: list[Path], antialias: bool) -> None:
        self.paths = [str(path) for path in paths]
        self.interpolation = INTERPOLATION[antialias]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> object:
        cv2.setNumThreads(1)
        with open(self.paths[number % len(self.paths)], "rb") as file:
            picture = simplejpeg.decode_jpeg(file.read(), "RGB")
        return {"jpg": cv2.resize(picture, (224, 224), interpolation=self.interpolation), "label": number % 4}


def index(folder: Path) -> None:
    """Builds the manifest of its pictures."""
    command = [sys.executable, "-m", "streamer", "index", url_of(folder), "--chunk-bytes", "8MB"]
    places = ["--out", str(folder / "index"), "--cache-dir", str(folder / "cache")]
    subprocess.run([*command, *places], check=True, stdout=subprocess.DEVNULL)


def url_of(folder: Path) -> str:
    return f"{folder}/pictures/"


def ours(antialias: bool, folder: Path, decode: dict[str, ImageDecoder] | None = None) -> float:
    """CPU milliseconds an image of trainer, workers and engine."""
    dataset = StreamingDataset(
        url_of(folder),
        manifest=folder / "index",
        cache_dir=folder / "cache",
        cache_bytes="2GB",
        transform=OnField("jpg", Resize((224, 224), antialias)),
        decode=decode or "auto",  # type: ignore[arg-type]
        batch_size=BATCH,
    )
    with StreamingDataLoader(dataset, BATCH, WORKERS, report_every=None) as loader:
        batches = endless(loader)
        while loader.stats().ring_slots == 0 or not all_ready(loader):
            next(batches)
        for _ in range(IMAGES // BATCH + WARM_UP):
            next(batches)
        # Workers and engine.
        spent = cpu_of(batches, [pid for pid in children() if b"streamer" in Path(f"/proc/{pid}/cmdline").read_bytes()])
    dataset.close()
    return spent


def alone(antialias: bool, way: str, folder: Path) -> float:
    """CPU milliseconds an image without any loader."""
    processes = [apart(way, str(folder), str(int(antialias)), file=__file__) for _ in range(WORKERS)]
    return statistics.mean(answer(process)[0] for process in processes)


def measure_alone(way: str, folder: Path, antialias: bool) -> float:
    files, images = Files(sorted(folder.rglob("*.jpg")), antialias), BATCH * BATCHES
    place, row = np.empty((375, 500, 3), np.uint8), np.empty((224, 224, 3), np.uint8)

    def in_place(number: int) -> None:
        with open(files.paths[number % len(files.paths)], "rb") as file:
            simplejpeg.decode_jpeg(file.read(), "RGB", buffer=place)
        cv2.resize(place, (224, 224), dst=row, interpolation=files.interpolation)

    make = in_place if way == "in place" else files.__getitem__
    for number in range(WARM_UP * BATCH):
        make(number)
    before = Usage.of(os.getpid()).cpu
    for number in range(images):
        make(number)
    return (Usage.of(os.getpid()).cpu - before) / images


def stock(antialias: bool, collate: Callable[[list[object]], object], paths: list[Path]) -> float:
    """CPU milliseconds an image of trainer and workers."""
    loader = DataLoader(
        Files(paths, antialias), BATCH, num_workers=WORKERS, collate_fn=collate, multiprocessing_context="forkserver"
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
    """Prints both tables."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = make_pictures(folder / "pictures")
        os.environ["STREAMER_RUNTIME_DIR"] = f"{folder}/run"
        index(folder)
        shares = table(False, rounds, folder, paths)
        table(True, rounds, folder, paths)
    bounds.add("JPEG to 224 x 224: CPU an image, against the best stock loader", shares["ring"], 0.88, "x")
    bounds.add("the least that can be reached: decoder alone, in place", shares["in place"], 0.88, "x")


def table(antialias: bool, rounds: int, folder: Path, paths: list[Path]) -> dict[str, float]:
    """Prints one; returns each way's CPU as a share of the best stock loader's."""
    scaled = {"jpg": ImageDecoder(min_height=224, min_width=224)}
    stocks = {"stock": default_collate, "stock+copy": collate_copy, "stock numpy": collate_numpy}
    ways: dict[str, Callable[[], float]] = {
        "in place": partial(alone, antialias, "in place", folder),
        "alone": partial(alone, antialias, "alone", folder),
        "ring": partial(ours, antialias, folder),
        "ring, 5/8": partial(ours, antialias, folder, scaled),
        **{kind: partial(stock, antialias, collate, paths) for kind, collate in stocks.items()},
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            found[way].append(run())
    medians = {way: statistics.median(values) for way, values in found.items()}
    best = min(medians[way] for way in stocks)
    how = "by areas" if antialias else "between four pixels"
    print(f"\nJPEG 500 x 375 -> 224 x 224 {how}, CPU ms an image of all processes, medians of {rounds} in turn")
    for way, value in medians.items():
        print(f"{way:13}{value:8.3f}{value / best:8.2f} of the best stock loader")
    return {way: value / best for way, value in medians.items()}


if __name__ == "__main__":
    print(json.dumps([measure_alone(sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "1")]), flush=True)
