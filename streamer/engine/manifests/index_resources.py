"""Gives an index what it uses of its engine (reads, memory, recoders, room for chunks), and limits its time.

An index is the building of a manifest here. `manifests.py` makes these objects, and `indexing/` calls them. The engine
is the `WarmTarget`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.config import MiB, counted, format_bytes
from streamer.errors import CacheError, ManifestError
from streamer.fetch import Fetcher
from streamer.fetch.fair_gate import FairGate, WaitQueue
from streamer.formats import chunkfile
from streamer.manifest.model import Extent
from streamer.manifest.protocols import BuildProgress, Examine, Examined, IndexedChunk, IndexEstimate
from streamer.manifest.table import Manifest
from streamer.recode.pool import RecoderPool

# Is called with a text, the bytes that are done, and all bytes.
Report = Callable[[str, int, int], None]

# The rate is measured over so many bytes and so many seconds of the index itself: 16 requests of 4 MiB, and longer than
# the first of them take to start. Ranges that were read for a measurement alone were 6 % of 1.1 GB, and delayed the
# first batch by 0.2 s (2026-11-23).
_MEASURED_BYTES = 64 * MiB
_MEASURED_SECONDS = 2.0
# Ranges up to this length do not count for the limit of memory.
_SHORT_BYTES = 64 << 10


class IndexCost:
    """Reports the progress of one index, and ends it if it would take too long.

    Args:
        url: first url of the dataset, for the error.
        limit_seconds: time above which an index is refused.
        report: called with a text, bytes done and all bytes.
        now: clock in seconds.
    """

    def __init__(self, url: str, limit_seconds: float, report: Report, now: Callable[[], float]) -> None:
        self._url = url
        self._limit_seconds = limit_seconds
        self._report = report
        self._now = now
        self._objects = ""
        self._first: tuple[float, int] | None = None
        self._measured = False
        self._known_bytes = 0

    def take_estimate(self, estimate: IndexEstimate) -> None:
        """Takes the estimate that follows the listing, and reports it."""
        size = format_bytes(estimate.total_bytes)
        self._objects = f"index {counted(estimate.objects, 'objects')}"
        self._measured = not estimate.read_bytes
        self._known_bytes = estimate.known_bytes
        some = format_bytes(estimate.read_bytes) + " of " if estimate.read_bytes < estimate.total_bytes else ""
        text = f"{self._objects}: read {some}{size} once"
        if self._measured:
            text = f"{self._objects} ({size}): the listing is enough"
        self._report(text, 0, estimate.total_bytes)

    def take_progress(self, step: BuildProgress) -> None:
        """Takes the progress after each window and each object, and reports it.

        Raises:
            ManifestError: at the measured rate the index would take longer than the limit.
        """
        self._report(
            f"{step.objects_done:,} of {counted(step.objects, 'objects')}, {counted(step.samples, 'samples')}",
            step.bytes_done,
            step.total_bytes,
        )
        if self._measured:
            return
        # The measurement begins with the first window: the pause until it arrives says nothing of the rate.
        if self._first is None:
            self._first = self._now(), step.bytes_done
        seconds = self._now() - self._first[0]
        done = step.bytes_done - self._first[1]
        if done < _MEASURED_BYTES or seconds < _MEASURED_SECONDS or step.bytes_done >= step.total_bytes:
            return
        self._measured = True
        rate = done / seconds
        # Rows that an earlier manifest knows are not read.
        rest = step.total_bytes - self._known_bytes
        whole = rest / rate
        size = format_bytes(rest)
        text = f"{self._objects}: read {size}, {_duration(whole)} at {format_bytes(rate)}/s"
        self._report(text, step.bytes_done, step.total_bytes)
        if whole > self._limit_seconds:
            raise ManifestError(
                f"{text}: more than Index(max_seconds=...) allows ({_duration(self._limit_seconds)}). Build it once: "
                f"`streamer index {self._url} --out URL`, then pass manifest=URL",
                seconds=whole,
                limit_seconds=self._limit_seconds,
            )


def _duration(seconds: float) -> str:
    """Returns a time as text, in seconds below two minutes, otherwise in minutes."""
    value, unit = (seconds, "s") if seconds < 120 else (seconds / 60, "min")
    return f"{f'{value:.1f}'.removesuffix('.0')} {unit}"


class IndexTraffic(msgspec.Struct):
    """Bytes and requests of all indexes, which the statistics show apart from those for chunks."""

    read_bytes: int = 0
    requests: int = 0


class IndexMemory:
    """Bounds the metadata that all indexes of an engine hold at once. Lives on its loop.

    Args:
        limit_bytes: limit of the metadata as they are stored. Parsed, they take a few times as much memory.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._gate = FairGate(limit_bytes)

    def __repr__(self) -> str:
        return f"IndexMemory({self._gate})"

    @asynccontextmanager
    async def hold(self, ranges: Sequence[Extent]) -> AsyncIterator[None]:
        """Reserves memory for metadata that are read and parsed inside an `async with`; waits until it is free.

        Args:
            ranges: ranges of objects that are read.

        Raises:
            ManifestError: the longer ones of the ranges alone have more bytes than the limit.
        """
        size = sum(extent.length for extent in ranges)
        # Short ranges do not count: there is one for each object, and its entry of the listing takes as much memory.
        if sum(extent.length for extent in ranges if extent.length > _SHORT_BYTES) > self.limit_bytes:
            first = max(ranges, key=lambda extent: extent.length).object
            raise ManifestError(
                f"{counted(len(ranges), 'ranges')} of metadata that have to be read at once have {format_bytes(size)}, "
                f"more than the {format_bytes(self.limit_bytes)} that an index may hold (half of memory_bytes); the "
                f"longest is of {first.url}, {format_bytes(first.size)}: is it what its name says?",
                url=first.url,
                bytes=size,
                limit=self.limit_bytes,
            )
        held = min(size, self.limit_bytes)
        await self._gate.acquire(WaitQueue(asyncio.get_running_loop().time), held)
        try:
            yield
        finally:
            self._gate.release(held)


class IndexReader:
    """Reads objects for an index, and counts what it reads.

    Args:
        fetcher: reads ranges of objects.
        recoders: examine objects.
        traffic: bytes and requests, which are counted there.
        memory: limit of the metadata.
    """

    def __init__(self, fetcher: Fetcher, recoders: RecoderPool, traffic: IndexTraffic, memory: IndexMemory) -> None:
        self._fetcher = fetcher
        self._memory = memory
        self._recoders = recoders
        self._traffic = traffic
        self._one_object = asyncio.Lock()

    async def read(self, extent: Extent) -> bytes:
        """Returns exactly the bytes of `extent`; raises the StoreError of a store that does not give them."""
        content = await self._fetcher.read(extent)
        self._traffic.read_bytes += len(content)
        self._traffic.requests += 1
        return content

    def hold(self, ranges: Sequence[Extent]) -> AbstractAsyncContextManager[None]:
        """Reserves memory for metadata inside an `async with`; see `IndexMemory.hold`."""
        return self._memory.hold(ranges)

    async def examine(self, asked: Examine) -> Examined:
        """Reads a whole object and lets a recoder examine it; returns what it found. One object at a time is read.

        Raises:
            StoreError: the store does not give the object.
            ManifestError, ConfigError: as `RecoderPool.examine`.
        """
        async with self._one_object:
            content = await self.read(Extent(asked.object, 0, asked.object.size))
            return await self._recoders.examine(asked, content)


logger = logging.getLogger(__name__)


class WarmTarget(Protocol):
    """Takes chunks whose bytes were read for an index. It is the engine, which cannot be imported here."""

    def room_bytes(self) -> int:
        """Returns the bytes that fit into the cache without an eviction."""
        ...

    async def keep(self, key: bytes, parts: list[memoryview], sample_offsets: npt.NDArray[np.int64]) -> None:
        """Publishes a chunk without a session."""
        ...

    async def make_room(self, share: float) -> None:
        """Removes this share of the chunks, but none that is open."""
        ...

    def adopt(self, digest: str, kept: Mapping[bytes, int]) -> None:
        """Takes over chunks for a manifest that were published without a session (key: file bytes)."""
        ...


class KeptChunks:
    """Keeps chunks whose bytes were read for an index, while there is room, and hands them to the policy at its end.

    Args:
        target: the engine.
    """

    def __init__(self, target: WarmTarget) -> None:
        self._target = target
        self._kept: dict[bytes, int] = {}
        self._kept_bytes = 0
        self._refused = 0

    async def keep(self, chunk: IndexedChunk, parts: list[memoryview]) -> None:
        """Publishes one chunk if it fits beside what the cache has; a chunk that the disk refuses is left out."""
        size = chunkfile.file_bytes(chunk.local_bytes, chunk.samples)
        if chunk.sample_offsets is None or self._target.room_bytes() - self._kept_bytes < 2 * size:
            return
        try:
            await self._target.keep(chunk.key, parts, chunk.sample_offsets)
            self._kept_bytes += 0 if chunk.key in self._kept else size
            self._kept[chunk.key] = size
        except CacheError as error:
            if not self._refused:
                logger.info("chunk %s is not kept from the index: %s", chunk.key.hex(), error)
            self._refused += 1

    def hand_off(self, manifest: Manifest | None) -> None:
        """Gives the kept chunks to the policy, at the end of the index.

        Chunks that are not in the manifest, such as those of a damaged tar, belong to no dataset.

        Args:
            manifest: the manifest that was built. None means that the index failed.
        """
        if self._refused > 1:
            logger.info("%d chunks were not kept from the index", self._refused)
        if not self._kept:
            return
        own = set[bytes]()
        if manifest is not None:
            # The first words of keys are compared as columns: 10^6 keys one by one take half a second of the loop.
            words = [int.from_bytes(key[:8], "little") for key in self._kept]
            places = np.flatnonzero(np.isin(manifest.chunk_words, np.array(words, np.uint64)))
            own = {manifest.chunk_keys[place].tobytes() for place in places.tolist()}
        digest = "" if manifest is None else manifest.digest
        for owner, kept in ((digest, self._kept.keys() & own), ("", self._kept.keys() - own)):
            if kept:
                self._target.adopt(owner, {key: self._kept[key] for key in kept})
