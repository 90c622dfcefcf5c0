"""Fetching side by side, in one run: bare obstore, bare aiohttp on uvloop, s3fs, and ours.

    python benchmarks/fetch.py --endpoint http://127.0.0.1:9000 --prefix s3://bucket/tars/ --runs 5
    python benchmarks/fetch.py --endpoint ... --prefix s3://bucket/small/ --pack 80 --in-flight 64

Each contender reads the same bytes in a process of its own, in turns, so that medians are of interleaved runs. Bytes
are thrown away, except by `ours+file` (checksums and chunk files, by the cache's publish) and `s3fs` (its own parallel
read into files). CPU seconds are user + system of that process; requests are what it sent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import uvloop

from streamer.cache.chunk_cache import ChunkCache
from streamer.config import CacheConfig, FetchConfig
from streamer.fetch import Fetcher, keep_freed_memory
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.store import ObjectStore, open_store

MiB = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What every contender reads, and how."""

    endpoint: str
    prefix: str
    chunk_bytes: int
    pack: int
    in_flight: int
    lookahead: int
    hedge: bool
    most_bytes: int
    passes: int
    folder: str

    @property
    def options(self) -> dict[str, object]:
        """Storage options; the simulator takes any credentials."""
        return {"key": "bench", "secret": "bench", "endpoint_url": self.endpoint}


@dataclass(frozen=True)
class Result:
    """What one contender did in one run."""

    seconds: float
    cpu_seconds: float
    received_bytes: int
    requests: int
    page_faults: int
    notes: str = ""

    @property
    def megabytes_per_second(self) -> float:
        """MB (10^6) per second."""
        return self.received_bytes / 1e6 / self.seconds


Contender = Callable[[Job, list[Chunk]], Awaitable[tuple[int, str]]]


async def listing(store: ObjectStore, job: Job) -> list[ObjectRecord]:
    """The objects of the job."""
    records, total = [], 0
    async for page in store.list(job.prefix):
        for record in page:
            if total < job.most_bytes:
                records.append(record)
                total += record.size
    return records


def chunks_of(records: Sequence[ObjectRecord], job: Job) -> list[Chunk]:
    """Large objects cut into chunks, small ones packed."""
    if job.pack > 1:
        packs = [records[first : first + job.pack] for first in range(0, len(records), job.pack)]
        parts = [tuple(Extent(record, 0, record.size) for record in pack) for pack in packs]
    else:
        parts = [
            (Extent(record, first, min(first + job.chunk_bytes, record.size)),)
            for record in records
            for first in range(0, record.size, job.chunk_bytes)
        ]
    return [_chunk(index, extents) for index, extents in enumerate(parts * job.passes)]


def _chunk(index: int, extents: tuple[Extent, ...]) -> Chunk:
    length = sum(extent.length for extent in extents)
    return Chunk(index, index.to_bytes(16, "little"), extents, 0, len(extents), length, length)


async def drain(items: Sequence[T], width: int, work: Callable[[T], Awaitable[None]]) -> None:
    """Works on the items in order, `width` at once."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(worker())


async def bare_obstore(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """obstore's get and bytes, nothing around it."""
    import obstore
    from obstore.store import S3Store

    address = job.prefix.removeprefix("s3://").partition("/")[0]
    client = S3Store(
        address,
        endpoint=job.endpoint,
        region="us-east-1",
        access_key_id="bench",
        secret_access_key="bench",
        client_options={"allow_http": True},
    )
    sent = 0

    async def one(extent: Extent) -> None:
        nonlocal sent
        sent += 1
        path = extent.object.url.removeprefix(f"s3://{address}/")
        result = await obstore.get_async(client, path, options={"range": (extent.start, extent.stop)})
        assert len(await result.bytes_async()) == extent.length

    await drain(_extents(chunks), job.in_flight, one)
    return sent, ""


def _extents(chunks: list[Chunk]) -> list[Extent]:
    return [extent for chunk in chunks for extent in chunk.extents]


async def bare_aiohttp(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """aiohttp's get and read, unsigned."""
    import aiohttp

    sent = 0
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def one(extent: Extent) -> None:
            nonlocal sent
            sent += 1
            url = extent.object.url.replace("s3:/", job.endpoint, 1)
            headers = {"Range": f"bytes={extent.start}-{extent.stop - 1}"}
            async with session.get(url, headers=headers) as answer:
                assert len(await answer.read()) == extent.length

        await drain(_extents(chunks), job.in_flight, one)
    return sent, ""


async def s3fs_files(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """s3fs' own parallel read (`_cat_file_concurrent` inside an object, many objects at once) into files."""
    import s3fs

    records = list(dict.fromkeys(extent.object for extent in _extents(chunks)))
    config = {"max_pool_connections": job.in_flight}
    files = s3fs.S3FileSystem(
        asynchronous=True,
        skip_instance_cache=True,
        default_block_size=job.chunk_bytes,
        config_kwargs=config,
        **job.options,
    )
    session = await files.set_session()
    folder = Path(job.folder)

    async def one(record: ObjectRecord) -> None:
        content = await files._cat_file(record.url, max_concurrency=job.in_flight if record.size > MiB else 1)
        await asyncio.to_thread((folder / str(hash(record.url))).write_bytes, content)

    await drain(records, 1 if records[0].size > job.chunk_bytes else job.in_flight, one)
    await session.close()
    return 0, "requests not counted"


async def ours(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """The fetcher; bytes thrown away."""

    async def drop(chunk: Chunk, parts: list[memoryview]) -> None:
        assert sum(part.nbytes for part in parts) == chunk.fetch_bytes

    return await _ours(job, chunks, drop)


async def ours_files(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """The fetcher and the cache's publish: checksums and chunk files."""
    async with ChunkCache(CacheConfig(directory=Path(job.folder) / "cache", free_floor_bytes=0)) as cache:

        async def publish(chunk: Chunk, parts: list[memoryview]) -> None:
            await cache.publish(chunk.key, parts, _offsets(chunk))

        return await _ours(job, chunks, publish)


def _offsets(chunk: Chunk) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Samples of about 110 KB in a cut of a tar; one per object in a pack."""
    if len(chunk.extents) > 1:
        return np.cumsum([0, *(extent.length for extent in chunk.extents)], dtype=np.int64)
    return np.linspace(0, chunk.local_bytes, max(2, chunk.local_bytes // 110_000 + 1)).astype(np.int64)


async def _ours(
    job: Job, chunks: list[Chunk], use: Callable[[Chunk, list[memoryview]], Awaitable[None]]
) -> tuple[int, str]:
    config = FetchConfig(hedge=job.hedge)
    keep_freed_memory(512 * MiB)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    durations: list[float] = []
    async with Fetcher(config, lambda url: open_store(url, job.options)) as fetcher:

        async def one(chunk: Chunk) -> None:
            asked = loop.time()
            with await fetcher.fetch(chunk, due=lambda: begin + chunk.index * 1e-3) as got:
                durations.append(loop.time() - asked)
                await use(chunk, got.parts)

        await drain(chunks, job.lookahead, one)
        after = fetcher.statistics()
    p50, p99 = np.quantile(durations, [0.5, 0.99])
    notes = (
        f"window {after.window}, chunk p50 {p50 * 1e3:.0f} ms p99 {p99 * 1e3:.0f} ms, retries {after.retries}, "
        f"hedges {after.hedges} won {after.hedge_wins}, outpaced {after.outpaced}, 503s {after.throttled}"
    )
    return after.requests, notes


CONTENDERS: dict[str, Contender] = {
    "obstore": bare_obstore,
    "aiohttp": bare_aiohttp,
    "s3fs": s3fs_files,
    "ours": ours,
    "ours+file": ours_files,
}


async def measure(job: Job, contender: Contender) -> Result:
    """One run in this process."""
    store = open_store(job.prefix, job.options)
    chunks = chunks_of(await listing(store, job), job)
    await store.aclose()
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    requests, notes = await contender(job, chunks)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    total = sum(chunk.fetch_bytes for chunk in chunks)
    return Result(seconds, cpu, total, requests, after.ru_minflt - before.ru_minflt, notes)


def run_apart(name: str, job: Job) -> Result:
    """One run in a process of its own, with a folder of its own."""
    with tempfile.TemporaryDirectory(dir=job.folder) as folder:
        described = json.dumps({**asdict(job), "folder": folder})
        command = [sys.executable, __file__, "--child", name, "--job", described]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir()
    return Result(**json.loads(done.stdout))


def report(results: dict[str, list[Result]], objects: int) -> None:
    """A table of medians."""
    print(f"{'contender':<10} {'MB/s':>8} {'CPU s/GB':>9} {'us/object':>10} {'requests':>9} {'faults':>8}  last run")
    for name, runs in results.items():
        speed = statistics.median(run.megabytes_per_second for run in runs)
        cost = statistics.median(run.cpu_seconds / run.received_bytes * 1e9 for run in runs)
        each = statistics.median(run.cpu_seconds / objects * 1e6 for run in runs)
        faults = statistics.median(run.page_faults for run in runs)
        last = runs[-1]
        print(f"{name:<10} {speed:>8.0f} {cost:>9.2f} {each:>10.0f} {last.requests:>9} {faults:>8.0f}  {last.notes}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--endpoint", default="")
    parser.add_argument("--prefix", default="s3://bucket/tars/")
    parser.add_argument("--contenders", default=",".join(CONTENDERS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pack", type=int, default=1, help="objects per chunk; 1: large objects are cut")
    parser.add_argument("--chunk-mib", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=32, help="requests at once of the bare contenders")
    parser.add_argument("--lookahead", type=int, default=64, help="chunks that ours is asked for at once")
    parser.add_argument("--hedge", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--passes", type=int, default=1, help="times that the bytes are read, in one go")
    parser.add_argument("--most-mb", type=int, default=1_000_000)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where files go")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Runs the contenders in turns, or one of them when started by this very program."""
    given = arguments()
    if given.child:
        result = uvloop.run(measure(Job(**json.loads(given.job)), CONTENDERS[given.child]))
        print(json.dumps(asdict(result)))
        return
    job = Job(
        endpoint=given.endpoint,
        prefix=given.prefix,
        chunk_bytes=given.chunk_mib * MiB,
        pack=given.pack,
        in_flight=given.in_flight,
        lookahead=given.lookahead,
        hedge=given.hedge,
        most_bytes=given.most_mb * 1_000_000,
        passes=given.passes,
        folder=given.folder,
    )
    names = given.contenders.split(",")
    results: dict[str, list[Result]] = {name: [] for name in names}
    for _ in range(given.runs):
        for name in names:
            results[name].append(run_apart(name, job))
    records = asyncio.run(_count(job))
    report(results, records * job.passes)


async def _count(job: Job) -> int:
    store = open_store(job.prefix, job.options)
    found = len(await listing(store, job))
    await store.aclose()
    return found


if __name__ == "__main__":
    main()
