"""What a busy recoder costs the engine beside it: its loop's delays, and the CPU of handing chunks over.

    python benchmarks/recoder.py [--samples 2000] [--seconds 10] [--rounds 5]

Parquet files of 110 KB images; one recoder recodes their chunks again and again. In turn, `--rounds` times, the loop
sleeps for a millisecond for `--seconds`: with the recoder idle, beside a process that counts and has nothing to do
with it, and with the recoder busy all the time. Printed is how late the loop wakes up, the median of the rounds, and
how late without the time that its thread waited for a core, as the kernel counts it (`schedstat`); on a busy machine
that still has the time that a thread with the GIL waited for one. Hand-over is the CPU of this process per GB fetched:
into the recoder's memory, and the look at what it made; publishing is not in it. Results are kept in
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop
from bounds import Bounds
from formats import Disk, content_of
from formats_data import WAYS, make
from report import kept

from streamer.manifest.builder.build import BuildOptions, build
from streamer.manifest.model import Chunk
from streamer.manifest.table import Manifest
from streamer.recode.messages import Job
from streamer.recode.pool import RecoderPool

SAMPLE_BYTES = 110_000
CHUNK_BYTES = 8 << 20


class Work:
    """The chunks of a dataset, fetched."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.chunks: list[tuple[Chunk, Sequence[bytes]]] = []
        for number in range(manifest.chunks):
            chunk = manifest.chunk(number)
            self.chunks.append((chunk, [content_of(extent) for extent in chunk.extents]))
        self.nbytes = sum(chunk.fetch_bytes for chunk, _ in self.chunks)

    async def once(self, pool: RecoderPool) -> None:
        for chunk, parts in self.chunks:
            job = Job.of(self._manifest, chunk)
            async with pool.recode(job, chunk, parts, due=lambda: 0.0):
                pass

    async def always(self, pool: RecoderPool) -> None:
        while True:
            await self.once(pool)


class Late(NamedTuple):
    """The 99th percentile of the milliseconds that the loop wakes up late.

    Attributes:
        all: of them.
        own: without waiting for a core.
    """

    all: float
    own: float


def waited_seconds() -> float:
    """For how long this thread was ready to run and had no core."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


async def delays(seconds: float) -> Late:
    late, loop = [], asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        waited, begun = waited_seconds(), time.perf_counter()
        await asyncio.sleep(0.001)
        spent = time.perf_counter() - begun - 0.001
        late.append((spent, spent - (waited_seconds() - waited)))
    return Late(*(np.percentile(late, 99, axis=0) * 1000))


async def measure(work: Work, seconds: float, rounds: int) -> tuple[dict[str, list[Late]], list[float]]:
    late: dict[str, list[Late]] = {"idle": [], "counting": [], "busy": []}
    handed = []
    async with RecoderPool(None, most=1) as pool:
        await work.once(pool)
        for _ in range(rounds):
            late["idle"].append(await delays(seconds))
            late["counting"].append(await beside_counting(seconds))
            task = asyncio.create_task(work.always(pool))
            late["busy"].append(await delays(seconds))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            begun = time.process_time()
            await work.once(pool)
            handed.append((time.process_time() - begun) / work.nbytes * 1e9)
    return late, handed


async def beside_counting(seconds: float) -> Late:
    """Beside a process that only uses a core, in a session of its own as a recoder."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass", start_new_session=True)
    try:
        return await delays(seconds)
    finally:
        process.kill()
        await process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    way = next(way for way in WAYS if way.name == "parquet")
    with tempfile.TemporaryDirectory(dir="/tmp") as name, kept("recoder", f"{arguments.samples} images of 110 KB"):
        root = Path(name)
        make(root / "data", way, arguments.samples, SAMPLE_BYTES)
        chosen, disk = way.format(SAMPLE_BYTES), Disk()
        options = BuildOptions(chunk_bytes=CHUNK_BYTES)
        building = build(
            str(root / "data"),
            root / "manifest",
            lister=disk,
            reader=disk,
            choose_format=lambda names: chosen,
            options=options,
        )
        work = Work(asyncio.run(building))
        late, handed = uvloop.run(measure(work, arguments.seconds, arguments.rounds))
        print(f"{len(work.chunks)} chunks, {work.nbytes / 1e6:.0f} MB")
        middle = {beside: Late(*np.median(found, axis=0)) for beside, found in late.items()}
        for beside, found in middle.items():
            print(f"loop late, 99 %, {beside:8} {found.all:.3f} ms, without waiting for a core {found.own:.3f} ms")
        print(f"hand-over: {statistics.median(handed):.3f} CPU s/GB")
        bounds = Bounds()
        bounds.add("late with a busy recoder, of idle", middle["busy"].all / middle["idle"].all, 1.3)
        bounds.add("the same without waiting for a core", middle["busy"].own / middle["idle"].own, 1.3)
        bounds.add(
            "late with a busy recoder, of late beside counting", middle["busy"].all / middle["counting"].all, 1.3
        )
        bounds.add("hand-over, CPU s/GB", statistics.median(handed), 0.2)
        bounds.report()


if __name__ == "__main__":
    main()
