"""Makes the files of tests/formats/data/npy and data/raw with numpy, and what numpy reads of them.

PYTHONPATH=. python tests/formats/make/npy.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data"


def main() -> None:
    noise = np.random.default_rng(4)
    images, numbers, swapped, raw = (ROOT / name for name in ("npy/images", "npy/numbers", "npy/swapped", "raw"))
    for folder in (images, numbers, swapped, raw):
        folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("a", 5), ("b", 0), ("c", 7)):
        np.save(images / f"{name}.npy", noise.integers(0, 255, (rows, 8, 6, 3), np.uint8))
    np.save(numbers / "a.npy", noise.random(40))
    np.save(swapped / "a.npy", noise.random((16, 5)).astype(">f4"))
    for folder in (images, numbers, swapped):
        rows = [row for path in sorted(folder.glob("*.npy")) for row in np.load(path)]
        write_expected(folder, [{"array": row.astype(row.dtype.newbyteorder("="))} for row in rows])
    samples = noise.integers(-1000, 1000, (9, 4, 5), np.int16)
    (raw / "a.bin").write_bytes(b"header" + samples[:4].tobytes())
    (raw / "b.bin").write_bytes(b"header" + samples[4:].tobytes())
    write_expected(raw, [{"array": sample} for sample in samples])


if __name__ == "__main__":
    main()
