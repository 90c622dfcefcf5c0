"""How long the trainer waits for its first batch: from `iter(loader)`, in a new process, with a warm cache.

    python benchmarks/first_batch.py [--quick]

Each measurement is a process of its own that resumes a run in mid-epoch: `import torch`, `import streamer`, the
constructors, `load_state_dict`; then the clock starts at `iter(loader)` and stops at the first batch. Once with an
engine that runs already (another rank has started it, or a sidecar), once with none. Prints a table, with the bound of
0.3 s after `iter(loader)`, and keeps it in benchmarks/results/first_batch-<date>.txt. A run that does not resume starts
the engine in `iter(loader)`: what is "in all" here.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from bytecode import compile_streamer
from report import kept

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings

SAMPLES, SAMPLE_BYTES = 4000, 100_000
_BOUND_MILLISECONDS = 300

TRAINER = """
import json, sys, time
import torch
import streamer
told = json.loads(sys.argv[1])
dataset = streamer.StreamingDataset(told["url"], cache_dir=told["cache_dir"], cache_bytes="8GB", decode=None)
loader = streamer.StreamingDataLoader(
    dataset, 64, told["workers"], collate_fn=lambda samples: [sample["bin"] for sample in samples]
)
begun = time.perf_counter()
if told["state"]:
    loader.load_state_dict(told["state"])
loaded = time.perf_counter()
batches = iter(loader)
entered = time.perf_counter()
next(batches)
first = time.perf_counter()
for _ in range(told["steps"]):
    next(batches)
print(json.dumps({"load": loaded - begun, "iter": entered - loaded, "first": first - loaded, "all": first - begun,
    "state": loader.state_dict()}))
loader.close()
dataset.close()
"""


def make_data(folder: Path) -> None:
    """400 MB in files of 100 KB."""
    random = np.random.default_rng(3)
    for number in range(SAMPLES):
        path = folder / f"class{number % 10}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(SAMPLE_BYTES))


def settings(folder: Path, grace_seconds: float = 0.05) -> ClientSettings:
    return ClientSettings(
        cache_dir=folder / "cache", runtime_dir=folder / "run", cache_bytes=8_000_000_000, grace_seconds=grace_seconds
    )


@contextlib.contextmanager
def engine_running(folder: Path) -> Iterator[None]:
    client = EngineClient(settings(folder))
    client.roots()
    try:
        yield
    finally:
        client.close()


def await_end(folder: Path) -> None:
    """Until no engine is left: it stays for its grace time, and holds the cache folder's lock."""
    (folder / "cache").mkdir(exist_ok=True)
    descriptor = os.open(folder / "cache", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def train(folder: Path, workers: int, state: object, steps: int = 0) -> dict[str, float]:
    told = {
        "url": str(folder / "data"),
        "cache_dir": str(folder / "cache"),
        "workers": workers,
        "state": state,
        "steps": steps,
    }
    environment = {**os.environ, "STREAMER_RUNTIME_DIR": str(folder / "run"), "STREAMER_JOB": "bench"}
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, json.dumps(told)],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


def measure(folder: Path, workers: int, state: object, engine: str) -> dict[str, float]:
    await_end(folder)
    with engine_running(folder) if engine == "running" else contextlib.nullcontext():
        return train(folder, workers, state)


def rows(folder: Path, runs: int) -> Iterator[str]:
    with engine_running(folder):
        state = train(folder, 2, None, steps=SAMPLES // 64 - 2)["state"]
    yield f"{'engine':<10}{'workers':>8}{'load ms':>9}{'iter ms':>9}{'first batch after iter ms':>27}{'in all ms':>11}"
    for engine in ("running", "started"):
        for workers in (0, 1, 2, 4):
            found = [measure(folder, workers, state, engine) for _ in range(runs)]
            load, entered, first, whole = (
                1000 * statistics.median(run[name] for run in found) for name in ("load", "iter", "first", "all")
            )
            met = "ok" if first <= _BOUND_MILLISECONDS else "MISS"
            yield f"{engine:<10}{workers:>8}{load:>9.0f}{entered:>9.0f}{first:>27.0f}{whole:>11.0f}  {met}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run each instead of five")
    runs = 1 if parser.parse_args().quick else 5
    compile_streamer()
    with kept("first_batch", f"median of {runs}", keep=runs > 1), tempfile.TemporaryDirectory() as name:
        print(f"first batch of a resumed run: {SAMPLES} cached samples of {SAMPLE_BYTES} B, batches of 64")
        folder = Path(name)
        make_data(folder / "data")
        for line in rows(folder, runs):
            print(line)


if __name__ == "__main__":
    main()
