"""What decoding costs beside the bare libraries: CPU time per picture, by one worker's code in one process.

    python benchmarks/decode.py [--pictures 512] [--rounds 7] [--quick]

JPEGs of 500 x 375 (about 60 KB), cached. `bare` is a loop over bytes in memory: `simplejpeg.decode_jpeg`, `cv2.resize`
to 224 x 224 into the row of a batch. `ours` is what a worker of the loader does: read from the cache, check, open the
sample, decode, resize by `OnField("jpg", Resize((224, 224)))`, collate, everything in its slot. `augmented` adds a
random crop and a mirror to both (`RandomResizedCrop`, `HorizontalFlip`; bare: the same by hand). In turn, --rounds
times; the median of the ratios of pairs is printed. Results are kept in benchmarks/results/decode-<date>.txt.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from report import kept

from streamer import StreamingDataLoader, StreamingDataset
from streamer.batches.workers.batch_maker import BatchMaker, MakerRules
from streamer.decode.transforms import HorizontalFlip, OnField, RandomResizedCrop, Resize

BATCH, SIDE = 64, 224


def make_data(folder: Path, count: int) -> list[bytes]:
    """Smooth pictures with some noise: as long as photographs of that size are."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    contents = []
    for number in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), np.uint8)
        smooth = cv2.resize(coarse, (500, 375), interpolation=cv2.INTER_CUBIC)
        noisy = np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        contents.append(simplejpeg.encode_jpeg(noisy, quality=90, colorspace="RGB"))
        (folder / f"{number:05}.jpg").write_bytes(contents[-1])
    return contents


def bare(contents: list[bytes], out: np.ndarray) -> None:
    for number, content in enumerate(contents):
        picture = simplejpeg.decode_jpeg(content, "RGB")
        cv2.resize(picture, (SIDE, SIDE), dst=out[number % BATCH], interpolation=cv2.INTER_AREA)


def bare_augmented(contents: list[bytes], out: np.ndarray) -> None:
    crop, rng = RandomResizedCrop(SIDE), np.random.default_rng(5)
    for number, content in enumerate(contents):
        picture, place = simplejpeg.decode_jpeg(content, "RGB"), out[number % BATCH]
        top, left, height, width = crop.draw(picture.shape[0], picture.shape[1], rng)
        shrinks = height * width > SIDE * SIDE
        part = picture[top : top + height, left : left + width]
        how = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        cv2.resize(part, (SIDE, SIDE), dst=place, interpolation=how)
        if rng.random() < 0.5:
            np.copyto(place, cv2.flip(place, 1))


class Ours:
    """A worker's batch maker over a warm cache, in this process."""

    def __init__(self, folder: Path, cache: Path, transform: OnField, contents: list[bytes]) -> None:
        self._dataset = StreamingDataset(folder, cache_dir=cache, cache_bytes="4GB", transform=transform, shuffle=False)
        with StreamingDataLoader(self._dataset, BATCH, 1, report_every=None) as loader:
            for batch in loader:
                del batch
        source = self._dataset._get_opening().prepare(BATCH).recipe().open()
        self._maker = BatchMaker(source, MakerRules(seed=17))
        self._slot = np.zeros(BATCH * (SIDE * SIDE * 3 + 1024), np.uint8)
        self._batches = len(contents) // BATCH

    def __call__(self) -> None:
        for number in range(self._batches):
            packed = self._maker.lay_out(self._maker.load(0, number, memory=self._slot))
            packed.write(self._slot)

    def close(self) -> None:
        self._dataset.close()


def cpu(action: Callable[[], None]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def compare(name: str, theirs: Callable[[], None], ours: Callable[[], None], rounds: int, count: int) -> str:
    theirs(), ours(), ours()
    pairs = [(cpu(theirs), cpu(ours)) for _ in range(rounds)]
    plain, mine = (statistics.median(column) / count * 1e6 for column in zip(*pairs, strict=True))
    ratio = statistics.median(left / right for left, right in pairs)
    return f"{name:12}{plain:12.0f}{mine:12.0f}{ratio:22.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="128 pictures, 3 rounds, nothing is kept")
    options = parser.parse_args()
    if options.quick:
        options.pictures, options.rounds = 128, 3
    cv2.setNumThreads(1)
    out = np.zeros((BATCH, SIDE, SIDE, 3), np.uint8)
    with (
        kept("decode", f"OpenCV {cv2.__version__}", f"{options.pictures} JPEGs", keep=not options.quick),
        tempfile.TemporaryDirectory(dir="/var/tmp") as root,
    ):
        print(f"{'':12}{'bare us':>12}{'ours us':>12}{'ours / bare rate':>22}")
        folder, cache = Path(root) / "data", Path(root) / "cache"
        contents = make_data(folder, options.pictures)
        contents = contents[: len(contents) // BATCH * BATCH]
        for name, theirs, steps in (
            ("resized", bare, [Resize((SIDE, SIDE))]),
            ("augmented", bare_augmented, [RandomResizedCrop(SIDE), HorizontalFlip()]),
        ):
            ours = Ours(folder, cache, OnField("jpg", *steps), contents)
            print(compare(name, lambda t=theirs: t(contents, out), ours, options.rounds, len(contents)))  # type: ignore[misc]
            ours.close()


if __name__ == "__main__":
    sys.exit(main())
