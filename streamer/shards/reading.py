"""Reads the samples of a pack's source from the store, a batch at a time, and decodes blocks in this process.

`sources.py` reads with it in each task. `prepared.py` makes the `SourceDataset`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streamer.base.concurrency import plain_errors
from streamer.fetch import Fetched, Fetcher
from streamer.manifest.model import Chunk, Extent, Facts, SampleName
from streamer.recode import messages
from streamer.recode.work import Recoders, recode_here
from streamer.shards.plan import Batch, RecodedBatch
from streamer.store.addresses.urls import split
from streamer.store.local_store import read_files

# Two samples with a gap up to this length are read by one request, gap included: a further request costs as much time
# as 3 MiB on one connection.
_GAP_BYTES = 256 << 10
_FILES_AT_ONCE = 8


class SourceDataset(msgspec.Struct, frozen=True):
    """Facts about all samples of a source.

    Attributes:
        format: name of the format.
        options: options of the format.
        facts: facts about the dataset from its survey.
    """

    format: str
    options: dict[str, Any]
    facts: Facts


class ReadSample(NamedTuple):
    """A sample as it is stored.

    Attributes:
        ordinal: its ordinal in the manifest of the source.
        url: url of its object, or of the first object of its chunk.
        content: its bytes, or its record.
        name: name and label of a sample that is a whole object, otherwise empty.
    """

    ordinal: int
    url: str
    content: memoryview
    name: SampleName


class ReadBatch(NamedTuple):
    """The bytes of a batch.

    Attributes:
        samples: returns an iterator over its samples in order. It decodes blocks, so it takes CPU time and is used in a
            thread. It raises RecodeError if a block cannot be decoded, and ConfigError if a library is not installed.
        close: returns the memory, after which the samples must not be used.
    """

    samples: Callable[[], Iterator[ReadSample]]
    close: Callable[[], None]


class ShardReader:
    """Reads batches of a source.

    Args:
        fetcher: reads the store of the source.
        dataset: facts about the samples.
    """

    def __init__(self, fetcher: Fetcher, dataset: SourceDataset) -> None:
        self._fetcher = fetcher
        self._dataset = dataset
        self._recoders = Recoders()

    async def read(self, batch: Batch | RecodedBatch) -> ReadBatch:
        """Reads the bytes of a batch into memory; the caller closes the result.

        Raises:
            StoreError, ConfigError: the source cannot be read.
        """
        if isinstance(batch, RecodedBatch):
            # Chunks are read one after the other; the ranges of a chunk are read concurrently.
            with ExitStack() as opened:
                chunks = [opened.enter_context(await self._fetcher.fetch(chunk)) for chunk in batch.chunks]
                samples = partial(self._block_samples, batch, chunks)
                return ReadBatch(samples, opened.pop_all().close)
        extents, places = reads_of(batch)
        length = sum(extent.length for extent in extents)
        if extents and split(extents[0].object.url).scheme == "file":
            # Files of this machine are read a few concurrently, because they may be on a network mount.
            content = np.empty(length, np.uint8).data
            edges = [0, *accumulate(extent.length for extent in extents)]
            views = [content[start:stop] for start, stop in pairwise(edges)]
            with plain_errors():
                async with asyncio.TaskGroup() as group:
                    for first in range(_FILES_AT_ONCE):
                        some = slice(first, None, _FILES_AT_ONCE)
                        group.create_task(asyncio.to_thread(read_files, extents[some], views[some]))
            return ReadBatch(partial(_samples, batch, places, content), lambda: None)
        chunk = Chunk(
            index=-1,
            key=b"",
            extents=tuple(extents),
            first_sample=-1,
            samples=len(places),
            fetch_bytes=length,
            local_bytes=length,
        )
        fetched = await self._fetcher.fetch(chunk)
        return ReadBatch(partial(_samples, batch, places, fetched.parts[0]), fetched.close)

    def _block_samples(self, batch: RecodedBatch, fetched: list[Fetched]) -> Iterator[ReadSample]:
        """Decodes the chunks of a batch, then yields its samples; closes the fetched bytes of each decoded chunk.

        Raises:
            RecodeError: a block cannot be decoded.
            ConfigError: a library of the format is not installed.
        """
        recoded = []
        dataset = self._dataset
        for chunk, each in zip(batch.chunks, fetched, strict=True):
            job = messages.RecodeJob(
                format=dataset.format,
                options=dataset.options,
                facts=dataset.facts,
                hint=chunk.hint,
                samples=chunk.samples,
                fetch_bytes=chunk.fetch_bytes,
                planned_bytes=chunk.local_bytes,
            )
            with each:
                recoded.append(recode_here(self._recoders, job, chunk, each.parts[0]))
        for ordinal, owner in zip(batch.ordinals, batch.owner, strict=True):
            chunk = batch.chunks[owner]
            records = recoded[owner]
            content = records.table.record(ordinal - chunk.first_sample, records.content)
            yield ReadSample(ordinal, chunk.extents[0].object.url, content, SampleName())


def _samples(batch: Batch, places: list[int], content: memoryview) -> Iterator[ReadSample]:
    """Yields the samples of a batch, whose bytes begin at `places` in `content`."""
    for i, (ordinal, place) in enumerate(zip(batch.ordinals, places, strict=True)):
        piece = content[place : place + batch.stop[i] - batch.start[i]]
        name = batch.names[i] if batch.names else SampleName()
        yield ReadSample(ordinal, batch.objects[batch.owner[i]].url, piece, name)


def reads_of(batch: Batch) -> tuple[list[Extent], list[int]]:
    """Returns what to read for a batch.

    Returns:
        The extents, in which samples with gaps up to `_GAP_BYTES` are joined. Then for each sample the offset at which
        it begins in the bytes of all extents.
    """
    extents: list[Extent] = []
    places = [0] * len(batch.owner)
    passed = 0
    for i in sorted(range(len(places)), key=lambda i: (batch.owner[i], batch.start[i])):
        record = batch.objects[batch.owner[i]]
        start, stop = batch.start[i], batch.stop[i]
        if start == stop:
            continue
        last = extents[-1] if extents else None
        if last is not None and last.object is record and start - last.stop <= _GAP_BYTES:
            extents[-1] = Extent(record, last.start, max(last.stop, stop))
            passed += extents[-1].stop - last.stop
        else:
            extents.append(Extent(record, start, stop))
            passed += stop - start
        places[i] = passed - (extents[-1].stop - start)
    return extents, places
