from __future__ import annotations

import asyncio

import pytest

from streamer.errors import ManifestError, ShortReadError
from streamer.formats.base import Need, Span
from streamer.manifest import indexing
from streamer.manifest.indexing import WINDOW_BYTES, Budget, Container, index_container
from streamer.manifest.model import ObjectRecord

MiB = 1 << 20


@pytest.mark.parametrize(
    ("memory", "concurrency", "objects", "kept", "expected"),
    [
        (256 * MiB, 16, 1000, 0, Budget(16, 0)),
        (256 * MiB, 16, 1, 0, Budget(1, 15)),
        (256 * MiB, 16, 4, 0, Budget(4, 3)),
        (64 * MiB, 16, 1, 0, Budget(1, 6)),
        (256 * MiB, 16, 1000, 16 * MiB, Budget(8, 0)),
        (1 * MiB, 16, 1000, 0, Budget(1, 0)),
    ],
)
def test_budget(memory, concurrency, objects, kept, expected):
    """Memory and concurrency are divided among containers first, then among windows ahead; never below one."""
    budget = Budget.of(memory, concurrency, objects, kept)
    assert budget == expected
    held = budget.parallel_objects * ((2 + budget.ahead) * WINDOW_BYTES + kept)
    assert held <= max(memory, 2 * WINDOW_BYTES + kept)
    assert budget.parallel_objects * (1 + budget.ahead) <= concurrency


class Scripted:
    """An indexer that does what it is told."""

    name, whole_objects = "scripted", False

    def __init__(self, steps: list[Need | Span]) -> None:
        self.steps, self.answers, self.closed = steps, [], False

    def accepts(self, key: str) -> bool:
        return True

    def index(self, target: ObjectRecord):
        try:
            for step in self.steps:
                answer = yield step
                if isinstance(step, Need):
                    self.answers.append(bytes(answer))
        finally:
            self.closed = True


URL = "s3://b/o"


async def run(indexer, source, *, ahead=0, on_chunk=None, chunk_bytes=1000):
    container = Container(ObjectRecord(URL, len(source.objects[URL]), "etag:1"), indexer.name, chunk_bytes)
    read: list[Need] = []
    cut = await index_container(container, indexer, source, ahead=ahead, on_chunk=on_chunk, on_read=read.append)
    return cut, read


async def test_needs_are_answered_with_their_bytes(store):
    """Each need gets exactly its range, and is counted."""
    source = store({URL: bytes(range(100))})
    indexer = Scripted([Need(0, 10), Span(0, 8), Need(50, 60), Span(50, 60)])
    cut, read = await run(indexer, source)
    assert indexer.answers == [bytes(range(10)), bytes(range(50, 60))]
    assert (cut.extent_start.tolist(), cut.extent_stop.tolist()) == ([0, 50], [8, 60])
    assert read == [Need(0, 10), Need(50, 60)]


async def test_windows_are_read_ahead_and_only_once(store):
    """Once an indexer goes straight on, the next windows are on their way; no byte is asked for twice."""
    count = 6
    source = store({URL: bytes(count * WINDOW_BYTES)}, delays=lambda extent: 3)
    needs = [Need(i * WINDOW_BYTES, (i + 1) * WINDOW_BYTES) for i in range(count)]
    await run(Scripted(needs), source, ahead=2)
    assert source.most_in_flight == 3
    assert sorted((e.start, e.stop) for e in source.reads) == [(n.start, n.stop) for n in needs]


async def test_a_jump_gives_up_what_was_read_ahead(store):
    """Requests for bytes that are jumped over are cancelled, and nothing is left running."""
    size = 10 * WINDOW_BYTES
    source = store({URL: bytes(size)}, delays=lambda extent: 10_000 if WINDOW_BYTES <= extent.start < size - 10 else 0)
    indexer = Scripted([Need(0, WINDOW_BYTES), Need(size - 10, size)])
    await run(indexer, source, ahead=3)
    assert source.in_flight == 0


async def test_closed_chunks_are_offered_with_their_bytes(store):
    """A chunk is offered as soon as the next begins, with key, offsets and the bytes of its extents."""
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
    """Bytes that were jumped over cannot warm a cache; nor is a sample beyond twice the chunk size kept."""
    source = store({URL: bytes(10_000)})
    indexer = Scripted(
        [Need(0, 100), Span(0, 900), Need(900, 1000), Span(900, 1000), Need(1000, 2000), Span(1000, 2000)]
    )
    offered = []

    async def on_chunk(chunk, parts):
        offered.append(chunk.extents[0].start)

    await run(indexer, source, on_chunk=on_chunk, chunk_bytes=1000)
    assert offered == [1000]


async def test_what_is_kept_is_bounded(store):
    """However large a sample is, no more than two chunks and a window are held back for it."""
    count = 100
    source = store({URL: bytes(count * 1000)})
    indexer = Scripted([*(Need(i * 1000, (i + 1) * 1000) for i in range(count)), Span(0, count * 1000)])
    held = []

    async def on_chunk(chunk, parts):
        held.append(chunk)

    most = 0
    keep = indexing._Offer.keep

    def watch(self, start, window):
        nonlocal most
        keep(self, start, window)
        most = max(most, self._held())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing._Offer, "keep", watch)
        await run(indexer, source, on_chunk=on_chunk, chunk_bytes=5000)
    assert held == []
    assert most <= 2 * 5000 + 1000


async def test_an_indexers_error_arrives_as_itself(store):
    """No ExceptionGroup around it."""

    class Failing(Scripted):
        def index(self, target):
            yield Need(0, 10)
            raise ManifestError("bad archive")

    with pytest.raises(ManifestError, match="bad archive"):
        await run(Failing([]), store({URL: bytes(100)}))


async def test_a_readers_error_closes_the_indexer(store):
    """A failed request ends the indexing and frees the generator."""

    class Broken(store):
        async def read(self, extent):
            await asyncio.sleep(0)
            raise ShortReadError("cut")

    indexer = Scripted([Need(0, 10)])
    with pytest.raises(ShortReadError):
        await run(indexer, Broken({URL: bytes(100)}))
    assert indexer.closed
