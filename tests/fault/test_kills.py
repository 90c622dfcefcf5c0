"""SIGKILL of everything that a job consists of, at random: fork server, workers, engine, fetch processes, the trainer.

Fetch processes are stopped as well: their engine kills those that do not answer.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections import Counter
from pathlib import Path

import psutil
import pytest

KILLS = 200
SAMPLES, BATCH, EPOCHS = 2_000, 8, 3
# Nothing that was started is left this long after the last trainer has ended.
LEFT_SECONDS = 6.0
# Of one kind, until all jobs have delivered batches again: the sixth engine without progress ends a job, and the
# twentieth worker; a busy machine starts neither between two kills.
KILLS_IN_A_ROW = 4
TAG = "STREAMER_TEST_OF_KILLS"

TRAINER = """
    import hashlib, json, os, sys
    from streamer import StreamingDataLoader, StreamingDataset

    data, cache, out, workers = sys.argv[1:5]
    epochs = int(sys.argv[5])

    def transform(sample, rng):
        return {"key": sample["__key__"], "bin": sample["bin"], "drawn": float(rng.random())}

    def digest(batch):
        found = hashlib.sha256("".join(batch["key"]).encode())
        found.update(b"".join(batch["bin"]) + batch["drawn"].numpy().tobytes())
        return found.hexdigest()

    dataset = StreamingDataset(data, cache_dir=cache, cache_bytes="32MB", transform=transform)
    with StreamingDataLoader(dataset, 8, int(workers), report_every=None) as loader, open(out, "a") as log:
        if os.path.exists(out + ".state"):
            with open(out + ".state") as saved:
                loader.load_state_dict(json.load(saved))
        while loader.state_dict()["epoch"] < epochs:
            for batch in loader:
                state = loader.state_dict()
                log.write(f"{state['epoch']}/{state['position']} {digest(batch)}\\n")
                log.flush()
                with open(out + ".new", "w") as new:
                    json.dump(state, new)
                os.replace(out + ".new", out + ".state")
            state = loader.state_dict()
    print("done")
"""


class Job:
    """A trainer in a process of its own, which goes on from its last state when it is started again."""

    def __init__(self, folder: Path, name: str, workers: int, tag: str) -> None:
        (folder / "trainer.py").write_text(textwrap.dedent(TRAINER))
        self.log = folder / name
        self.log.touch()
        # The folder of the cache is short: the socket of its engine has a name of at most 107 bytes.
        self._command = [sys.executable, str(folder / "trainer.py"), str(folder / "data"), str(folder / "c")]
        self._command += [str(self.log), str(workers), str(EPOCHS)]
        (folder / "streamer.toml").write_text("[engine]\nfetch_processes = 2\n")
        self._environment = {**os.environ, TAG: tag, "STREAMER_CONFIG": str(folder / "streamer.toml")}
        self.start()

    def start(self) -> None:
        """Starts the trainer from its last state."""
        self.process = subprocess.Popen(self._command, env=self._environment, stdout=subprocess.DEVNULL)
        self._begun_bytes = self.log.stat().st_size

    @property
    def has_progressed(self) -> bool:
        """Whether this trainer has delivered batches: one that is killed in its imports shows nothing."""
        return self.log.stat().st_size > self._begun_bytes + 20 * 70

    def lines(self) -> list[tuple[str, str]]:
        """Position after each batch, and its digest; a line that was cut by a kill is left out."""
        text = self.log.read_text()
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [(position, digest) for position, _, digest in (line.partition(" ") for line in whole)]


def processes(tag: str, engines: set[int]) -> dict[int, str]:
    """Pid -> kind, of all that carry the tag and run; and fetch processes of `engines`, which are added to.

    A fetch process has none of its engine's variables, but the pid in its arguments.
    """
    found = {}
    for process in psutil.process_iter():
        try:
            if "streamer.engine.processes" in (words := process.cmdline()):
                if int(words[-1]) in engines and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = "fetch process"
                continue
            if process.environ().get(TAG) != tag or process.status() == psutil.STATUS_ZOMBIE:
                continue
            command, parent = " ".join(process.cmdline()), process.parent()
            if "trainer.py" in command:
                found[process.pid] = "trainer"
            elif "fork_server_main" in command:
                forked = parent is not None and "fork_server_main" in " ".join(parent.cmdline())
                found[process.pid] = "worker" if forked else "fork server"
            else:
                found[process.pid] = "engine" if "streamer.service" in command else "worker"
        except psutil.Error:
            continue
    engines.update(pid for pid, kind in found.items() if kind == "engine")
    return found


def wait_until_gone(tag: str, engines: set[int]) -> dict[int, str]:
    """Waits at most `LEFT_SECONDS` until no process has the tag; returns those that are left."""
    deadline = time.monotonic() + LEFT_SECONDS
    while (left := processes(tag, engines)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def ends_with_its_engine(pid: int) -> bool:
    """A fetch process that has asked for it, which it does before it ignores SIGINT: one stopped earlier stays."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return bool(int(status.split("SigIgn:")[1].split()[0], 16) & 1 << (signal.SIGINT - 1))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """2,000 files of 20 kB."""
    chance = random.Random(1)
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(SAMPLES):
        (folder / f"{number:04}.bin").write_bytes(chance.randbytes(20_000))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("data")
def test_two_hundred_kills_of_anything(tmp_path: Path) -> None:
    """Two jobs whose processes are killed at random two hundred times deliver every batch of an undisturbed run.
    The jobs share an engine, each killed process is chosen by kind, and no process is left.
    """
    calm_tag = uuid.uuid4().hex
    calm = Job(tmp_path, "calm", 0, calm_tag)
    assert calm.process.wait(300) == 0
    truth = dict(calm.lines())
    assert len(truth) == EPOCHS * SAMPLES // BATCH
    # The jobs would go on with the engine of the undisturbed run, which has another tag and is not killed.
    assert wait_until_gone(calm_tag, set()) == {}
    tag, chance, killed = uuid.uuid4().hex, random.Random(7), Counter[str]()
    jobs = [Job(tmp_path, name, 2, tag) for name in ("one", "two")]
    seen, in_a_row, delivered, engines = Counter[str](), Counter[str](), [0, 0], set[int]()
    while killed.total() < KILLS:
        time.sleep(chance.uniform(0.05, 0.6))
        imports = {job.process.pid for job in jobs if not job.has_progressed}
        if all(job.log.stat().st_size > size for job, size in zip(jobs, delivered, strict=True)):
            delivered = [job.log.stat().st_size for job in jobs]
            in_a_row.clear()
        running = {
            pid: kind
            for pid, kind in processes(tag, engines).items()
            if pid not in imports and in_a_row[kind] < KILLS_IN_A_ROW
        }
        kinds = sorted(set(running.values()))
        if kinds:
            kind = chance.choice(kinds)
            victim = chance.choice([pid for pid, of in running.items() if of == kind])
            stops = kind == "fetch process" and chance.random() < 0.3
            try:
                os.kill(victim, signal.SIGSTOP if stops and ends_with_its_engine(victim) else signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed[kind] += 1
            in_a_row[kind] += 1
        for job in jobs:
            if job.process.poll() is not None:
                # Ended by a kill: it goes on. Ended by itself: it begins again, until there were kills enough.
                assert job.process.returncode in (0, -signal.SIGKILL)
                if job.process.returncode == 0:
                    Path(f"{job.log}.state").unlink()
                job.start()
    for job in jobs:
        while job.process.wait(300) == -signal.SIGKILL:
            job.start()
        assert job.process.returncode == 0
        wrong = [position for position, digest in job.lines() if truth[position] != digest]
        assert wrong == []
        assert {position for position, _ in job.lines()} == set(truth)
        seen.update(position for position, _ in job.lines())
    left = wait_until_gone(tag, engines)
    print(f"killed {dict(killed)}; {seen.total()} batches compared; left after the end: {left}")
    assert left == {}
    assert min(killed[kind] for kind in ("engine", "fetch process", "fork server", "trainer", "worker")) >= 10
