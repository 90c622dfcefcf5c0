"""A mix of many small members beside one dataset of the same samples: start, epoch and memory.

    python benchmarks/mix_members.py [--members 200] [--samples 1000] [--workers 2] [--rounds 2]

Tars of `--samples` samples of 2 KB, one for each member, raw bytes, batch 256, from the local disk. In turn, each in a
process of its own: one dataset of all tars, and a mix of one dataset for each. Three starts: `index`, where the cache
folder is new; `engine starts`, where it has the manifests; and `engine runs`, where an engine serves them already.
The trainer makes two epochs. Printed are medians: seconds of `iter()` and to the first batch after it; CPU seconds of
all processes up to there (of an engine that runs, since its start); seconds and CPU seconds of the second epoch; and at
its end the proportional set size of rank, workers and engine. Prints a table and keeps it in
benchmarks/results/mix_members-<date>.txt. A round takes two minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
from bytecode import compile_streamer
from first_batch import await_end, engine_running
from report import kept
from stream import _add

BATCH = 256
SAMPLE_BYTES = 2_000
STARTS = ("index", "engine starts", "engine runs")
ROLES = ("rank", "workers", "engine")


def make_data(root: Path, members: int, samples: int) -> None:
    """One tar for each member."""
    random = np.random.default_rng(1)
    for member in range(members):
        with tarfile.open(root / f"{member:04}.tar", "w") as tar:
            for number in range(samples):
                _add(tar, f"{number:06}.bin", random.bytes(SAMPLE_BYTES))


# ---------------------------------------------------------------- the measured process


def run(tars: list[str], mixed: bool, workers: int) -> dict[str, float]:
    """One trainer."""
    import psutil

    from streamer import MixedDataset, StreamingDataLoader, StreamingDataset
    from streamer.client.connection import read_statistics
    from streamer.client.settings import ClientSettings

    def dataset(urls: str | list[str]) -> StreamingDataset:
        return StreamingDataset(urls, decode=None, cache_bytes="8GB")

    data = MixedDataset({Path(tar).stem: dataset(tar) for tar in tars}) if mixed else dataset(tars)
    with StreamingDataLoader(data, BATCH, workers) as loader:
        began, own = time.perf_counter(), time.process_time()
        batches = iter(loader)
        entered = time.perf_counter()
        next(batches)
        first = time.perf_counter()
        me = psutil.Process()
        engine = psutil.Process(int(str((read_statistics(ClientSettings.from_environment(), 5.0) or {})["pid"])))
        processes = {"rank": [me], "engine": [engine]}
        processes["workers"] = [one for one in me.children(recursive=True) if one != engine]
        start = cpu_seconds(processes) | {"rank": time.process_time() - own}
        for _ in batches:
            pass
        spent, epoch = cpu_seconds(processes), time.perf_counter()
        for _ in loader:
            pass
        seconds, spent = (
            time.perf_counter() - epoch,
            {role: now - spent[role] for role, now in cpu_seconds(processes).items()},
        )
        memory = {role: sum(one.memory_full_info().pss for one in group) for role, group in processes.items()}
    found = {"iter": entered - began, "first": first - entered, "CPU start": sum(start.values()), "epoch": seconds}
    found |= {f"CPU {role}": spent[role] for role in ROLES}
    return found | {f"MB {role}": memory[role] / 1e6 for role in ROLES}


def cpu_seconds(processes: dict[str, list]) -> dict[str, float]:  # type: ignore[type-arg]
    """Of each role."""
    return {role: sum(sum(one.cpu_times()[:2]) for one in group) for role, group in processes.items()}


# ---------------------------------------------------------------- the turns


def measure(folder: Path, tars: list[str], start: str, mixed: bool, workers: int) -> dict[str, float]:
    """One trainer, in a process of its own."""
    await_end(folder)
    if start == "index":
        shutil.rmtree(folder / "cache")
    told = json.dumps({"tars": tars, "mixed": mixed, "workers": workers})
    environment = {
        **os.environ,
        "STREAMER_CACHE_DIR": f"{folder}/cache",
        "STREAMER_RUNTIME_DIR": f"{folder}/run",
        "STREAMER_JOB": "bench",
    }
    with engine_running(folder) if start == "engine runs" else contextlib.nullcontext():
        command = [sys.executable, __file__, "--run", told]
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    return dict(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(**json.loads(arguments.run))))
        return
    compile_streamer()
    kinds = {"one dataset": False, f"mix of {arguments.members}": True}
    with tempfile.TemporaryDirectory(dir="/tmp") as name, kept("mix_members", f"median of {arguments.rounds}"):
        folder = Path(name)
        (folder / "data").mkdir()
        make_data(folder / "data", arguments.members, arguments.samples)
        tars = sorted(map(str, (folder / "data").iterdir()))
        print(
            f"{arguments.members} tars of {arguments.samples} samples of {SAMPLE_BYTES} B, {arguments.workers} workers"
        )
        turns = [(kind, start) for kind in kinds for start in STARTS]
        found: dict[tuple[str, str], list[dict[str, float]]] = {turn: [] for turn in turns}
        for _ in range(arguments.rounds):
            for kind, start in turns:
                found[kind, start].append(measure(folder, tars, start, kinds[kind], arguments.workers))
        names = list(found[turns[0]][0])
        print(f"{'':<28}" + "".join(f"{name:>13}" for name in names))
        for start in STARTS:
            for kind in kinds:
                row = [statistics.median(one[name] for one in found[kind, start]) for name in names]
                print(f"{start + ', ' + kind:<28}" + "".join(f"{value:>13,.2f}" for value in row))


if __name__ == "__main__":
    main()
