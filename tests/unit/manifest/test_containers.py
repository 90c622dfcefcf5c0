"""The indexing of one container: what is read, what is read ahead, which chunks are offered, and the log.
Store and indexer are scripted; the reading in between is the real one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from streamer.errors import ManifestError, ShortReadError
from streamer.formats import reading
from streamer.formats.base import Need, Span
from streamer.formats.webdataset import WebDataset
from streamer.indexing import container_rows as containers
from streamer.indexing.container_rows import WINDOW_BYTES, Budget, Container, index_container
from streamer.indexing.index_log import IndexLogs
from streamer.manifest.model import Facts, ObjectRecord
from streamer.manifest.protocols import Source
from tests.tars import tar_of

MiB, GiB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("memory", "concurrency", "objects", "size", "kept", "expected"),
    [
        (256 * MiB, 16, 1000, GiB, 0, Budget(16, 0)),
        (256 * MiB, 16, 1, GiB, 0, Budget(1, 15)),
        (256 * MiB, 16, 4, GiB, 0, Budget(4, 3)),
        (64 * MiB, 16, 1, GiB, 0, Budget(1, 6)),
        (256 * MiB, 16, 1000, GiB, 16 * MiB, Budget(8, 0)),
        (1 * MiB, 16, 1000, GiB, 0, Budget(1, 0)),
        # A container holds no more than its object.
        (256 * MiB, 256, 96, 1 * MiB, 16 * MiB, Budget(96, 0)),
        (256 * MiB, 256, 1000, 2 * MiB, 16 * MiB, Budget(128, 0)),
        (256 * MiB, 256, 18, 62 * MiB, 16 * MiB, Budget(8, 0)),
        (256 * MiB, 256, 3, 0, 0, Budget(3, 10)),
        (256 * MiB, 256, 0, 0, 0, Budget(1, 31)),
    ],
)
def test_budget(memory, concurrency, objects, size, kept, expected):
    """Memory and concurrency are divided among containers first, then among windows ahead, never below one."""
    budget = Budget.divide(memory, concurrency, np.full(objects, size), kept)
    assert budget == expected
    held = budget.parallel_objects * min((2 + budget.ahead) * WINDOW_BYTES + kept, size)
    assert held <= max(memory, 2 * WINDOW_BYTES + kept)
    assert budget.parallel_objects * (1 + budget.ahead) <= concurrency


class Scripted:
    """Stands for a format: yields the given needs and spans, and keeps the answers; it looks at no bytes."""

    name, whole_objects, options = "scripted", False, {}

    def __init__(self, steps: list[Need | Span]) -> None:
        self.steps, self.answers, self.closed = steps, [], False

    def accepts(self, key: str) -> bool:
        return True

    def index(self, source: Source, facts: Facts, start: int = 0):
        try:
            for step in self.steps:
                answer = yield step
                if isinstance(step, Need):
                    self.answers.append(bytes(answer))
        finally:
            self.closed = True


URL = "s3://b/o"


async def run(indexer, source, *, ahead=0, on_chunk=None, chunk_bytes=1000):
    record = ObjectRecord(URL, len(source.objects[URL]), "etag:1")
    container = Container(Source(record), Facts(), indexer.name, chunk_bytes)
    read: list[Need] = []
    cut = await index_container(container, indexer, source, ahead=ahead, on_chunk=on_chunk, on_read=read.append)
    return cut, read


async def test_needs_are_answered_with_their_bytes(store):
    """Each need of an indexer is answered with its exact range, and is counted."""
    source = store({URL: bytes(range(100))})
    indexer = Scripted([Need(0, 10), Span(0, 8), Need(50, 60), Span(50, 60)])
    cut, read = await run(indexer, source)
    assert indexer.answers == [bytes(range(10)), bytes(range(50, 60))]
    assert (cut.extent_start.tolist(), cut.extent_stop.tolist()) == ([0, 50], [8, 60])
    assert read == [Need(0, 10), Need(50, 60)]


async def test_windows_are_read_ahead_and_only_once(store):
    """Windows of a container that is read straight on are read ahead, and no byte is read twice."""
    count = 6
    source = store({URL: bytes(count * WINDOW_BYTES)}, delays=lambda extent: 3)
    needs = [Need(i * WINDOW_BYTES, (i + 1) * WINDOW_BYTES) for i in range(count)]
    await run(Scripted(needs), source, ahead=2)
    assert source.most_in_flight == 3
    assert sorted((e.start, e.stop) for e in source.reads) == [(n.start, n.stop) for n in needs]


async def test_a_jump_gives_up_what_was_read_ahead(store):
    """A jump in a container cancels the requests for bytes that were read ahead, and none is left running."""
    size = 10 * WINDOW_BYTES
    source = store({URL: bytes(size)}, delays=lambda extent: 10_000 if WINDOW_BYTES <= extent.start < size - 10 else 0)
    indexer = Scripted([Need(0, WINDOW_BYTES), Need(size - 10, size)])
    await run(indexer, source, ahead=3)
    assert source.in_flight == 0


async def test_closed_chunks_are_offered_with_their_bytes(store):
    """A chunk is offered as soon as the next one begins, with key, offsets and the bytes of its extents."""
    raw = bytes(i % 251 for i in range(4000))
    source = store({URL: raw})
    spans = [Span(i * 100, (i + 1) * 100) for i in range(40)]
    indexer = Scripted([Need(0, 2050), *spans[:20], Need(2050, 4000), *spans[20:]])
    offered = []

    async def on_chunk(chunk, parts):
        offered.append((chunk, b"".join(parts), len(source.reads)))

    cut, _ = await run(indexer, source, on_chunk=on_chunk)
    assert [bytes_ for _, bytes_, _ in offered] == [raw[i * 1000 : (i + 1) * 1000] for i in range(4)]
    assert [reads for *_, reads in offered] == [1, 2, 2, 2]
    chunk = offered[1][0]
    assert (chunk.index, chunk.first_sample, chunk.samples, chunk.local_bytes) == (-1, -1, 10, 1000)
    assert chunk.sample_offsets.tolist() == list(range(0, 1001, 100))
    assert cut.chunks == 4


async def test_a_chunk_that_was_not_read_whole_is_not_offered(store):
    """A chunk of which bytes were skipped is not offered."""
    source = store({URL: bytes(10_000)})
    indexer = Scripted(
        [Need(0, 100), Span(0, 900), Need(900, 1000), Span(900, 1000), Need(1000, 2000), Span(1000, 2000)]
    )
    offered = []

    async def on_chunk(chunk, parts):
        offered.append(chunk.extents[0].start)

    await run(indexer, source, on_chunk=on_chunk, chunk_bytes=1000)
    assert offered == [1000]


async def test_what_is_held_is_bounded(store, monkeypatch):
    """At most two chunks and the windows at both ends are held for a chunk, however large a sample is."""
    count, most = 100, 0
    source = store({URL: bytes(count * 1000)})
    indexer = Scripted([*(Need(i * 1000, (i + 1) * 1000) for i in range(count)), Span(0, count * 1000)])
    offered = []

    async def on_chunk(chunk, parts):
        offered.append(chunk)

    hold = containers._ClosedChunks.hold

    def watch(self, start, window):
        nonlocal most
        hold(self, start, window)
        most = max(most, sum(len(held) for _, held in self._held))

    monkeypatch.setattr(containers, "WINDOW_BYTES", 1000)
    monkeypatch.setattr(containers._ClosedChunks, "hold", watch)
    await run(indexer, source, on_chunk=on_chunk, chunk_bytes=5000)
    assert offered == []
    assert most == 2 * 5000 + 2 * 1000


async def test_a_chunk_over_the_edge_of_two_windows_is_offered(store, monkeypatch):
    """A chunk across two windows is offered, also where a window is much longer than a chunk.
    (23 % of the chunks were fetched again.)"""
    monkeypatch.setattr(containers, "WINDOW_BYTES", 8000)
    raw = bytes(i % 251 for i in range(24_000))
    needs = {starts: Need(starts, starts + 8000) for starts in (0, 8000, 16_000)}
    steps: list[Need | Span] = []
    for i in range(16):
        # A sample is found as soon as its header is there.
        steps += [needs[at] for at in needs if (i and (i - 1) * 1500 < at <= i * 1500) or at == i == 0]
        steps.append(Span(i * 1500, (i + 1) * 1500))
    offered = []

    async def on_chunk(chunk, parts):
        offered.append(b"".join(parts))

    await run(Scripted(steps), store({URL: raw}), on_chunk=on_chunk, chunk_bytes=2000)
    assert b"".join(offered) == raw


async def test_what_the_log_has_is_not_read_again(store, tmp_path):
    """An index that failed goes on at its open chunk, and a finished one reads nothing; the cuts are the same."""
    files = [(f"{i:04}.bin", bytes([i % 251]) * (700 + 13 * i)) for i in range(60)]
    source = store({URL: tar_of(files)})
    size = len(source.objects[URL])
    record, logs = ObjectRecord(URL, size, "etag:1"), IndexLogs(tmp_path)
    offered: list[bytes] = []

    async def fails(chunk, parts):
        if chunk.extents[0].start > size // 2:
            raise OSError("no space")
        offered.append(chunk.key)

    async def on_chunk(chunk, parts):
        offered.append(chunk.key)

    async def cut_of(log, on_chunk):
        container = Container(Source(record), Facts(), "webdataset", 4000, log)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "READ_BYTES", 3000)
            return await index_container(
                container, WebDataset(), source, ahead=0, on_chunk=on_chunk, on_read=lambda need: None
            )

    with pytest.raises(OSError, match="no space"):
        await cut_of(logs.open_log(Source(record), WebDataset(), Facts(), 4000), fails)
    source.reads.clear()
    cut = await cut_of(logs.open_log(Source(record), WebDataset(), Facts(), 4000), on_chunk)
    assert min(extent.start for extent in source.reads) > size // 2 - 4000
    source.reads.clear()
    again = await cut_of(logs.open_log(Source(record), WebDataset(), Facts(), 4000), on_chunk)
    assert source.reads == []
    plain = await cut_of(None, None)
    assert len(offered) == len(set(offered)) == plain.chunks
    for one in (cut, again):
        assert one.extent_start.tolist() == plain.extent_start.tolist()
        assert one.sample_start.tolist() == plain.sample_start.tolist()


async def test_an_indexers_error_arrives_as_itself(store):
    """An error of the indexer is raised without an ExceptionGroup."""

    class Failing(Scripted):
        def index(self, source, facts, start=0):
            yield Need(0, 10)
            raise ManifestError("bad archive")

    with pytest.raises(ManifestError, match="bad archive"):
        await run(Failing([]), store({URL: bytes(100)}))


async def test_a_readers_error_closes_the_indexer(store):
    """A failed request ends the indexing with its error and closes the indexer."""

    class Broken(store):
        async def read(self, extent):
            await asyncio.sleep(0)
            raise ShortReadError("cut")

    indexer = Scripted([Need(0, 10)])
    with pytest.raises(ShortReadError):
        await run(indexer, Broken({URL: bytes(100)}))
    assert indexer.closed
