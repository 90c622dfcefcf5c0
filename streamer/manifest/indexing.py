"""Drives indexers over many containers at once: reads ahead, cuts chunks as they close, offers them.

Memory: at most `parallel_objects` containers are in work. Each holds the window its indexer works on, `ahead`
windows that are on their way, and, when chunks are offered, the windows of the chunk that is still open: no more
than `2 * chunk_bytes` plus one window. `Budget.of` turns a number of bytes into these; the bound it keeps is
max(memory_bytes, one container), with a container at most (2 + ahead) x 8 MiB + 2 x chunk_bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.manifest.bounded_map import plain_errors
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.packing import Cut, chunk_key, cut_object, cut_spans
from streamer.manifest.protocols import IndexedChunk, Indexer, Indexing, Need, OnChunk, RangeReader, Span

# What an indexer asks for at a time; see formats/tar.py.
WINDOW_BYTES = 8 << 20


class Budget(msgspec.Struct, frozen=True):
    """How many containers are in work together, and how many windows each reads ahead."""

    parallel_objects: int
    ahead: int

    @classmethod
    def of(cls, memory_bytes: int, concurrency: int, objects: int, kept_bytes: int) -> Budget:
        """Divides `memory_bytes` (a floor of one container) and `concurrency` requests.

        Args:
            memory_bytes: for all windows together.
            concurrency: requests in flight.
            objects: how many containers there are.
            kept_bytes: what a container holds back for the chunk that is open.
        """
        least = 2 * WINDOW_BYTES + kept_bytes
        parallel = max(1, min(concurrency, objects, memory_bytes // least))
        spare = memory_bytes // parallel - least
        ahead = max(0, min(concurrency // parallel - 1, spare // WINDOW_BYTES))
        return cls(parallel, ahead)


class Container(msgspec.Struct, frozen=True):
    """One object to index, and how to cut it."""

    record: ObjectRecord
    format_name: str
    chunk_bytes: int


class _Spans(msgspec.Struct):
    """Samples found so far, as columns; grows by whole windows."""

    starts: list[int] = msgspec.field(default_factory=list)
    stops: list[int] = msgspec.field(default_factory=list)

    def since(self, first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.array(self.starts[first:], np.int64), np.array(self.stops[first:], np.int64)


async def index_container(
    container: Container,
    indexer: Indexer,
    reader: RangeReader,
    *,
    ahead: int,
    on_chunk: OnChunk | None,
    on_read: Callable[[Need], None],
) -> Cut:
    """Indexes one container and cuts it into chunks; offers those chunks whose bytes were all read.

    Raises:
        ManifestError: from the indexer.
        StoreError: from the reader.
    """
    spans = _Spans()
    steps = indexer.index(container.record)
    offer = _Offer(container, on_chunk) if on_chunk else None
    with plain_errors():
        async with asyncio.TaskGroup() as tasks:
            windows = _Windows(container.record, reader, tasks, ahead)
            try:
                # In a thread: a window of small members takes 60 ms to parse, and the loop serves others.
                need = await asyncio.to_thread(_advance, steps, None, spans)
                while need is not None:
                    window = await windows.read(need)
                    on_read(need)
                    if offer:
                        offer.keep(need.start, window)
                    need = await asyncio.to_thread(_advance, steps, window, spans)
                    if offer:
                        await offer.closed_chunks(spans, finished=need is None)
            finally:
                windows.cancel()
                steps.close()
    starts, stops = spans.since(0)
    return cut_object(starts, stops, container.record.size, container.chunk_bytes)


def _advance(steps: Indexing, answer: memoryview | None, spans: _Spans) -> Need | None:
    """Runs an indexer to its next need; None: it is done."""
    try:
        item = steps.send(answer)
        while isinstance(item, Span):
            spans.starts.append(item.start)
            spans.stops.append(item.stop)
            item = next(steps)
        return item
    except StopIteration:
        return None


class _Windows:
    """Reads what an indexer needs, and what it will probably need next."""

    def __init__(self, record: ObjectRecord, reader: RangeReader, tasks: asyncio.TaskGroup, ahead: int) -> None:
        self._record, self._reader, self._tasks, self._ahead = record, reader, tasks, ahead
        self._coming: dict[Need, asyncio.Task[bytes]] = {}
        # The first window does not predict the next one: an archive of large members is skipped through.
        self._last = Need(-1, -1)

    async def read(self, need: Need) -> memoryview:
        goes_on = need.start == self._last.stop
        if need not in self._coming:
            self.cancel()
            self._request(need)
        task = self._coming.pop(need)
        if goes_on:
            self._look_ahead(need)
        self._last = need
        return memoryview(await task)

    def cancel(self) -> None:
        """Gives up what was read ahead (the indexer jumped, or is done)."""
        for task in self._coming.values():
            task.cancel()
        self._coming.clear()

    def _look_ahead(self, need: Need) -> None:
        start = need.stop
        for _ in range(self._ahead):
            if start >= self._record.size or need.stop - need.start < WINDOW_BYTES:
                return
            following = Need(start, min(start + WINDOW_BYTES, self._record.size))
            if following not in self._coming:
                self._request(following)
            start = following.stop

    def _request(self, need: Need) -> None:
        extent = Extent(self._record, need.start, need.stop)
        self._coming[need] = self._tasks.create_task(self._read_exactly(extent))

    async def _read_exactly(self, extent: Extent) -> bytes:
        return await self._reader.read(extent)


class _Offer:
    """Keeps the bytes of the chunk that is still open, and hands over the chunks that are closed."""

    def __init__(self, container: Container, on_chunk: OnChunk) -> None:
        self._container, self._on_chunk = container, on_chunk
        self._kept: list[tuple[int, memoryview]] = []
        self._open_sample = 0

    def keep(self, start: int, window: memoryview) -> None:
        self._kept.append((start, window))
        # The bytes of one open chunk; a larger sample is fetched again later.
        while len(self._kept) > 1 and self._held() - len(self._kept[0][1]) >= 2 * self._container.chunk_bytes:
            self._kept.pop(0)

    async def closed_chunks(self, spans: _Spans, *, finished: bool) -> None:
        starts, stops = spans.since(self._open_sample)
        size, chunk_bytes = self._container.record.size, self._container.chunk_bytes
        edges = [*cut_spans(starts, stops, size, chunk_bytes).tolist()]
        if finished:
            edges.append(len(starts))
        for first, stop in pairwise(edges):
            await self._offer_chunks(starts[first:stop], stops[first:stop])
        if edges:
            self._open_sample += edges[-1]
            first_open = starts[edges[-1]] if edges[-1] < len(starts) else size
            self._drop_before(int(first_open))

    async def _offer_chunks(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        cut = cut_object(starts, stops, self._container.record.size, self._container.chunk_bytes)
        ranges = np.stack([cut.extent_start, cut.extent_stop], axis=1)
        parts = self._bytes_of(ranges)
        if parts is not None:
            await self._on_chunk(self._chunk(cut, ranges), parts)

    def _chunk(self, cut: Cut, ranges: NDArray[np.int64]) -> IndexedChunk:
        record, length = self._container.record, int(cut.chunk_bytes[0])
        names = [(_bytes(record.url), _bytes(record.version))] * len(ranges)
        return IndexedChunk(
            index=-1,
            key=chunk_key(self._container.format_name, names, ranges, cut.sample_start),
            extents=tuple(Extent(record, start, stop) for start, stop in ranges.tolist()),
            first_sample=-1,
            samples=len(cut.sample_start),
            fetch_bytes=length,
            local_bytes=length,
            sample_offsets=np.append(cut.sample_start.astype(np.int64), length),
        )

    def _bytes_of(self, ranges: NDArray[np.int64]) -> list[memoryview] | None:
        parts = []
        for start, stop in ranges.tolist():
            position = start
            for base, window in self._kept:
                if base <= position < min(base + len(window), stop):
                    parts.append(window[position - base : stop - base])
                    position += len(parts[-1])
            if position != stop:
                return None
        return parts

    def _held(self) -> int:
        return sum(len(window) for _, window in self._kept)

    def _drop_before(self, position: int) -> None:
        self._kept = [(base, w) for base, w in self._kept if base + len(w) > position]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
