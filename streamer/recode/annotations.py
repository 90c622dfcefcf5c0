"""Builds tables of annotations: fetched by the engine, parsed by a recoder, written into the folder of manifests."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from streamer.cache.file_jobs import in_thread
from streamer.config import format_bytes
from streamer.errors import ConfigError, ManifestError, RecodeError
from streamer.fetch import Fetcher
from streamer.formats.annotations.parsed import MOST_FILE_BYTES, TableOptions, ending_of
from streamer.manifest.annotations import ANNOTATIONS, Head
from streamer.manifest.blocks import Block, encode_hints
from streamer.manifest.builder.publish import publish_annotations
from streamer.manifest.columns import BinaryColumn
from streamer.manifest.mmap_file import map_file
from streamer.manifest.model import Chunk, Codec, Extent, Facts, ObjectRecord
from streamer.manifest.staging import workplace
from streamer.recode.messages import Job
from streamer.recode.pool import RecoderPool
from streamer.recode.results import Recoded

# Read at once, in the engine's memory; the file itself goes to the disk, because it may be longer than that.
_WINDOW_BYTES = 64 << 20


async def build_table(
    options: TableOptions, record: ObjectRecord, root: Path, fetcher: Fetcher, recoders: RecoderPool
) -> str:
    """Makes the table of a file as `<root>/<digest>/`; returns the digest.

    Args:
        options: what is wanted of it.
        record: the file.
        root: the folder of manifests.
        fetcher: reads it.
        recoders: parse it.

    Raises:
        ManifestError: it cannot be parsed; names it and the reason.
        ConfigError: a key or field that it does not have, a kind that is not read, or a missing library.
        StoreError: it cannot be read.
    """
    ending_of(options.url)
    if record.size > MOST_FILE_BYTES:
        raise ConfigError(
            f"annotations={options.url!r} has {format_bytes(record.size)}; up to {format_bytes(MOST_FILE_BYTES)} are "
            "read: write them as Parquet, or leave out what is not needed",
            field="annotations",
        )
    with workplace(root) as place:
        file = place / "annotations"
        await _fetch(record, file, fetcher)
        content = await in_thread(None, map_file, file) if record.size else b""
        file.unlink()
        loop = asyncio.get_running_loop()
        now = loop.time()
        try:
            async with recoders.recode(_job(options, record), _chunk(record), [content], due=lambda: now) as made:
                del content
                return await in_thread(None, publish, made, place, root)
        except RecodeError as error:
            reason = error.details.get("reason", error.message)
            raise ManifestError(f"annotations {options.url}: {reason}", url=options.url, reason=reason) from error


async def _fetch(record: ObjectRecord, file: Path, fetcher: Fetcher) -> None:
    with file.open("wb") as out:
        for start in range(0, record.size, _WINDOW_BYTES):
            window = await fetcher.read(Extent(record, start, min(start + _WINDOW_BYTES, record.size)))
            await in_thread(None, out.write, window)


def _job(options: TableOptions, record: ObjectRecord) -> Job:
    """A file as one block, of which nothing is known; its table is planned to take as much as it."""
    hint = encode_hints([Block(((0, record.size),), -1, 0)])
    return Job(ANNOTATIONS, msgspec.to_builtins(options), Facts(), hint, -1, record.size, record.size)


def _chunk(record: ObjectRecord) -> Chunk:
    """For the messages of the pool."""
    whole = (Extent(record, 0, record.size),)
    return Chunk(-1, b"", whole, -1, -1, record.size, record.size, Codec.RECORDS)


def publish(made: Recoded, place: Path, root: Path) -> str:
    """Writes what a recoder has made (see `formats.annotations.recoder`)."""
    edges = made.offsets.tolist()
    buffers = [made.content[start:stop] for start, stop in pairwise(edges)]
    hashes = np.frombuffer(buffers[0], np.int64)
    keys, rows = (_strings(len(hashes), buffers[number], buffers[number + 2]) for number in (1, 2))
    head = msgspec.json.decode(buffers[5], type=Head)
    return publish_annotations(head, {"hash": hashes, "key": keys, "row": rows}, place, root).name


def _strings(count: int, offsets: memoryview, content: memoryview) -> BinaryColumn:
    dtype = np.int32 if len(offsets) == 4 * (count + 1) else np.int64
    return BinaryColumn(np.frombuffer(offsets, dtype), np.frombuffer(content, np.uint8))  # type: ignore[arg-type]
