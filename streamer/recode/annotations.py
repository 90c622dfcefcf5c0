"""Builds tables of annotations: fetches a file, has it parsed, and writes the table to the folder of manifests.

The engine calls `build_table` (`engine/manifests/manifests.py`), a pack `build_table_here` (`shards/annotations.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from streamer.annotations.options import MOST_FILE_BYTES, TableOptions, find_extension
from streamer.annotations.table import ANNOTATIONS, AnnotationHead, TableBuffers, publish_table
from streamer.base.concurrency import in_thread
from streamer.config import format_bytes
from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.fetch import Fetcher
from streamer.manifest.blocks import Block, encode_hints
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.model import Extent, Facts, ObjectRecord
from streamer.manifest.staging import workplace
from streamer.recode.messages import RecodeJob
from streamer.recode.pool import RecoderPool
from streamer.recode.results import Recoded, whole_object
from streamer.recode.shared import map_memory
from streamer.recode.work import Recoders, recode_here

# A file of annotations is copied to the disk in pieces of this length, since it may be longer than the memory allows.
_WINDOW_BYTES = 64 << 20


async def build_table(
    options: TableOptions, record: ObjectRecord, root: Path, fetcher: Fetcher, recoders: RecoderPool
) -> str:
    """Writes the table of a file of annotations as `<root>/<digest>/`, and returns the digest.

    Args:
        options: url of the file, and the columns to use.
        record: the file as it was listed.
        root: folder of manifests.
        fetcher: reads the file.
        recoders: parse it, in another process.

    Raises:
        ManifestError: the file cannot be parsed, which the error gives as the reason, or the disk cannot be written.
        ConfigError: the file lacks a key or field, is too long or of a kind that is not read, or a library is missing.
        StoreError: the file cannot be read from the store.
    """
    with workplace(root) as place, _name_errors(options.url):
        loop = asyncio.get_running_loop()
        now = loop.time()
        job = _job_of(options, record)
        with await _fetch_annotations(options, record, place, fetcher) as content:
            async with recoders.recode(job, whole_object(record), content.fileno(), due=lambda: now) as made:
                return await in_thread(None, publish, made, place, root)


async def build_table_here(options: TableOptions, record: ObjectRecord, root: Path, fetcher: Fetcher) -> Path:
    """Writes the table as `build_table` does, but parses in a thread of this process; returns the folder.

    Raises:
        ManifestError, ConfigError, StoreError: as `build_table`.
    """
    with workplace(root) as place, _name_errors(options.url):
        with await _fetch_annotations(options, record, place, fetcher) as file:
            content = map_memory(file.fileno(), record.size)
        job = _job_of(options, record)
        chunk = whole_object(record)
        made = await asyncio.to_thread(recode_here, Recoders(), job, chunk, content=content)
        return root / publish(made, place, root)


@contextmanager
def _name_errors(url: str) -> Iterator[None]:
    """Turns a RecodeError of the code inside into a ManifestError that names the url."""
    try:
        yield
    except RecodeError as error:
        reason = error.details.get("reason", error.message)
        raise ManifestError(f"annotations {url}: {reason}", url=url, reason=reason) from error


async def _fetch_annotations(options: TableOptions, record: ObjectRecord, place: Path, fetcher: Fetcher) -> BinaryIO:
    """Copies the file to the disk and returns it open for reading; the caller closes it.

    The file has no name any more, because the folder `place` is published without it.

    Raises:
        ConfigError: its extension is not read, or it is longer than `MOST_FILE_BYTES`.
    """
    find_extension(options.url)
    if record.size > MOST_FILE_BYTES:
        raise ConfigError(
            f"annotations={options.url!r} has {format_bytes(record.size)}; up to {format_bytes(MOST_FILE_BYTES)} are "
            "read: write them as Parquet, or leave out what is not needed",
            field="annotations",
        )
    file = place / "annotations"
    await fetch_file(record, file, fetcher)
    content = file.open("rb")
    file.unlink()
    return content


async def fetch_file(record: ObjectRecord, file: Path, fetcher: Fetcher) -> None:
    """Writes the bytes of an object to a local file, which it replaces; raises StoreError and OSError."""
    with file.open("wb") as out:
        for start in range(0, record.size, _WINDOW_BYTES):
            window = await fetcher.read(Extent(record, start, min(start + _WINDOW_BYTES, record.size)))
            await asyncio.to_thread(out.write, window)


def _job_of(options: TableOptions, record: ObjectRecord) -> RecodeJob:
    """Makes the job that parses a file: one block of unknown samples, with records planned as long as the file."""
    hint = encode_hints([Block(((0, record.size),), -1, 0)])
    return RecodeJob(
        format=ANNOTATIONS,
        options=msgspec.to_builtins(options),
        facts=Facts(),
        hint=hint,
        samples=-1,
        fetch_bytes=record.size,
        planned_bytes=record.size,
    )


def publish(made: Recoded, place: Path, root: Path) -> str:
    """Writes a parsed file as `<root>/<digest>/`, by way of the folder `place`; returns the digest.

    Args:
        made: one record for each field of `TableBuffers`, as `annotations/parse.py` makes them.
        place: temporary folder on the same disk, which becomes the table's folder.
        root: folder of manifests.

    Raises:
        ManifestError, OSError: the folder cannot be written.
    """
    # The last entry of `made` is the table of its records, which is left out.
    edges = made.table.starts[: len(TableBuffers._fields) + 1].tolist()
    buffers = TableBuffers(*(made.content[start:stop] for start, stop in pairwise(edges)))
    hashes = np.frombuffer(buffers.hashes, np.int64)
    columns = []
    for offsets, content in (buffers.key_offsets, buffers.keys), (buffers.row_offsets, buffers.rows):
        dtype = np.int32 if len(offsets) == 4 * (len(hashes) + 1) else np.int64
        columns.append(BinaryColumn(np.frombuffer(offsets, dtype), np.frombuffer(content, np.uint8)))  # type: ignore[arg-type]
    keys, rows = columns
    head = msgspec.json.decode(buffers.head, type=AnnotationHead)
    return publish_table(head, {"hash": hashes, "key": keys, "row": rows}, place, root).name
