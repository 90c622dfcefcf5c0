"""Indexes one container: runs its indexer, reads ahead for it, and cuts, offers and logs its chunks as they close.

Used by `indexing/build.py`, and by `indexing/tasks.py` in tasks. An indexer is a generator of the format that asks for
ranges of the object, gets their bytes, and yields the samples that it finds.

Memory: at most `Budget.parallel_objects` containers are in progress. Each holds the window that its indexer works on
and `Budget.ahead` windows in flight. If chunks are offered, it also holds the windows of the chunk that is still open,
at most `max_open_bytes` and one window. A container therefore takes at most (2 + ahead) x 8 MiB + max_open_bytes, and
not more than its object has. `Budget.divide` keeps the sum below `memory_bytes`, unless one container needs more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, closing
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamer.base.concurrency import plain_errors
from streamer.indexing.index_log import IndexLog, LoggedSamples
from streamer.indexing.survey import examine, read_needs, refuse_pointers, reserve_needs
from streamer.manifest.blocks import Block
from streamer.manifest.chunking import Cut, chunk_key, cut_object, cut_spans
from streamer.manifest.columns import encode_text
from streamer.manifest.model import Extent, Facts, ObjectRecord
from streamer.manifest.protocols import (
    Answer,
    Examine,
    Examined,
    IndexedChunk,
    Indexer,
    Indexing,
    LeftOut,
    Need,
    Note,
    OnChunk,
    OnNote,
    RangeReader,
    Short,
    Source,
    Span,
)

# Most bytes that an indexer asks for at a time (a window); see formats/reading.py.
WINDOW_BYTES = 8 << 20
# Ranges of one object that are read at once where an indexer asks for several: pages of an index, 4 KiB each.
_NEEDS_AT_ONCE = 256


class Budget(msgspec.Struct, frozen=True):
    """How many containers are indexed at once (`parallel_objects`), and how many windows each reads ahead (`ahead`)."""

    parallel_objects: int
    ahead: int

    @classmethod
    def divide(cls, memory_bytes: int, concurrency: int, sizes: NDArray[np.int64], kept_bytes: int) -> Budget:
        """Divides memory and requests: as many containers at once as fit, and reading ahead with what is left.

        Args:
            memory_bytes: bytes of all windows together; one container is indexed even if it needs more.
            concurrency: requests in flight over all containers.
            sizes: sizes of the containers in bytes.
            kept_bytes: bytes that a container holds for its open chunk, or 0 if no chunks are offered.
        """
        least = max(1, min(2 * WINDOW_BYTES + kept_bytes, int(sizes.max(initial=0))))
        parallel = max(1, min(concurrency, len(sizes), memory_bytes // least))
        spare = memory_bytes // parallel - least
        ahead = max(0, min(concurrency // parallel - 1, spare // WINDOW_BYTES))
        return cls(parallel, ahead)


def max_open_bytes(chunk_bytes: int) -> int:
    """Returns how many bytes a container holds for its open chunk at most: two chunks, or 8 MiB if they are less."""
    return max(2 * chunk_bytes, WINDOW_BYTES)


class Container(msgspec.Struct, frozen=True):
    """One object to index.

    Attributes:
        source: the object, and what the survey knows of it.
        facts: facts from the survey.
        format_name: name of the format, for the keys of chunks.
        chunk_bytes: wanted size of chunks.
        log: log of its findings; None if nothing is logged.
    """

    source: Source
    facts: Facts
    format_name: str
    chunk_bytes: int
    log: IndexLog | None = None

    @property
    def record(self) -> ObjectRecord:
        """The object."""
        return self.source.record


class Partial(msgspec.Struct, frozen=True):
    """What was found in a container of which some parts cannot be used.

    Attributes:
        found: what the other parts have, as `index_container` returns it.
        left_out: the parts that cannot be used, at least one.
    """

    found: Cut | list[Block] | Short
    left_out: list[LeftOut]


async def index_container(
    container: Container,
    indexer: Indexer,
    reader: RangeReader,
    *,
    ahead: int,
    on_chunk: OnChunk | None,
    on_read: Callable[[Need], None],
    on_note: OnNote = lambda note: None,
) -> Cut | list[Block] | Short | Partial:
    """Indexes one container: cuts its samples into chunks, and offers those chunks whose bytes were all read.

    Chunks that are in the container's log are neither read nor offered again. New ones are added to it.

    Args:
        container: the object.
        indexer: its format.
        reader: reads ranges.
        ahead: windows that are read in advance.
        on_chunk: called with each closed chunk whose bytes are all held, and these bytes, before the chunk is logged.
            None offers none.
        on_read: called after each range that was read, and after each object that was examined.
        on_note: called with each note of the indexer, at the end.

    Returns:
        The samples, cut into chunks (`Cut`), or the blocks, of which `blocks.cut_blocks` makes chunks, or `Short` if
        the object is shorter than a sample. If some parts cannot be used, a `Partial` with that.

    Raises:
        ManifestError: the indexer failed, an object cannot be examined, or it is a pointer of Git LFS.
        StoreError: the reader failed.
        ConfigError: a library of the format is not installed.
    """
    found = await asyncio.to_thread(container.log.read) if container.log else LoggedSamples()
    blocks: list[Block] = []
    left_out: list[LeftOut] = []
    short: Short | None = None
    if not found.finished:
        source = msgspec.structs.replace(container.source, chunk_bytes=container.chunk_bytes)
        steps = indexer.index(source, container.facts, found.position)
        with plain_errors(), closing(steps):
            async with asyncio.TaskGroup() as tasks:
                windows = _ObjectWindows(container.record, refuse_pointers(reader), tasks, ahead)
                try:
                    chunks = _ClosedChunks(container, on_chunk, found)
                    advancing = _Steps(steps, found, blocks, left_out)
                    await _index_rest(advancing, windows, chunks, on_read)
                    short = advancing.short
                    for note in advancing.notes:
                        on_note(note)
                finally:
                    windows.cancel()
    starts, stops = _spans_from(found, 0)
    result = blocks or short or cut_object(starts, stops, container.record.size, container.chunk_bytes)
    return Partial(result, left_out) if left_out else result


async def _index_rest(
    steps: _Steps, windows: _ObjectWindows, chunks: _ClosedChunks, on_read: Callable[[Need], None]
) -> None:
    """Runs an indexer to its end: reads what it asks for, and closes chunks after each of its steps."""
    # A thread runs the steps: a window of small members takes 60 ms to parse, and the loop serves other clients.
    asked = await asyncio.to_thread(steps.advance, None)
    while asked is not None:
        answer: Answer
        if isinstance(asked, Examine):
            answer = await windows.examine(asked)
            on_read(Need(0, asked.object.size))
        else:
            if isinstance(asked, Need) and asked.object is None:
                window = answer = await windows.read(asked)
                chunks.hold(asked.start, window)
            else:
                async with windows.reserve(asked):
                    answer = await windows.read_apart(asked)
                    for need in asked if isinstance(asked, tuple) else (asked,):
                        on_read(need)
                    asked = await asyncio.to_thread(steps.advance, answer)
                await chunks.close(steps.found, finished=asked is None and not steps.blocks)
                continue
            on_read(asked)
        asked = await asyncio.to_thread(steps.advance, answer)
        await chunks.close(steps.found, finished=asked is None and not steps.blocks)


def _spans_from(found: LoggedSamples, first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array(found.starts[first:], np.int64), np.array(found.stops[first:], np.int64)


class _Steps:
    """A running indexer: adds what it finds to `found`, `blocks`, `left_out`, `short` and `notes`."""

    def __init__(self, steps: Indexing, found: LoggedSamples, blocks: list[Block], left_out: list[LeftOut]) -> None:
        self._steps = steps
        self.found = found
        self.blocks = blocks
        self._left_out = left_out
        self.short: Short | None = None
        self.notes: list[Note] = []

    def advance(self, answer: Answer) -> Need | tuple[Need, ...] | Examine | None:
        """Answers what the indexer asked for, and returns what it asks for next; None when it is done."""
        try:
            item = self._steps.send(answer)
            while not isinstance(item, Need | tuple | Examine):
                if isinstance(item, Span):
                    self.found.starts.append(item.start)
                    self.found.stops.append(item.stop)
                elif isinstance(item, Short):
                    self.short = item
                elif isinstance(item, Note):
                    self.notes.append(item)
                elif isinstance(item, LeftOut):
                    self._left_out.append(item)
                else:
                    self.blocks.append(item)
                item = next(self._steps)
            return item
        except StopIteration:
            return None


class _ObjectWindows:
    """Reads what an indexer of one object asks for, and in advance what it will probably ask for next.

    Args:
        record: the object.
        reader: reads ranges.
        tasks: group in which requests run.
        ahead: windows that are read in advance.
    """

    def __init__(self, record: ObjectRecord, reader: RangeReader, tasks: asyncio.TaskGroup, ahead: int) -> None:
        self._record = record
        self._reader = reader
        self._tasks = tasks
        self._ahead = ahead
        self._coming: dict[Need, asyncio.Task[bytes]] = {}
        # The first window does not predict the next one: an archive of large members is skipped through.
        self._last = Need(-1, -1)

    async def read(self, need: Need) -> memoryview:
        """Returns the bytes of a need; if it begins where the last one ended, starts to read the windows behind it."""
        goes_on = need.start == self._last.stop
        if need not in self._coming:
            self.cancel()
            self._request(need)
        task = self._coming.pop(need)
        if goes_on:
            start = need.stop
            for _ in range(self._ahead):
                if start >= self._record.size or need.stop - need.start < WINDOW_BYTES:
                    break
                following = Need(start, min(start + WINDOW_BYTES, self._record.size))
                if following not in self._coming:
                    self._request(following)
                start = following.stop
        self._last = need
        return memoryview(await task)

    async def read_apart(self, asked: Need | tuple[Need, ...]) -> memoryview | tuple[memoryview, ...]:
        """Reads ranges that do not tell the next one: of another object, or several at once, which give a tuple."""
        contents = await read_needs(self._name_needs(asked), self._reader, _NEEDS_AT_ONCE)
        return tuple(contents) if isinstance(asked, tuple) else contents[0]

    def reserve(self, asked: Need | tuple[Need, ...]) -> AbstractAsyncContextManager[None]:
        """Returns a context in which memory is reserved for what `read_apart` reads."""
        return reserve_needs(self._name_needs(asked), self._reader)

    def _name_needs(self, asked: Need | tuple[Need, ...]) -> tuple[Need, ...]:
        needs = asked if isinstance(asked, tuple) else (asked,)
        return tuple(need if need.object else Need(need.start, need.stop, self._record) for need in needs)

    async def examine(self, asked: Examine) -> Examined:
        """Lets a recoder examine an object; raises ManifestError, see `survey.examine`."""
        return await examine(asked, self._reader)

    def cancel(self) -> None:
        """Cancels the requests for windows ahead, since the indexer has jumped or is done."""
        for task in self._coming.values():
            task.cancel()
        self._coming.clear()

    def _request(self, need: Need) -> None:
        async def read() -> bytes:
            return await self._reader.read(Extent(self._record, need.start, need.stop))

        self._coming[need] = self._tasks.create_task(read())


class _ClosedChunks:
    """Holds the bytes of the chunk that is still open; offers and logs the chunks that are closed.

    Args:
        container: the object.
        on_chunk: called with a closed chunk and its bytes. None offers none, and then nothing is held.
        found: the samples that the log already has.
    """

    def __init__(self, container: Container, on_chunk: OnChunk | None, found: LoggedSamples) -> None:
        self._container = container
        self._on_chunk = on_chunk
        self._held: list[tuple[int, memoryview]] = []
        self._open_sample = len(found.starts)

    def hold(self, start: int, window: memoryview) -> None:
        if self._on_chunk:
            self._held.append((start, window))

    async def close(self, found: LoggedSamples, *, finished: bool) -> None:
        """Offers, then logs, the chunks that cannot grow any more; drops the bytes that no open chunk needs.

        A chunk in the log has been offered, unless its bytes were not read or not held any more.

        Args:
            found: all samples found so far.
            finished: whether the indexer is done, so that the last chunk is closed, too.
        """
        starts, stops = _spans_from(found, self._open_sample)
        size = self._container.record.size
        chunk_bytes = self._container.chunk_bytes
        edges = [*cut_spans(starts, stops, size, chunk_bytes).tolist()]
        if finished:
            edges.append(len(starts))
        for first, stop in pairwise(edges):
            await self._offer(starts[first:stop], stops[first:stop])
        closed = edges[-1] if edges else 0
        position = int(starts[closed]) if closed < len(starts) else size
        if self._container.log and (closed or finished):
            await asyncio.to_thread(
                self._container.log.append, starts[:closed], stops[:closed], position, finished=finished
            )
        self._open_sample += closed
        if edges:
            self._held = [(base, window) for base, window in self._held if base + len(window) > position]
        # All bytes of a very large sample are dropped, and it is not offered: it is fetched again later.
        if sum(len(window) for _, window in self._held) > max_open_bytes(chunk_bytes) + WINDOW_BYTES:
            self._held.clear()

    async def _offer(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> None:
        """Offers the chunk of these samples if chunks are offered and all its bytes are held."""
        if not self._on_chunk:
            return
        cut = cut_object(starts, stops, self._container.record.size, self._container.chunk_bytes)
        ranges = np.stack([cut.extent_start, cut.extent_stop], axis=1)
        parts = self._bytes_of(ranges)
        if parts is None:
            return
        record = self._container.record
        length = int(cut.chunk_bytes[0])
        names = [(encode_text(record.url), encode_text(record.version))] * len(ranges)
        chunk = IndexedChunk(
            index=-1,
            key=chunk_key(self._container.format_name, names, ranges, cut.sample_start),
            extents=tuple(Extent(record, start, stop) for start, stop in ranges.tolist()),
            first_sample=-1,
            samples=len(cut.sample_start),
            fetch_bytes=length,
            local_bytes=length,
            sample_offsets=np.append(cut.sample_start.astype(np.int64), length),
        )
        await self._on_chunk(chunk, parts)

    def _bytes_of(self, ranges: NDArray[np.int64]) -> list[memoryview] | None:
        """Returns the bytes of ranges as parts of the windows that are held; None if some are not held any more."""
        parts = []
        for start, stop in ranges.tolist():
            position = start
            for base, window in self._held:
                if base <= position < min(base + len(window), stop):
                    parts.append(window[position - base : stop - base])
                    position += len(parts[-1])
            if position != stop:
                return None
        return parts
