"""Hours in minutes: two ranks of four worker processes, a store with faults, an engine that is killed every 20 s.

    S3SIM=path/to/s3sim python benchmarks/soak.py [--minutes 24] [--kill-seconds 20] [--fault p_503=0.01 ...]

A class folder of 2,000 samples of 60 KB, a cache of 3/4 of it, a sidecar. Every sample of every epoch is compared with
what was uploaded (by digest); own memory (USS) and open descriptors of the sidecar, of each rank and of its workers
are written down every second, RSS and PSS beside them. A line is fitted through the means of half minutes, after the
first quarter of the run and never before each rank has made its 5,000th step: it rises when its slope is above twice
its standard error *and* would add 2 % of the mean, or one descriptor, in an hour. Fails when a line rises, when a
sample is wrong, missing or twice, when a rank ends with an error, or when one makes no step for a minute. A table has
the memory over time, and what Python and malloc of each rank hold. Kept in benchmarks/results/
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from report import kept
from s3sim import Simulator, simulator

SAMPLES, SAMPLE_BYTES = 2000, 60_000
RANKS, WORKERS, BATCH = 2, 4, 20
# At half, with 4 samples a chunk, the batches under way of both ranks hold 59 of 60 MB open (2026-11-20).
CACHE_SHARE = 0.75
PROFILE = ("--ttfb-ms", "10", "--ttfb-sigma", "0.3")
# 2 % of the reads: refused, cut short, reset, twenty times slower.
FAULTS = ("p_503=0.01", "p_truncate=0.005", "p_reset=0.002", "p_slow=0.003")
STALL_SECONDS = 60.0
# Single seconds are no independent measurements: an epoch takes some ten of them, an engine lives twenty.
BLOCK_SECONDS = 30.0
TABLE_SECONDS = 300.0
GROWTH_SHARE = 0.02
GROWTH_DESCRIPTORS = 1.0
# What comes before allocates what stays: imports, arenas, the first epoch's tables, and what loaders remember of their
# last 4,096 batches (full after 4.4 minutes of 940 batches: 0.5 MB a minute until then, 2026-11-20). Each worker gains
# 0.2 MB more until its 60,000th step, where CPython's free lists are full: 20 kB a minute here for a rank with four of
# them, while the number of objects stays the same; flat from there to the 95,000th. In an hour: 157.7 MB in the first
# five minutes, 162.3 in the next, 162.5 to 162.6 from then on; a run of 6.5 minutes, or of 22 with a third of the steps
# per minute, is all start (2026-11-26). Steps count, not minutes: until then the ring may get slots, too, each of which
# is a descriptor in the rank and in its workers.
SETTLE_SHARE = 0.25
SETTLE_STEPS = 5000

RANK_PROGRAM = """
import ctypes, gc, hashlib, json, sys, time
from streamer import StreamingDataLoader, StreamingDataset
def pair(sample):
    return sample["__key__"], hashlib.blake2b(bytes(sample["bin"]), digest_size=8).hexdigest()
class Mallinfo(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo
def held():
    malloc = mallinfo2()
    used, free = malloc.uordblks + malloc.hblkhd, malloc.fordblks
    return {"blocks": sys.getallocatedblocks(), "objects": len(gc.get_objects()), "used": used, "free": free}
task = json.loads(sys.argv[1])
dataset = StreamingDataset(task["url"], transform=pair, decode=None, rank=task["rank"], world_size=task["ranks"])
with StreamingDataLoader(dataset, batch_size=task["batch"], num_workers=task["workers"], collate_fn=list) as loader:
    epoch = 0
    while time.time() < task["until"]:
        found = []
        for batch in loader:
            found += [p for p, twice in zip(batch, loader.repeated.tolist()) if not twice]
            time.sleep(task["pause"])
            print(json.dumps({"step": epoch}), flush=True)
        print(json.dumps({"epoch": epoch, "samples": found, "held": held()}), flush=True)
        epoch += 1
"""


class Rank:
    """A training process; a thread collects what it says."""

    def __init__(self, number: int, task: dict, env: dict[str, str]) -> None:
        self.epochs: list[dict[str, str]] = []
        self.held: list[tuple[float, dict[str, int]]] = []
        self.begun = time.monotonic()
        self.repeats = 0
        self.steps = 0
        self.settled_seconds = math.inf
        self.longest_pause_seconds = 0.0
        self.moved_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, json.dumps({**task, "rank": number})], stdout=subprocess.PIPE, env=env
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            said = json.loads(line)
            now = time.monotonic()
            if self.steps:  # the first step comes after the start of Python and its workers
                self.longest_pause_seconds = max(self.longest_pause_seconds, now - self.moved_at)
            self.moved_at = now
            self.steps += "step" in said
            if self.steps == SETTLE_STEPS:
                self.settled_seconds = min(self.settled_seconds, now - self.begun)
            if "samples" in said:
                found = dict(map(tuple, said["samples"]))
                self.repeats += len(said["samples"]) - len(found)
                self.epochs.append(found)
                self.held.append((now - self.begun, said["held"]))

    def finish(self) -> int:
        code = self.process.wait(120)
        self._reader.join()
        return code


class Gauge:
    """Memory and descriptors of some processes over time: seconds, USS, PSS and RSS in bytes, descriptors."""

    def __init__(self) -> None:
        self.points: list[tuple[float, ...]] = []

    def look(self, family: list[psutil.Process], at: float) -> None:
        try:
            memory = [process.memory_full_info() for process in family]
            own, shared, resident = (sum(getattr(one, kind) for one in memory) for kind in ("uss", "pss", "rss"))
            self.points.append((at, own, shared, resident, sum(process.num_fds() for process in family)))
        except psutil.NoSuchProcess:
            return

    def means(self, seconds: float, after: float = 0.0) -> np.ndarray:
        """One row for each period of so many seconds."""
        points = np.array([point for point in self.points if point[0] > after]).reshape(-1, 5)
        number = points[:, 0] // seconds
        return np.array([points[number == one].mean(axis=0) for one in np.unique(number)]).reshape(-1, 5)

    def lines(self, after: float) -> tuple[Line, Line]:
        """Of own memory and descriptors, behind the start of a run, which takes so many seconds."""
        blocks = self.means(BLOCK_SECONDS, after)
        return Line.fitted(blocks[:, 0], blocks[:, 1]), Line.fitted(blocks[:, 0], blocks[:, 4])


@dataclass(frozen=True)
class Line:
    """A straight line through means over time: its slope and that slope's standard error, per minute."""

    slope: float
    error: float
    mean: float

    @classmethod
    def fitted(cls, seconds: np.ndarray, values: np.ndarray) -> Line:
        """By least squares; three points at least, or nothing can be said."""
        if len(values) < 3:
            return cls(0.0, math.inf, float(values.mean()) if len(values) else 0.0)
        (slope, _), covariance = np.polyfit(seconds / 60, values, 1, cov="unscaled")
        residuals = values - np.polyval(np.polyfit(seconds / 60, values, 1), seconds / 60)
        scatter = float((residuals**2).sum()) / (len(values) - 2)
        return cls(float(slope), math.sqrt(scatter * covariance[0, 0]), float(values.mean()))

    def rises(self, harmless: float) -> bool:
        """Beyond its noise, and by more than what is harmless in an hour."""
        return self.slope > 2 * self.error and self.slope * 60 > harmless


def _judged(memory: Line, rises: tuple[bool, bool]) -> str:
    if math.isinf(memory.error):
        return ": too short a run to say whether it rises"
    return ": RISES" if any(rises) else ""


def make_data(root: Path) -> dict[str, str]:
    random = np.random.default_rng(3)
    truth = {}
    for number in range(SAMPLES):
        key = f"{number % 8}/{number:05}.bin"
        content = random.bytes(SAMPLE_BYTES)
        path = root / "bucket" / "train" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        truth[key] = hashlib.blake2b(content, digest_size=8).hexdigest()
    return truth


def start_sidecar(folder: Path, store: Simulator) -> subprocess.Popen[bytes]:
    (folder / "streamer.toml").write_text(
        f"[cache]\ndirectory = '{folder}/cache'\nlimit_bytes = {int(SAMPLES * SAMPLE_BYTES * CACHE_SHARE)}\n"
        f"[engine]\nsocket_path = '{folder}/engine.sock'\n[service]\nhttp = 'off'\n"
        "[[datasets]]\nurl = 's3://bucket/train/'\n[datasets.storage_options]\n"
        + "".join(f"{name} = '{value}'\n" for name, value in store.options.items())
    )
    with (folder / "serve.log").open("ab") as log:
        command = [sys.executable, "-m", "streamer", "serve", "--config", str(folder / "streamer.toml")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout.readline().startswith(b"listening"), (folder / "serve.log").read_text()[-2000:]
    process.stdout.close()
    return process


def soak(folder: Path, store: Simulator, arguments: argparse.Namespace) -> tuple[list[Rank], dict[str, Gauge], int]:
    seconds = arguments.minutes * 60
    env = {
        **os.environ,
        "STREAMER_ENGINE": f"unix:{folder}/engine.sock",
        "STREAMER_CACHE_DIR": f"{folder}/cache",
        "STREAMER_JOB": "soak",
    }
    task = {"url": "s3://bucket/train/", "ranks": RANKS, "batch": BATCH, "workers": WORKERS, "pause": 0.05}
    engine = start_sidecar(folder, store)
    ranks = [Rank(number, {**task, "until": time.time() + seconds}, env) for number in range(RANKS)]
    gauges = {"sidecar": Gauge()}
    for number in range(RANKS):
        gauges |= {f"rank {number}": Gauge(), f"rank {number}'s workers": Gauge()}
    begun, killed, kills = time.monotonic(), time.monotonic(), 0
    while any(rank.process.poll() is None for rank in ranks):
        time.sleep(1.0)
        now = time.monotonic()
        if now - begun < seconds:  # later the workers leave, and the line would bend down
            look(gauges, engine, ranks, now - begun)
        if now - killed > arguments.kill_seconds and now - begun < seconds:
            engine.send_signal(signal.SIGKILL)
            engine.wait()
            engine, killed, kills = start_sidecar(folder, store), time.monotonic(), kills + 1
        stuck = [rank for rank in ranks if rank.process.poll() is None and now - rank.moved_at > STALL_SECONDS]
        if stuck:
            for rank in ranks:
                rank.process.kill()
            print(f"nothing moved for {STALL_SECONDS:.0f} s", file=sys.stderr)
            break
    engine.terminate()
    engine.wait(30)
    return ranks, gauges, kills


def look(gauges: dict[str, Gauge], engine: subprocess.Popen[bytes], ranks: list[Rank], at: float) -> None:
    """Adds a point to each gauge, but of those that have just ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        gauges["sidecar"].look([psutil.Process(engine.pid)], at)
    for number, rank in enumerate(ranks):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(rank.process.pid)
            gauges[f"rank {number}"].look([process], at)
            gauges[f"rank {number}'s workers"].look(process.children(recursive=True), at)


def table(ranks: list[Rank], gauges: dict[str, Gauge]) -> list[str]:
    """Memory over time, and what each rank's own process holds at those times."""
    lines = [
        "",
        f"means of {TABLE_SECONDS / 60:.0f} minutes in MB: USS, PSS, RSS",
        "minute  " + "".join(f"{n:>24}" for n in gauges),
    ]
    rows = zip(*(gauge.means(TABLE_SECONDS) for gauge in gauges.values()), strict=False)
    for row in rows:
        cells = (" ".join(f"{value / 1e6:7.1f}" for value in point[1:4]) for point in row)
        lines.append(
            f"{row[0][0] // TABLE_SECONDS * TABLE_SECONDS / 60:6.0f}  " + "".join(f"{cell:>24}" for cell in cells)
        )
    lines += ["", "after an epoch: blocks and objects of Python in thousands; malloc's bytes in use and free, in MB"]
    for number, rank in enumerate(ranks):
        due = 0.0
        for at, held in rank.held:
            if at >= due:
                lines.append(
                    f"rank {number}, minute {at / 60:5.1f}: {held['blocks'] / 1e3:8.1f} {held['objects'] / 1e3:8.1f} "
                    f"{held['used'] / 1e6:8.2f} {held['free'] / 1e6:8.2f}"
                )
                due = at + TABLE_SECONDS
    return [*lines, ""]


def verdict(
    ranks: list[Rank], gauges: dict[str, Gauge], truth: dict[str, str], minutes: float
) -> tuple[list[str], bool]:
    """What happened, in lines, and whether all of it is fine."""
    codes = [rank.finish() for rank in ranks]
    epochs = min(len(rank.epochs) for rank in ranks)
    wrong = 0
    for epoch in range(epochs):
        union = {key: digest for rank in ranks for key, digest in rank.epochs[epoch].items()}
        total = sum(len(rank.epochs[epoch]) for rank in ranks)
        wrong += sum(truth.get(key) != digest for key, digest in union.items())
        wrong += len(truth) - len(union) + total - len(union)
    wrong += sum(rank.repeats for rank in ranks)
    lines = [f"ranks ended with {codes}; {epochs} epochs of {len(truth)} samples; wrong, missing or twice: {wrong}"]
    fine = not wrong and not any(codes) and epochs > 0
    pauses = ", ".join(f"{rank.longest_pause_seconds:.1f} s" for rank in ranks)
    lines.append(f"{sum(rank.steps for rank in ranks)} steps; longest without one: {pauses}")
    start = max(60 * SETTLE_SHARE * minutes, *(rank.settled_seconds for rank in ranks))
    for name, gauge in gauges.items():
        memory, descriptors = gauge.lines(start)
        rises = memory.rises(GROWTH_SHARE * memory.mean), descriptors.rises(GROWTH_DESCRIPTORS)
        peak = max((point[1] for point in gauge.points), default=0.0)
        lines.append(
            f"{name}: memory mean {memory.mean / 1e6:.1f}, peak {peak / 1e6:.0f} MB, slope {memory.slope / 1e3:+.1f} "
            f"+- {memory.error / 1e3:.1f} kB/min; descriptors mean {descriptors.mean:.1f}, slope "
            f"{descriptors.slope:+.4f} +- {descriptors.error:.4f} /min{_judged(memory, rises)}"
        )
        fine &= not any(rises)
    return lines, fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=24.0)
    parser.add_argument("--kill-seconds", type=float, default=20.0)
    parser.add_argument("--s3sim", default=None)
    parser.add_argument("--fault", action="append", metavar="NAME=VALUE", help="set in the store; default: 2 %%")
    arguments = parser.parse_args()
    faults = arguments.fault or list(FAULTS)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        root = Path(folder)
        truth = make_data(root / "store")
        with simulator(root / "store", *PROFILE, command=arguments.s3sim) as store:
            store.set(**dict(fault.split("=", 1) for fault in faults))
            ranks, gauges, kills = soak(root, store, arguments)
            counts = store.statistics()
    lines, fine = verdict(ranks, gauges, truth, arguments.minutes)
    with kept("soak"):
        print(f"{arguments.minutes:g} min, {RANKS} ranks x {WORKERS} workers, {kills} kills, faults {' '.join(faults)}")
        print(
            *lines, *table(ranks, gauges), f"store: {json.dumps(counts)[:600]}", "fine" if fine else "FAILED", sep="\n"
        )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
