"""Writes TIFFs of drawn types, bands, layouts and compressions with tifffile, and beside each what tifffile reads.

python tiffs.py FOLDER COUNT
"""

from __future__ import annotations

import io
import json
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

TYPES = ["u1", "u1", "i1", "u2", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "?"]
COLOURS = {"rgb": 3, "ycbcr": 3, "cielab": 3, "separated": 4}
COMPRESSIONS = [None, "zlib", "lzw", "zstd", "lzma", "packbits", "jpeg", "lerc", "jpeg2000", "ccittfax4"]
SIDES = [1, 2, 3, 5, 7, 8, 16, 17, 31, 33, 50, 64, 97, 100]


def drawn(number: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Draws values, and how they are written."""
    draw, rng = random.Random(number), np.random.default_rng(number)
    kind, bands = np.dtype(draw.choice(TYPES)), draw.choice([1, 1, 2, 3, 3, 4, 4, 5, 7, 13])
    shape = draw.choice(SIDES), draw.choice(SIDES), bands
    if kind.kind in "fc":
        values = rng.normal(0, 1000, shape).astype(kind)
    else:
        values = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view("u1" if kind.kind == "b" else kind)[
            ..., 0
        ]
        values = values > 127 if kind.kind == "b" else values
    if draw.random() < 0.3:
        values[:] = values[:1, :1]
    options: dict[str, Any] = {
        "photometric": draw.choice(
            ["minisblack", "minisblack", "rgb", "rgb", "miniswhite", "separated", "ycbcr", "cielab"]
        ),
        "compression": draw.choice(COMPRESSIONS),
        "tile": draw.choice([None, None, (16, 16), (32, 48)]),
        "byteorder": draw.choice("<>"),
        "bigtiff": draw.random() < 0.3,
    }
    colours = COLOURS.get(options["photometric"], 1)
    if options["compression"] == "jpeg":
        values = (
            values.view("u1")[..., :1].repeat(bands, 2) if kind.itemsize == 1 else rng.integers(0, 256, shape, np.uint8)
        )
    elif draw.random() < 0.4 and kind.kind in "uif":
        options["predictor"] = 3 if kind.kind == "f" and draw.random() < 0.7 else 2
    if (
        values.dtype in (np.uint8, np.uint16)
        and options["compression"] in (None, "zlib", "lzw")
        and draw.random() < 0.25
    ):
        bits = draw.choice([1, 2, 4] if values.dtype == np.uint8 else [10, 12, 14])
        options["bitspersample"], options["predictor"] = bits, None
        values = values >> (8 * values.itemsize - bits)
    if options["tile"] is None and draw.random() < 0.7:
        options["rowsperstrip"] = draw.choice([1, 3, 8, 16, 1000])
    if bands > 1:
        options["planarconfig"] = draw.choice(["contig", "separate"])
    if bands > colours:
        options["extrasamples"] = [draw.choice([0, 1, 2])] + [0] * (bands - colours - 1)
    return values, options


def main() -> None:
    """Writes the files. Combinations that tifffile cannot write, or not read again, are left out."""
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True)
    warnings.simplefilter("ignore")
    described = {}
    for number in range(count):
        values, options = drawn(number)
        planar = options.get("planarconfig") == "separate"
        data = np.ascontiguousarray(np.moveaxis(values, 2, 0)) if planar else values
        stream = io.BytesIO()
        try:
            tifffile.imwrite(stream, data if values.shape[2] > 1 else values[:, :, 0], **options)
            with tifffile.TiffFile(io.BytesIO(stream.getvalue())) as file:
                page = file.pages[0]
                found = page.asarray()
                # tifffile takes some arrays for colours of a single row.
                height, width, bands = page.imagelength, page.imagewidth, page.samplesperpixel
                if bands > 1 and page.planarconfig == tifffile.PLANARCONFIG.SEPARATE:
                    found = np.moveaxis(found.reshape(bands, height, width), 0, 2)
                found = found.reshape(height, width, bands)
        except Exception:  # noqa: BLE001 - as many kinds as reasons
            continue
        (folder / f"{number}.tif").write_bytes(stream.getvalue())
        np.save(folder / f"{number}.npy", found)
        described[number] = {"bits": page.bitspersample, "drawn": f"{values.dtype} {values.shape} {options}"}
    (folder / "described.json").write_text(json.dumps(described))


if __name__ == "__main__":
    main()
