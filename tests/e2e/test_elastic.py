"""Jobs under a real torchrun: killed and resumed on other ranks, or stopped by a budget of skips on all ranks."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings

PROGRAM = Path(__file__).parent / "elastic.py"
SAMPLES = 230
# Divisible by 1, 2 and 3 ranks.
BATCH = 24


class Job:
    """A folder of samples, an engine that stays, and launches of the program elastic.py by torchrun."""

    def __init__(self, root: Path) -> None:
        self.root = root
        noise = np.random.default_rng(5)
        for number in range(SAMPLES):
            path = root / "data" / f"class{number % 3}" / f"{number:04}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x" * int(noise.integers(5_000, 20_000)))
        self.launches = 0
        self.processes: list[subprocess.Popen] = []

    def client(self) -> EngineClient:
        settings = ClientSettings(
            cache_dir=self.root / "cache", runtime_dir=self.root / "run", cache_bytes=64_000_000, grace_seconds=0.1
        )
        return EngineClient(settings)

    def launch(self, world: int, **task: object) -> subprocess.Popen:
        """Starts the program on `world` ranks."""
        (self.root / "records").mkdir(exist_ok=True)
        told = {
            "url": str(self.root / "data"),
            "cache_dir": str(self.root / "cache"),
            "global_batch": BATCH,
            "workers": 1,
            "records": str(self.root / "records"),
            "checkpoint": str(self.root / "checkpoint"),
            "every": 2,
            "launch": self.launches,
            "dataset": {},
            **task,
        }
        self.launches += 1
        ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
        environment = {**os.environ, "STREAMER_RUNTIME_DIR": str(self.root / "run"), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, *ranks, str(PROGRAM), json.dumps(told)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        """Ends what a failed test has left."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            process.communicate()

    def steps(self, launch: int) -> dict[int, list[str]]:
        """Maps the position after each step to the sorted samples of its global batch that are no repeats."""
        found: dict[int, list[str]] = {}
        for path in (self.root / "records").glob(f"{launch}-*.jsonl"):
            for line in map(json.loads, path.read_text().splitlines()):
                kept = [name for name, again in zip(line["samples"], line["repeated"], strict=True) if not again]
                found[line["position"]] = sorted([*found.get(line["position"], []), *kept])
        return found


@pytest.fixture
def job(tmp_path) -> Iterator[Job]:
    made = Job(tmp_path)
    client = made.client()
    client.roots()
    with contextlib.closing(client), contextlib.closing(made):
        yield made


@pytest.mark.slow
def test_killed_and_resumed_on_other_ranks(job):
    """A job of 2 ranks, killed at a random step, resumes on 3 with the batches of a run that never stopped."""
    one = job.launch(1)
    one.communicate(timeout=240)
    assert one.returncode == 0
    whole = job.steps(0)
    assert sorted(chain(*whole.values())) == sorted(str(path.relative_to(job.root / "data")) for path in _files(job))
    hold = random.Random(os.getpid()).randrange(3, SAMPLES // BATCH)
    two = job.launch(2, hold_at=hold)
    # Ranks are in sessions of their own; torchrun goes first, or it would start them again or end them gently.
    for pid in (two.pid, *(int(two.stdout.readline()) for _ in range(2))):
        os.kill(pid, signal.SIGKILL)
    two.communicate(timeout=240)
    three = job.launch(3)
    three.communicate(timeout=240)
    assert three.returncode == 0
    saved = BATCH * (hold - hold % 2)
    rest = job.steps(2)
    assert min(rest) == saved + BATCH, "it goes on at the checkpoint"
    head = {position: names for position, names in job.steps(1).items() if position <= saved}
    assert {**head, **rest} == whole, f"hold_at={hold}"


@pytest.mark.slow
@pytest.mark.parametrize("rest_ranks", [1, 4])
def test_a_mix_killed_and_resumed_on_other_ranks(job, rest_ranks):
    """A mix on 2 ranks, killed in mid-epoch, resumes on 1 or 4 ranks with the samples of a run that never stopped."""
    mix = {
        "members": {f"class{number}": str(job.root / "data" / f"class{number}") for number in range(3)},
        "dataset": {"weights": {"weights": {"class0": 7, "class1": 2, "class2": 1}, "epoch_samples": 240}},
    }
    one = job.launch(1, **mix)
    one.communicate(timeout=240)
    assert one.returncode == 0
    whole = job.steps(0)
    assert len(whole) == 10
    two = job.launch(2, hold_at=5, **mix)
    for pid in (two.pid, *(int(two.stdout.readline()) for _ in range(2))):
        os.kill(pid, signal.SIGKILL)
    two.communicate(timeout=240)
    others = job.launch(rest_ranks, **mix)
    others.communicate(timeout=240)
    assert others.returncode == 0
    rest = job.steps(2)
    assert min(rest) == BATCH * 5
    head = {position: names for position, names in job.steps(1).items() if position <= BATCH * 4}
    assert {**head, **rest} == whole


@pytest.mark.slow
def test_a_spent_budget_stops_all_ranks_at_one_step(job):
    """A budget of skips that is spent stops all ranks before the same batch, with the same error; no rank hangs."""
    bad = _files(job)[:40:2]
    for path in bad:
        path.write_bytes(b"\xff" * path.stat().st_size)
    ranks = job.launch(2, global_batch=4, every=1000, dataset={"on_error": {"budget": 3}})
    ranks.communicate(timeout=240)
    assert ranks.returncode == 0
    told = [json.loads((job.root / "records" / f"error-{rank}.json").read_text()) for rank in range(2)]
    assert told[0]["position"] == told[1]["position"] > 0
    assert told[0]["text"] == told[1]["text"]
    assert "Skip(budget=3) is spent" in told[0]["text"]
    assert "DecodeError" in told[0]["text"]
    batches = [len(path.read_text().splitlines()) for path in (job.root / "records").glob("0-*.jsonl")]
    assert batches[0] == batches[1], "equal steps"


def _files(job: Job) -> list[Path]:
    return sorted((job.root / "data").rglob("*.txt"))
