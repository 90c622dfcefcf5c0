"""Makes the stores of tests/formats/data/zarr with zarr-python, and what it reads of them.

PYTHONPATH=. python tests/formats/make/zarr_stores.py [FOLDER [ROWS]]
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numcodecs
import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

from tests.formats.summary import write_expected

ROOT = Path(__file__).parents[1] / "data" / "zarr"
SHAPE = (6, 5)


def main(root: Path, rows: int) -> None:
    noise = np.random.default_rng(12)
    for make in (group, plain, sharded, version_2):
        folder = root / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder, rows, noise)
        write_expected(folder, [row for store in sorted(folder.glob("*.zarr")) for row in samples(zarr.open(store))])


def samples(store: zarr.Group | zarr.Array) -> list[dict[str, object]]:
    """Returns rows of the arrays that have rows."""
    arrays = {"array": store[:]} if isinstance(store, zarr.Array) else {n: a[...] for n, a in sorted(store.arrays())}
    arrays = {name: array for name, array in arrays.items() if array.ndim}
    return [{name: array[row] for name, array in arrays.items()} for row in range(len(next(iter(arrays.values()))))]


def images(noise: np.random.Generator, rows: int) -> np.ndarray:
    """Makes numbers that can be compressed."""
    return noise.integers(0, 40, (rows, *SHAPE), np.uint16)


def group(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes arrays of all types, each stored in another way; some chunks are not written; a scalar is no field."""
    store = zarr.create_group(folder / "a.zarr")
    store.create_array("images", data=images(noise, rows), chunks=(rows // 2 + 1, 4, 5), compressors=ZstdCodec())
    store.create_array("labels", data=noise.integers(-9, 9, rows), chunks=(rows,), compressors=GzipCodec())
    mask = noise.random((rows, 4)) < 0.5
    store.create_array("mask", data=mask, chunks=(rows, 4), compressors=[BloscCodec(cname="lz4"), Crc32cCodec()])
    kspace = (noise.random((rows, 2)) + 1j).astype("c8")
    store.create_array("kspace", data=kspace, chunks=(rows, 2), filters=[TransposeCodec(order=(1, 0))])
    part = store.create_array(
        "part", shape=(rows, 3), dtype=">i4", chunks=(rows // 3, 3), fill_value=-7, compressors=None
    )
    part[: rows // 3] = 1
    store.create_array("floats", shape=(rows,), dtype="f4", chunks=(rows,), fill_value=float("inf"))
    store.create_array("scalar", shape=(), dtype="f8")[...] = 3


def plain(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes rows that lie one after the other; two stores of one array each, the last chunk longer than the array."""
    for name, separator in (("a", "/"), ("b", ".")):
        keys = {"name": "default", "separator": separator}
        zarr.create_array(
            folder / f"{name}.zarr",
            data=images(noise, rows),
            chunks=(5, *SHAPE),
            compressors=None,
            chunk_key_encoding=keys,
        )


def sharded(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes chunks in shards, some of which are not written; an index at the end, and one at the start."""
    store = zarr.create_group(folder / "a.zarr")
    options = {"chunks": (1, 3, 5), "shards": (4, *SHAPE)}
    store.create_array("images", data=images(noise, rows), **options)
    part = store.create_array("part", shape=(rows, 4), dtype="<f4", chunks=(2, 2), shards=(rows, 4), compressors=None)
    part[2:3] = 1
    shards = zarr.codecs.ShardingCodec(chunk_shape=(3,), codecs=[zarr.codecs.BytesCodec()], index_location="start")
    labels = zarr.create(
        store=store.store_path / "labels", shape=(rows,), dtype="u1", chunks=(6,), codecs=[shards], zarr_format=3
    )
    labels[:] = np.arange(1, rows + 1)


def version_2(folder: Path, rows: int, noise: np.random.Generator) -> None:
    """Writes version 2, with the codecs that it has besides; names with points and slashes; Fortran order."""
    store = zarr.create_group(folder / "a.zarr", zarr_format=2)
    packings = {
        "blosc": numcodecs.Blosc("zstd"),
        "lz4": numcodecs.LZ4(),
        "zlib": numcodecs.Zlib(),
    }
    for name, packing in packings.items():
        keys = {"name": "v2", "separator": "/" if name == "zlib" else "."}
        order = "F" if name == "lz4" else "C"
        store.create_array(
            name,
            data=images(noise, rows),
            chunks=(rows // 2, *SHAPE),
            compressors=packing,
            order=order,
            chunk_key_encoding=keys,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT, int(sys.argv[2]) if sys.argv[2:] else 12)
