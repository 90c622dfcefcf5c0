"""JPEGs of 500 x 375 to 224 x 224: CPU an image, ours beside torch's loader with the same decoder."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
import torch
from loader_ways import WARM_UP, WORKERS, Usage, collate_copy, collate_numpy
from torch.utils.data import DataLoader, Dataset, default_collate

from streamer import StreamingDataLoader, StreamingDataset
from streamer.decode.transforms import OnField, Resize

IMAGES, BATCH, BATCHES, ROUNDS = 1024, 64, 24, 3

Report = Callable[[str], None]


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


def ours(url: str, cache: Path) -> float:
    """CPU milliseconds an image of trainer, workers and engine."""
    dataset = StreamingDataset(
        url, cache_dir=cache, cache_bytes="2GB", transform=OnField("jpg", Resize((224, 224))), batch_size=BATCH
    )
    with StreamingDataLoader(dataset, BATCH, WORKERS, report_seconds=None) as loader:
        batches = endless(loader)
        for _ in range(IMAGES // BATCH + WARM_UP):
            next(batches)
        processes = [handle.process.pid for handle in loader._supply.feeder._pool.handles]  # type: ignore[union-attr]
        engine = dataset._opening.client()._connected().welcome.pid
        spent = cpu_of(batches, [*processes, engine])
    dataset.close()
    return spent


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


def jpeg(report: Report) -> float:
    """Prints the table; returns our CPU an image as a share of the best stock loader's."""
    ways = {"stock": default_collate, "stock+copy": collate_copy, "stock numpy": collate_numpy}
    found: dict[str, list[float]] = {name: [] for name in ("ring", *ways)}
    with tempfile.TemporaryDirectory() as folder:
        paths = make_pictures(Path(folder) / "pictures")
        os.environ["STREAMER_RUNTIME_DIR"] = f"{folder}/run"
        for _ in range(ROUNDS):
            found["ring"].append(ours(f"{folder}/pictures/", Path(folder) / "cache"))
            for name, collate in ways.items():
                found[name].append(stock(collate, paths))
    medians = {name: statistics.median(values) for name, values in found.items()}
    report(f"\nJPEG 500 x 375 -> 224 x 224, CPU ms an image of all processes, medians of {ROUNDS} in turn")
    for name, value in medians.items():
        report(f"{name:13}{value:8.3f}")
    return medians["ring"] / min(medians[name] for name in ways)
