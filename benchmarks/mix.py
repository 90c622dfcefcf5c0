"""A mix of two equal datasets beside one dataset of the same samples, warm, from the local disk.

    python benchmarks/mix.py [--samples 4000] [--workers 2] [--rounds 5] [--members 5]

Samples of 110 KB in tars, raw bytes, batch 64, everything in the cache. In turn, `--rounds` times, each in a process
of its own: one dataset of all tars, a mix of its two halves, and a mix of `--members` parts. Each trainer makes two
epochs to warm up, in which all slots are touched, and five that count. The medians are printed: samples per second,
CPU milliseconds of rank and workers per sample, the workers' page faults and the handoff per batch, and the first batch
of a process whose manifests are known.
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


def cpu_seconds() -> float:
    """Of this process and its workers, which are alive."""
    ticks = 0
    pids, found = [os.getpid()], []
    while pids:
        pid = pids.pop()
        found.append(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += [int(child) for child in (task / "children").read_text().split()]
    for pid in found:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"embedded" not in command:  # the engine is the same for all
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(parts: int, tars: list[str], workers: int) -> dict[str, float]:
    """One trainer."""
    from streamer import MixedDataset, StreamingDataLoader, StreamingDataset

    cuts = np.linspace(0, len(tars), parts + 1).astype(int)
    pieces = [tars[start:stop] for start, stop in itertools.pairwise(cuts)]
    options: dict[str, object] = {"decode": None, "cache_bytes": "8GB"}
    members = [StreamingDataset(piece, **options) for piece in pieces]  # type: ignore[arg-type]
    named = {f"part{number}": member for number, member in enumerate(members)}
    data = members[0] if parts == 1 else MixedDataset(named, source_key=None)
    with StreamingDataLoader(data, BATCH, workers) as loader:
        begun = time.perf_counter()
        next(iter(loader))
        first = time.perf_counter() - begun
        for _ in itertools.chain(loader, loader):
            pass
        before, cpu, begun, samples = loader.stats(), cpu_seconds(), time.perf_counter(), 0
        for batch in itertools.chain.from_iterable(itertools.repeat(loader, 5)):
            samples += len(batch["jpg"])
        seconds, cpu, after = time.perf_counter() - begun, cpu_seconds() - cpu, loader.stats()
    batches = after.batches - before.batches
    return {
        "samples/s": samples / seconds,
        "CPU ms / sample": 1000 * cpu / samples,
        "faults / batch": (after.worker_faults - before.worker_faults) / batches,
        "handoff ms": 1000 * (after.handoff_seconds - before.handoff_seconds) / batches,
        "first batch ms": 1000 * first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        task = json.loads(arguments.run)
        print(json.dumps(run(task["parts"], task["tars"], arguments.workers)))
        return
    compile_streamer()
    kinds = {1: "one dataset", 2: "mix of 2", arguments.members: f"mix of {arguments.members}"}
    found: dict[int, list[dict[str, float]]] = {parts: [] for parts in kinds}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, kept("mix"):
        data = Path(folder, "data")
        data.mkdir()
        make_data(data, arguments.samples)
        tars = sorted(map(str, data.iterdir()))
        environment = {**os.environ, "STREAMER_CACHE_DIR": f"{folder}/cache", "STREAMER_RUNTIME_DIR": f"{folder}/run"}
        for turn in range(arguments.rounds + 1):
            for parts in kinds:
                task = json.dumps({"parts": parts, "tars": tars})
                command = [sys.executable, __file__, "--workers", str(arguments.workers), "--run", task]
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                if turn:  # the first one fills the cache
                    found[parts].append(json.loads(done.stdout))
        names = list(found[1][0])
        print(f"{arguments.samples} samples, {arguments.workers} workers, median of {arguments.rounds}")
        print(f"{'':<14}" + "".join(f"{name:>16}" for name in names))
        for parts, label in kinds.items():
            row = [statistics.median(one[name] for one in found[parts]) for name in names]
            print(f"{label:<14}" + "".join(f"{value:>16,.4g}" for value in row))


if __name__ == "__main__":
    main()
