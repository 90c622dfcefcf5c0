"""Writes data with a library's own writer: python library_data.py KIND FOLDER. Runs where the libraries are installed.

Images of different sizes, as they are found; each is known by its number, which is its label.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

PICTURES = 400
CLASSES = ("cats", "dogs")


def pictures() -> Iterator[tuple[int, Image.Image]]:
    """Yields number and image, of three sizes."""
    rng = np.random.default_rng(0)
    for number in range(PICTURES):
        shape = (80 + number % 3 * 16, 96, 3)
        yield number, Image.fromarray(rng.integers(0, 255, shape, np.uint8))


def folders(folder: Path) -> None:
    """Writes class folders, with the extensions that ImageNet has."""
    for number, picture in pictures():
        path = folder / CLASSES[number % 2] / f"{number:04}.{('jpg', 'JPEG')[number % 4 == 3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, "JPEG")


def tars(folder: Path) -> None:
    """Writes 100 shards with webdataset's writer."""
    from webdataset import ShardWriter

    with ShardWriter(str(folder / "train-%06d.tar"), maxcount=PICTURES // 100, verbose=False) as shards:
        for number, picture in pictures():
            shards.write({"__key__": f"{number:06}", "jpg": picture, "cls": number})


def mds(folder: Path) -> None:
    """Writes shards with MosaicML's writer."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "jpeg", "label": "int"}, size_limit=1 << 20) as writer:
        for number, picture in pictures():
            writer.write({"image": picture, "label": number})


def optimized(folder: Path) -> None:
    """Writes chunks with LitData's `optimize`."""
    from litdata import optimize

    optimize(fn=_Drawn(), inputs=list(range(PICTURES)), output_dir=str(folder), num_workers=1, chunk_bytes="1MB")


def tokens(folder: Path) -> None:
    """Writes tokens with LitData's `optimize`, as `TokensLoader` wants them."""
    from litdata import TokensLoader, optimize

    lengths = list(range(500, 1500, 25))
    loader = TokensLoader(block_size=2048)
    optimize(
        fn=_document, inputs=lengths, output_dir=str(folder), num_workers=1, chunk_bytes="50KB", item_loader=loader
    )


def _document(length: int) -> object:
    import torch

    return torch.arange(length, dtype=torch.int32)


class _Drawn:
    """Makes samples of the images, and can be sent to a process of LitData's."""

    def __init__(self) -> None:
        self._made = dict(pictures())

    def __call__(self, number: int) -> dict[str, object]:
        return {"image": self._made[number], "label": number}


def parquet(folder: Path) -> None:
    """Writes two files with Hugging Face's datasets, named as on the Hub."""
    from datasets import ClassLabel, Dataset, Features, Image

    features = Features({"image": Image(), "label": ClassLabel(names=list(CLASSES))})
    rows = [{"image": picture, "label": number % 2} for number, picture in pictures()]
    dataset = Dataset.from_list(rows, features=features)
    for part in range(2):
        dataset.shard(2, part).to_parquet(folder / f"train-{part:05}-of-00002.parquet")


WRITERS: dict[str, Callable[[Path], None]] = {
    "raw": folders,
    "tars": tars,
    "mds": mds,
    "optimized": optimized,
    "parquet": parquet,
    "tokens": tokens,
}

if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.mkdir(parents=True)
    WRITERS[sys.argv[1]](target)
