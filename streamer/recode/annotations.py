"""Builds tables of annotations: fetched by the engine, parsed by a recoder, written into the folder of manifests."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamer.cache.file_jobs import in_thread
from streamer.fetch import Fetcher
from streamer.formats.annotations.parsed import TableOptions
from streamer.manifest.model import ObjectRecord
from streamer.manifest.staging import workplace
from streamer.recode.annotation_file import chunk_of, fetch_annotations, job_of, parsing, publish
from streamer.recode.pool import RecoderPool


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
    with workplace(root) as place, parsing(options.url):
        loop = asyncio.get_running_loop()
        now = loop.time()
        job, chunk = job_of(options, record), chunk_of(record)
        with await fetch_annotations(options, record, place, fetcher) as content:
            async with recoders.recode(job, chunk, content.fileno(), due=lambda: now) as made:
                return await in_thread(None, publish, made, place, root)
