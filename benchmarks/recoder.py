"""What a busy recoder costs the engine beside it: its loop's delays, and the CPU of handing chunks over.

    python benchmarks/recoder.py [--samples 2000] [--seconds 10] [--rounds 5]

Parquet files of 110 KB images; one recoder recodes their chunks again and again, from memory. A process sends the loop
a message every millisecond. In turn, `--rounds` times, for `--seconds` each: with the recoder idle, beside a process
that has nothing to do with it (it copies 8 MiB for 6 ms, about a recoder's time for a chunk, and answers the loop),
and with the recoder busy all the time. Printed is how long a message waits for the loop, the median of the rounds.
Hand-over is the CPU of this process per GB fetched: job, answer and the look at what the recoder made; publishing is
not in it. Results are kept in benchmarks/results/.

A timer of the loop would not do as a clock: it is due at whole milliseconds, and every other event that the loop
handles before puts it off by up to one more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import uvloop
from bounds import Bounds
from formats import Disk, content_of
from formats_data import WAYS, make
from report import kept

from streamer.fetch.fetcher import Fetched
from streamer.fetch.memory_budget import BufferPool, ChunkBuffer
from streamer.indexing.build import BuildOptions, build
from streamer.manifest.model import Chunk
from streamer.manifest.table import Manifest
from streamer.recode.messages import RecodeJob
from streamer.recode.pool import RecoderPool

SAMPLE_BYTES = 110_000
CHUNK_BYTES = 8 << 20
SENDER = """
import socket, sys, time
messages = socket.socket(fileno=int(sys.argv[1]))
while True:
    time.sleep(0.001)
    messages.send(time.monotonic_ns().to_bytes(8, "little"))
"""
COPIER = f"""
import socket, sys, time
import numpy as np
asked, source = socket.socket(fileno=int(sys.argv[1])), np.ones({CHUNK_BYTES}, np.uint8)
target = source.copy()
while asked.recv(16):
    end = time.monotonic() + 0.006
    while time.monotonic() < end:
        np.copyto(target, source)
    asked.send(b"copied")
"""


class Work:
    """The chunks of a dataset, in memory as the fetcher leaves them.

    Args:
        manifest: of the dataset.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self.chunks: list[tuple[Chunk, ChunkBuffer]] = []
        pool = BufferPool(1 << 40)
        for number in range(manifest.chunks):
            chunk = manifest.chunk(number)
            buffer = ChunkBuffer(pool, chunk.fetch_bytes, shared=True)
            buffer.view()[:] = b"".join(content_of(extent) for extent in chunk.extents)
            self.chunks.append((chunk, buffer))
        self.nbytes = sum(chunk.fetch_bytes for chunk, _ in self.chunks)

    async def once(self, pool: RecoderPool) -> None:
        for chunk, buffer in self.chunks:
            job = RecodeJob.make(self._manifest, chunk)
            async with pool.recode(job, chunk, Fetched(buffer, lambda given: None).content, due=lambda: 0.0):
                pass


@contextlib.asynccontextmanager
async def child(code: str) -> AsyncIterator[socket.socket]:
    """A process that talks to the loop, in a session of its own as a recoder, and our end of its socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    number = str(theirs.fileno())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, number, pass_fds=[theirs.fileno()], start_new_session=True
    )
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        await process.wait()
        ours.close()


async def delays(seconds: float) -> float:
    """The 99th percentile of the milliseconds that a message waits for the loop."""
    loop, waited = asyncio.get_running_loop(), []
    async with child(SENDER) as messages:

        def take() -> None:
            sent = int.from_bytes(messages.recv(8), "little")
            waited.append(time.monotonic_ns() - sent)

        await loop.sock_recv(messages, 8)
        loop.add_reader(messages, take)
        await asyncio.sleep(seconds)
        loop.remove_reader(messages)
    return float(np.percentile(waited, 99)) / 1e6


async def answers(work: Work, pool: RecoderPool) -> None:
    """Of the process that copies."""
    loop = asyncio.get_running_loop()
    async with child(COPIER) as copier:
        while True:
            async with asyncio.timeout(60):
                await loop.sock_sendall(copier, b"copy")
                await loop.sock_recv(copier, 16)


async def idle(work: Work, pool: RecoderPool) -> None:
    """Nothing."""


async def busy(work: Work, pool: RecoderPool) -> None:
    """Chunks without end."""
    while True:
        await work.once(pool)


BESIDE = {"idle": idle, "copying": answers, "busy": busy}


async def measure(work: Work, seconds: float, rounds: int) -> tuple[dict[str, list[float]], list[float]]:
    late: dict[str, list[float]] = {name: [] for name in BESIDE}
    handed = []
    async with RecoderPool(None, most=1) as pool:
        await work.once(pool)
        for _ in range(rounds):
            for name, beside in BESIDE.items():
                task = asyncio.create_task(beside(work, pool))
                late[name].append(await delays(seconds))
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            begun = time.process_time()
            await work.once(pool)
            handed.append((time.process_time() - begun) / work.nbytes * 1e9)
    return late, handed


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
        middle = {beside: statistics.median(found) for beside, found in late.items()}
        for beside, found in middle.items():
            print(f"a message waits for the loop, 99 %, {beside:8} {found:.3f} ms")
        print(f"hand-over: {statistics.median(handed):.3f} CPU s/GB")
        bounds = Bounds()
        bounds.add("wait with a busy recoder, of idle", middle["busy"] / middle["idle"], 1.3)
        bounds.add("wait with a busy recoder, of beside copying", middle["busy"] / middle["copying"], 1.3)
        bounds.add("hand-over, CPU s/GB", statistics.median(handed), 0.2)
        bounds.report()


if __name__ == "__main__":
    main()
