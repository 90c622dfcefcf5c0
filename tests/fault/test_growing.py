"""Growing datasets over slow links, on several ranks, and through kills; ranks, workers and engines are processes."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from streamer import Growing, Order, StreamingDataLoader, StreamingDataset
from streamer.decode import ArrayDecoder
from tests.e2e.keyed_s3 import KeyedS3

PROGRAM = Path(__file__).parent / "grow.py"
SAMPLES, LENGTH, BATCH, EPOCH = 400, 4096, 8, 200
SAMPLE_BYTES = 4 * LENGTH
DATA_BYTES = SAMPLES * SAMPLE_BYTES
KILLS = 12
TAG = "STREAMER_TEST_OF_GROWING"


def block(number: int) -> bytes:
    return np.full(LENGTH, number, "<f4").tobytes()


@pytest.fixture
def stores() -> Iterator[list[KeyedS3]]:
    """Two links to the same bucket."""
    bucket = {f"{number:03}.bin": block(number) for number in range(SAMPLES)}
    made = [KeyedS3({"runs": bucket}, {"runs": "key"}) for _ in range(2)]
    yield made
    for store in made:
        store.close()


class Job:
    """Starts `grow.py` as processes with the same environment, and reads what they write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes: list[subprocess.Popen] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, name: str, rank: int = 0, world: int = 1, **task: object) -> subprocess.Popen:
        told = {
            "cache_dir": str(self.root / "c"),
            "cache_bytes": "8MB",
            "length": LENGTH,
            "global_batch": BATCH,
            "workers": 1,
            "epochs": 4,
            "reuse": 3,
            "epoch_samples": EPOCH,
            "records": str(self.root / f"{name}.{rank}"),
            **task,
        }
        environment = {
            **os.environ,
            TAG: str(self.root),
            "OMP_NUM_THREADS": "1",
            "STREAMER_RUNTIME_DIR": str(self.root / "r"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
        }
        command = [sys.executable, str(PROGRAM), json.dumps(told)]
        self.processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return self.processes[-1]

    def close(self) -> None:
        """Ends what a failed test has left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def told(self, process: subprocess.Popen, seconds: float = 120.0) -> dict:
        """What a launch prints at its end."""
        output, _ = process.communicate(timeout=seconds)
        return json.loads(output.splitlines()[-1])

    def batches(self, name: str, world: int = 1) -> dict[int, list[tuple[int, float]]]:
        """Place after each step -> samples of the global batch with their random numbers, in no order."""
        found: dict[int, list[tuple[int, float]]] = {}
        for rank in range(world):
            mine: dict[int, list[tuple[int, float]]] = {}
            for line in (self.root / f"{name}.{rank}").read_text().splitlines():
                step = json.loads(line)
                batch = list(zip(step["samples"], step["drawn"], strict=True))
                assert mine.setdefault(step["place"], batch) == batch  # also a step that was repeated after a kill
            for place, batch in mine.items():
                found[place] = sorted([*found.get(place, []), *batch])
        return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    (tmp_path / "data").mkdir()
    for number in range(SAMPLES):
        (tmp_path / "data" / f"{number:03}.bin").write_bytes(block(number))
    made = Job(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.process
def test_two_ranks_of_which_one_has_a_slower_link(job: Job, stores: list[KeyedS3]) -> None:
    """Two ranks with links of different rates have one log of admissions, which the slower link bounds.
    A single rank repeats their batches from that log.
    """
    # A rank trains 4 MB/s.
    for store, rate in zip(stores, (2e6, 1e6), strict=True):
        store.bytes_per_second = rate
    ranks = [
        job.start(
            "two",
            rank,
            2,
            url="s3://runs/",
            storage_options=stores[rank].options("key"),
            cache_dir=str(job.root / f"c{rank}"),
            reuse=6,
            step_seconds=0.016,
            epochs=16,
        )
        for rank in range(2)
    ]
    first, second = (job.told(rank) for rank in ranks)
    assert first["admissions"] == second["admissions"]
    # Half of each cohort is on each rank: what the slower link has brought bounds the window.
    assert sum(first["admissions"]) > first["admissions"][0]
    alone = job.start("alone", url=str(job.root / "data"), reuse=6, grow=first["admissions"], epochs=16)
    assert job.told(alone)["admissions"][: len(first["admissions"])] == first["admissions"]
    assert job.batches("two", 2) == job.batches("alone")


@pytest.mark.slow
@pytest.mark.process
def test_a_rank_that_ends_is_an_error_on_the_others(job: Job) -> None:
    """A rank that is killed makes the other one raise StateError that names it, within the store's time limit."""
    task = {"url": str(job.root / "data"), "in_step": False, "timeout_seconds": 8, "epochs": 50}
    ranks = [job.start("dead", rank, 2, **task, **({"stop_after": 10} if rank else {})) for rank in range(2)]
    assert ranks[1].wait(60) == -signal.SIGKILL
    begun = time.monotonic()
    told = job.told(ranks[0], 60)
    assert told["error"] == "StateError"
    assert "ranks 1 have not said within 8 s" in told["text"]
    assert time.monotonic() - begun < 30
    ranks[1].communicate()


@pytest.mark.slow
@pytest.mark.process
def test_kill_two_ranks_and_go_on_with_one(job: Job) -> None:
    """A job killed in mid-round on two ranks goes on with one rank, with the batches of an undisturbed run."""
    task = {"url": str(job.root / "data"), "grow": "500KB"}
    assert "admissions" in job.told(job.start("calm", **task))
    ranks = [job.start("killed", rank, 2, stop_after=37, **task) for rank in range(2)]
    for rank in ranks:
        rank.communicate(timeout=60)
    calm, before = job.batches("calm"), job.batches("killed", 2)
    whole = {place: batch for place, batch in before.items() if len(batch) == BATCH}
    assert len(whole) >= 36
    assert all(calm[place] == batch for place, batch in whole.items())
    (job.root / "on.0.state").write_bytes((job.root / "killed.0.state").read_bytes())
    assert "admissions" in job.told(job.start("on", **task))
    after = job.batches("on")
    assert all(calm[place] == batch for place, batch in after.items())
    assert set(after) | set(whole) == set(calm)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_kills_of_anything(job: Job) -> None:
    """A growing dataset whose engine, workers and trainer are killed at random delivers the batches of its log."""
    chance = random.Random(3)
    # Slow enough that a kill meets a round.
    task = {"url": str(job.root / "data"), "step_seconds": 0.02, "workers": 2, "epochs": 6}
    process, killed = job.start("shot", **task), 0
    while killed < KILLS and process.poll() != 0:
        time.sleep(chance.uniform(0.3, 1.2))
        if process.poll():
            process.communicate()
            process = job.start("shot", **task)
        elif process.poll() is None:
            kind = chance.choice(["engine", "worker", "trainer"])
            killed += kill(kind, process.pid, str(job.root), chance)
    output, _ = process.communicate(timeout=120)
    if process.returncode:
        output, _ = job.start("shot", **task).communicate(timeout=120)
    admissions = json.loads(output.splitlines()[-1])["admissions"]
    alone = job.start("calm", url=str(job.root / "data"), epochs=6, grow=admissions)
    assert "admissions" in job.told(alone)
    assert job.batches("shot") == job.batches("calm")


def kill(kind: str, trainer: int, tag: str, chance: random.Random) -> int:
    """Kills a process of the job; 0: there is none of that kind."""
    if kind == "trainer":
        os.kill(trainer, signal.SIGKILL)
        return 1
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            mine = process.pid != trainer and process.environ().get(TAG) == tag
        except psutil.Error:
            continue
        if mine and ("streamer.service" in command) == (kind == "engine"):
            found.append(process)
    if not found:
        return 0
    chance.choice(found).kill()
    return 1


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timing
def test_a_link_of_a_quarter_of_the_rate_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A link of a quarter of the training rate is enough for a growing dataset: steps wait for what it brings of the
    first round, and 1 % of the time in later epochs. Once the cache is full, the link carries a fifth of what is
    trained, as each sample is used five times.
    """
    samples, length, batch, reuse, rate = 600, 16384, 8, 5, 4e6
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "r"))
    bucket = {f"{number:03}.bin": np.full(length, number, "<f4").tobytes() for number in range(samples)}
    store = KeyedS3({"runs": bucket}, {"runs": "key"})
    request.addfinalizer(store.close)
    dataset = StreamingDataset(
        "s3://runs/",
        storage_options=store.options("key"),
        cache_dir=tmp_path / "c",
        cache_bytes=samples * length * 4 // 5 + 1_000_000,
        decode={"bin": ArrayDecoder("<f4", (length,))},
        growing=Growing(reuse, samples),
        order=Order(lanes=1, shuffle_window=2),
    )
    request.addfinalizer(dataset.close)
    len(dataset)
    store.bytes_per_second = rate
    with StreamingDataLoader(dataset, batch, 1, report_every=None) as loader:
        batches = iter(loader)
        begun = time.monotonic()
        next(batches)
        assert time.monotonic() - begun < 5
        for epoch in range(4):
            for _ in batches:
                time.sleep(batch * length * 4 / (4 * rate))
            if epoch == 0:
                before = loader.stats()
            if epoch == 1:
                sent, trained = store.sent_bytes, loader.stats().samples
            batches = iter(loader)
        after = loader.stats()
        admissions = loader.admissions
    network = after.waiting["network"] - before.waiting["network"]
    assert network <= 0.01 * (after.step_seconds - before.step_seconds)
    # Nothing is there before the first round, which the link alone brings.
    first_round = admissions[0] / sum(admissions) * after.growing.passes * samples * length * 4
    assert before.waiting["network"] <= 1.5 * first_round / rate
    used = (after.samples - trained) * length * 4
    # Besides, the look-ahead may be a cohort further at the end than at the beginning.
    assert store.sent_bytes - sent <= used / reuse + 0.05 * used
