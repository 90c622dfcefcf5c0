"""One node at the rate of its network: what the engine's loop takes of its core, by the number of fetch processes.

    python benchmarks/scaleup.py                                   all rows, about ten minutes
    python benchmarks/scaleup.py --data tars raw --processes 0 4   some of them
    python benchmarks/scaleup.py --tls                             over TLS

A cold epoch of 1.1 GB (10,000 samples of 110 KB) into an engine with an empty cache, as tars that are cut into chunks
of 2 MB, and as raw objects; a reader releases each chunk as soon as it is local. The simulator runs on the same cores
and delays nothing. The loop's CPU seconds are what bounds a larger machine: they are counted from the moment when all
processes take chunks until the last chunk is local, and so are those of the engine (its loop and its threads) and of
the fetch processes. `--warm` measures uses of chunks that are in the cache: by one session, and by eight; `--rationed`
a store that permits 100 or 200 requests per second; `--memory` what processes take where all buffers may have 128 MiB;
`--loaders` warm epochs of 1 and 8 ranks with a worker each, in batches of 32: the loop's time per step and per use of a
chunk, with progress, leases and schedules in it.
Medians over `--turns`. Results are kept in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from bytecode import compile_streamer
from memory import bring
from report import kept
from s3sim import Simulator, simulator
from stream import make_data

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings
from streamer.manifest.table import Manifest
from streamer.wire.messages import GetManifest, OpenSession
from streamer.wire.schedule import EpochSchedule

CHUNK_BYTES = 2_000_000
NAMES = {"tars": "train", "raw": "raw"}


@dataclass(frozen=True)
class Row:
    """One cold epoch.

    Attributes:
        gigabytes: of all chunks. chunks, samples: how many.
        seconds: that it took.
        loop_seconds: CPU time of the engine's loop.
        engine_seconds: of the engine's process.
        process_seconds: of all fetch processes.
        memory_bytes: of the largest fetch process beside its buffers (PSS).
    """

    gigabytes: float
    chunks: int
    samples: int
    seconds: float
    loop_seconds: float
    engine_seconds: float
    process_seconds: float
    memory_bytes: float

    @property
    def all_seconds(self) -> float:
        """CPU time of engine and fetch processes."""
        return self.engine_seconds + self.process_seconds


@contextmanager
def engine(root: Path, server: Simulator | None, processes: int, more: str = "") -> Iterator[EngineClient]:
    """An engine with an empty cache, this many fetch processes, all of which take chunks, and `more` configuration."""
    folder = Path(tempfile.mkdtemp(prefix="scaleup-", dir=root))
    config = folder / "streamer.toml"
    config.write_text(f"[engine]\nfetch_processes = {processes}\n{more}")
    settings = ClientSettings(
        cache_dir=folder / "cache",
        runtime_dir=folder,
        storage_options={} if server is None else server.options,
        config=config,
        grace_seconds=0.1,
    )
    try:
        with EngineClient(settings) as client:
            while int(str(client.statistics()["fetch_processes"])) < processes:
                time.sleep(0.05)
            yield client
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read(client: EngineClient, manifest: Manifest, epoch: int, rank: int = 0, *, seconds: float = math.inf) -> None:
    """Reads an epoch, for so many seconds at most: one chunk a step, which is done as soon as it is ready."""
    end = time.monotonic() + seconds
    session = client.open_session(OpenSession(0, "", dataset=manifest.digest, consumer=f"rank {rank}"))
    steps = np.arange(manifest.chunks, dtype=np.int64)
    order = np.roll(np.arange(manifest.chunks, dtype=np.uint32), rank * manifest.chunks // 8)
    session.extend(EpochSchedule(epoch, order, steps, steps))
    session.want(manifest.chunks - 1)
    for step in range(manifest.chunks):
        if time.monotonic() < end:
            session.wait(step, 120)
            session.done(step + 1)
    session.close()


def cold(root: Path, server: Simulator, name: str, processes: int) -> Row:
    """One cold epoch."""
    with engine(root, server, processes) as client:
        table = opened(client, root, name)
        memory_bytes = max(map(_own_bytes, fetch_processes(client)), default=0)
        before, began = client.statistics(), time.perf_counter()
        read(client, table, 0)
        seconds = time.perf_counter() - began
        time.sleep(1.2)  # until the last reports of all processes
        after = client.statistics()
        loop, engine_process, others = (float(str(after[name])) - float(str(before[name])) for name in _CPU)
        return Row(
            gigabytes=float(table.chunk_local_bytes.sum()) / 1e9,
            chunks=table.chunks,
            samples=table.samples,
            seconds=seconds,
            loop_seconds=loop,
            engine_seconds=engine_process,
            process_seconds=others,
            memory_bytes=memory_bytes,
        )


_CPU = ("loop_cpu_seconds", "cpu_seconds", "fetch_process_cpu_seconds")


def opened(client: EngineClient, root: Path, name: str) -> Manifest:
    """The manifest of one kind of data, in an engine that has nothing else of it."""
    request = GetManifest(
        0, [url_of(name)], "auto", client.settings.encode_options(), manifest=str(root / f"manifest-{name}")
    )
    return Manifest.open(client.manifest(request))


def url_of(name: str) -> str:
    """Where one kind of data lies."""
    return f"s3://bucket/{NAMES[name]}/"


def fetch_processes(client: EngineClient) -> list[psutil.Process]:
    """The fetch processes of an engine."""
    children = psutil.Process(int(str(client.statistics()["pid"]))).children()
    return [child for child in children if "streamer.engine.processes" in child.cmdline()]


def _own_bytes(process: psutil.Process) -> int:
    """PSS of a process; before its first chunk it has no buffers."""
    return sum(one.pss for one in process.memory_maps(grouped=False))


def memory(root: Path, server: Simulator, name: str, processes: int) -> str:
    """A cold epoch whose buffers may have `BUFFER_BYTES` in all: what they have, and the processes beside them.

    Buffers are the mappings for which huge pages were asked. Their sizes are rounded up, by a quarter at most.
    """
    with engine(root, server, processes, f"[fetch]\nmemory_bytes = {BUFFER_BYTES}\n") as client:
        table, reader = opened(client, root, name), EngineClient(client.settings)
        pids = [int(str(client.statistics()["pid"])), *(process.pid for process in fetch_processes(client))]
        reading = threading.Thread(target=read, args=(reader, table, 0))
        reading.start()
        buffers = beside = 0
        while reading.is_alive():
            found = [_mapped_bytes(pid) for pid in pids]
            buffers = max(buffers, sum(one for one, _ in found))
            beside = max([beside, *(one for _, one in found[1:])])
            time.sleep(0.1)
        reader.close()
        time.sleep(1.2)  # until the last reports of all processes
        reserved = int(str(client.statistics()["reserved_peak_bytes"]))
    holds = reserved <= BUFFER_BYTES and buffers <= 1.25 * BUFFER_BYTES and beside <= MOST_BESIDE_BYTES
    return (
        f"{name:6} {processes} processes: {reserved / 1e6:.0f} MB reserved (<= {BUFFER_BYTES / 1e6:.0f}), "
        f"{buffers / 1e6:.0f} MB of buffers at once (<= {1.25 * BUFFER_BYTES / 1e6:.0f}), "
        f"a process {beside / 1e6:.0f} MB beside them (<= {MOST_BESIDE_BYTES / 1e6:.0f})  "
        f"{'holds' if holds else 'MISSED'}"
    )


BUFFER_BYTES, MOST_BESIDE_BYTES = 128 << 20, 40_000_000


def _mapped_bytes(pid: int) -> tuple[int, int]:
    """PSS of a process: its buffers, and the rest."""
    found, pss = [0, 0], 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *values = line.split()
        if name == "Pss:":
            pss = int(values[0]) << 10
        elif name == "VmFlags:":
            found["hg" not in values] += pss
    return found[0], found[1]


def warm(root: Path, server: Simulator, ranks: int) -> float:
    """CPU microseconds of the loop per use of a chunk, and per step and rank, with all chunks in the cache."""
    with engine(root, server, 0) as client:
        table = opened(client, root, "tars")
        read(client, table, 0)
        clients = [EngineClient(client.settings) for _ in range(ranks)]
        before = float(str(client.statistics()["loop_cpu_seconds"]))
        threads = [threading.Thread(target=read, args=(one, table, 1, rank)) for rank, one in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(0.6)  # the loop's clock is read twice a second
        spent = float(str(client.statistics()["loop_cpu_seconds"])) - before
        for one in clients:
            one.close()
        return spent / (ranks * table.chunks) * 1e6


def loaders(root: Path, server: Simulator, ranks: int, epochs: int) -> tuple[float, float]:
    """CPU microseconds of the loop per step and rank, and per use of a chunk, of loaders in a warm cache."""
    with engine(root, server, 0) as client, contextlib.ExitStack() as stack:
        told = {
            "url": url_of("tars"),
            "manifest": str(root / "manifest-tars"),
            "cache": str(client.settings.cache_dir),
            "options": server.options,
            "epochs": epochs,
        }
        variables = {"STREAMER_RUNTIME_DIR": str(client.settings.runtime_dir), "WORLD_SIZE": str(ranks)}
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "--rank", json.dumps(told)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )
            for rank in range(ranks)
        ]

        def passed(process: subprocess.Popen[str]) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        def all_passed() -> int:
            with ThreadPoolExecutor(ranks) as threads:
                return sum(threads.map(passed, processes))

        all_passed()
        time.sleep(0.6)  # the loop's clock is read twice a second
        before = client.statistics()
        steps = all_passed()
        time.sleep(0.6)
        spent, uses = (float(str(client.statistics()[name])) - float(str(before[name])) for name in _WARM)
        all_passed()
        return spent / steps * 1e6, spent / uses * 1e6


_WARM = ("loop_cpu_seconds", "needs")
BATCH = 32


def run_rank(told: dict[str, Any]) -> None:
    """One rank: an epoch, then `epochs` more; each begins at a line on stdin and ends with the number of its steps."""
    from streamer import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        told["url"],
        manifest=told["manifest"],
        cache_dir=told["cache"],
        storage_options=told["options"],
        decode=None,
    )
    with StreamingDataLoader(dataset, BATCH, 1, report_every=None) as loader:
        for epochs in (1, told["epochs"], 0):
            sys.stdin.readline()
            print(sum(1 for _ in range(epochs) for _ in loader), flush=True)


def rationed(root: Path, server: Simulator, processes: int, permitted: int) -> str:
    """A store that permits so many requests a second: what is used of it, and what it refuses, from the 10th second on.

    The bounds are those of `fetch_faults.py`: at least 0.9 of the rate, at most 1 % refused.
    """
    told = json.dumps({"upstream": server.endpoint, "per_second": permitted, "known_after": RATION_KNOWN_SECONDS})
    command = [sys.executable, str(Path(__file__).with_name("rationed_store.py")), told]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as store:
        assert store.stdout is not None
        assert store.stdin is not None
        front = replace(server, endpoint=store.stdout.readline().strip())
        with engine(root, front, processes) as client:
            read(client, opened(client, root, "raw"), 0, seconds=RATION_KNOWN_SECONDS + RATION_SECONDS)
        store.stdin.close()
        counted = json.loads(store.stdout.read())
    used = counted["late_granted"] / RATION_SECONDS / permitted
    refused = counted["late_refused"] / max(1, counted["late_refused"] + counted["late_granted"])
    verdict = "holds" if used >= 0.9 and refused <= 0.01 else "MISSED"
    return (
        f"{permitted}/s permitted, {processes} processes: {used:.2f} of it used (>= 0.9), {refused:.1%} refused, "
        f"{counted['refused'] - counted['late_refused']} before  {verdict}"
    )


RATION_KNOWN_SECONDS, RATION_SECONDS = 10, 40

# ---------------------------------------------------------------- the comparison

HEAD = (
    f"{'data':6} {'processes':>9} {'GB/s':>6} {'loop s/GB':>10} {'us/chunk':>9} {'us/sample':>10} "
    f"{'all s/GB':>9} {'to 0':>6} {'MB each':>8}"
)


def line(name: str, processes: int, rows: list[Row], alone: float) -> str:
    """The medians of one configuration; `alone`: CPU seconds of all processes per GB without fetch processes."""

    def middle(of: Callable[[Row], float]) -> float:
        return statistics.median(map(of, rows))

    every = middle(lambda row: row.all_seconds / row.gigabytes)
    return (
        f"{name:6} {processes:9} {middle(lambda row: row.gigabytes / row.seconds):6.2f} "
        f"{middle(lambda row: row.loop_seconds / row.gigabytes):10.3f} "
        f"{middle(lambda row: row.loop_seconds / row.chunks * 1e6):9.0f} "
        f"{middle(lambda row: row.loop_seconds / row.samples * 1e6):10.1f} "
        f"{every:9.2f} {every / (alone or every):6.2f} {middle(lambda row: row.memory_bytes / 1e6):8.0f}"
    )


def compare(arguments: argparse.Namespace, root: Path, server: Simulator) -> None:
    """A curve for each kind of data."""
    print(HEAD)
    for name in arguments.data:
        bring((root / "bucket" / NAMES[name]).rglob("*.*"))
        turns: dict[int, list[Row]] = {processes: [] for processes in arguments.processes}
        for _ in range(arguments.turns):
            for processes, rows in turns.items():
                rows.append(cold(root, server, name, processes))
        alone = statistics.median(row.all_seconds / row.gigabytes for row in turns.get(0, [])) if 0 in turns else 0.0
        for processes, rows in turns.items():
            print(line(name, processes, rows, alone))


def prepared(root: Path, samples: int) -> None:
    """The data: tars, and the same samples as objects."""
    if not (root / "bucket").exists():
        make_data(root, samples)
        os.rename(root / "files", root / "bucket" / "raw")


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--processes", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--rationed", action="store_true")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--loaders", action="store_true")
    parser.add_argument("--permitted", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--keep", help="folder for the data, kept for the next run")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--s3sim", help="path of another simulator's command; default $S3SIM, else this folder's")
    arguments = parser.parse_args()
    if arguments.rank:
        run_rank(json.loads(arguments.rank))
        return
    compile_streamer()
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="streamer-bench-"))
    try:
        prepared(root, arguments.samples)
        with simulator(root, command=arguments.s3sim, tls=arguments.tls) as server:
            for name in arguments.data:
                manifest, cache = root / f"manifest-{name}", root / "index-cache"
                server.index(url_of(name), manifest, cache, "--chunk-bytes", str(CHUNK_BYTES))
            modes = [name for name in ("rationed", "warm", "memory", "loaders", "tls") if getattr(arguments, name)]
            with kept("-".join(["scaleup", *modes])):
                if arguments.rationed:
                    for permitted, processes in itertools.product(arguments.permitted, arguments.processes):
                        print(rationed(root, server, processes, permitted))
                elif arguments.memory:
                    for name, processes in itertools.product(arguments.data, arguments.processes):
                        print(memory(root, server, name, processes))
                elif arguments.loaders:
                    for ranks in (1, 8):
                        found = [loaders(root, server, ranks, 3) for _ in range(arguments.turns)]
                        step, use = map(statistics.median, zip(*found, strict=True))
                        print(
                            f"{ranks} ranks: {step:.0f} us of the loop per step and rank, {use:.0f} per use of a chunk"
                        )
                elif arguments.warm:
                    for ranks in (1, 8):
                        spent = statistics.median(warm(root, server, ranks) for _ in range(arguments.turns))
                        print(f"{ranks} ranks: {spent:.0f} us of the loop per use of a chunk, one chunk a step")
                else:
                    compare(arguments, root, server)
    finally:
        if not arguments.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
