"""Writes the same samples in each format: python write.py FORMAT FOLDER SAMPLES. Runs in their environment.

A sample is noise that begins with its number, which is its label as well: nothing is decoded, so nothing has to be a
picture. Sizes are those of ImageNet's JPEGs. Files are of 64 MB, which is the default of both libraries that have one.
"""

from __future__ import annotations

import io
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

FILE_BYTES = 64 << 20
# Rows of a row group: what Hugging Face's writer takes for pictures.
ROWS = 100
Sample = tuple[int, bytes]


def samples(count: int) -> Iterator[Sample]:
    """Number and content; 110 KB in the mean."""
    sizes = np.clip(np.random.default_rng(1).lognormal(np.log(105_000), 0.3, count), 20_000, 400_000).astype(int)
    for number, size in enumerate(sizes):
        yield number, number.to_bytes(8, "little") + np.random.default_rng(number).bytes(int(size) - 8)


def _files(count: int) -> Iterator[tuple[int, list[Sample]]]:
    """The samples of each file."""
    held: list[Sample] = []
    name = taken = 0
    for sample in samples(count):
        held.append(sample)
        taken += len(sample[1])
        if taken >= FILE_BYTES:
            yield name, held
            held, taken, name = [], 0, name + 1
    if held:
        yield name, held


def files(folder: Path, count: int) -> None:
    """One file each, in class folders."""
    for number, content in samples(count):
        path = folder / f"{number % 100:02}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def tars(folder: Path, count: int) -> None:
    """Members as webdataset's writer names them."""
    for name, held in _files(count):
        with tarfile.open(folder / f"{name:04}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, content in held:
                for suffix, part in (("jpg", content), ("cls", str(number).encode())):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(part)
                    tar.addfile(member, io.BytesIO(part))


def mds(folder: Path, count: int) -> None:
    """By MosaicML's writer."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"jpg": "bytes", "cls": "int"}, size_limit=FILE_BYTES) as writer:
        for number, content in samples(count):
            writer.write({"jpg": content, "cls": number})


def litdata(folder: Path, count: int) -> None:
    """By LitData's `optimize`."""
    from litdata import optimize

    optimize(fn=_Drawn(count), inputs=list(range(count)), output_dir=str(folder), num_workers=1, chunk_bytes="64MB")


class _Drawn:
    """The samples in order, in the one process of `optimize`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._samples: Iterator[Sample] | None = None

    def __call__(self, number: int) -> dict[str, object]:
        if self._samples is None:
            self._samples = samples(self._count)
        found, content = next(self._samples)
        assert found == number
        return {"jpg": content, "cls": number}


def parquet(folder: Path, count: int) -> None:
    """As Hugging Face's datasets write pictures."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, held in _files(count):
        table = pa.table({"jpg": [content for _, content in held], "cls": [number for number, _ in held]})
        options = {"compression": "none", "use_dictionary": ["cls"], "row_group_size": ROWS, "write_page_index": True}
        pq.write_table(table, folder / f"{name:04}.parquet", **options)


def lance(folder: Path, count: int) -> None:
    """By LanceDB's writer, in its own sizes."""
    import lancedb
    import pyarrow as pa

    schema = pa.schema([("jpg", pa.large_binary()), ("cls", pa.int64())])
    batches = (
        pa.record_batch([[content for _, content in held], [number for number, _ in held]], schema=schema)
        for _, held in _files(count)
    )
    lancedb.connect(folder).create_table("train", pa.RecordBatchReader.from_batches(schema, batches))


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "files": files,
    "tars": tars,
    "mds": mds,
    "litdata": litdata,
    "parquet": parquet,
    "lance": lance,
}

if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.mkdir(parents=True)
    WRITERS[sys.argv[1]](target, int(sys.argv[3]))
