"""Jobs as processes that share one engine and its cache: two jobs, validation between epochs, one job that hangs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamer import StreamingDataLoader, StreamingDataset
from streamer.client.engine_client import EngineClient
from streamer.client.settings import ClientSettings

CONSUME = Path(__file__).parent / "consume.py"
FILES, BATCH = 900, 8
PATIENCE_SECONDS = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def make_files(root: Path, count: int, seed: int) -> Path:
    """Makes files of 10 to 70 KB in four classes, six to a chunk."""
    random = np.random.default_rng(seed)
    for number in range(count):
        path = root / f"class{number % 4}" / f"{number:04}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(10_000, 70_000))))
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("data"), FILES, 5)


@pytest.fixture(scope="module")
def truth(data: Path) -> Counter[str]:
    """Returns the digest of every sample."""
    return Counter(hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() for path in data.rglob("*.bin"))


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.bin"))


class Machine:
    """Stands for a node: a cache folder, its real engine process, and a client that keeps it alive."""

    def __init__(self, folder: Path, cache_bytes: int) -> None:
        self.folder, self.cache_bytes = folder, cache_bytes
        self.client = EngineClient(
            ClientSettings(
                cache_dir=folder / "cache", runtime_dir=folder / "run", cache_bytes=cache_bytes, grace_seconds=0.1
            )
        )
        self.client.roots()

    def start(self, job: str, url: Path, *, seed: int, epochs: int, **task: object) -> Job:
        """Starts a job of one rank and two workers."""
        dataset = {"cache_dir": str(self.folder / "cache"), "cache_bytes": self.cache_bytes, "seed": seed}
        settings = {"loader": "ours", "url": str(url), "batch_size": BATCH, "workers": 2, "epochs": epochs, **task}
        environment = {
            **os.environ,
            "STREAMER_RUNTIME_DIR": str(self.folder / "run"),
            "STREAMER_JOB": job,
            "OMP_NUM_THREADS": "1",
        }
        output = self.folder / f"{job}.jsonl"
        stdin = subprocess.PIPE if "pause_at" in task else subprocess.DEVNULL
        with output.open("w") as target:
            process = subprocess.Popen(
                [sys.executable, str(CONSUME), json.dumps({**settings, "dataset": dataset})],
                stdin=stdin,
                stdout=target,
                text=True,
                env=environment,
            )
        return Job(process, output, epochs)


@dataclass
class Job:
    """A training process under way, which reads and computes nothing."""

    process: subprocess.Popen[str]
    output: Path
    epochs: int

    def lines(self) -> list[dict[str, object]]:
        """Returns the whole lines that the job has printed."""
        return [json.loads(line) for line in self.output.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def finish(self, truth: Counter[str]) -> None:
        """Waits for the job's end, and checks that it ended well and every epoch was the dataset."""
        self.process.communicate(timeout=PATIENCE_SECONDS)
        assert self.process.returncode == 0
        for epoch in range(self.epochs):
            assert self._delivered(epoch) == truth

    def _delivered(self, epoch: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for batch in self.lines():
            if batch.get("epoch") == epoch:
                samples = zip(batch["samples"], batch["repeated"], strict=True)
                found.update(mark for (_, mark), again in samples if not again)
        return found


@contextlib.contextmanager
def machine(folder: Path, cache_bytes: int) -> Iterator[Machine]:
    made = Machine(folder, cache_bytes)
    with contextlib.closing(made.client):
        yield made


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def bound_now(machine: Machine, total: int) -> float:
    """Returns (C - S) / D, the bound of the hit rate."""
    counts = machine.client.statistics()
    return (counts["limit_bytes"] - counts["staging_bytes"]) / total


def test_two_jobs_on_one_dataset_hit_as_if_alone(tmp_path: Path, data: Path, truth: Counter[str]) -> None:
    """Two jobs with different seeds and a cache of half the data get every sample, and hit at the bound (C - S)/D."""
    total = size_of(data)
    with machine(tmp_path, total // 2) as node:
        for job in [node.start(f"job {seed}", data, seed=seed, epochs=1) for seed in (1, 2)]:
            job.finish(truth)
        cold = node.client.statistics()
        jobs = [node.start(f"job {seed}", data, seed=seed, epochs=3) for seed in (3, 4)]
        wait_for(lambda: all(len(job.lines()) > 2 for job in jobs))
        assert len(node.client.statistics()["sessions"]) == 2
        bound = bound_now(node, total)
        for job in jobs:
            job.finish(truth)
        warm = node.client.statistics()
    rate = hit_rate(cold, warm)
    print(f"two jobs: hits {rate:.3f}, bound {bound:.3f}")
    assert 0.2 < bound < 0.5
    assert rate >= 0.98 * bound


def test_a_hanging_job_stops_nobody(tmp_path: Path, data: Path, truth: Counter[str]) -> None:
    """A job that hangs in mid-epoch (SIGSTOP) does not stop another job, and goes on where it was when it wakes.

    The other job hits at its bound.
    """
    total = size_of(data)
    with machine(tmp_path, total // 2) as node:
        hanging = node.start("hanging", data, seed=1, epochs=2, pause_at=[FILES // BATCH // 2])
        try:
            wait_for(lambda: any("paused" in line for line in hanging.lines()))
            hanging.process.send_signal(signal.SIGSTOP)
            node.start("other", data, seed=2, epochs=1).finish(truth)
            before = node.client.statistics()
            node.start("other", data, seed=3, epochs=2).finish(truth)
            after, bound = node.client.statistics(), bound_now(node, total)
        finally:
            hanging.process.send_signal(signal.SIGCONT)
        assert hanging.process.stdin is not None
        hanging.process.stdin.write("\n")
        hanging.process.stdin.flush()
        hanging.finish(truth)
    rate = hit_rate(before, after)
    print(f"beside a hanging job: hits {rate:.3f}, bound {bound:.3f}")
    assert len(after["sessions"]) == 1
    assert rate >= 0.9 * bound


def test_validation_between_epochs_keeps_its_place(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small validation set between epochs stays in the cache as a whole, and the training set hits at its bound.

    The small set's session had a look-ahead as large as if it were alone: S took all of the cache, and each round began
    with an empty one (hits 0.07, 2026-11-20).
    """
    small = make_files(tmp_path / "small", 60, 6)
    total = size_of(data)
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("RANK", "WORLD_SIZE", "STREAMER_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    options = {"cache_dir": tmp_path / "cache", "cache_bytes": total // 2, "decode": None}
    train, valid = (StreamingDataset(str(url), **options) for url in (data, small))
    rounds, bounds = [], []
    with machine(tmp_path, total // 2) as node:
        for _ in range(4):
            hits = []
            for dataset, count in ((train, FILES), (valid, 60)):
                before = node.client.statistics()
                with StreamingDataLoader(dataset, BATCH, collate_fn=len) as loader:
                    assert sum(size - again.sum() for size, again in with_repeats(loader)) == count
                    bounds.append(bound_now(node, total + size_of(small)))
                hits.append(hit_rate(before, node.client.statistics()))
            rounds.append(hits)
    train.close()
    valid.close()
    # All of the small set is kept, and what is left of C - S is the large one's.
    bound = (min(bounds) * (total + size_of(small)) - size_of(small)) / total
    told = ", ".join(f"{ours:.3f} {theirs:.3f}" for ours, theirs in rounds)
    print(f"hits of train and valid by round: {told}; bound {bound:.3f}")
    assert [valid_hits for _, valid_hits in rounds[1:]] == [1.0] * 3
    assert bound > 0.2
    assert min(train_hits for train_hits, _ in rounds[1:]) >= 0.98 * bound


def with_repeats(loader: StreamingDataLoader) -> Iterator[tuple[int, np.ndarray]]:
    for size in loader:
        yield size, loader.repeated


def hit_rate(before: dict[str, Any], after: dict[str, Any]) -> float:
    """Returns the hit rate in bytes, of what was needed in between."""
    return (after["hit_bytes"] - before["hit_bytes"]) / (after["needed_bytes"] - before["needed_bytes"])
