"""Data in the shape of DataComp, of any number of samples: tars of images, metadata and embeddings beside them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.tars import tar_of

SHARD_SAMPLES = 10_000
DIMENSIONS = 64


def uid(number: int) -> str:
    """Returns the key of a sample, as DataComp has them: 32 digits."""
    return hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()


def picture(number: int) -> bytes:
    """Returns the first bytes of a JPEG and noise, which is not decoded."""
    return b"\xff\xd8\xff\xe0" + np.random.default_rng(number).bytes(300)


class Right(NamedTuple):
    """The right sides in memory, as pyarrow joins them.

    Attributes:
        metadata: Table of uid, score and caption.
        embeddings: Array (rows, DIMENSIONS) whose row i belongs to row i of `metadata`.
    """

    metadata: pa.Table
    embeddings: np.ndarray


def write(folder: Path, count: int, *, same_order: bool) -> Right:
    """Writes `left`, `metadata`, `vectors` (Parquet) and `rows` (one .npy) below a folder.

    The right sides have a tenth more rows than the left one has samples, and lie in its order or in a random one.
    """
    generator = np.random.default_rng(1)
    rows = count + count // 10
    numbers = np.arange(rows) if same_order else generator.permutation(rows)
    row_of = np.argsort(numbers)
    for name in ("left", "metadata", "vectors", "rows"):
        (folder / name).mkdir(parents=True)
    for first in range(0, count, SHARD_SAMPLES):
        entries = []
        for number in range(first, min(first + SHARD_SAMPLES, count)):
            record = {"uid": uid(number), "number": number, "row": int(row_of[number])}
            entries += [
                (f"{number:08}.jpg", picture(number)),
                (f"{number:08}.json", json.dumps(record).encode()),
            ]
        (folder / f"left/{first // SHARD_SAMPLES:08}.tar").write_bytes(tar_of(entries))
    uids = [uid(number) for number in numbers.tolist()]
    captions = [f"caption {number} of a picture" for number in numbers.tolist()]
    metadata = pa.table({"uid": uids, "score": generator.standard_normal(rows), "caption": captions})
    embeddings = generator.standard_normal((rows, DIMENSIONS), dtype=np.float32)
    vectors = pa.table({"uid": uids, "vector": pa.FixedSizeListArray.from_arrays(embeddings.ravel(), DIMENSIONS)})
    for number, first in enumerate(range(0, rows, 2 * SHARD_SAMPLES)):
        for name, table in (("metadata", metadata), ("vectors", vectors)):
            some = table.slice(first, 2 * SHARD_SAMPLES)
            pq.write_table(some, folder / f"{name}/{number:04}.parquet", row_group_size=2048)
    np.save(folder / "rows/embeddings.npy", embeddings)
    return Right(metadata, embeddings)
