"""Workers that die, hang or misbehave; a trainer that is killed. Nothing changes in the batches, nothing stays."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

from streamer.errors import WorkerError
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset, FakeRecipe
from tests.inspection import inspect

cloudpickle.register_pickle_by_value(sys.modules[__name__])

PATIENCE_SECONDS = 60


def sample(epoch: int, ordinal: int) -> dict[str, object]:
    return {"x": np.full(500, ordinal + 1000 * epoch), "noise": np.random.rand(20), "key": str(ordinal)}


def slower(epoch: int, ordinal: int) -> dict[str, object]:
    time.sleep(0.0005)
    return sample(epoch, ordinal)


def digest(batches: object) -> str:
    """Of all that is in the batches; `noise` comes from the global generators."""
    found = hashlib.sha256()
    for batch in batches:
        found.update(batch["x"].numpy().tobytes() + "".join(batch["key"]).encode())
        found.update(batch["noise"].numpy().tobytes())
    return found.hexdigest()


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.005)


def expected(samples: int) -> str:
    with StreamingDataLoader(FakeDataset(samples, sample), 8) as loader:
        return digest(batch for _ in range(2) for batch in loader)


def test_killed_worker_is_replaced():
    """A worker that is killed is replaced once, and two epochs have the batches of an undisturbed run."""
    with StreamingDataLoader(FakeDataset(200, slower), 8, 2) as loader:

        def batches():
            for epoch in range(2):
                for number, batch in enumerate(loader):
                    if (epoch, number) == (0, 5):
                        os.kill(inspect(loader).worker_pids[0], signal.SIGKILL)
                    yield batch

        assert digest(batches()) == expected(200)
        assert loader.stats().respawns == 1


@dataclass(frozen=True)
class Successors(FakeRecipe):
    """The source of a worker: its third opening, and each later one, waits until the other end of a pipe is opened."""

    folder: str = ""

    def open(self):
        for mark in ("first", "second"):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(f"{self.folder}/{mark}", os.O_CREAT | os.O_EXCL))
                return super().open()
        os.close(os.open(f"{self.folder}/gate", os.O_RDONLY))
        return super().open()


class Gated(FakeDataset):
    """A dataset whose workers open `Successors`."""

    folder: str

    def prepare(self, batch_size: int, last_batch):
        prepared = super().prepare(batch_size, last_batch)
        prepared.made = Successors(self._samples, batch_size, slower, folder=self.folder)
        return prepared


def test_those_who_live_make_what_a_dead_worker_had(tmp_path):
    """The batches of a killed worker are made by the other one, and no batch waits for the successor."""
    os.mkfifo(tmp_path / "gate")
    dataset = Gated(400, sample)
    dataset.folder = str(tmp_path)
    with StreamingDataLoader(dataset, 8, 2) as loader:
        found = []
        for batch in loader:
            found += batch["key"]
            if len(found) == 24:
                wait_until(lambda: inspect(loader).ready_workers == [0, 1])
                os.kill(inspect(loader).worker_pids[0], signal.SIGKILL)
        assert found == [str(ordinal) for ordinal in range(400)]
        wait_until(lambda: loader.stats().respawns == 1)
        assert inspect(loader).ready_workers == [1]
        os.close(os.open(tmp_path / "gate", os.O_WRONLY))


def resident_bytes() -> int:
    """Of this process, without what it shares with its workers."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024


class Heart:
    """A thread that only sleeps: measures how long the machine did not let it run, at most."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.02):
            now = time.monotonic()
            self.longest_seconds, last = max(self.longest_seconds, now - last - 0.02), now

    def __enter__(self) -> Heart:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()


def start_seconds() -> float:
    """What this machine takes now to start a process that imports what a worker does."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import streamer.batches.workers.__main__, streamer.batches.samples.recipe"], check=True
    )
    return time.monotonic() - began


def tell(gaps: list[float], starts: list[float], still_seconds: float) -> None:
    p50, p99, longest = np.quantile(gaps, [0.5, 0.99, 1])
    print(f"from batch to batch: p50 {p50:.4f}, p99 {p99:.3f}, longest {longest:.3f} s (<= 2 s)")
    print(f"the start of a process: median {statistics.median(starts):.3f}, longest {max(starts):.3f} s")
    print(f"the machine stood still for {still_seconds:.3f} s")


def open_descriptors() -> tuple[int, int]:
    """Returns the number of open descriptors of batches in shared memory, and that of all others."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    batches = sum("streamer-batch" in target for target in targets)
    return batches, len(targets) - batches


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("workers", "kills"), [(2, 200), (1, 40)])
def test_two_hundred_kills(workers, kills):
    """Workers killed two hundred times change no batch, cause no gap over 2 s, and leak no memory or descriptor.
    Those who live make at once what a dead worker had; where there is no other, its successor has to start. Where the
    machine stands still, or takes longer than 0.7 s to start a process, the gap may be longer.
    """
    samples, gaps, memory, descriptors, starts, found = 4000, [], [], [], [], []
    chooser = random.Random(3)
    with StreamingDataLoader(FakeDataset(samples, slower), 8, workers) as loader:
        stop = threading.Event()

        def murder() -> None:
            done = 0
            while done < kills and not stop.wait(chooser.uniform(0.02, 0.5)):
                victims = inspect(loader).worker_pids
                with contextlib.suppress(IndexError, ProcessLookupError):
                    os.kill(chooser.choice(victims), signal.SIGKILL)
                    done += 1
                # A window on: the same sample killed twice would rightly be blamed, on a machine too busy to make it.
                passed = len(gaps) + 16
                while len(gaps) < passed and not stop.wait(0.005):
                    pass

        def epoch():
            last = time.monotonic()
            for batch in loader:
                yield batch
                gaps.append(time.monotonic() - last)
                last = time.monotonic()

        next(iter(loader))
        murderer = threading.Thread(target=murder)
        murderer.start()
        heart = Heart()
        try:
            with heart:
                while murderer.is_alive() or len(found) < 4:
                    which = len(found) % 2
                    loader.set_epoch(which)
                    found.append((which, digest(epoch())))
                    memory.append(resident_bytes())
                    descriptors.append(open_descriptors())
                    starts.append(start_seconds())
        finally:
            stop.set()
            murderer.join()
        respawns = loader.stats().respawns
    with StreamingDataLoader(FakeDataset(samples, sample), 8) as calm:
        truth = list(enumerate([digest(calm), digest(calm)]))
    print(f"\n{workers} workers: {respawns} respawns in {len(gaps)} batches")
    print(f"MiB {[size >> 20 for size in memory]}, descriptors {descriptors}")
    tell(gaps, starts, heart.longest_seconds)
    assert set(found) == set(truth)
    assert respawns >= kills * 0.9
    assert max(gaps) < max(2.0, 3 * max(starts)) + heart.longest_seconds
    # The first epochs import and allocate; the digests' own lists are in it, too.
    assert memory[-1] - memory[len(memory) // 3] < 8 << 20
    batches, others = zip(*descriptors, strict=True)
    assert max(others[len(others) // 2 :]) <= max(others[: len(others) // 2])
    # Memory of batches is used again, and there is more of it until all that may be in use at once was: none is lost
    # with a worker.
    assert max(batches) < kills


def repeated_crash(epoch: int, ordinal: int) -> object:
    if ordinal == 13:
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"x": ordinal}


def test_crashing_sample_is_named():
    """A sample that crashes two workers is an error with its number and signal, and later batches are delivered."""
    with StreamingDataLoader(FakeDataset(40, repeated_crash), 4, 2) as loader:
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        with pytest.raises(WorkerError, match=r"sample 13 \(#13\), .*killed by SIGSEGV.* MiB") as caught:
            next(batches)
        assert caught.value.details["ordinal"] == 13
        assert next(batches)["x"].tolist() == [16, 17, 18, 19]


@pytest.mark.slow
def test_crashing_sample_is_skipped(caplog):
    """With `on_error="skip"` a sample that crashes workers is replaced by another of its batch, counted and logged."""
    with StreamingDataLoader(FakeDataset(16, repeated_crash, on_error="skip"), 4, 2) as loader:
        assert [b["x"].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 14, 14, 15]]
        assert [(entry.ordinal, "SIGSEGV" in entry.cause) for entry in loader.skipped] == [(13, True)]
    assert "sample 13 (#13)" in caplog.text


def stuck(epoch: int, ordinal: int) -> object:
    if (epoch, ordinal) == (0, 6):
        threading.Event().wait()
    return {"x": ordinal}


def test_stuck_sample_is_named():
    """A sample whose transform never returns is an error after `timeout`, and later batches are delivered."""
    with StreamingDataLoader(FakeDataset(12, stuck), 4, 2, timeout=0.3) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(
            WorkerError, match=r"sample 6 \(#6\), epoch 0, batch 1, took longer than timeout=0.3 s"
        ) as told:
            next(batches)
        assert "on_error='skip'" in str(told.value)
        assert "memory" not in str(told.value)
        assert next(batches)["x"].tolist() == [8, 9, 10, 11]


@pytest.mark.slow
def test_stuck_once_is_made_again(tmp_path):
    """A sample whose transform hangs once has its worker killed, and its batch is made again."""
    marker = tmp_path / "hung"

    def once(epoch: int, ordinal: int) -> object:
        if ordinal == 6 and not marker.exists():
            marker.write_text("")
            threading.Event().wait()
        return {"x": ordinal}

    with StreamingDataLoader(FakeDataset(12, once), 4, 1, timeout=0.3) as loader:
        assert [b["x"].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        assert loader.stats().respawns >= 1  # a busy machine may stop another for as long


def test_stuck_thread():
    """A worker thread that hangs is an error that names the sample and advises processes, which can be killed."""
    release = threading.Event()

    def wait(epoch: int, ordinal: int) -> object:
        if ordinal == 6:
            release.wait()
        return {"x": ordinal}

    with StreamingDataLoader(FakeDataset(12, wait), 4, 1, worker_type="thread", timeout=0.2) as loader:
        batches = iter(loader)
        next(batches)
        with pytest.raises(WorkerError, match=r"sample 6 .*worker_type='process'"):
            next(batches)
        release.set()


def test_workers_that_cannot_start(capfd):
    """Workers whose recipe ends the process raise WorkerError with the exit code, and are not started endlessly."""

    class Bad:
        def __reduce__(self):
            return os._exit, (7,)

        def __call__(self, epoch, ordinal):
            return None

    with (
        StreamingDataLoader(FakeDataset(12, Bad()), 4, 1) as loader,
        pytest.raises(WorkerError, match="exit code 7"),
    ):
        list(loader)


def test_recipe_that_fails_to_open():
    """An error that a recipe raises in a starting worker is raised in the trainer, with its traceback and advice."""

    class Missing:
        def __reduce__(self):
            return __import__, ("no_such_module_for_this_test",)

        def __call__(self, epoch, ordinal):
            return None

    with (
        StreamingDataLoader(FakeDataset(12, Missing()), 4, 2) as loader,
        pytest.raises(ModuleNotFoundError, match="no_such_module") as caught,
    ):
        list(loader)
    assert "put those into a module" in caught.value.__notes__[0]
    assert "no_such_module" in str(caught.value.__cause__)


def environment(epoch: int, ordinal: int) -> object:
    return {"threads": os.environ.get("OMP_NUM_THREADS", ""), "cwd": os.getcwd(), "path": os.pathsep.join(sys.path)}


def test_workers_environment(monkeypatch):
    """A worker has the trainer's search path and folder, and one OpenMP thread unless OMP_NUM_THREADS is set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for told, expected_threads in (("", "1"), ("3", "3")):
        if told:
            monkeypatch.setenv("OMP_NUM_THREADS", told)
        with StreamingDataLoader(FakeDataset(2, environment), 2, 1) as loader:
            batch = next(iter(loader))
        assert batch["threads"][0] == expected_threads
        assert batch["cwd"][0] == os.getcwd()
        assert batch["path"][0].split(os.pathsep) == [os.path.abspath(entry) for entry in sys.path]


def page_faults(epoch: int, ordinal: int) -> object:
    """Those of 8 MiB in pieces that glibc would give back to the kernel."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [bytes(256 << 10) for _ in range(32)]
    del pieces
    return {"faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before}


def test_a_worker_keeps_the_memory_that_a_sample_has_freed():
    """A worker keeps memory that a sample has freed: page faults nearly end once its heap has grown."""
    with StreamingDataLoader(FakeDataset(6, page_faults), 1, 1) as loader:
        first, _, *later = (int(batch["faults"][0]) for batch in loader)
    assert first > 1000
    assert max(later) < 200


def run_script(text: str, tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


# The checkout, for the fakes.
ROOT = Path(__file__).parents[2]
UNGUARDED = """
    import sys, os
    import numpy as np
    from streamer.loader.dataloader import StreamingDataLoader
    from tests.fake_dataset import FakeDataset
    import beside

    class Point:
        def __init__(self, x): self.x = x

    def report(epoch, ordinal):
        has_torch = "".join(["to", "rch"]) in sys.modules
        return {"x": beside.shift(ordinal), "heavy": has_torch, "path": os.environ.get("PYTHONPATH", "-")}

    loader = StreamingDataLoader(FakeDataset(8, lambda e, o: report(e, o)), 4, 2,
                                 collate_fn=lambda samples: Point(samples))
    for batch in loader:
        assert type(batch) is Point
        print([s["x"] for s in batch.x], any(s["heavy"] for s in batch.x), batch.x[0]["path"])
    loader.close()
"""


@pytest.mark.slow
def test_unguarded_script(tmp_path):
    """A script without `if __name__`, with lambdas and classes of its own, trains; its workers import no torch."""
    (tmp_path / "beside.py").write_text("def shift(n):\n    return n + 100\n")
    process = run_script(UNGUARDED, tmp_path)
    out, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert out.splitlines() == [f"[100, 101, 102, 103] False {ROOT}", f"[104, 105, 106, 107] False {ROOT}"]
    # On a busy machine the start takes longer than the wait that is said.
    assert [line for line in errors.splitlines() if not line.startswith("waiting for worker processes")] == []


ENDLESS = """
    import os, signal, sys, time
    import numpy as np
    from streamer.loader.dataloader import StreamingDataLoader
    from tests.fake_dataset import FakeDataset
    from tests.inspection import inspect

    # Python leaves SIGINT ignored where the shell that runs these tests in the background ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def sample(epoch, ordinal):
        if sys.argv[1] == "stuck" and ordinal > 20:
            while True:
                pass
        return {"x": np.ones(10)}

    loader = StreamingDataLoader(FakeDataset(10_000_000, sample), 4, 2)
    for number, batch in enumerate(loader):
        if number == 3:
            print(os.getpid(), *inspect(loader).worker_pids, flush=True)
        time.sleep(0.01)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def signals(pid: int) -> dict[str, list[str]]:
    """What each thread blocks, ignores and has pending; 2 is Ctrl-C's bit."""
    return {
        task.name: [line for line in (task / "status").read_text().splitlines() if line.startswith(("Sig", "Shd"))]
        for task in Path(f"/proc/{pid}/task").iterdir()
    }


@pytest.mark.parametrize("what", ["busy", pytest.param("stuck", marks=pytest.mark.slow)])
def test_killed_trainer_leaves_nothing(what, tmp_path):
    """Workers and fork server end by themselves when their trainer is killed, also during an endless transform."""
    process = run_script(ENDLESS, tmp_path, what)
    trainer, *workers = map(int, process.stdout.readline().split())
    started = [*workers, *children(trainer)]
    assert len(started) >= 2  # a worker, and the fork server
    assert all(map(alive, started))
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, started)))


@pytest.mark.slow
def test_interrupt(tmp_path):
    """Ctrl-C ends the trainer with KeyboardInterrupt and one traceback, and its workers end without output."""
    process = run_script(ENDLESS, tmp_path, "busy")
    _, *workers = map(int, process.stdout.readline().split())
    workers += children(process.pid)
    for pid in [*workers, process.pid]:
        os.kill(pid, signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired as error:
        found = signals(process.pid)
        process.kill()
        pytest.fail(f"it trains on: {found}, {process.communicate()[1] or error.stderr}")
    assert errors.count("Traceback") == 1, errors
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: not any(map(alive, workers)))


def test_no_shm_is_used():
    """Batches are passed in a memfd and not in /dev/shm, so that a container's 64 MB limit there does not matter."""
    before = Path("/proc/self/maps").read_text().count("/dev/shm")
    with StreamingDataLoader(FakeDataset(40, sample), 8, 1) as loader:
        next(iter(loader))
        mapped = Path("/proc/self/maps").read_text()
        assert mapped.count("/dev/shm") == before
        assert "memfd:streamer-batch" in mapped


def test_a_workers_child_does_not_hide_its_end(tmp_path):
    """A worker's death is seen although a child that it forked keeps its socket open."""

    def forks(epoch: int, ordinal: int) -> object:
        if (epoch, ordinal) == (0, 4) and not marker.exists():
            if (child := os.fork()) == 0:
                while True:
                    signal.pause()
            marker.write_text(str(child))
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": ordinal}

    marker = tmp_path / "child"
    try:
        with StreamingDataLoader(FakeDataset(12, forks), 4, 1) as loader:
            assert [b["x"].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
            assert loader.stats().respawns == 1
    finally:
        os.kill(int(marker.read_text()), signal.SIGKILL)
