"""The warm path: what the reader costs beside the kernel's copy and beside `dd`, and what warm epochs write.

    python benchmarks/cache_read.py [--folder DIR] [--rounds 25]

Prints each figure beside its bound and keeps them in benchmarks/results/cache_read-<date>.txt. All files lie in the
page cache, and the machine holds its memory (see memory.py). Everything is done in turn, round by round; figures are
medians. Reading is measured in CPU time of this thread, which repeats better than wall time; `dd` and the reader beside
it in wall time. The epochs go through a real engine in this process, from a local folder, at half of the data.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from memory import PageCache
from report import kept

from streamer.cache.chunk_files import ChunkBytes, write_chunk
from streamer.cache.folder import CacheFolder, open_folder
from streamer.client.chunk_reader import ChunkReader, WantedSample
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.engine.session import EngineSession
from streamer.errors import StreamerError
from streamer.formats.checksum import crc32
from streamer.manifest.table import Manifest
from streamer.order import EpochOrder, OrderSpec, RankPlan
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

MiB = 1 << 20
SAMPLE_BYTES = MiB // 10
# What the reader takes in one call of the kernel.
RUN_BYTES = 4 * MiB
LARGE_BYTES = 256 * MiB
BOUND_MICROSECONDS, BOUND_DD, BOUND_WRITTEN = 40.0, 0.8, 0.01
FILES, BATCH, EPOCHS = 4000, 32, 6

Target = tuple[WantedSample, list[memoryview]]


@dataclass
class Sample:
    """A chunk file in the page cache, and buffers for its samples."""

    folder: CacheFolder
    key: bytes
    size_bytes: int
    count: int
    offsets: list[int]

    @classmethod
    def write(cls, path: Path, size_bytes: int) -> Sample:
        """Samples of about 100 KB."""
        folder, key, count = open_folder(path), os.urandom(16), size_bytes // SAMPLE_BYTES
        offsets = np.linspace(0, size_bytes, count + 1).astype(np.int64)
        write_chunk(ChunkBytes(key, [os.urandom(size_bytes)], offsets), folder)
        return cls(folder, key, size_bytes, count, offsets.tolist())

    def targets(self, buffer: memoryview, first: int = 0, count: int | None = None) -> list[Target]:
        """Samples side by side in the buffer, from sample `first` on."""
        found, base = [], self.offsets[first]
        for number in range(first, self.count if count is None else min(self.count, first + count)):
            start, stop = self.offsets[number], self.offsets[number + 1]
            found.append((WantedSample(number, start, stop), [buffer[start - base : stop - base]]))
        return found

    def read(self, reader: ChunkReader, targets: list[Target]) -> None:
        """One call."""
        reader.read_into(self.key, self.size_bytes, self.count, targets)


class KeyLocks:
    """Several pieces of work in turn, round by round: what disturbs the machine disturbs all of them.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: dict[str, list[float]] = {}
        self._faults: dict[str, list[int]] = {}

    def run(self, rounds: int, **work: Callable[[], object]) -> None:
        """Times each piece so often; one that returns a float has timed itself."""
        for _ in range(rounds):
            for name, call in work.items():
                begun, faults = self._clock(), page_faults()
                told = call()
                taken = told if isinstance(told, float) else self._clock() - begun
                self._seconds.setdefault(name, []).append(taken)
                self._faults.setdefault(name, []).append(page_faults() - faults)

    def median(self, name: str) -> float:
        """Seconds."""
        return statistics.median(self._seconds[name])

    def faults(self, name: str) -> float:
        """Page faults of this thread, the median."""
        return statistics.median(self._faults[name])


def page_faults() -> int:
    """Of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def verdict(reached: bool) -> str:
    """Beside a figure."""
    return "reached" if reached else "MISSED"


def reading(folder: Path, rounds: int) -> list[str]:
    """The reader's CPU time per MiB, and the parts of it that are not its own."""
    chunk = Sample.write(folder, 8 * MiB)
    buffer = memoryview(bytearray(chunk.size_bytes))
    targets, reader = chunk.targets(buffer), ChunkReader([folder])
    descriptor, turns = os.open(chunk.folder.chunk_path(chunk.key), os.O_RDONLY), KeyLocks(time.thread_time)
    try:
        turns.run(
            rounds,
            copy=lambda: [os.preadv(descriptor, [buffer[at : at + MiB]], at) for at in range(0, len(buffer), MiB)],
            checksum=lambda: [crc32(pieces[0]) for _, pieces in targets],
            whole=lambda: chunk.read(reader, targets),
            alone=lambda: [chunk.read(reader, [one]) for one in targets],
        )
    finally:
        os.close(descriptor)
    mib = chunk.size_bytes / MiB
    copy, checksum, whole, alone = (turns.median(name) / mib * 1e6 for name in ("copy", "checksum", "whole", "alone"))
    own = whole - checksum
    return [
        f"reader, neighbours in one call  {whole:6.1f} us/MiB of CPU, of it checksum {checksum:.1f}, kernel's copy"
        f" {copy:.1f}; {turns.faults('whole') / mib:.2f} page faults/MiB",
        f"  without the checksum          {own:6.1f} us/MiB   bound {BOUND_MICROSECONDS:.0f}"
        f"   {verdict(own <= BOUND_MICROSECONDS)}   ({own - copy:.1f} beyond the copy)",
        f"reader, 100 KB samples alone    {alone:6.1f} us/MiB   ({(alone - whole) / 10:.1f} us more for each call:"
        " open, header, close)",
    ]


def beside_dd(folder: Path, rounds: int) -> list[str]:
    """The same file through the reader and through dd, in turn; dd into a MiB that is used again, the reader into four.

    The file is larger than any cache of the processor and than what the first touch of dd's buffer costs.
    """
    chunk = Sample.write(folder, LARGE_BYTES)
    path, reader = chunk.folder.chunk_path(chunk.key), ChunkReader([folder])
    # As many samples as the reader takes in one call of the kernel, each with a place of its own.
    places = RUN_BYTES // SAMPLE_BYTES + 1
    buffer = memoryview(bytearray(places * (SAMPLE_BYTES + 1)))
    targets = [one for at in range(0, chunk.count, places) for one in chunk.targets(buffer, at, places)]
    turns = KeyLocks(time.perf_counter)
    turns.run(
        rounds,
        dd=lambda: dd_seconds(path),
        reader=lambda: chunk.read(reader, targets),
        checksum=lambda: [crc32(pieces[0]) for _, pieces in targets],
    )
    dd, own, checksum = turns.median("dd"), turns.median("reader"), turns.median("checksum")
    ratio = dd / (own - checksum)
    return [
        f"dd bs=1M                        {chunk.size_bytes / dd / 1e9:6.2f} GB/s",
        f"reader, the file in one call    {chunk.size_bytes / own / 1e9:6.2f} GB/s with its checksums:"
        f" {dd / own:.0%} of dd; {turns.faults('reader'):.0f} page faults",
        f"  without the checksum          {ratio:6.0%} of dd   bound {BOUND_DD:.0%}   {verdict(ratio >= BOUND_DD)}",
    ]


def dd_seconds(path: Path) -> float:
    """What dd itself says, without its start."""
    told = subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"], check=True, capture_output=True, text=True)
    found = re.search(r"copied, ([\d.e-]+) s", told.stderr)
    assert found is not None, told.stderr
    return float(found[1])


class Consumer:
    """One session that reads as fast as the engine allows."""

    def __init__(self, engine: Engine, manifest: Manifest) -> None:
        self._manifest = manifest
        self._spec = OrderSpec.auto(manifest.digest, manifest.chunk_samples, BATCH, 17, True)
        self._news = asyncio.Event()
        self._error: StreamerError | None = None
        request = OpenSession(0, job="job", dataset=manifest.digest, consumer="rank 0")
        self._session: EngineSession = engine.open_session(request, self._on_ready, self._on_error)

    def _on_ready(self, through: int, rejects: int) -> None:
        self._news.set()

    def _on_error(self, error: StreamerError) -> None:
        self._error = error
        self._news.set()

    async def epoch(self, epoch: int) -> None:
        """All steps of one epoch; the next one is announced at its start."""
        if epoch == 0:
            self._extend(0)
        if epoch + 1 < EPOCHS:
            self._extend(epoch + 1)
        batches = self._plan(epoch).batches
        for step in range(epoch * batches, (epoch + 1) * batches):
            self._session.advance(step, step + 3)
            while self._session.progress.last_ready_step() < step:
                self._news.clear()
                await asyncio.wait_for(self._news.wait(), 60)
                if self._error is not None:
                    raise self._error

    def _plan(self, epoch: int) -> RankPlan:
        return RankPlan(EpochOrder(self._spec, self._manifest.chunk_samples, epoch), BATCH, 1, 0)

    def _extend(self, epoch: int) -> None:
        plan = self._plan(epoch)
        schedule, base = plan.schedule(), epoch * plan.batches
        self._session.extend(EpochSchedule(epoch, schedule.chunk, schedule.first + base, schedule.last + base), True)


async def epochs(folder: Path) -> list[str]:
    """What a warm epoch changes of the kept content, and what it writes."""
    random = np.random.default_rng(3)
    for number in range(FILES):
        path = folder / "data" / f"class{number % 8}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(20_000, 100_000))))
    total = sum(path.stat().st_size for path in (folder / "data").rglob("*.bin"))
    cache = CacheConfig(directory=folder / "cache", limit_bytes=total // 2, free_floor_bytes=0)
    async with Engine(EngineConfig(cache=cache, settle_seconds=0.0)) as engine:
        digest = await engine.manifest(GetManifest(0, [str(folder / "data")], "auto"), lambda text, done, total: None)
        manifest = Manifest.open(engine.cache.root / "manifests" / digest)
        consumer, after = Consumer(engine, manifest), []
        for epoch in range(EPOCHS):
            await consumer.epoch(epoch)
            after.append((engine.policy.statistics(), engine.cache.statistics()))
    promoted = np.diff([policy.promoted_chunks for policy, _ in after]) / manifest.chunks
    direct = np.diff([policy.admitted_kept_bytes for policy, _ in after]) / total
    written = np.diff([files.written_bytes for _, files in after]) / total
    kept = promoted + direct
    bound = 1 - (after[-1][0].limit_bytes - after[-1][0].staging_bytes) / total
    return [
        f"{manifest.chunks} chunks, {total / 1e6:.0f} MB, a cache of half: per warm epoch",
        f"  written to kept chunks        {', '.join(f'{share:.3%}' for share in kept)} of the data"
        f"   bound {BOUND_WRITTEN:.0%}   {verdict(kept.max() <= BOUND_WRITTEN)}",
        f"  written in all (the misses)   {', '.join(f'{share:.1%}' for share in written)} of the data"
        f"   (1 - hit bound: {bound:.1%})",
    ]


def main() -> None:
    """Runs everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where the files go")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    with kept("cache_read"), tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for measure, name in ((reading, "small"), (beside_dd, "large")):
            with PageCache(arguments.folder) as memory:
                memory.fill()
                print(*measure(Path(folder) / name, arguments.rounds), "", sep="\n")
        print(*asyncio.run(epochs(Path(folder))), sep="\n")


if __name__ == "__main__":
    main()
