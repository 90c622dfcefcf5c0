"""Workers from the fork server: what kills it, what makes it unsafe, and where its workers run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from streamer.batches.workers import fork_server as fork_servers
from streamer.batches.workers.fork_server import stop_fork_server
from streamer.loader.dataloader import StreamingDataLoader
from tests.fake_dataset import FakeDataset
from tests.inspection import inspect

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SAMPLES, BATCH = 400, 8


@pytest.fixture
def own_server() -> Iterator[None]:
    """The test begins and ends without a server, and none is held against it that an earlier test has killed."""
    stop_fork_server()
    fork_servers._current.crashes.clear()
    yield
    stop_fork_server()
    fork_servers._current.crashes.clear()


def sample(epoch: int, ordinal: int) -> object:
    time.sleep(0.001)
    return {"x": ordinal, "pid": os.getpid(), "parent": os.getppid()}


def server_pid() -> int:
    (pid,) = [
        int(child)
        for task in Path("/proc/self/task").glob("*/children")
        for child in task.read_text().split()
        if b"fork_server_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return pid


def ordinals(batches: Iterator[object]) -> list[int]:
    return [int(ordinal) for batch in batches for ordinal in batch["x"]]


def test_workers_are_children_of_one_server() -> None:
    """Workers of two loaders are children of one fork server; those by `spawn` are children of the trainer."""
    with (
        StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 2) as one,
        StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 1) as other,
        StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 1, multiprocessing_context="spawn") as spawned,
    ):
        parents = [{int(parent) for batch in loader for parent in batch["parent"]} for loader in (one, other, spawned)]
    assert parents == [{server_pid()}, {server_pid()}, {os.getpid()}]


def test_workers_of_this_dataset_import_no_torch() -> None:
    """The modules of the tests' dataset import no torch, so that its workers start fast."""
    program = "import sys, tests.fake_dataset, tests.inspection; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2])


def test_a_killed_worker_is_back_at_once() -> None:
    """The next batch of an only worker that is killed comes within 0.3 s, at the fastest of five kills.
    The worker imports nothing: with torch, which this dataset once named, each of them took seconds.
    """
    gaps = []
    with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 1, prefetch_batches=1) as loader:
        found, batches = [], iter(loader)
        for batch in batches:
            found += batch["x"].tolist()
            if len(found) % 64 == 0 and len(gaps) < 5:
                killed = time.monotonic()
                pid = inspect(loader).worker_pids[0]
                os.kill(pid, signal.SIGKILL)
                while inspect(loader).worker_pids in ([], [pid]):
                    time.sleep(0.001)
                found += next(batches)["x"].tolist()
                gaps.append(time.monotonic() - killed)
        assert found == list(range(SAMPLES))
    print(f"from the kill to the batch: {sorted(gaps)}")
    assert min(gaps) < 0.3


@pytest.mark.usefixtures("own_server")
def test_a_killed_server_is_replaced() -> None:
    """A fork server that is killed with its workers is replaced, and every batch is right."""
    with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 2) as loader:
        found, killed = [], 0
        for number, batch in enumerate(loader):
            found += batch["x"].tolist()
            if number == 10:
                killed = server_pid()
                os.kill(killed, signal.SIGKILL)
        assert found == list(range(SAMPLES))
        assert inspect(loader).starts_by_fork
        assert server_pid() != killed


@pytest.mark.slow
@pytest.mark.usefixtures("own_server")
def test_a_server_that_keeps_dying_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """After three crashes of the fork server, workers are new interpreters, with one warning and right batches."""
    with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 1) as loader:
        for _ in range(3):
            batches = iter(loader)
            found = ordinals([next(batches)])
            os.kill(server_pid(), signal.SIGKILL)
            found += ordinals(batches)
            assert found == list(range(SAMPLES))
            loader.set_epoch(0)
        assert not inspect(loader).starts_by_fork
    assert caplog.text.count("new interpreters") == 1


@pytest.mark.usefixtures("own_server")
def test_a_module_that_starts_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """Workers whose modules start a thread are new interpreters, and one warning names the module:
    a fork would keep the thread's locks and lose the thread.
    """
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
        "def collate(samples):\n    import os\n    return {'x': [s['x'] for s in samples], 'parent': os.getppid()}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    started = []
    monkeypatch.setattr("threading.Thread.start", lambda self: started.append(self))
    import starts_a_thread  # type: ignore[import-not-found]

    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert len(started) == 1
    with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 2, collate_fn=starts_a_thread.collate) as loader:
        batches = list(loader)
    assert [ordinal for batch in batches for ordinal in batch["x"]] == list(range(SAMPLES))
    assert {batch["parent"] for batch in batches} == {os.getpid()}
    assert caplog.text.count("starts_a_thread starts 1 thread") == 1


@pytest.mark.usefixtures("own_server")
def test_a_loader_that_ends_before_its_workers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """A loader that ends while the fork server still imports logs no warning about unknown workers."""
    (tmp_path / "slow_module.py").write_text(f"import os, time\nif os.getpid() != {os.getpid()}: time.sleep(5)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import slow_module

    def uses(epoch: int, ordinal: int) -> object:
        return slow_module.__name__

    with StreamingDataLoader(FakeDataset(SAMPLES, uses), BATCH, 1) as loader:
        iter(loader)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
    del sys.modules["slow_module"]


def test_a_second_loader_needs_further_modules(caplog) -> None:
    """A fork server imports further modules for a second loader while workers of the first one run.
    The first one's connection is no socket that a module has opened.
    """
    with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 1) as one:
        next(iter(one))

        def collate(samples: list[object]) -> object:

            return colorsys.__name__, len(samples)

        import colorsys

        with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 1, collate_fn=collate) as other:
            assert next(iter(other)) == ("colorsys", BATCH)
            assert inspect(other).starts_by_fork
    assert "new interpreters" not in caplog.text


def test_a_module_that_imports_pyarrow(caplog) -> None:
    """Workers that use pyarrow are forked, although its allocator has a thread in other processes."""

    def collate(samples: list[object]) -> object:
        return pyarrow.__name__, len(pyarrow.array(range(1000)).to_pylist())

    import pyarrow

    with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 1, collate_fn=collate) as loader:
        assert next(iter(loader)) == ("pyarrow", 1000)
        assert inspect(loader).starts_by_fork
    assert "new interpreters" not in caplog.text


def where(epoch: int, ordinal: int) -> object:
    return {"folder": os.getcwd(), "variable": os.environ.get("SET_LATER", ""), "path": sys.path[0]}


def test_workers_run_where_the_trainer_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get the folder, variables and search path that the trainer has when the loader starts them."""
    with StreamingDataLoader(FakeDataset(BATCH, where), BATCH, 1) as loader:
        list(loader)
    first = server_pid()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET_LATER", "yes")
    monkeypatch.syspath_prepend("/somewhere/else")
    with StreamingDataLoader(FakeDataset(BATCH, where), BATCH, 1) as loader:
        (batch,) = loader
    assert server_pid() == first
    assert (batch["folder"][0], batch["variable"][0], batch["path"][0]) == (str(tmp_path), "yes", "/somewhere/else")


def draws(epoch: int, ordinal: int) -> object:
    import random

    import numpy as np

    return {"drawn": (random.random(), float(np.random.rand())), "pid": os.getpid()}


def test_a_fork_shares_no_state_of_generators_with_another() -> None:
    """Two forked workers draw the same random numbers for each sample as one worker does."""
    found = []
    for workers in (1, 2):
        with StreamingDataLoader(FakeDataset(SAMPLES, draws), BATCH, workers) as loader:
            found.append([value for batch in loader for pair in zip(*batch["drawn"], strict=True) for value in pair])
    assert found[0] == found[1]
    assert len(set(map(float, found[0]))) == 2 * SAMPLES


@pytest.mark.usefixtures("own_server")
@pytest.mark.timeout(60)
def test_a_module_whose_import_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """A fork server in an import that never ends is killed when it is stopped.
    Regression: stopping the server waited for the import.
    """
    begun = tmp_path / "begun"
    source = f"import pathlib, threading\npathlib.Path({str(begun)!r}).touch()\nthreading.Event().wait()\n"
    (tmp_path / "never_imported.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(fork_servers, "_CLOSE_SECONDS", 0.1)
    server = fork_servers.fork_server(["never_imported"])
    while not begun.exists():
        time.sleep(0.01)  # the file is all that there is to see
    stop_fork_server()
    assert server.gone
    assert "does not end: it is killed" in caplog.text


@pytest.mark.usefixtures("own_server")
def test_nothing_is_left_after_the_server_is_stopped() -> None:
    """The fork server's process has ended when `stop_fork_server` returns."""
    with StreamingDataLoader(FakeDataset(SAMPLES, sample), BATCH, 2) as loader:
        next(iter(loader))
        pid = server_pid()
    stop_fork_server()
    assert not Path(f"/proc/{pid}").exists()
