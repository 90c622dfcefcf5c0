"""From the constructor to the end of two epochs, with user code that imports torch and without: time, CPU and memory.

    S3SIM=path/to/s3sim python benchmarks/start.py                        the table, about 20 minutes
    python benchmarks/start.py --workers 2 --code torch --lead 3 --turns 3 --data raw
    python benchmarks/start.py --tree ../other-checkout                   this tree and another one in turns

10,000 samples of 110 KB on a simulated S3 (first byte 30 ms, 90 MB/s a connection), as tars or as objects,
undecoded, batch 64, the manifest present, a fresh cache. `--lead`: seconds between constructor and `iter()`, as a job
spends on its model. The trainer has imported torch before the clock starts. Beside it the stock DataLoader over these
samples as local files in memory, with forked workers and the same user code. Each figure is the median of the turns:

first     seconds from iter() to the first batch
CPU       seconds of all processes but the store, from the constructor to the first batch
cold      samples per second of the first epoch; warm: of the second
peak      the largest sum of the proportional set sizes of all processes but the store, MB
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
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from bytecode import compile_streamer
from memory import bring
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator
from stream import LocalFiles, make_data

BATCH = 64
SAMPLES = 10_000
TAG = "STREAMER_BENCHMARK"
FIGURES = ("first", "CPU", "cold", "warm", "peak")


# ---------------------------------------------------------------- the measured process


def run_child(told: dict[str, object]) -> None:
    """One trainer; says on stdout what it has reached."""
    import torch
    from plain_code import plain_collate
    from user_code import Collate, transform

    torch.set_num_threads(1)
    heavy = told["code"] == "torch"
    user = {"transform": transform if heavy else None, "collate": Collate() if heavy else plain_collate}
    _say("constructing")
    open_loader: Callable[..., AbstractContextManager[Iterable[Any]]] = (
        _stock if told["loader"] == "stock" else _streamer
    )
    with open_loader(told, user) as loader:
        time.sleep(float(str(told["lead"])))
        for epoch in range(int(str(told["epochs"]))):
            _say("iterating")
            count = 0
            for batch in loader:
                if not count:
                    _say("first")
                count += len(batch["jpg"])
            _say(f"epoch {epoch}", count)
        _say("over")
        sys.stdin.read()


def _say(what: str, count: int = 0) -> None:
    print(json.dumps({"what": what, "at": time.monotonic(), "samples": count}), flush=True)
    if what in ("constructing", "first"):
        sys.stdin.readline()  # the CPU of this moment is read meanwhile


def _streamer(told: dict[str, object], user: dict[str, object]) -> AbstractContextManager[Iterable[Any]]:
    from streamer import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(
        str(told["url"]),
        manifest=str(told["manifest"]),
        cache_dir=str(told["cache"]),
        storage_options=json.loads(str(told["options"])),
        decode=None,
        transform=user["transform"],  # type: ignore[arg-type]
    )
    return StreamingDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=int(str(told["workers"])),
        collate_fn=user["collate"],  # type: ignore[arg-type]
        report_every=None,
    )


class _Transformed(LocalFiles):
    def __init__(self, root: Path, transform: object) -> None:
        super().__init__(root)
        self._transform = transform

    def __getitem__(self, index: int) -> dict[str, object]:
        sample = super().__getitem__(index)
        return self._transform(sample) if self._transform else sample  # type: ignore[operator, no-any-return]


class _Stock:
    """torch's loader, as a context."""

    def __init__(self, told: dict[str, object], user: dict[str, object]) -> None:
        import torch.utils.data

        self._loader = torch.utils.data.DataLoader(
            _Transformed(Path(str(told["files"])), user["transform"]),
            batch_size=BATCH,
            shuffle=True,
            num_workers=int(str(told["workers"])),
            persistent_workers=True,
            multiprocessing_context=str(told["method"]),
            collate_fn=user["collate"],
        )

    def __enter__(self) -> Iterable[Any]:
        return self._loader

    def __exit__(self, *exception: object) -> None:
        del self._loader


def _stock(told: dict[str, object], user: dict[str, object]) -> _Stock:
    return _Stock(told, user)


# ---------------------------------------------------------------- looking at it from outside


class Watch:
    """All processes that carry the tag: their memory at its peak, their CPU when asked."""

    def __init__(self, tag: str) -> None:
        self._tag = f"{TAG}={tag}".encode()
        self._known: dict[int, bool] = {}
        self._gone: dict[int, float] = {}
        self.peak_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def cpu_seconds(self) -> float:
        """Of all that live, with what they reaped, and of those that were seen."""
        for process in self._processes():
            fields = _read(f"/proc/{process}/stat").rpartition(b")")[2].split()
            if len(fields) > 12:
                self._gone[process] = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return sum(self._gone.values())

    def sizes(self) -> list[tuple[int, int]]:
        """Process and proportional set size of each."""
        return [(process, _pss(process)) for process in self._processes()]

    def _look(self) -> None:
        while not self._over.wait(0.25):
            total = sum(nbytes for _, nbytes in self.sizes())
            self.peak_bytes = max(self.peak_bytes, total)

    def _processes(self) -> list[int]:
        for process in psutil.pids():
            if process not in self._known:
                self._known[process] = self._tag in _read(f"/proc/{process}/environ").split(b"\0")
        return [process for process, ours in self._known.items() if ours and os.path.exists(f"/proc/{process}")]


def _pss(process: int) -> int:
    for line in _read(f"/proc/{process}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def measure(told: dict[str, object], tree: Path) -> dict[str, float]:
    """Runs one trainer; its figures."""
    tag = uuid.uuid4().hex
    path = os.pathsep.join([str(tree), str(Path(__file__).parent)])
    environment = {**os.environ, TAG: tag, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, __file__, "--child", json.dumps(told)]
    at: dict[str, float] = {}
    cpu: dict[str, float] = {}
    counts: dict[str, int] = {}
    with Watch(tag) as watch:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=tempfile.gettempdir(),
        )
        assert process.stdout is not None
        assert process.stdin is not None
        for line in process.stdout:
            said = json.loads(line)
            what = said["what"]
            if what in at and what in ("iterating", "first"):
                what += " again"
            at[what], counts[what] = said["at"], said["samples"]
            if said["what"] in ("constructing", "first"):
                cpu[what] = watch.cpu_seconds()
                process.stdin.write("\n")
                process.stdin.flush()
            if what == "over":
                process.stdin.close()
        if process.wait():
            raise SystemExit(f"{told} failed with status {process.returncode}")
    return {
        "first": at["first"] - at["iterating"],
        "CPU": cpu["first"] - cpu["constructing"],
        "cold": counts["epoch 0"] / (at["epoch 0"] - at["iterating"]),
        "warm": counts["epoch 1"] / (at["epoch 1"] - at["iterating again"]) if "epoch 1" in at else 0.0,
        "peak": watch.peak_bytes / 1e6,
    }


# ---------------------------------------------------------------- the comparison


@dataclass(frozen=True)
class Case:
    """What is run."""

    loader: str
    data: str
    workers: int
    code: str
    lead: float
    tree: Path
    method: str = ""

    def __str__(self) -> str:
        what = f"stock ({self.method}), files" if self.loader == "stock" else f"streamer, {self.data}"
        return f"{what}, {self.workers} workers, user code: {self.code}, {self.lead:g} s before iter()"


@dataclass
class Stage:
    """Data and server."""

    root: Path
    server: Simulator
    turn: int = 0
    found: dict[Case, list[dict[str, float]]] = field(default_factory=dict)

    def play(self, case: Case, epochs: int) -> None:
        """Runs a case once more."""
        self.turn += 1
        cache = self.root / "caches" / str(self.turn)
        told: dict[str, object] = {
            "loader": case.loader,
            "workers": case.workers,
            "code": case.code,
            "lead": case.lead,
            "method": case.method,
            "epochs": epochs,
            "files": str(self.root / "files"),
            "url": f"s3://bucket/{_prefix(case.data)}/",
            "manifest": str(self.root / f"manifest-{case.data}"),
            "cache": str(cache),
            "options": json.dumps(self.server.options),
        }
        bring(self._read_by(case))
        os.sync()
        figures = measure(told, case.tree)
        shutil.rmtree(cache, ignore_errors=True)
        self.found.setdefault(case, []).append(figures)
        print(f"  {case}: " + ", ".join(f"{name} {figures[name]:.3g}" for name in FIGURES), file=sys.stderr)

    def _read_by(self, case: Case) -> Iterator[Path]:
        if case.loader == "stock":
            return (self.root / "files").rglob("*.jpg")
        return (path for path in (self.root / "bucket" / _prefix(case.data)).rglob("*") if path.is_file())

    def index(self, data: str) -> None:
        """Makes the manifest, once."""
        manifest, cache = self.root / f"manifest-{data}", self.root / "index-cache"
        self.server.index(f"s3://bucket/{_prefix(data)}/", manifest, cache)


def _prefix(data: str) -> str:
    return {"tars": "train", "raw": "raw"}[data]


def make_raw(root: Path) -> None:
    """The local files once more, as objects of their own."""
    for path in (root / "files").rglob("*.jpg"):
        to = root / "bucket" / "raw" / path.parent.name / path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, to)


def table(found: dict[Case, list[dict[str, float]]], trees: Sequence[Path]) -> Iterator[str]:
    """A row for each case: medians, and the range of the first."""
    head = f"{'first':>6} {'(range)':>11} {'CPU':>6} {'cold':>7} {'warm':>7} {'peak MB':>8}"
    yield f"{'':78} {head}"
    for case, turns in found.items():
        middle = {name: statistics.median(turn[name] for turn in turns) for name in FIGURES}
        first = [turn["first"] for turn in turns]
        span = f"{min(first):.2f}-{max(first):.2f}"
        tree = f"{trees.index(case.tree)}: " if len(trees) > 1 and case.loader != "stock" else ""
        yield (
            f"{tree + str(case):<78} {middle['first']:6.2f} {span:>11} {middle['CPU']:6.2f} {middle['cold']:7,.0f} "
            f"{middle['warm']:7,.0f} {middle['peak']:8,.0f}"
        )


def cases(arguments: argparse.Namespace, trees: Sequence[Path]) -> list[Case]:
    """What is compared, in the order of a turn."""
    wanted = []
    for workers in arguments.workers:
        for code in arguments.code:
            for lead in arguments.lead:
                for data in arguments.data:
                    wanted += [Case("streamer", data, workers, code, lead, tree) for tree in trees]
            if not arguments.no_stock:
                wanted += [Case("stock", "tars", workers, code, 0.0, trees[0], method) for method in arguments.stock]
    return wanted


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 8])
    parser.add_argument("--code", nargs="*", default=["none", "torch"], choices=["none", "torch"])
    parser.add_argument("--lead", type=float, nargs="*", default=[0.0, 3.0], help="seconds from constructor to iter()")
    parser.add_argument("--data", nargs="*", default=["tars"], choices=["tars", "raw"])
    parser.add_argument("--stock", nargs="*", default=["fork"], choices=["fork", "forkserver", "spawn"])
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout, in turns with this")
    parser.add_argument("--keep", type=Path, help="folder for the data, kept for the next run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Runs all cases in turns."""
    arguments = _options().parse_args()
    if arguments.child:
        run_child(json.loads(arguments.child))
        return
    compile_streamer()
    trees = [Path(__file__).resolve().parent.parent, *(tree.resolve() for tree in arguments.tree)]
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="streamer-bench-"))
    try:
        if not (root / "bucket").exists():
            make_data(root, arguments.samples)
            make_raw(root)
        with simulator(root, *S3_PROFILE) as server:
            stage = Stage(root, server)
            for data in arguments.data:
                stage.index(data)
            for _ in range(arguments.turns):
                for case in cases(arguments, trees):
                    stage.play(case, arguments.epochs)
        import torch

        with kept("start", f"torch {torch.__version__}", f"median of {arguments.turns}", keep=len(trees) == 1):
            print("\n".join(table(stage.found, trees)))
    finally:
        if not arguments.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
