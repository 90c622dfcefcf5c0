"""What `streamer plan` predicts, beside real runs against s3sim.

    python benchmarks/plan.py [--only NAME ...] [--keep DIR]

Tars of samples of 110 KB and raw objects of 323 KB, 0.5 GB each, behind a link of a given rate; undecoded, and a
transform that sleeps where decoding is to be slow. Each setting runs three epochs from an empty cache; ranks step
together, as with collectives. Bytes and requests are those of the server, the look-ahead into a fourth epoch included;
seconds are of epochs from the first batch on; waiting is its share of them. Differences are relative, of shares points.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

import checkout  # noqa: F401
from bounds import Bounds
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator
from stream import make_data

from benchmarks.feed.generate import generate
from benchmarks.feed.workloads import WORKLOADS
from streamer import StreamingDataLoader, StreamingDataset
from streamer.batches.samples.opened import OpenedDataset
from streamer.manifest.table import Manifest
from streamer.tools.planning.model import Link, Setting, TrainingJob
from streamer.tools.planning.simulate import simulate

EPOCHS = 3
FIRST_BYTE_SECONDS = float(S3_PROFILE[1]) / 1e3
CONNECTION_BYTES_PER_SECOND = float(S3_PROFILE[5]) * 1e6
# A new interpreter has imported what it needs, and the loader's fork server too.
SETTLE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """One setting; the cache is a share of the data."""

    name: str
    data: str = "tars"
    link_mbps: float = 50.0
    cache_share: float = 0.5
    step_seconds: float = 0.06
    batch_size: int = 64
    workers: int = 2
    sample_seconds: float = 0.0
    ranks: int = 1


CASES = (
    Case(name="all fits", cache_share=1.2),
    Case(name="half fits"),
    Case(name="half fits, slow step", step_seconds=0.24),
    Case(name="half fits, slow link", link_mbps=25),
    Case(name="a fifth fits", cache_share=0.2),
    Case(name="a tenth fits, slow link", cache_share=0.1, link_mbps=25),
    Case(name="slow decode", sample_seconds=0.005, cache_share=1.2),
    Case(name="slow decode, half fits, slow link", sample_seconds=0.003, link_mbps=25),
    Case(name="two ranks, half fits", ranks=2, batch_size=32),
    Case(name="two ranks, a fifth fits, slow link", ranks=2, batch_size=32, cache_share=0.2, link_mbps=25),
    Case(name="raw objects, all fits", data="raw", batch_size=24, cache_share=1.2),
    Case(name="raw objects, half fits", data="raw", batch_size=24),
    Case(name="raw objects, a fifth fits, slow step", data="raw", batch_size=24, cache_share=0.2, step_seconds=0.25),
    Case(name="raw objects, two ranks, slow link", data="raw", batch_size=12, ranks=2, link_mbps=25),
)


# ---------------------------------------------------------------- the real job


class Slow:
    """A transform that takes a time, and no core."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, sample: object) -> object:
        time.sleep(self._seconds)
        return sample


def train(rank: int, told: dict[str, object], together: Barrier) -> None:
    """One rank; the first one prints what it measured."""
    case = Case(**told["case"])  # type: ignore[arg-type]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), STREAMER_JOB="plan")
    dataset = StreamingDataset(
        str(told["url"]),
        manifest=str(told["manifest"]),
        cache_dir=str(told["cache"]),
        cache_bytes=int(str(told["cache_bytes"])),
        storage_options=told["options"],  # type: ignore[arg-type]
        decode=None,
        transform=Slow(case.sample_seconds) if case.sample_seconds else None,
    )
    with StreamingDataLoader(dataset, case.batch_size, case.workers, report_every=None) as loader:
        time.sleep(SETTLE_SECONDS)
        together.wait()
        measured = measure(loader, case, together)
        together.wait()
    if rank == 0:
        print(json.dumps(measured))


def measure(loader: StreamingDataLoader, case: Case, together: Barrier) -> dict[str, object]:
    """Three epochs: their seconds and waiting; and the first batch."""
    first, seconds, waiting = 0.0, [], []
    begun = time.perf_counter()
    for _ in range(EPOCHS):
        waited, batches = 0.0, iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                break
            together.wait()
            now = time.perf_counter()
            if first:
                waited += now - asked
            else:
                first, begun = now - begun, now
            time.sleep(case.step_seconds)
        now = time.perf_counter()
        seconds.append(now - begun)
        waiting.append(waited / (now - begun))
        begun = now
    return {"first_batch_seconds": first, "seconds": seconds, "waiting": waiting}


def run_job(told: dict[str, object]) -> None:
    """All ranks of a case, in processes of this one."""
    ranks = Case(**told["case"]).ranks  # type: ignore[arg-type]
    context = multiprocessing.get_context("fork")
    together = context.Barrier(ranks)
    processes = [context.Process(target=train, args=(rank, told, together)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in processes))


# ---------------------------------------------------------------- the comparison


def real(case: Case, server: Simulator, manifest: Manifest, root: Path) -> dict[str, object]:
    """A fresh engine and fresh processes; what they measured, and what the server sent."""
    server.set(total_mbps=case.link_mbps)
    cache = Path(tempfile.mkdtemp(dir=root, prefix="cache-"))
    told = {
        "case": asdict(case),
        "url": f"s3://bucket/{case.data}/",
        "manifest": str(manifest.path),
        "cache": str(cache),
        "cache_bytes": cache_bytes(case, manifest),
        "options": server.options,
    }
    server.statistics(reset=True)
    done = subprocess.run(
        [sys.executable, __file__, "--run", json.dumps(told)], check=True, stdout=subprocess.PIPE, text=True
    )
    sent = settled(server)
    shutil.rmtree(cache, ignore_errors=True)
    return {**json.loads(done.stdout), "bytes": sent["body_bytes_sent"], "requests": sent["object_gets"]}


def settled(server: Simulator) -> dict[str, object]:
    """The counters when the engine has received what it had asked for."""
    before = server.statistics()
    while True:
        time.sleep(1.0)
        now = server.statistics()
        if now["body_bytes_sent"] == before["body_bytes_sent"]:
            return now
        before = now


def cache_bytes(case: Case, manifest: Manifest) -> int:
    return int(case.cache_share * manifest.total_bytes)


def make_setting(case: Case, cache_bytes: int) -> Setting:
    """Makes what the simulator and the closed form are told of a case."""
    job = TrainingJob(
        ranks_per_node=case.ranks,
        batch_size=case.batch_size,
        step_seconds=case.step_seconds,
        workers=case.workers,
        sample_seconds=case.sample_seconds,
        epochs=EPOCHS,
    )
    link = Link(
        bytes_per_second=case.link_mbps * 1e6,
        first_byte_seconds=FIRST_BYTE_SECONDS,
        connection_bytes_per_second=CONNECTION_BYTES_PER_SECOND,
    )
    return Setting(job=job, link=link, cache_bytes=cache_bytes)


def predict(case: Case, manifest: Manifest) -> dict[str, object]:
    plan = simulate(OpenedDataset(manifest, None), make_setting(case, cache_bytes(case, manifest)))
    return {
        "bytes": sum(epoch.fetched_bytes for epoch in plan.epochs) + plan.ahead_bytes,
        "requests": sum(epoch.requests for epoch in plan.epochs) + plan.ahead_requests,
        "seconds": [epoch.seconds for epoch in plan.epochs],
        "waiting": [epoch.waiting_share for epoch in plan.epochs],
        "first_batch_seconds": plan.first_batch_seconds,
    }


def rows(case: Case, plan: dict[str, object], run: dict[str, object], bounds: Bounds) -> None:
    """A line for each figure."""
    pairs = [("MB in all", plan["bytes"], run["bytes"], 1e-6, 0), ("requests", plan["requests"], run["requests"], 1, 0)]
    for epoch, name in ((0, "cold"), (EPOCHS - 1, "warm")):
        pairs.append((f"{name} epoch, s", plan["seconds"][epoch], run["seconds"][epoch], 1, 0))  # type: ignore[index]
        pairs.append((f"{name} waiting, %", plan["waiting"][epoch], run["waiting"][epoch], 100, 1))  # type: ignore[index]
    pairs.append(("first batch, s", plan["first_batch_seconds"], run["first_batch_seconds"], 1, 2))
    for what, planned, measured, unit, kind in pairs:
        mine, theirs = float(str(planned)), float(str(measured))
        difference = mine - theirs if kind else (mine - theirs) / theirs
        shown = f"{100 * difference:+8.1f} {'points' if kind == 1 else '%'}" if kind < 2 else f"{difference:+8.2f} s"
        print(f"{case.name:40}{what:18}{mine * unit:12,.2f}{theirs * unit:12,.2f}{shown}", flush=True)
        if kind < 2:
            bounds.add(f"{case.name}: {what}", abs(difference), 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--keep", type=Path, help="folder for the data, kept for the next run")
    parser.add_argument("--s3sim", help="path of the simulator's command; default $S3SIM")
    parser.add_argument("--run", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run_job(options.run)
    with tempfile.TemporaryDirectory() as place:
        root = (options.keep or Path(place)).absolute()
        if not (root / "bucket" / "tars").exists():
            make_data(root, 5000)
            shutil.rmtree(root / "files")
            (root / "bucket" / "train").rename(root / "bucket" / "tars")
        generate(WORKLOADS["retinanet"], root / "bucket" / "raw", 1600)
        with simulator(root, *S3_PROFILE, command=options.s3sim) as server, kept("plan", keep=options.only is None):
            compare(server, root, [case for case in CASES if options.only is None or case.name in options.only])


def compare(server: Simulator, root: Path, cases: list[Case]) -> None:
    """The table, and its bounds."""
    manifests = {}
    for data in sorted({case.data for case in cases}):
        server.index(f"s3://bucket/{data}/", root / f"manifest-{data}", root / "index-cache")
        manifests[data] = Manifest.open(root / f"manifest-{data}")
    bounds = Bounds()
    print(f"{'setting':40}{'figure':18}{'predicted':>12}{'measured':>12}{'difference':>16}")
    for case in cases:
        manifest = manifests[case.data]
        rows(case, predict(case, manifest), real(case, server, manifest, root), bounds)
    bounds.report()


if __name__ == "__main__":
    main()
