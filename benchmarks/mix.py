"""A mix of two equal datasets beside one dataset of the same samples, warm, from the local disk.

    python benchmarks/mix.py [--samples 10000] [--workers 2] [--rounds 5] [--members 5] [--chunk-bytes 2MiB]

The samples of `stream.py`: 110 KB in tars, raw bytes, batch 64, everything in the cache. In turn, `--rounds` times,
each in a process of its own: one dataset of all tars, a mix of its two halves, and a mix of `--members` parts. Each
trainer makes two epochs to warm up, in which all slots are touched, and five that count. The medians are printed:
samples per second, CPU milliseconds of all processes per sample and those of the engine, the workers' page faults and
the handoff per batch, and the first batch of a process whose manifests are known.
All are indexed with the same chunks. With `--chunk-bytes auto` a small dataset gets smaller ones, so that it mixes: the
two halves have twice as many chunks as the whole, and the table shows what that costs, too.
Prints a table and keeps it in benchmarks/results/mix-<date>.txt.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from bytecode import compile_streamer
from report import kept
from stream import _add

BATCH = 64
SHARD_SAMPLES = 200


def make_data(root: Path, samples: int) -> None:
    """Tars of equal numbers of samples."""
    import tarfile

    random = np.random.default_rng(1)
    sizes = np.clip(random.lognormal(np.log(105_000), 0.3, samples), 20_000, 400_000).astype(int)
    for first in range(0, samples, SHARD_SAMPLES):
        with tarfile.open(root / f"{first // SHARD_SAMPLES:04}.tar", "w") as tar:
            for number in range(first, min(first + SHARD_SAMPLES, samples)):
                _add(tar, f"{number:06}.jpg", random.bytes(int(sizes[number])))


def cpu_seconds(engine: int) -> tuple[float, float]:
    """Of this process, its workers and the engine; and of the engine."""
    import psutil

    me, served = psutil.Process(), psutil.Process(engine)
    ours = {me, served, *me.children(recursive=True)}
    return sum(sum(one.cpu_times()[:2]) for one in ours), sum(served.cpu_times()[:2])


def run(pieces: list[list[str]], manifests: list[str | None], workers: int) -> dict[str, float]:
    """One trainer."""
    from streamer import MixedDataset, StreamingDataLoader, StreamingDataset
    from streamer.client.connection import read_statistics
    from streamer.client.settings import ClientSettings

    members = [
        StreamingDataset(piece, decode=None, cache_bytes="8GB", manifest=manifest)
        for piece, manifest in zip(pieces, manifests, strict=True)
    ]
    named = {f"part{number}": member for number, member in enumerate(members)}
    data = members[0] if len(pieces) == 1 else MixedDataset(named, source_key=None)
    with StreamingDataLoader(data, BATCH, workers) as loader:
        begun = time.perf_counter()
        next(iter(loader))
        first = time.perf_counter() - begun
        for _ in itertools.chain(loader, loader):
            pass
        engine = int(str((read_statistics(ClientSettings.from_environment(), 5.0) or {})["pid"]))
        before, cpu, begun, samples = loader.stats(), cpu_seconds(engine), time.perf_counter(), 0
        for batch in itertools.chain.from_iterable(itertools.repeat(loader, 5)):
            samples += len(batch["jpg"])
        seconds, spent, after = time.perf_counter() - begun, cpu_seconds(engine), loader.stats()
    batches = after.batches - before.batches
    return {
        "samples/s": samples / seconds,
        "CPU ms / sample": 1000 * (spent[0] - cpu[0]) / samples,
        "of the engine": 1000 * (spent[1] - cpu[1]) / samples,
        "faults / batch": (after.worker_faults - before.worker_faults) / batches,
        "handoff ms": 1000 * (after.handoff_seconds - before.handoff_seconds) / batches,
        "first batch ms": 1000 * first,
    }


def index(pieces: list[list[str]], folder: Path, chunk_bytes: str) -> list[str | None]:
    """The manifest of each piece; None: of chunks as they are chosen at first use."""
    if chunk_bytes == "auto":
        return [None] * len(pieces)
    manifests = [folder / f"manifest-{len(pieces)}-{number}" for number in range(len(pieces))]
    for piece, manifest in zip(pieces, manifests, strict=True):
        command = [sys.executable, "-m", "streamer", "index", *piece, "--out", str(manifest)]
        subprocess.run([*command, "--chunk-bytes", chunk_bytes], check=True, capture_output=True)
    return list(map(str, manifests))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--chunk-bytes", default="2MiB")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(**json.loads(arguments.run))))
        return
    compile_streamer()
    kinds = {1: "one dataset", 2: "mix of 2", arguments.members: f"mix of {arguments.members}"}
    found: dict[int, list[dict[str, float]]] = {parts: [] for parts in kinds}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, kept("mix"):
        data = Path(folder, "data")
        data.mkdir()
        make_data(data, arguments.samples)
        tars = sorted(map(str, data.iterdir()))
        os.environ |= {"STREAMER_CACHE_DIR": f"{folder}/cache", "STREAMER_RUNTIME_DIR": f"{folder}/run"}
        tasks = {}
        for parts in kinds:
            cuts = np.linspace(0, len(tars), parts + 1).astype(int)
            pieces = [tars[start:stop] for start, stop in itertools.pairwise(cuts)]
            manifests = index(pieces, Path(folder), arguments.chunk_bytes)
            tasks[parts] = json.dumps({"pieces": pieces, "manifests": manifests, "workers": arguments.workers})
        for turn in range(arguments.rounds + 1):
            for parts in kinds:
                command = [sys.executable, __file__, "--run", tasks[parts]]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                if turn:  # the first one fills the cache
                    found[parts].append(json.loads(done.stdout))
        names = list(found[1][0])
        what = f"{arguments.samples} samples, chunks of {arguments.chunk_bytes}, {arguments.workers} workers"
        print(f"{what}, median of {arguments.rounds}")
        print(f"{'':<14}" + "".join(f"{name:>16}" for name in names))
        for parts, label in kinds.items():
            row = [statistics.median(one[name] for one in found[parts]) for name in names]
            print(f"{label:<14}" + "".join(f"{value:>16,.4g}" for value in row))


if __name__ == "__main__":
    main()
