"""What `engine="inline"` costs beside an engine of its own: first batch, memory, rate, with 0 and 2 workers.

    python benchmarks/inline.py [--quick]

Each run is a new process. Ten pictures of 64 x 64: from the start of the interpreter to the first batch, imports
included, on an empty cache. Then 2,000 files of 100 KB that are cached, one epoch without decoding: samples per second,
and what trainer, workers and engine take together: CPU, and memory at the end (PSS: shared pages count once). Prints a
table of medians, and keeps it in benchmarks/results/inline-<date>.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bytecode import compile_streamer
from PIL import Image
from report import kept

SAMPLES, SAMPLE_BYTES, BATCH = 2000, 100_000, 50

TRAINER = """
import contextlib, json, os, sys, time
from pathlib import Path
def since_start():
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
import streamer
told = json.loads(sys.argv[1])
def look(dataset):
    with dataset._opening.connections.for_requests() as client:
        engine = client.welcome.pid
    found = {str(engine)}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(pid)) == os.getpid():
                found.add(pid)
    return found
def taken(pids):
    ticks = kilobytes = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
        kilobytes += int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("\\nPss:")[2].split()[0])
    return ticks / os.sysconf("SC_CLK_TCK"), kilobytes / 1024
def collated(samples):
    return [sample["bin"] for sample in samples]
dataset = streamer.StreamingDataset(
    told["url"], cache_dir=told["cache_dir"], cache_bytes="2GB", engine=told["engine"], decode=told["decode"]
)
loader = streamer.StreamingDataLoader(
    dataset, told["batch"], told["workers"], **({} if told["decode"] else {"collate_fn": collated})
)
batches = iter(loader)
next(batches)
first, count = since_start(), told["batch"]
cpu_first, _ = taken(look(dataset))
begun = time.perf_counter()
for _ in range(told["epochs"]):
    for batch in batches:
        count += told["batch"]
    batches = iter(loader)
seconds = time.perf_counter() - begun
cpu, memory = taken(look(dataset))
print(json.dumps({"first": first, "cpu_first": cpu_first, "rate": (count - told["batch"]) / seconds,
    "cpu": (cpu - cpu_first) / max(1, count) * 1e6, "memory": memory}))
loader.close()
dataset.close()
"""


def make_data(folder: Path) -> None:
    random = np.random.default_rng(3)
    for number in range(10):
        path = folder / "pictures" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (64, 64, 3), np.uint8)).save(path)
    for number in range(SAMPLES):
        path = folder / "files" / f"class{number % 10}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(SAMPLE_BYTES))


def train(folder: Path, data: str, engine: str | None, workers: int) -> dict[str, float]:
    pictures = data == "pictures"
    told = {
        "url": str(folder / data),
        "cache_dir": str(folder / f"cache-{data}"),
        "engine": engine,
        "workers": workers,
        "decode": "auto" if pictures else None,
        "batch": 4 if pictures else BATCH,
        "epochs": 0 if pictures else 1,
    }
    if pictures:
        shutil.rmtree(told["cache_dir"], ignore_errors=True)
    # A runtime folder of its own, and the engine of the run before may still be there: it is not met.
    with tempfile.TemporaryDirectory() as runtime:
        done = subprocess.run(
            [sys.executable, "-c", TRAINER, json.dumps(told)],
            env={**os.environ, "STREAMER_RUNTIME_DIR": runtime},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    return json.loads(done.stdout)


def rows(folder: Path, runs: int) -> Iterator[str]:
    train(folder, "files", "inline", 0)
    yield (
        f"{'engine':<9}{'workers':>8}{'first batch s':>15}{'its CPU s':>11}"
        f"{'samples/s':>11}{'CPU us/sample':>15}{'memory MiB':>12}"
    )
    for workers in (0, 2):
        for engine in (None, "inline"):
            first = [train(folder, "pictures", engine, workers) for _ in range(runs)]
            whole = [train(folder, "files", engine, workers) for _ in range(runs)]
            names = (("first", first), ("cpu_first", first), ("rate", whole), ("cpu", whole), ("memory", whole))
            figures = [statistics.median(run[name] for run in found) for name, found in names]
            yield (
                f"{engine or 'process':<9}{workers:>8}{figures[0]:>15.2f}{figures[1]:>11.2f}"
                f"{figures[2]:>11.0f}{figures[3]:>15.0f}{figures[4]:>12.0f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run each instead of five")
    runs = 1 if parser.parse_args().quick else 5
    compile_streamer()
    with kept("inline", f"median of {runs}", keep=runs > 1), tempfile.TemporaryDirectory() as name:
        print(f"10 pictures; {SAMPLES} cached samples of {SAMPLE_BYTES} B, batches of {BATCH}, one epoch")
        make_data(Path(name))
        for line in rows(Path(name), runs):
            print(line)


if __name__ == "__main__":
    main()
