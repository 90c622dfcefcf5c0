"""First use of tars without a manifest: bytes from the store, seconds of the index, seconds to the first batch.

    S3SIM=path/to/s3sim python benchmarks/first_use.py                    the table, about 3 minutes
    python benchmarks/first_use.py --tree ../other-checkout               this tree and another one in turns

10,000 samples of 110 KB in tars on a simulated S3 (first byte 30 ms, 90 MB/s a connection), undecoded, batch 64, two
workers, no manifest, a fresh cache folder and a fresh engine in each turn. What is run:

index     `streamer index`, the command alone
train     a trainer; one epoch
half      the same with a cache of half the data
killed    the engine and the trainer are killed when the store has sent half of the data, then started again

Each figure is the median of the turns:

index     seconds until the manifest is in the cache folder: from the constructor of the dataset, for the command from
          the start of its process
first     seconds from the constructor to the first batch; after a kill, of the second process
epoch     seconds from the constructor to the end of the epoch
read      bytes that the store sent until the process ended, both processes where one was killed, of the data
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from bytecode import compile_streamer
from memory import bring
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator
from stream import engine_of, make_data

BATCH = 64
URL = "s3://bucket/train/"
RUNS = ("index", "train", "half", "killed")
FIGURES = ("index", "first", "epoch", "read")
_LOOK_SECONDS = 0.005
# Wider than the data of 1.1 GB.
_CACHE_BYTES = 2_000_000_000


def run_child(told: dict[str, str]) -> None:
    """One trainer; says on stdout what it has reached."""
    from streamer import StreamingDataLoader, StreamingDataset

    print("begun", time.monotonic(), flush=True)
    dataset = StreamingDataset(
        URL,
        cache_dir=told["cache"],
        cache_bytes=int(told["cache_bytes"]),
        storage_options=json.loads(told["options"]),
        decode=None,
    )
    with StreamingDataLoader(dataset, batch_size=BATCH, num_workers=2, report_every=None) as loader:
        for number, _ in enumerate(loader):
            if not number:
                print("first", time.monotonic(), flush=True)
        print("epoch", time.monotonic(), flush=True)


class Turn:
    """One fresh cache folder, one kind of run."""

    def __init__(self, root: Path, server: Simulator, tree: Path) -> None:
        self._server, self._tree = server, tree
        self._cache = Path(tempfile.mkdtemp(dir=root))
        self._data_bytes = sum(path.stat().st_size for path in (root / "bucket" / "train").iterdir())

    def run(self, kind: str) -> dict[str, float]:
        """Its figures."""
        self._server.statistics(reset=True)
        try:
            if kind == "killed":
                self._killed()
            figures = self._finished(self._start(kind), time.monotonic())
            sent = self._server.statistics()["body_bytes_sent"]
            return {**figures, "read": float(str(sent)) / self._data_bytes}
        finally:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(engine_of(str(self._cache))).wait(20)
            shutil.rmtree(self._cache)

    def _start(self, kind: str) -> subprocess.Popen[str]:
        options = json.dumps(self._server.options)
        told = {
            "cache": str(self._cache),
            "cache_bytes": str(self._data_bytes // 2 if kind == "half" else _CACHE_BYTES),
            "options": options,
        }
        command = [sys.executable, __file__, "--child", json.dumps(told)]
        if kind == "index":
            command = [sys.executable, "-m", "streamer", "index", URL, "--storage-options", options]
            command += ["--cache-dir", str(self._cache)]
        path = os.pathsep.join([str(self._tree), str(Path(__file__).parent)])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tempfile.gettempdir())

    def _finished(self, process: subprocess.Popen[str], begun: float) -> dict[str, float]:
        """Waits for the manifest, then for the process."""
        while process.poll() is None and not self._indexed():
            time.sleep(_LOOK_SECONDS)
        at = {"begun": begun, "index": time.monotonic()}
        for line in process.communicate()[0].splitlines():
            what, _, clock = line.partition(" ")
            if what in ("begun", *FIGURES):
                at[what] = float(clock)
        if process.returncode:
            raise SystemExit(f"the process failed with status {process.returncode}")
        return {name: at[name] - at["begun"] for name in FIGURES if name in at}

    def _indexed(self) -> bool:
        return any((self._cache / "manifests").glob("*/root.json"))

    def _killed(self) -> None:
        """Half an index: engine and trainer are killed once the store has sent half of the data."""
        process = self._start("train")
        while float(str(self._server.statistics()["body_bytes_sent"])) < self._data_bytes / 2:
            time.sleep(_LOOK_SECONDS)
        if self._indexed() or process.poll() is not None:
            raise SystemExit("the index was over before it could be killed")
        psutil.Process(engine_of(str(self._cache))).kill()
        process.send_signal(signal.SIGKILL)
        process.communicate()


def table(found: dict[tuple[str, int], list[dict[str, float]]], trees: Sequence[Path]) -> Iterator[str]:
    """A row for each run of each tree: medians, and the range of the bytes."""
    yield f"{'':12} {'index s':>8} {'first s':>8} {'epoch s':>8} {'read':>7} {'(range)':>13}"
    for (kind, tree), turns in found.items():
        figures = [_median(turns, name) for name in FIGURES[:3]]
        read = [turn["read"] for turn in turns]
        label = f"{tree}: {kind}" if len(trees) > 1 else kind
        times = " ".join(f"{figure:8.2f}" if figure else f"{'':8}" for figure in figures)
        yield f"{label:12} {times} {statistics.median(read):7.3f} {f'{min(read):.3f}-{max(read):.3f}':>13}"


def _median(turns: list[dict[str, float]], name: str) -> float:
    return statistics.median(turn.get(name, 0.0) for turn in turns)


def main() -> None:
    """Runs all kinds in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", default=RUNS, choices=RUNS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout, in turns with this")
    parser.add_argument("--keep", type=Path, help="folder for the data, kept for the next run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(json.loads(arguments.child))
        return
    compile_streamer()
    trees = [Path(__file__).resolve().parent.parent, *(tree.resolve() for tree in arguments.tree)]
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="streamer-bench-"))
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    try:
        if not (root / "bucket").exists():
            make_data(root, arguments.samples)
        with simulator(root, *S3_PROFILE) as server:
            for _ in range(arguments.turns):
                for kind in arguments.runs:
                    for number, tree in enumerate(trees):
                        bring((root / "bucket" / "train").iterdir())
                        os.sync()
                        figures = Turn(root, server, tree).run(kind)
                        found.setdefault((kind, number), []).append(figures)
                        shown = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items())
                        print(f"  {number}: {kind}: {shown}", file=sys.stderr)
        with kept("first_use", f"median of {arguments.turns}", keep=len(trees) == 1):
            print("\n".join(table(found, trees)))
    finally:
        if not arguments.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
