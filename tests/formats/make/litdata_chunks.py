"""Makes the files of tests/formats/data/litdata with LitData's `optimize`, and what its own reader says of them.

pip install litdata==0.2.76 torchvision; PYTHONPATH=. python tests/formats/make/litdata_chunks.py [FOLDER] [SAMPLES]

The same with litdata==0.2.51, which writes other variants.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path

import litdata
import numpy as np
import torch
import torchvision.io
from litdata.streaming.item_loader import TokensLoader
from PIL import Image

from tests.formats.summary import summary, write_expected

ROOT = Path(__file__).parents[1] / "data" / "litdata"
SAMPLES = 14
OLD = tuple(map(int, litdata.__version__.split(".")[:3])) < (0, 2, 70)


def by_pillow(content: torch.Tensor, mode: object = None) -> torch.Tensor:
    """Decodes as torchvision does, whose library is not in wheels for other builds of torch."""
    with Image.open(io.BytesIO(content.numpy().tobytes())) as opened:
        return torch.from_numpy(np.array(opened.convert("RGB"))).permute(2, 0, 1)


def jpeg(number: int) -> Image.Image:
    """Makes a JPEG of one grey: decoders differ in the last bit of others."""
    file = io.BytesIO()
    Image.new("RGB", (6, 5), (number * 9 % 256,) * 3).save(file, "JPEG")
    opened = Image.open(file)
    opened.filename = ""
    return opened


def pixels(number: int) -> Image.Image:
    """Makes an image of some pixels."""
    shape = (4 + number % 3, 5, 3)
    return Image.fromarray((np.arange(np.prod(shape)) * 7 + number).astype(np.uint8).reshape(shape))


def media(number: int) -> dict[str, object]:
    """Makes an item of leaves of all kinds."""
    return {
        "photo": jpeg(number),
        "pixels": pixels(number),
        "raw": bytes(range(number % 7)),
        "text": f"naïve {number}",
        "number": -number * 10**12,
        "score": number / 7,
        "even": number % 2 == 0,
        "row": torch.arange(number % 5 + 1, dtype=torch.int32),
        "matrix": torch.full((2, number % 3 + 1), number / 3),
        "line": np.arange(number % 4 + 1, dtype=np.uint16),
        "table": np.full((3, 2), number, np.float64),
        "box": [number, number / 2, {"name": f"box {number}", "on": True}],
    }


def plain(number: int) -> dict[str, object]:
    """Makes an item without media: rows of Arrow since version 0.2.70."""
    return {"text": f"naïve {number} " * (number % 5), "number": number, "score": number / 7, "even": number % 2 == 0}


def rows(number: int) -> dict[str, object]:
    """Makes rows with nested and missing values."""
    return {
        **plain(number),
        "raw": bytes(range(number % 7)),
        "tokens": list(range(number % 9)),
        "scores": [number / 3] * (number % 4),
        "turns": [{"role": "user", "text": f"é {part}"} for part in range(number % 3)],
        "image": {"bytes": bytes([number % 256] * (number % 5)), "path": f"{number}.jpg"},
        "maybe": None if number % 3 else number,
        "note": None if number % 4 else f"note {number}",
    }


def tokens(number: int) -> torch.Tensor:
    """Makes a document of tokens."""
    return torch.arange(number % 11 + 1, dtype=torch.int32) + number


def told(value: object) -> object:
    """Returns a value as `expected.json` has it: tensors as arrays, images as pixels, nested ones by their paths."""
    if isinstance(value, Image.Image):
        return summary(np.asarray(value.convert("RGB")))
    if isinstance(value, torch.Tensor):
        return summary(value.numpy())
    return summary(value)


def leaves(value: object, path: str = "") -> dict[str, object]:
    """Returns the leaves of an item by their paths."""
    # Lists and dicts in an item are one leaf since 0.2.70.
    if isinstance(value, dict | list | tuple) and (OLD or not path):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return {
            name: leaf
            for key, each in pairs
            for name, leaf in leaves(each, f"{path}.{key}" if path else str(key)).items()
        }
    if path in {"photo", "pixels"} and isinstance(value, torch.Tensor):
        value = value.permute(1, 2, 0)
    return {path or "item": told(value)}


def write(folder: Path, make: object, samples: int, **options: object) -> None:
    """Writes one variant by the library's writer, and what the library's reader says of it."""
    shutil.rmtree(folder, ignore_errors=True)
    loader = options.get("item_loader")
    if "chunk_bytes" not in options:
        options.setdefault("chunk_size", samples // 2)
    litdata.optimize(make, list(range(samples)), str(folder), num_workers=1, **options)
    # The reader unpacks in place.
    copy = shutil.copytree(folder, folder.with_name("read"))
    dataset = litdata.StreamingDataset(str(copy), shuffle=False, item_loader=loader)
    nested = make in {rows, plain}
    read = [dataset[number] for number in range(len(dataset))]
    expected = [{name: told(value) for name, value in item.items()} if nested else leaves(item) for item in read]
    write_expected(folder, expected)
    shutil.rmtree(copy)


def main(root: Path, samples: int) -> None:
    """Writes all variants of this version."""
    torchvision.io.decode_jpeg = by_pillow
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(root / "cache")
    root.mkdir(parents=True, exist_ok=True)
    if OLD:
        write(root / "items-0.2.51", media, samples)
        write(root / "packed-0.2.51", plain, 5 * samples, compression="zstd")
        write(root / "tokens", tokens, 2 * samples, item_loader=TokensLoader(block_size=8), chunk_bytes=20 * samples)
    else:
        write(root / "items", media, samples)
        write(root / "frames", media, 2 * samples, compression="zstd", compression_batch_size=5)
        write(root / "packed-items", media, samples, compression="zstd:3", compression_level="sample")
        write(root / "packed", media, samples, compression="zstd", compression_level="chunk")
        write(root / "arrow", rows, 22 * samples, chunk_size=20 * samples)
        write(root / "arrow-zstd", plain, 22 * samples, chunk_size=20 * samples, compression="zstd")
    shutil.rmtree(root / "cache", ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else SAMPLES)
