"""How many emulated accelerators two cores feed, the store beside them: `benchmarks/feed` against s3sim.

    python benchmarks/like.py [--only retinanet resnet50] [--phase warm] [--rounds 5] [--keep DIR] [--accelerators 2 12]

The data of every workload is generated once (20 GB in all; `--keep` leaves it for the next run) and served by the
simulator with the profile of S3 within its region. `--rounds` searches, in turns over the workloads; with
`--accelerators` these numbers are measured instead of searched. Bounds: the least of all rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bounds import Bounds
from report import kept
from s3sim import S3_PROFILE, Simulator, simulator

from benchmarks.feed.__main__ import PHASES
from benchmarks.feed.generate import generate
from benchmarks.feed.workloads import WORKLOADS

# Accelerators that are to be fed on two cores.
LEAST = {
    ("retinanet", "cold"): 2,
    ("retinanet", "warm"): 12,
    ("resnet50", "cold"): 2,
    ("resnet50", "warm"): 10,
    ("cosmoflow", "warm"): 1,
    ("flux", "cold"): 4,
}


def bench(name: str, server: Simulator, options: argparse.Namespace, root: Path) -> list[dict[str, object]]:
    """The phases of one search, as the command reports them."""
    report = root / "figures.json"
    command = [sys.executable, "-m", "benchmarks.feed", name, "--data", f"s3://bucket/{name}/"]
    command += [
        "--storage-options",
        json.dumps(server.options),
        "--json-file",
        str(report),
        "--keep",
        str(root / "caches"),
    ]
    command += ["--workers", str(options.workers), "--worker-type", options.worker_type]
    if options.phase:
        command += ["--phase", options.phase]
    if options.accelerators:
        command += ["--accelerators", *map(str, options.accelerators)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return list(json.loads(report.read_text())["phases"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--phase", choices=PHASES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--worker-type", choices=("process", "thread"), default="process")
    parser.add_argument("--accelerators", type=int, nargs="+")
    parser.add_argument("--objects", type=int, help="of each workload")
    parser.add_argument("--keep", type=Path, help="folder for the data, kept for the next run")
    parser.add_argument("--s3sim", help="path of the simulator's command; default $S3SIM")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = (options.keep or Path(place)).absolute()
        for name in options.only:
            generate(WORKLOADS[name], root / "bucket" / name, options.objects or WORKLOADS[name].objects)
        part = [] if len(options.only) == len(WORKLOADS) else options.only
        file = "-".join(["like", *part, *filter(None, [options.phase])])
        with simulator(root, *S3_PROFILE, command=options.s3sim) as server, kept(file, keep=options.objects is None):
            measure(server, options, root)


def measure(server: Simulator, options: argparse.Namespace, root: Path) -> None:
    """All rounds, and what they were to show."""
    found: dict[tuple[str, str], list[int]] = {}
    for turn in range(options.rounds):
        for name in options.only:
            for phase in bench(name, server, options, root):
                found.setdefault((name, str(phase["phase"])), []).append(int(str(phase["fed"])))
                print_phase(turn, name, phase)
    print(f"\n{'like':12}{'cache':8}{'accelerators fed in each round':40}{'median':>8}")
    bounds = Bounds()
    for (name, phase), counts in found.items():
        print(f"{name:12}{phase:8}{' '.join(map(str, counts)):40}{statistics.median(counts):8g}")
        if (least := LEAST.get((name, phase))) is not None:
            bounds.add(f"{name}, {phase}", min(counts), least, " accelerators", least=True)
    bounds.report()


def print_phase(turn: int, name: str, phase: dict[str, object]) -> None:
    """The numbers that were tried, and what stopped the next one."""
    trials = phase["trials"]
    assert isinstance(trials, list)
    tried = sorted(trials, key=lambda trial: trial["accelerators"])
    shown = ", ".join(f"{trial['accelerators']}: {trial['utilisation']:.0%}" for trial in tried)
    print(f"round {turn + 1}, {name}, {phase['phase']}: {phase['fed']} fed ({shown})")
    beyond = [trial for trial in tried if trial["accelerators"] > int(str(phase["fed"]))]
    if beyond:
        print(f"  {beyond[0]['accelerators']} are not: {beyond[0]['bottleneck']}")


if __name__ == "__main__":
    main()
