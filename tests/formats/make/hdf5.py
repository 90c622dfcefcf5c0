"""Makes the files of tests/formats/data/hdf5 with h5py, and what h5py reads of them.

PYTHONPATH=. python tests/formats/make/hdf5.py [FOLDER [ROWS]]
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "hdf5"
SHAPE = (7, 6, 3)


def main(root: Path, rows: int) -> None:
    noise = np.random.default_rng(11)
    for make in (rows_of_one, fields_of_several, packed, grown):
        folder = root / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, rows, noise)
        files = [h5py.File(path) for path in sorted(folder.glob("*.h5"))]
        write_expected(folder, [row for file in files for row in samples(file)])


def samples(file: h5py.File) -> list[dict[str, object]]:
    """Returns rows of the datasets that have rows."""
    arrays = {name: file[name][()] for name in sorted(file) if getattr(file[name], "ndim", 0)}
    rows = len(next(iter(arrays.values())))
    return [{name: array[row] for name, array in arrays.items()} for row in range(rows)]


def images(noise: np.random.Generator, rows: int) -> np.ndarray:
    """Makes numbers that can be compressed."""
    return noise.integers(0, 40, (rows, *SHAPE), np.uint16)


def rows_of_one(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes rows whose bytes are one after the other: no chunks, chunks of rows, as MATLAB has them, none at all."""
    with h5py.File(folder / "a.h5", "w") as file:
        file["images"] = images(noise, rows)
        file.attrs["unit"] = "counts"
    with h5py.File(folder / "b.h5", "w") as file:
        file.create_dataset("images", data=images(noise, rows), chunks=(4, *SHAPE))
    with h5py.File(folder / "c.h5", "w", userblock_size=512, libver="latest") as file:
        file.create_dataset("images", data=images(noise, rows), chunks=(1, *SHAPE))
    with h5py.File(folder / "d.h5", "w") as file:
        file["images"] = images(noise, 0)


def fields_of_several(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes datasets of all types, each stored in another way; a scalar and a group are no fields."""
    for name, version in (("a", "earliest"), ("b", "latest")):
        with h5py.File(folder / f"{name}.h5", "w", libver=version) as file:
            file.create_dataset(
                "images", data=images(noise, rows), chunks=(5, *SHAPE), compression="gzip", shuffle=True
            )
            file["labels"] = noise.integers(-9, 9, rows)
            file.create_dataset("mask", data=noise.random((rows, 4)) < 0.5, chunks=(3, 3), compression="lzf")
            file["kspace"] = (noise.random((rows, 2)) + 1j * noise.random((rows, 2))).astype("c8")
            file.create_dataset("swapped", data=noise.random(rows).astype(">f8"), chunks=(rows,), fletcher32=True)
            part = file.create_dataset("part", (rows, 2), "<i4", chunks=(4, 2), fillvalue=-7)
            part[: rows // 2] = 1
            file["version"] = "text"
            file.create_group("more")["images"] = images(noise, 3)


def packed(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes chunks that cut rows, chunks that cannot be compressed, and one chunk of all."""
    whole = images(noise, rows)
    whole[::3] = noise.integers(0, 65535, whole[::3].shape)
    for name, chunks, options in (
        ("a", (3, 4, 4, 2), {"compression": "gzip"}),
        ("b", (1, *SHAPE), {"compression": "lzf", "fletcher32": True}),
        ("c", (rows, *SHAPE), {"compression": "gzip", "shuffle": True}),
    ):
        version = "latest" if name == "c" else "earliest"
        with h5py.File(folder / f"{name}.h5", "w", libver=version) as file:
            file.create_dataset("images", data=whole, chunks=chunks, **options)


def grown(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes datasets that grow along axis 0, with many small chunks."""
    for name, options in (("a", {}), ("b", {"compression": "gzip"})):
        with h5py.File(folder / f"{name}.h5", "w", libver="latest" if name == "b" else "earliest") as file:
            grown = file.create_dataset("x", (0, 3), "<f4", chunks=(1, 3), maxshape=(None, 3), shuffle=True, **options)
            for first in range(0, 10 * rows, rows):
                grown.resize(first + rows, axis=0)
                grown[first:] = noise.integers(0, 9, (rows, 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT, int(sys.argv[2]) if sys.argv[2:] else 12)
