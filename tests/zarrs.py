"""Zarr stores as files in memory, made without zarr."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import numpy as np


def zarr_store(fields: Mapping[str, np.ndarray], rows: int, *, compressed: bool = True) -> dict[str, bytes]:
    """Makes a group of version 2, with chunks of some rows."""
    made = {".zgroup": b'{"zarr_format": 2}'}
    for name, array in fields.items():
        shape = [rows, *array.shape[1:]]
        meta = {"zarr_format": 2, "shape": array.shape, "chunks": shape, "dtype": array.dtype.str, "order": "C"}
        rest = {"fill_value": 0, "filters": None, "compressor": {"id": "zlib", "level": 1} if compressed else None}
        made[f"{name}/.zarray"] = json.dumps({**meta, **rest}).encode()
        for number, first in enumerate(range(0, len(array), rows)):
            chunk = np.zeros(shape, array.dtype)
            chunk[: len(array) - first] = array[first : first + rows]
            key = ".".join(map(str, [number, *[0] * (array.ndim - 1)]))
            made[f"{name}/{key}"] = zlib.compress(chunk.tobytes(), 1) if compressed else chunk.tobytes()
    return made
