"""Formats beside tars: what an index reads and costs, and how fast a warm epoch is.

    python benchmarks/formats.py [--samples 4000] [--kilobytes 110] [--rounds 5] [--only tar,tfrecord] [--quick]

The same samples in every format (`formats_data.py`), on the local disk. Index: the builder over local files, from
nothing; requests and bytes are counted, CPU is that of this process without the reads, the best of three. Recoding: the
recoder in this process, the best of three. Warm epochs:
everything is in the cache, 2 workers, batch 64, nothing is decoded (`decode=None`); in turn, `--rounds` times, three
epochs of each format; the medians are printed, with rate and CPU in relation to those of tars in the same round.
Results are kept in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bounds import Bounds
from formats_data import WAYS, Way, make
from loader_ways import all_ready
from raw import children, cpu_of
from report import kept

from streamer import StreamingDataLoader, StreamingDataset
from streamer.formats.base import Format
from streamer.indexing.build import BuildOptions, build
from streamer.manifest.blocks import decode_hints
from streamer.manifest.model import Extent, ObjectRecord

BATCH = 64
EPOCHS = 3


@dataclass
class Disk:
    """Local files; counts what is read of them."""

    requests: int = 0
    nbytes: int = 0
    read_seconds: float = 0.0

    async def list(self, url: str) -> AsyncIterator[Sequence[ObjectRecord]]:
        yield records(Path(url))

    async def read(self, extent: Extent) -> bytes:
        self.requests += 1
        self.nbytes += extent.length
        begun = time.process_time()
        content = content_of(extent)
        self.read_seconds += time.process_time() - begun
        return content


def records(folder: Path) -> list[ObjectRecord]:
    return [ObjectRecord(str(path), path.stat().st_size, "stat:1") for path in sorted(folder.iterdir())]


def content_of(extent: Extent) -> bytes:
    with open(extent.object.url, "rb") as file:
        file.seek(extent.start)
        return file.read(extent.length)


@dataclass(frozen=True)
class Index:
    """One index.

    Attributes:
        cpu_seconds: without reading.
    """

    samples: int
    total_bytes: int
    requests: int
    nbytes: int
    cpu_seconds: float


def index(folder: Path, chosen: Format, root: Path) -> Index:
    disk, begun = Disk(), time.process_time()
    options = BuildOptions()
    manifest = asyncio.run(
        build(str(folder), root, lister=disk, reader=disk, choose_format=lambda names: chosen, options=options)
    )
    spent = time.process_time() - begun - disk.read_seconds
    return Index(manifest.samples, manifest.total_bytes, disk.requests, disk.nbytes, spent)


@dataclass(frozen=True)
class Rate:
    """A few warm epochs.

    Attributes:
        per_second: samples.
        cpu_seconds: of a sample, in trainer and workers together.
    """

    per_second: float
    cpu_seconds: float


def warm_rate(loader: StreamingDataLoader, sample_count: int) -> Rate:
    pids = [os.getpid(), *children()]
    spent, begun = sum(map(cpu_of, pids)), time.perf_counter()
    for _ in range(EPOCHS):
        for batch in loader:
            del batch
    seconds, count = time.perf_counter() - begun, EPOCHS * sample_count
    return Rate(count / seconds, (sum(map(cpu_of, pids)) - spent) / count)


def opened(stack: ExitStack, folder: Path, cache: Path, chosen: Format) -> StreamingDataLoader:
    """A loader of which everything is in the cache, and all workers have started."""
    dataset = StreamingDataset(folder, format=chosen, decode=None, cache_dir=cache, cache_bytes="16GB")
    stack.callback(dataset.close)
    loader = stack.enter_context(
        StreamingDataLoader(dataset, BATCH, 2, collate_fn=list, report_every=None, drop_last=True)
    )
    while True:
        for batch in loader:
            del batch
        if all_ready(loader):
            return loader


def report_index(root: Path, ways: Sequence[Way], bounds: Bounds, sample_bytes: int) -> None:
    print(f"{'index':20}{'requests':>10}{'bytes':>14}{'of data':>9}{'CPU us/sample':>15}{'CPU s/GB':>10}")
    for way in ways:
        tries = [index(root / way.name, way.format(sample_bytes), root / f"m{i} {way.name}") for i in range(3)]
        found, cpu = tries[0], min(each.cpu_seconds for each in tries)
        print(
            f"{way.name:20}{found.requests:10,}{found.nbytes:14,}{found.nbytes / found.total_bytes:9.2%}"
            f"{cpu / found.samples * 1e6:15.1f}{cpu / found.total_bytes * 1e9:10.2f}"
        )
        objects = len([path for path in (root / way.name).iterdir() if path.suffix != ".idx"])
        if "+idx" in way.name:
            bounds.add(f"{way.name}: requests per object", found.requests / objects, 3)
            bounds.add(f"{way.name}: bytes per sample", found.nbytes / found.samples, 40)


def recoding(folder: Path, chosen: Format, root: Path) -> float:
    """CPU seconds per GB fetched, of the recoder alone, which needs a process of its own in an engine."""
    disk, spent = Disk(), 0.0
    manifest = asyncio.run(build(str(folder), root, lister=disk, reader=disk, choose_format=lambda names: chosen))
    recoder = chosen.recoder(manifest.facts)
    for number in range(manifest.chunks):
        chunk = manifest.chunk(number)
        rest = memoryview(b"".join(map(content_of, chunk.extents)))
        for block in decode_hints(chunk.hint):
            begun = time.process_time()
            recoder.recode(rest[: block.fetch_bytes], block.samples, block.hint)
            spent += time.process_time() - begun
            rest = rest[block.fetch_bytes :]
    return spent / sum(manifest.chunk(number).fetch_bytes for number in range(manifest.chunks)) * 1e9


def report_recoding(root: Path, ways: Sequence[Way], bounds: Bounds, sample_bytes: int) -> None:
    for way in (way for way in ways if way.most_recoding):
        found = min(recoding(root / way.name, way.format(sample_bytes), root / f"r{i} {way.name}") for i in range(3))
        print(f"{'recoding ' + way.name:20}{found:10.2f} CPU s/GB fetched")
        bounds.add(f"{way.name}: recoding, CPU s/GB", found, way.most_recoding)


def report_rates(root: Path, ways: Sequence[Way], bounds: Bounds, options: argparse.Namespace) -> None:
    rates: dict[str, list[Rate]] = {way.name: [] for way in ways}
    sample_bytes = options.kilobytes * 1000
    for _ in range(options.rounds):
        for way in ways:
            # One at a time: idle workers of the others would take memory and wake up.
            with ExitStack() as stack:
                loader = opened(stack, root / way.name, root / "cache", way.format(sample_bytes))
                rates[way.name].append(warm_rate(loader, options.samples // BATCH * BATCH))
    print(f"\n{'warm epochs':20}{'samples/s':>10}{'of tar':>9}{'CPU us/sample':>15}{'of tar':>9}")
    for way in ways:
        pairs = list(zip(rates[way.name], rates["tar"], strict=True))
        share = statistics.median(mine.per_second / tar.per_second for mine, tar in pairs)
        cost = statistics.median(mine.cpu_seconds / tar.cpu_seconds for mine, tar in pairs)
        rate = statistics.median(mine.per_second for mine, _ in pairs)
        cpu = statistics.median(mine.cpu_seconds for mine, _ in pairs) * 1e6
        print(f"{way.name:20}{rate:10,.0f}{share:9.2f}{cpu:15.1f}{cost:9.2f}")
        if way.least:
            pairs = zip(rates[way.name], rates[way.beside], strict=True)
            share = statistics.median(mine.per_second / other.per_second for mine, other in pairs)
            bounds.add(f"{way.name}: warm rate of that of {way.beside}", share, way.least, least=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--kilobytes", type=int, default=110, help="size of a sample")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="", help="names of the table, with commas; what they are compared with is always there"
    )
    parser.add_argument("--quick", action="store_true", help="200 samples, one round, keep nothing")
    options = parser.parse_args()
    if options.quick:
        options.samples, options.rounds = 200, 1
    asked = set(options.only.split(","))
    names = {"tar", *asked, *(way.beside for way in WAYS if way.name in asked)}
    ways = [way for way in WAYS if not options.only or way.name in names]
    bounds = Bounds()
    size = f"{options.samples} samples of {options.kilobytes} KB"
    with tempfile.TemporaryDirectory() as place, kept("formats", size, keep=not options.quick):
        root = Path(place)
        for way in ways:
            make(root / way.name, way, options.samples, options.kilobytes * 1000)
        report_index(root, ways, bounds, options.kilobytes * 1000)
        report_recoding(root, ways, bounds, options.kilobytes * 1000)
        report_rates(root, [way for way in ways if way.name != "parquet text"], bounds, options)
        bounds.report()


if __name__ == "__main__":
    main()
