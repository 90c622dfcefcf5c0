"""The memory of several jobs on one machine: processes, proportional set size by kind, swap, first batches.

    S3SIM=path/to/s3sim python benchmarks/sizing.py                       two jobs of 4 ranks with 4 workers each
    python benchmarks/sizing.py --jobs 1 --ranks 1 --workers 8

The data and the user code of `start.py` (tars, a transform and a collate function that import torch); all jobs read one
dataset through one engine. Every rank constructs its loader, waits 3 s and trains for one epoch of its share.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from pathlib import Path

import psutil
from bytecode import compile_streamer
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator
from start import BATCH, SAMPLES, TAG, Stage, Watch
from stream import make_data

KINDS = {"trainer": "--rank", "fork server, workers": "fork_server_main", "engine": "streamer.service"}


def run_rank(told: dict[str, str]) -> None:
    """One rank; prints the seconds from `iter()` to its first batch, and its samples."""
    import torch
    from user_code import Collate, transform

    from streamer import StreamingDataLoader, StreamingDataset

    torch.set_num_threads(1)
    dataset = StreamingDataset(
        told["url"],
        manifest=told["manifest"],
        cache_dir=told["cache"],
        storage_options=json.loads(told["options"]),
        decode=None,
        transform=transform,
    )
    workers = int(told["workers"])
    with StreamingDataLoader(dataset, BATCH, workers, collate_fn=Collate(), report_every=None) as loader:
        time.sleep(3)
        began, first, samples = time.monotonic(), 0.0, 0
        for batch in loader:
            assert isinstance(batch, dict)
            first = first or time.monotonic() - began
            samples += len(batch["jpg"])
    print(json.dumps({"first": first, "samples": samples}), flush=True)


class Memory:
    """Samples the proportional set sizes of all tagged processes; keeps those of the moment of the largest sum."""

    def __init__(self, tag: str) -> None:
        self.peak: dict[str, tuple[int, int]] = {}
        self._watch = Watch(tag)
        # A process that ends has no command line any more.
        self._kinds: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def peak_bytes(self) -> int:
        """The largest sum."""
        return sum(nbytes for _, nbytes in self.peak.values())

    def _look(self) -> None:
        while not self._over.wait(0.25):
            now: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
            for process, nbytes in self._watch.sizes():
                kind = self._kinds.setdefault(process, _kind(process))
                count, total = now[kind]
                now[kind] = count + 1, total + nbytes
            if sum(nbytes for _, nbytes in now.values()) > self.peak_bytes:
                self.peak = dict(now)


def _kind(process: int) -> str:
    try:
        command = " ".join(psutil.Process(process).cmdline())
    except psutil.Error:
        return "other"
    return next((kind for kind, word in KINDS.items() if word in command), "other")


def measure(root: Path, server: Simulator, jobs: int, ranks: int, workers: int) -> None:
    """Runs all jobs once and prints the table."""
    tag = uuid.uuid4().hex
    told = {
        "url": "s3://bucket/train/",
        "manifest": str(root / "manifest-tars"),
        "cache": str(root / "sizing-cache"),
        "options": json.dumps(server.options),
        "workers": str(workers),
    }
    swapped = psutil.swap_memory().sout
    with Memory(tag) as memory:
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank", json.dumps(told)],
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    TAG: tag,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(ranks),
                    "STREAMER_JOB": f"job-{job}",
                },
            )
            for job in range(jobs)
            for rank in range(ranks)
        ]
        answers = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    found = [json.loads(answer) for answer in answers]
    samples = sum(one["samples"] for one in found)
    if samples < jobs * SAMPLES:
        raise SystemExit(f"{samples} samples instead of {jobs * SAMPLES}")
    for kind, (count, nbytes) in sorted(memory.peak.items()):
        print(f"{kind:<22} {count:4} processes {nbytes / 1e6:8,.0f} MB {nbytes / 1e6 / count:7,.0f} MB each")
    print(f"{'all, at the peak':<22} {sum(count for count, _ in memory.peak.values()):4} processes "
          f"{memory.peak_bytes / 1e6:8,.0f} MB")  # fmt: skip
    firsts = sorted(one["first"] for one in found)
    print(f"first batches after {', '.join(f'{first:.2f}' for first in firsts)} s")
    print(f"swapped out: {psutil.swap_memory().sout - swapped} bytes")
    shutil.rmtree(told["cache"])


def main() -> None:
    """Runs the jobs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--keep", help="folder for the data, kept for the next run")
    options = parser.parse_args()
    if options.rank:
        run_rank(json.loads(options.rank))
        return
    compile_streamer()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(options.keep or folder)
        if not (root / "bucket").exists():
            make_data(root, SAMPLES)
        what = f"{options.jobs} jobs, {options.ranks} ranks each, {options.workers} workers each"
        with simulator(root, *S3_PROFILE) as server, kept("sizing", what):
            Stage(root, server).index("tars")
            measure(root, server, options.jobs, options.ranks, options.workers)


if __name__ == "__main__":
    main()
