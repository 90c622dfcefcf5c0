"""A load on one fetcher whose every byte is compared, for the benchmarks of faults.

The objects lie in a folder that the simulator serves: what arrives is compared with the files themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamer.config import FetchConfig
from streamer.errors import StreamerError
from streamer.fetch import Fetcher, FetchStatistics
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.store import open_store

MiB = 1 << 20
BUCKET = "bucket"


class Data:
    """Random files of one bucket, and what they hold.

    Args:
        root: the folder that the simulator serves.
        files: how many.
        file_bytes: of each.
    """

    def __init__(self, root: Path, files: int, file_bytes: int) -> None:
        self.root, random = root, np.random.default_rng(3)
        for number in range(files):
            path = root / BUCKET / "tars" / f"{number:03}.tar"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(random.bytes(file_bytes))
        # An object of its own for faults that strike just one.
        (root / BUCKET / "bad").mkdir()
        (root / BUCKET / "bad" / "one.tar").write_bytes(random.bytes(16 * MiB))
        (root / BUCKET / "raw").mkdir()
        self._random = random
        self._views: dict[str, np.ndarray] = {}

    def add_raw(self, files: int, file_bytes: int) -> None:
        """Adds small objects, once."""
        folder = self.root / BUCKET / "raw"
        for number in range(len(list(folder.iterdir())), files):
            (folder / f"{number:05}.jpg").write_bytes(self._random.bytes(file_bytes))

    def same(self, chunk: Chunk, parts: list[memoryview]) -> bool:
        """Whether the parts are the chunk's bytes."""
        if len(chunk.extents) > 1:
            wanted = b"".join((self.root / e.object.url.removeprefix("s3://")).read_bytes() for e in chunk.extents)
            return b"".join(parts) == wanted
        (extent,) = chunk.extents
        wanted, position = self._view(extent.object.url)[extent.start : extent.stop], 0
        for part in parts:
            piece = np.frombuffer(part, np.uint8)
            if not np.array_equal(wanted[position : position + piece.size], piece):
                return False
            position += piece.size
        return position == extent.length

    def _view(self, url: str) -> np.ndarray:
        if url not in self._views:
            with (self.root / url.removeprefix("s3://")).open("rb") as file:
                self._views[url] = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        return self._views[url]


@dataclass
class Deliveries:
    """What arrived, in the order of arrival.

    Attributes:
        ended: when, on the loop's clock.
        seconds: how long each took.
        lengths: bytes of each.
        errors: of chunks that did not come.
    """

    ended: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    errors: list[StreamerError] = field(default_factory=list)

    def rate(self, start: float, stop: float) -> float:
        """MB/s (10^6) that arrived in `[start, stop)`."""
        ended, lengths = np.array(self.ended), np.array(self.lengths)
        return float(lengths[(ended >= start) & (ended < stop)].sum() / 1e6 / (stop - start)) if self.ended else 0.0

    def reached(self, rate: float, since: float, window: float = 2.0) -> float:
        """Seconds from `since` until `window` seconds brought `rate` MB/s for the first time; inf: never."""
        later = (end for end in self.ended if end >= since)
        return next((end - since for end in later if self.rate(end - window, end) >= rate), np.inf)

    def quantile(self, share: float) -> float:
        """Of the seconds that chunks took."""
        return float(np.quantile(self.seconds, share))


class Load:
    """One fetcher and its chunks. `await` one thing at a time, inside `loading`.

    Args:
        data: what to compare with.
        fetcher: open.
        records: the objects, by the last part of their folder ("tars", "bad").
    """

    def __init__(self, data: Data, fetcher: Fetcher, records: Mapping[str, list[ObjectRecord]]) -> None:
        self._data, self._fetcher, self._records = data, fetcher, records
        self._count = itertools.count()

    def chunks(self, length: int = 8 * MiB, folder: str = "tars") -> Iterator[Chunk]:
        """Chunks of `length` bytes over all objects of a folder, again and again."""
        ranges = [
            (record, start) for record in self._records[folder] for start in range(0, record.size - length + 1, length)
        ]
        for record, start in itertools.cycle(ranges):
            yield _chunk(next(self._count), (Extent(record, start, start + length),))

    def raw_chunks(self, objects: int = 76) -> Iterator[Chunk]:
        """Chunks of whole small objects, each object once; 76 of 110 KB are the 8 MiB of a usual chunk."""
        records = self._records["raw"]
        for at in range(0, len(records), objects):
            extents = tuple(Extent(record, 0, record.size) for record in records[at : at + objects])
            yield _chunk(next(self._count), extents)

    async def read(self, chunks: Iterator[Chunk], *, width: int = 64, into: Deliveries | None = None) -> Deliveries:
        """Fetches the chunks, `width` at once, earliest first."""
        found = Deliveries() if into is None else into
        async with asyncio.TaskGroup() as group:
            for _ in range(width):
                group.create_task(self._work(chunks, found))
        return found

    async def read_for(self, seconds: float, chunks: Iterator[Chunk], *, width: int = 64) -> Deliveries:
        """Fetches for so long; what is on its way then is abandoned."""
        found = Deliveries()
        try:
            async with asyncio.timeout(seconds):
                await self.read(chunks, width=width, into=found)
        except TimeoutError:
            return found
        return found

    def statistics(self) -> FetchStatistics:
        """The fetcher's."""
        return self._fetcher.statistics()

    async def _work(self, chunks: Iterator[Chunk], found: Deliveries) -> None:
        loop = asyncio.get_running_loop()
        for chunk in chunks:
            asked = loop.time()
            try:
                with await self._fetcher.fetch(chunk, due=lambda at=chunk.index * 1e-3: at) as got:
                    now = loop.time()
                    if not self._data.same(chunk, got.parts):
                        raise AssertionError(f"other bytes in {chunk.extents}")
            except StreamerError as error:
                found.errors.append(error)
                continue
            found.ended.append(now)
            found.seconds.append(now - asked)
            found.lengths.append(chunk.fetch_bytes)


def _chunk(index: int, extents: tuple[Extent, ...]) -> Chunk:
    length = sum(extent.length for extent in extents)
    return Chunk(index, index.to_bytes(16, "little"), extents, 0, len(extents), length, length)


@asynccontextmanager
async def loading(data: Data, options: Mapping[str, object], config: FetchConfig | None = None) -> AsyncIterator[Load]:
    """A fetcher of its own on an endpoint; at the end nothing is reserved or in flight."""
    async with Fetcher(config or FetchConfig(), lambda url: open_store(url, options)) as fetcher:
        records = {folder: await _listed(fetcher, f"s3://{BUCKET}/{folder}/") for folder in ("tars", "bad", "raw")}
        yield Load(data, fetcher, records)
        after = fetcher.statistics()
    assert (after.reserved_bytes, after.in_flight, after.waiting) == (0, 0, 0), after


async def _listed(fetcher: Fetcher, url: str) -> list[ObjectRecord]:
    return [record async for page in fetcher.store(url).list(url) for record in page]
