"""Makes the files of tests/formats/data/mds with MosaicML's own writer, and what its own reader says of them.

pip install mosaicml-streaming; PYTHONPATH=. python tests/formats/make/mds.py [FOLDER] [SAMPLES]
"""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter
from streaming.base.compression import decompress
from streaming.base.format import reader_from_json

from tests.formats.summary import summary, write_expected

ROOT = Path(__file__).parents[1] / "data" / "mds"
SAMPLES = 14
COLUMNS = {
    "raw": "bytes",
    "text": "str",
    "number": "int",
    "any": "ndarray",
    "typed": "ndarray:float32",
    "shaped": "ndarray:int16:2,3",
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "digits": "str_int",
    "decimals": "str_float",
    "exact": "str_decimal",
    "pixels": "pil",
    "photo": "jpeg",
    "drawing": "png",
    "photos": "jpeg_array",
    "drawings": "list[png]",
    "frames": "list[pil]",
    "tree": "json",
}
TEXTS = {"text": "str", "number": "int", "tree": "json", "any": "ndarray"}


def picture(number: int, mode: str = "RGB") -> Image.Image:
    """Makes an image of some pixels."""
    rows, columns = 4 + number % 3, 5
    shape = (rows, columns, 3) if mode == "RGB" else (rows, columns)
    return Image.fromarray((np.arange(np.prod(shape)) * 7 + number).astype(np.uint8).reshape(shape), mode)


def encoded(number: int, kind: str) -> bytes:
    """Returns the bytes of an image. JPEGs are of one grey: decoders differ in the last bit of others."""
    file = io.BytesIO()
    (picture(number) if kind == "PNG" else Image.new("RGB", (6, 5), (number * 9 % 256,) * 3)).save(file, kind)
    return file.getvalue()


def values(number: int) -> dict[str, object]:
    """Makes a sample of all columns."""
    return {
        "raw": bytes(range(number % 7)),
        "text": f"naïve {number} " * (number % 5),
        "number": -number * 10**12,
        "any": np.arange(1 + number, dtype=np.int64).reshape(1, -1),
        "typed": np.full((2, number % 4 + 1), number / 3, np.float32),
        "shaped": np.full((2, 3), -number, np.int16),
        **{f"u{bits}": 2**bits - 1 - number % 99 for bits in (8, 16, 32, 64)},
        **{f"i{bits}": -(2 ** (bits - 1)) + number % 99 for bits in (8, 16, 32, 64)},
        **{f"f{bits}": number / 8 for bits in (16, 32, 64)},
        "digits": 10**30 + number,
        "decimals": number / 7,
        "exact": Decimal(number) / Decimal(7),
        "pixels": picture(number, ("RGB", "L", "RGB")[number % 3]),
        "photo": encoded(number, "JPEG"),
        "drawing": encoded(number, "PNG"),
        "photos": [encoded(number + part, "JPEG") for part in range(1 + number % 2)],
        "drawings": [picture(number + part) for part in range(number % 3)],
        "frames": [picture(number + part) for part in range(number % 3)],
        "tree": {"number": number, "parts": [number / 2, None, "é"], "nested": {"yes": True}},
    }


def write(folder: Path, columns: dict[str, str], samples: int, **options: object) -> None:
    """Writes one variant by the library's writer, and what the library's reader says of it."""
    shutil.rmtree(folder, ignore_errors=True)
    with MDSWriter(out=str(folder), columns=columns, **options) as writer:
        for number in range(samples):
            given = values(number)
            writer.write({name: given[name] for name in columns})
    if options.get("compression"):
        unpacked = shutil.copytree(folder, folder.with_name("unpacked"))
        for shard in json.loads((folder / "index.json").read_text())["shards"]:
            packed = (folder / shard["zip_data"]["basename"]).read_bytes()
            (unpacked / shard["raw_data"]["basename"]).write_bytes(decompress(shard["compression"], packed))
        told = [*read(unpacked)]
        shutil.rmtree(unpacked)
    else:
        told = [*read(folder)]
    write_expected(folder, told)


def read(folder: Path) -> Iterator[dict[str, object]]:
    """Yields every sample by the library's reader; decompression is its downloader's."""
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        reader = reader_from_json(str(folder), "", shard)
        for number in range(len(reader)):
            content = reader.get_sample_data(number)
            yield {name: told(value) for name, value in reader.decode_sample(content).items()}


def told(value: object) -> object:
    """Returns a value as `expected.json` has it: images as their pixels."""
    if isinstance(value, Image.Image):
        return summary(np.asarray(value.convert("RGB")))
    if isinstance(value, list) and value and isinstance(value[0], Image.Image):
        return [told(each) for each in value]
    return summary(value)


def main(root: Path, samples: int) -> None:
    """Writes all variants of MDS files."""
    limit = samples * 3000 // 3
    write(root / "plain", COLUMNS, samples, size_limit=limit, hashes=["sha1", "xxh64"])
    for compression in ("zstd", "gz:6", "br:4", "bz2", "snappy"):
        name = compression.split(":")[0]
        write(root / name, TEXTS, 4 * samples, size_limit=samples * 400, compression=compression, hashes=["sha1"])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT, int(sys.argv[2]) if len(sys.argv) > 2 else SAMPLES)
