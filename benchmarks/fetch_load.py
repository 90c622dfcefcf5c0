"""A load on fetchers whose every byte is compared, for the benchmarks of faults.

The objects lie in a folder that the simulator serves: what arrives is compared with the files themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import mmap
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from streamer.cache.folder import open_folder
from streamer.config import FetchConfig
from streamer.engine.processes.messages import OpenDataset
from streamer.engine.processes.pool import FetchPool, WantedChunk
from streamer.engine.processes.process import SharedBytes
from streamer.errors import StreamerError
from streamer.fetch import Fetched, Fetcher, FetchStatistics
from streamer.fetch.fetcher_set import FetcherSet, ignore_notice
from streamer.fetch.statistics import sum_statistics
from streamer.indexing.listed_rows import Listing
from streamer.indexing.publish import publish
from streamer.indexing.rows import ManifestRows, rows_of_objects
from streamer.manifest.model import Chunk
from streamer.manifest.table import Manifest
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


@dataclass(frozen=True)
class Asked:
    """A chunk, and how fetch processes are asked for it."""

    chunk: Chunk
    wanted: WantedChunk


@dataclass(frozen=True)
class Source:
    """Fetches by processes, or on this loop where there are none.

    Attributes:
        fetchers: those of this loop.
        pool: the fetch processes.
        options: storage options of the endpoint.
    """

    fetchers: FetcherSet
    pool: FetchPool
    options: Mapping[str, object]

    async def fetch(self, asked: Asked) -> Fetched | SharedBytes:
        """Returns the bytes of a chunk."""
        if self.pool.ready:
            return await self.pool.fetch(asked.wanted)
        async with self.fetchers.use(self.options) as fetcher:
            return await fetcher.fetch(asked.chunk, due=asked.wanted.due)

    def statistics(self) -> FetchStatistics:
        """Returns the statistics of this loop's fetchers and of all processes together."""
        return FetchStatistics(**sum_statistics([self.fetchers.statistics(), self.pool.statistics()]))

    async def rest(self) -> None:
        """Waits until nothing is reserved or in flight, which fetch processes report once a second."""
        for _ in range(40):
            after = self.statistics()
            if (after.reserved_bytes, after.in_flight, after.waiting) == (0, 0, 0):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(after)


class Load:
    """Reads chunks of one endpoint. `await` one thing at a time, inside `loading`.

    Args:
        data: what to compare with.
        source: fetches.
        listings: the objects, by the last part of their folder ("tars", "bad", "raw").
        folder: for manifests.
    """

    def __init__(self, data: Data, source: Source, listings: Mapping[str, Listing], folder: Path) -> None:
        self._data, self._source, self._listings, self._folder = data, source, listings, folder
        self._count = itertools.count()

    def chunks(self, length: int = 8 * MiB, folder: str = "tars") -> Iterator[Asked]:
        """Chunks of `length` bytes over all objects of a folder, again and again."""
        manifest = self._published(_rows_of_ranges(self._listings[folder], length))
        return self._asked(manifest, itertools.cycle(range(manifest.chunks)))

    def raw_chunks(self, objects: int = 76) -> Iterator[Asked]:
        """Chunks of whole small objects, each object once; 76 of 110 KB are the 8 MiB of a usual chunk."""
        listing = self._listings["raw"]
        first = np.append(np.arange(0, len(listing), objects), len(listing))
        manifest = self._published(rows_of_objects(listing, "files", 8 * MiB, np.arange(len(listing)), first))
        return self._asked(manifest, range(manifest.chunks))

    def _published(self, rows: ManifestRows) -> Manifest:
        return Manifest.open(publish(rows, self._folder))

    def _asked(self, manifest: Manifest, numbers: Iterable[int]) -> Iterator[Asked]:
        opened = OpenDataset(manifest.digest, str(manifest.path), self._source.options)
        for number in numbers:
            due = next(self._count) * 1e-3
            chunk = manifest.chunk(number)
            yield Asked(chunk, WantedChunk(opened, number, len(chunk.extents), lambda due=due: due, lambda: ""))

    async def read(self, chunks: Iterator[Asked], *, width: int = 64, into: Deliveries | None = None) -> Deliveries:
        """Fetches the chunks, `width` at once, earliest first."""
        found = Deliveries() if into is None else into
        async with asyncio.TaskGroup() as group:
            for _ in range(width):
                group.create_task(self._work(chunks, found))
        return found

    async def read_for(self, seconds: float, chunks: Iterator[Asked], *, width: int = 64) -> Deliveries:
        """Fetches for so long; what is on its way then is abandoned."""
        found = Deliveries()
        try:
            async with asyncio.timeout(seconds):
                await self.read(chunks, width=width, into=found)
        except TimeoutError:
            return found
        return found

    def statistics(self) -> FetchStatistics:
        """Returns the source's."""
        return self._source.statistics()

    async def _work(self, chunks: Iterator[Asked], found: Deliveries) -> None:
        loop = asyncio.get_running_loop()
        for asked in chunks:
            began = loop.time()
            try:
                with contextlib.closing(await self._source.fetch(asked)) as got:
                    now = loop.time()
                    if not self._data.same(asked.chunk, got.parts):
                        raise AssertionError(f"other bytes in {asked.chunk.extents}")
            except StreamerError as error:
                found.errors.append(error)
                continue
            found.ended.append(now)
            found.seconds.append(now - began)
            found.lengths.append(asked.chunk.fetch_bytes)


def _rows_of_ranges(listing: Listing, length: int) -> ManifestRows:
    """Chunks of one sample and one range each."""
    ranges = [(i, start) for i, size in enumerate(listing.sizes) for start in range(0, size - length + 1, length)]
    number, start = np.array(ranges, np.int64).T
    edges = np.arange(len(ranges) + 1, dtype=np.int64)
    return ManifestRows(
        listing=listing,
        format="tar",
        chunk_bytes=length,
        whole_objects=False,
        first_sample=edges,
        first_extent=edges,
        chunk_keys=edges[:-1].astype("<u8").repeat(2).view(np.uint8).reshape(-1, 16),
        local_bytes=np.full(len(ranges), length, np.int64),
        sample_start=np.zeros(len(ranges), np.uint32),
        extent_object=number.astype(np.uint32),
        extent_start=start,
        extent_stop=start + length,
    )


@asynccontextmanager
async def loading(
    data: Data,
    options: Mapping[str, object],
    config: FetchConfig | None = None,
    *,
    processes: int = 0,
    listing_options: Mapping[str, object] | None = None,
) -> AsyncIterator[Load]:
    """Opens fetchers, or this many fetch processes, on an endpoint; at the end nothing is reserved or in flight.

    Args:
        data: what the endpoint serves.
        options: storage options of the endpoint.
        config: bounds of all fetchers together.
        processes: number of fetch processes; 0: this loop fetches.
        listing_options: storage options with which the objects are listed, if not `options`.
    """
    config = config or FetchConfig()
    with tempfile.TemporaryDirectory() as name:
        cache = open_folder(Path(name, "cache"))
        async with (
            FetcherSet(config, lambda options, url: open_store(url, options)) as fetchers,
            FetchPool(config, processes, fetchers, cache, ignore_notice) as pool,
        ):
            while len(pool.pids) < processes:  # noqa: ASYNC110 - they announce nothing
                await asyncio.sleep(0.01)
            async with fetchers.use(listing_options or options) as fetcher:
                listings = {name: await _listed(fetcher, f"s3://{BUCKET}/{name}/") for name in ("tars", "bad", "raw")}
            source = Source(fetchers, pool, options)
            yield Load(data, source, listings, cache.path / "manifests")
            await source.rest()
            assert pool.crashes == 0


async def _listed(fetcher: Fetcher, url: str) -> Listing:
    records = [record for page in await fetcher.list(url) for record in page]
    base = f"s3://{BUCKET}/"
    return Listing(
        urls=(url,),
        base=base,
        keys=[record.url.removeprefix(base).encode() for record in records],
        versions=[record.version.encode() for record in records],
        sizes=np.array([record.size for record in records], np.int64),
        labels=np.full(len(records), -1, np.int32),
        classes=(),
    )
