"""Who fetches in `fetch.py`: bare obstore, bare aiohttp on uvloop, s3fs, and ours in steps. One run each, apart.

And two who fetch nothing and write as many bytes, for what new pages of files cost on this machine.

Each runs in a process of its own, started by `run_apart`, so that none inherits memory or connections.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import uvloop
from numpy.typing import NDArray

from streamer.base.process import collect_rarely
from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.chunk_files import compute_checksums
from streamer.config import CacheConfig, FetchConfig
from streamer.fetch import Fetcher
from streamer.manifest.model import Chunk, Extent, ObjectRecord
from streamer.store import ObjectStore, open_store

MiB = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What every contender reads, and how.

    Attributes:
        pack: objects per chunk; 1: large objects are cut into chunks.
        in_flight: requests at once of the bare contenders.
        lookahead: chunks that ours is asked for at once.
        passes: times that the bytes are read.
        folder: where files go.
    """

    endpoint: str
    prefix: str
    folder: str
    chunk_bytes: int = 8 * MiB
    pack: int = 1
    in_flight: int = 64
    lookahead: int = 64
    hedge: bool = True
    most_bytes: int = 10**15
    passes: int = 1

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
    objects: int
    requests: int
    page_faults: int
    switches: int
    resident_bytes: int
    notes: str = ""

    @property
    def megabytes_per_second(self) -> float:
        """MB (10^6) per second."""
        return self.received_bytes / 1e6 / self.seconds

    @property
    def cpu_per_gigabyte(self) -> float:
        """CPU seconds per GB (10^9)."""
        return self.cpu_seconds / self.received_bytes * 1e9

    @property
    def cpu_per_object(self) -> float:
        """CPU microseconds per object."""
        return self.cpu_seconds / self.objects * 1e6


Contender = Callable[[Job, list[Chunk]], Awaitable[tuple[int, str]]]
Use = Callable[[Chunk, list[memoryview]], Awaitable[None]]


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
    """obstore's get and bytes, nothing around it; bytes thrown away."""
    import obstore
    from obstore.store import S3Store

    bucket = job.prefix.removeprefix("s3://").partition("/")[0]
    client = S3Store(
        bucket,
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
        path = extent.object.url.removeprefix(f"s3://{bucket}/")
        result = await obstore.get_async(client, path, options={"range": (extent.start, extent.stop)})
        assert len(await result.bytes_async()) == extent.length

    await drain(_extents(chunks), job.in_flight, one)
    return sent, ""


def _extents(chunks: list[Chunk]) -> list[Extent]:
    return [extent for chunk in chunks for extent in chunk.extents]


async def bare_aiohttp(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """aiohttp's get and read, unsigned; bytes thrown away."""
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
    files = s3fs.S3FileSystem(
        asynchronous=True,
        skip_instance_cache=True,
        default_block_size=job.chunk_bytes,
        config_kwargs={"max_pool_connections": job.in_flight},
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


async def ours_summed(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """The fetcher and the checksums of a publish, in a thread as there; bytes thrown away."""

    async def use(chunk: Chunk, parts: list[memoryview]) -> None:
        await asyncio.to_thread(compute_checksums, parts, offsets_of(chunk))

    return await _ours(job, chunks, use)


async def ours_files(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """The fetcher and the cache's publish: checksums and chunk files."""
    async with ChunkCache(CacheConfig(directory=Path(job.folder) / "cache", free_floor_bytes=0)) as cache:

        async def publish(chunk: Chunk, parts: list[memoryview]) -> None:
            await cache.publish(chunk.key, parts, offsets_of(chunk))

        return await _ours(job, chunks, publish)


# Few enough that their pages stay.
_SAME_FILES = 4


async def plain_files(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """No fetch, no checksum: files as the cache writes them, one after the other from one buffer."""
    return _write_files(job, chunks, len(chunks))


async def plain_files_again(job: Job, chunks: list[Chunk]) -> tuple[int, str]:
    """The same bytes over and over into a few files, whose pages are there already."""
    return _write_files(job, chunks, _SAME_FILES)


def _write_files(job: Job, chunks: list[Chunk], files: int) -> tuple[int, str]:
    body = memoryview(bytearray(b"x") * max(chunk.local_bytes for chunk in chunks))
    for number, chunk in enumerate(chunks):
        path, length = Path(job.folder) / str(number % files), chunk.local_bytes
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if number < files:
            os.posix_fallocate(descriptor, 0, length)
        written = os.pwritev(descriptor, [body[:length]], 0)
        os.close(descriptor)
        assert written == length, (written, length)
    return 0, f"{files} files"


def offsets_of(chunk: Chunk) -> NDArray[np.int64]:
    """Samples of about 110 KB in a cut of a tar; one per object in a pack."""
    if len(chunk.extents) > 1:
        return np.cumsum([0, *(extent.length for extent in chunk.extents)], dtype=np.int64)
    return np.linspace(0, chunk.local_bytes, max(2, chunk.local_bytes // 110_000 + 1)).astype(np.int64)


async def _ours(job: Job, chunks: list[Chunk], use: Use) -> tuple[int, str]:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    durations: list[float] = []
    async with Fetcher(FetchConfig(hedge=job.hedge), lambda url: open_store(url, job.options)) as fetcher:

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
    "ours+sum": ours_summed,
    "ours+file": ours_files,
    "file": plain_files,
    "file again": plain_files_again,
}


async def measure(job: Job, contender: Contender) -> Result:
    """One run in this process."""
    store = open_store(job.prefix, job.options)
    chunks = chunks_of(await listing(store, job), job)
    await store.aclose()
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    requests, notes = await contender(job, chunks)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    return Result(
        seconds=seconds,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        received_bytes=sum(chunk.fetch_bytes for chunk in chunks),
        objects=len({extent.object.url for extent in _extents(chunks)}) * job.passes,
        requests=requests,
        page_faults=after.ru_minflt - before.ru_minflt,
        switches=after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw,
        resident_bytes=_peak_resident_bytes(),
        notes=notes,
    )


def _peak_resident_bytes() -> int:
    """Of this program: `ru_maxrss` begins with that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def run_apart(name: str, job: Job) -> Result:
    """One run in a process of its own, with a folder of its own below the job's."""
    with tempfile.TemporaryDirectory(dir=job.folder) as folder:
        described = json.dumps(asdict(replace(job, folder=folder)))
        command = [sys.executable, __file__, name, described]
        # Nobody here multiplies matrices; the engine starts without these threads, too.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return Result(**json.loads(done.stdout))


def main() -> None:
    """The child's side of `run_apart`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CONTENDERS)
    parser.add_argument("job", help="as JSON")
    given = parser.parse_args()
    if given.name.startswith("ours"):  # as the engine does when it starts
        collect_rarely()
    result = uvloop.run(measure(Job(**json.loads(given.job)), CONTENDERS[given.name]))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
