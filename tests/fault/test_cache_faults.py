"""The chunk cache against kills, a full disk, readers beside eviction, and a hundred thousand files."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.folder import measure_usage, open_folder
from streamer.cache.maintenance import check
from streamer.cache.policy.table import charge
from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.errors import CacheFullError, IntegrityError
from streamer.formats.chunkfile import HEADER_BYTES, ChunkHeader, file_bytes

SAMPLES = 4
THREADS = 8


def body_of(number: int, size: int) -> bytes:
    return ((np.arange(size) + number) % 251).astype(np.uint8).tobytes()


def key_of(number: int) -> bytes:
    return number.to_bytes(16, "big")[::-1]


def offsets_of(size: int) -> np.ndarray:
    return np.linspace(0, size, SAMPLES + 1).astype(np.int64)


async def publish(cache: ChunkCache, number: int, size: int) -> None:
    await cache.publish(key_of(number), [body_of(number, size)], offsets_of(size), dataset="d")


WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_cache_faults as shared
from streamer.cache.chunk_cache import ChunkCache
from streamer.config import CacheConfig

async def main(directory, first):
    config = CacheConfig(directory=Path(directory), limit_bytes=8 << 20, free_floor_bytes=0)
    async with ChunkCache(config) as cache:
        held = sorted(cache.keys())
        number = first
        while True:
            while cache.statistics().charged_bytes > 6 << 20:
                victim = held.pop(0)
                print("-", victim.hex(), flush=True)
                await cache.evict([victim])
            await shared.publish(cache, number, 50_000)
            held.append(shared.key_of(number))
            print("+", shared.key_of(number).hex(), flush=True)
            number += 1

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def killed_writer(directory: Path, first: int, after_lines: int) -> list[str]:
    """Starts a writer, kills it after so many lines of its report, and returns all it had said."""
    script = WRITER.format(tests=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(directory), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(after_lines)]
        process.kill()
        assert all(lines)  # it was at work until then
        return lines + process.stdout.readlines()


def run_kills(directory: Path, kills: int) -> None:
    """Kill after kill: what was said to be published is there and right, nothing else is, the next start is quick."""
    pick = random.Random(1)
    there: set[str] = set()
    for kill in range(kills):
        lines = killed_writer(directory, kill * 1000, pick.randint(1, 60))
        doubtful: set[str] = set()
        for line in lines:
            if line.endswith("\n"):
                sign, key = line.split()
                (there.add if sign == "+" else there.discard)(key)
                doubtful |= {key} if sign == "-" else set()
        begun = time.monotonic(), cpu_seconds()
        found = asyncio.run(reopened(directory))
        # By the clock, or on a busy machine by what it used.
        assert min(time.monotonic() - begun[0], cpu_seconds() - begun[1]) < 2
        assert there <= found
        assert check(directory).damaged == {}
        assert not list((directory / "tmp").iterdir())
        assert measure_usage(directory) <= 8 << 20
        there = found


async def reopened(directory: Path) -> set[str]:
    config = CacheConfig(directory=directory, limit_bytes=8 << 20, free_floor_bytes=0)
    async with ChunkCache(config) as cache:
        return set(map(bytes.hex, cache.keys()))


def test_a_killed_writer_loses_nothing_that_was_published(tmp_path: Path) -> None:
    """A writer killed at random points of publishing and evicting, twice, loses no chunk that it reported published."""
    run_kills(tmp_path / "cache", 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_kills(tmp_path: Path) -> None:
    """A writer killed two hundred times on one cache folder loses no chunk that it reported published."""
    run_kills(tmp_path / "cache", 200)


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """A tmpfs of that size; skipped where mounting is not allowed."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_passes_chunks_through_memory(tmp_path: Path) -> None:
    """On a disk of 2 MiB under a limit of 8 MiB, every chunk is readable and right, or is refused with an error."""
    with small_disk(tmp_path / "disk", "2m") as disk:
        asyncio.run(fill(disk / "cache"))


async def fill(directory: Path) -> None:
    config = CacheConfig(directory=directory, limit_bytes=8 << 20, free_floor_bytes=0)
    async with ChunkCache(config) as cache:
        for number in range(60):
            with contextlib.suppress(CacheFullError):  # measured meanwhile: evict first
                await publish(cache, number, 100_000)
        now = cache.statistics()
        assert now.refused_writes > 0
        assert now.fallback_chunks > 0
        reader = ChunkReader(cache.roots)
        for number in range(60):
            if cache.contains(key_of(number)):
                (whole,) = reader.read(key_of(number), 100_000, SAMPLES, [WantedSample(0, 0, 25_000)])
                assert bytes(whole) == body_of(number, 100_000)[:25_000]
        assert now.chunks + now.fallback_chunks == 60


def test_a_memory_disk_of_exactly_the_limit_is_enough(tmp_path: Path) -> None:
    """A tmpfs of exactly the cache's limit takes chunks that come and go without refusing one."""
    with small_disk(tmp_path / "disk", "4m") as disk:
        refused = asyncio.run(churn(disk / "cache", 4 << 20))
        assert refused == 0


async def churn(directory: Path, limit: int) -> int:
    config = CacheConfig(directory=directory, limit_bytes=limit, free_floor_bytes=0)
    async with ChunkCache(config) as cache:
        held: list[int] = []
        for number in range(200):
            size = 30_000 + number * 100
            cost = charge(file_bytes(size, SAMPLES))
            while cache.statistics().charged_bytes + cost > cache.limit_bytes:
                await cache.evict([key_of(held.pop(0))])
            await publish(cache, number, size)
            held.append(number)
        return cache.statistics().refused_writes


@pytest.mark.parametrize("reads_each", [320, pytest.param(2560, marks=pytest.mark.slow)])
def test_readers_beside_eviction_never_see_wrong_bytes(reads_each: int, tmp_path: Path) -> None:
    """Readers in four processes get right bytes or a typed error while chunks are published and evicted."""
    assert asyncio.run(read_beside_eviction(tmp_path / "cache", reads_each)) == 4 * reads_each


READER = """
import random, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_cache_faults as shared
from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.errors import IntegrityError

reader, offsets = ChunkReader([Path(sys.argv[1])]), shared.offsets_of(20_000)
bodies = [shared.body_of(number, 20_000) for number in range(40)]

def read(seed):
    pick, right = random.Random(seed), 0
    while right < int(sys.argv[3]) // shared.THREADS:
        number, sample = pick.randrange(40), pick.randrange(shared.SAMPLES)
        start, stop = int(offsets[sample]), int(offsets[sample + 1])
        try:
            (found,) = reader.read(shared.key_of(number), 20_000, shared.SAMPLES, [WantedSample(sample, start, stop)])
        except (IntegrityError, FileNotFoundError):
            continue
        assert found == bodies[number][start:stop], number
        right += 1
    return right

with ThreadPoolExecutor(shared.THREADS) as pool:
    print(sum(pool.map(read, range(int(sys.argv[2]) * 100, int(sys.argv[2]) * 100 + shared.THREADS))))
"""


async def read_beside_eviction(directory: Path, reads_each: int) -> int:
    config = CacheConfig(directory=directory, limit_bytes=2 << 20, free_floor_bytes=0)
    script = READER.format(tests=str(Path(__file__).parent))
    async with ChunkCache(config) as cache:
        readers = [
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", script, str(directory), str(seed), str(reads_each)),
                stdout=asyncio.subprocess.PIPE,
            )
            for seed in range(4)
        ]
        try:
            done = asyncio.gather(*(reader.communicate() for reader in readers))
            pick = random.Random(0)
            while not done.done():
                number = pick.randrange(40)
                key = key_of(number)
                await (cache.evict([key]) if cache.contains(key) else publish(cache, number, 20_000))
            outputs = await done
        finally:  # without chunks they would look for them for ever
            for reader in readers:
                if reader.returncode is None:
                    reader.kill()
    assert [reader.returncode for reader in readers] == [0] * 4
    return sum(int(out) for out, _ in outputs)


def write_many(directory: Path, count: int) -> None:
    """Chunk files that are holes behind a sound header: what a start looks at."""
    folder = open_folder(directory)
    length = file_bytes(1000, 1)
    for number in range(count):
        key = key_of(number * 2654435761 % (1 << 64))
        header = ChunkHeader(key=key, local_bytes=1000, samples=1, table_crc=0, payload_crc=0)
        descriptor = os.open(folder.chunk_path(key), os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, header.encode(), 0)
        os.ftruncate(descriptor, length)
        os.close(descriptor)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_chunks_start_within_two_seconds(tmp_path: Path) -> None:
    """An engine with 100,000 chunks starts within two seconds from the catalogue, and loses none from headers alone."""
    write_many(tmp_path / "cache", 100_000)
    config = CacheConfig(directory=tmp_path / "cache", limit_bytes=1 << 40, free_floor_bytes=0)

    async def start() -> tuple[int, float, float]:
        began = time.perf_counter(), cpu_seconds()
        async with Engine(EngineConfig(cache=config)) as engine:
            taken = time.perf_counter() - began[0], cpu_seconds() - began[1]
            assert engine.policy.statistics().kept_chunks == 100_000
            return len(engine.cache.keys()), *taken

    rebuilt, rebuild_seconds, rebuild_used = asyncio.run(start())
    found, seconds, used = asyncio.run(start())
    print(f"from the headers in {rebuild_seconds:.2f} s, {rebuild_used:.2f} CPU seconds")
    print(f"from the catalog in {seconds:.2f} s, {used:.2f} CPU seconds")
    assert rebuilt == found == 100_000
    assert min(seconds, used) < 2.0


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("harm", ["flip", "cut", "swap", "delete"])
def test_a_reader_finds_any_harm(tmp_path: Path, harm: str) -> None:
    """A chunk file that is flipped, truncated, swapped or deleted raises an error and gives no wrong byte."""

    async def prepare() -> tuple[Path, Path]:
        config = CacheConfig(directory=tmp_path / "cache", limit_bytes=4 << 20, free_floor_bytes=0)
        async with ChunkCache(config) as cache:
            await publish(cache, 1, 40_000)
            await publish(cache, 2, 40_000)
            first, second = cache.path(key_of(1)), cache.path(key_of(2))
            assert first is not None
            assert second is not None
            return first, second

    path, other = asyncio.run(prepare())
    raw = path.read_bytes()
    if harm == "flip":
        path.write_bytes(raw[: HEADER_BYTES + 50] + b"\xff" + raw[HEADER_BYTES + 51 :])
    elif harm == "cut":
        path.write_bytes(raw[:20_000])
    elif harm == "swap":
        other.rename(path)
    else:
        path.unlink()
    with pytest.raises(FileNotFoundError if harm == "delete" else IntegrityError, match="chunk"):
        ChunkReader([tmp_path / "cache"]).read(
            key_of(1), 40_000, SAMPLES, [WantedSample(0, 0, 10_000), WantedSample(3, 30_000, 40_000)]
        )
