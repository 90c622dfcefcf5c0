"""engine="inline": a real engine in a thread of the trainer's process, with worker processes, forks and kills."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import uvloop
from torch.utils.data import DataLoader

import streamer
from streamer import MixedDataset, StreamingDataLoader, StreamingDataset, Weights
from streamer.client.engine_client import EngineClient
from streamer.config import Environment
from streamer.errors import CacheError
from streamer.loader.members import member
from streamer.manifest.reader_lock import open_held
from streamer.manifest.table import Manifest
from streamer.service import inline
from streamer.service.lifecycle import EngineService

SAMPLES, BATCH, SECONDS = 60, 4, 120
Make = Callable[..., StreamingDataset]


@pytest.fixture(scope="module", autouse=True)
def _first_loop() -> None:
    """Makes a loop first, because libuv keeps a pipe for signals from the first loop of a process to its end."""
    uvloop.new_event_loop().close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder of data, with folders for cache and socket."""
    for number in range(SAMPLES):
        path = tmp_path / "data" / f"c{number % 3}" / f"{number:03d}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.full(20_000, number, np.int32))
    monkeypatch.setenv("STREAMER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("RANK", "WORLD_SIZE", "STREAMER_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def make(place: Path, closing: Callable[[StreamingDataset], StreamingDataset]) -> Callable[..., StreamingDataset]:
    """Makes datasets that are closed after the test."""
    common = {"cache_bytes": "64MB", "batch_size": BATCH}
    return lambda **options: closing(StreamingDataset(place / "data", **{**common, "engine": "inline", **options}))


def check_nothing_left(place: Path) -> None:
    """Checks that no thread, socket or lock is left, so that the next engine may start at once."""
    assert [thread.name for thread in threading.enumerate() if thread.name == "streamer-engine"] == []
    assert list((place / "run").glob("*")) == []
    with locked(place / "cache"):
        pass


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def engine_pid(dataset: StreamingDataset) -> int:
    with dataset._opening.connections.for_requests() as client:
        return client.welcome.pid


def numbers(batches: object) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch["npy"]]


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_of_every_epoch_comes_from_this_process(place: Path, make: Make, workers: int) -> None:
    """An inline engine serves every sample of every epoch from the trainer's process, and `close` ends it.

    After `close` there is neither thread nor socket nor lock.
    """
    dataset = make()
    with StreamingDataLoader(dataset, BATCH, workers) as loader:
        first, second = numbers(loader), numbers(loader)
        assert engine_pid(dataset) == os.getpid()
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second
    dataset.close()
    check_nothing_left(place)


@pytest.mark.slow
def test_the_order_is_that_of_an_engine_of_its_own(place: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inline engine gives the batches of an engine process, and a state of one continues with the other."""
    dataset = make()
    with StreamingDataLoader(dataset, BATCH) as loader:
        batches = iter(loader)
        begun = [next(batches) for _ in range(5)]
        state = loader.state_dict()
        rest = numbers(batches)
    dataset.close()
    check_nothing_left(place)
    monkeypatch.setenv("STREAMER_RUNTIME_DIR", str(place / "elsewhere"))
    plain = make(engine=None, cache_dir=place / "other")
    with StreamingDataLoader(plain, BATCH) as loader:
        assert numbers(loader) == [*numbers(begun), *rest]
        loader.load_state_dict(state)
        assert numbers(loader) == rest
        assert engine_pid(plain) != os.getpid()


def torch_numbers(dataset: StreamingDataset, **options: object) -> list[int]:
    with warnings.catch_warnings():
        # A machine may have fewer cores than this has workers.
        warnings.simplefilter("ignore", UserWarning)
        # From 3.12 on, of a fork beside threads: the engine's is let go of.
        warnings.simplefilter("ignore", DeprecationWarning)
        return numbers(DataLoader(dataset, batch_size=BATCH, **options))


@pytest.mark.parametrize("first", ["trainer", pytest.param("worker", marks=pytest.mark.slow)])
def test_torchs_workers_use_the_engine_of_who_comes_first(place: Path, make: Make, first: str) -> None:
    """torch's forked workers use the trainer's inline engine if it has looked at the dataset, else one of their own."""
    dataset = make()
    if first == "trainer":
        assert len(dataset) == SAMPLES
    expected = sorted(range(SAMPLES))
    for _ in range(2):
        assert sorted(torch_numbers(dataset, num_workers=2, multiprocessing_context="fork")) == expected
    assert ((place / "run").exists() and list((place / "run").glob("*.sock")) != []) == (first == "trainer")
    assert sorted(torch_numbers(dataset)) == expected


@pytest.mark.slow
@pytest.mark.leaves_over("multiprocessing's fork server and resource tracker live as long as this process")
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
@pytest.mark.parametrize("first", ["trainer", "worker"])
def test_torchs_new_workers_use_the_engine_of_who_comes_first(make: Make, first: str, start: str) -> None:
    """torch's workers that are spawned or come from a fork server read every sample through an inline engine.

    Whether the trainer has looked at the dataset before makes no difference.
    """
    dataset = make()
    if first == "trainer":
        assert len(dataset) == SAMPLES
    assert sorted(torch_numbers(dataset, num_workers=2, multiprocessing_context=start)) == sorted(range(SAMPLES))


def test_several_datasets_share_it(place: Path, make: Make) -> None:
    """Datasets share an inline engine, which ends with the last of them that is closed; the next use starts another."""
    dataset, other = make(), make(seed=5)
    assert len(dataset) == len(other) == SAMPLES
    dataset.close()
    assert sorted(numbers(StreamingDataLoader(other, BATCH))) == list(range(SAMPLES))
    other.close()
    check_nothing_left(place)
    assert len(dataset) == SAMPLES


@pytest.mark.slow
def test_it_stays_while_another_process_reads(make: Make) -> None:
    """An inline engine serves another process at its socket, and ends after the last connection and its grace time."""
    dataset = make()
    assert len(dataset) == SAMPLES
    program = (
        "import sys; from streamer.client.engine_client import EngineClient\n"
        "from streamer.client.settings import ClientSettings\n"
        "client = EngineClient(ClientSettings.from_environment())\n"
        "print(client.welcome.pid, flush=True); sys.stdin.read(); print(client.welcome.pid); client.close()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert int(reader.stdout.readline()) == os.getpid()
        dataset.close()
        reader.stdin.close()
        assert int(reader.stdout.readline()) == os.getpid()
    (engine,) = inline._engines
    engine._thread.join(SECONDS)


def test_an_engine_that_fails_is_replaced(
    place: Path, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An inline engine that fails is replaced, every sample comes once, and the log has the reason."""
    broken = threading.Event()

    async def fail(*_: object) -> None:
        await asyncio.to_thread(broken.wait)
        raise RuntimeError("for the test")

    dataset = make()
    with StreamingDataLoader(dataset, BATCH) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(EngineService, "_reload_on_signal", fail)
            batches = iter(loader)
            found = [next(batches) for _ in range(3)]
        (engine,) = inline._engines
        broken.set()
        engine._thread.join(SECONDS)
        assert sorted(numbers([*found, *batches])) == list(range(SAMPLES))
        assert "RuntimeError: for the test" in caplog.text
        assert inline._engines != [engine]
    dataset.close()
    check_nothing_left(place)


def test_a_folder_that_cannot_be_used_is_the_readers_error(place: Path, make: Make) -> None:
    """An inline engine that cannot use its cache folder raises its CacheError in the reader, and no thread stays."""
    (place / "cache").write_text("")
    dataset = make()
    with pytest.raises(CacheError, match=r"cache folder .*File exists"):
        len(dataset)
    (place / "cache").unlink()
    assert len(dataset) == SAMPLES
    dataset.close()
    check_nothing_left(place)


def test_an_engine_with_a_group_leaves_the_umask(place: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inline engine whose cache has a group leaves its process the umask, and lets the group read manifests."""
    monkeypatch.setenv("STREAMER_GROUP", str(os.getgid()))
    before = os.umask(0o077)
    try:
        with StreamingDataLoader(make(), BATCH) as loader:
            assert len(list(loader)) == SAMPLES // BATCH
        umask = os.umask(0o077)
    finally:
        os.umask(before)
    assert umask == 0o077
    files = [path for path in (place / "cache/manifests").glob("*/*") if path.suffix in {".json", ".arrows"}]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o644"}


@pytest.mark.parametrize("leaves", ["folder", "nothing"])
@pytest.mark.parametrize("kind", ["dataset", "mix"])
def test_a_manifest_that_is_removed_before_it_is_opened(
    place: Path, make: Make, monkeypatch: pytest.MonkeyPatch, kind: str, leaves: str
) -> None:
    """A manifest that another program removes between the engine's answer and its use is asked for again."""
    removed = []

    def remove_first(path: Path) -> Manifest:
        if not removed:
            removed.append(path)
            if leaves == "nothing":
                shutil.rmtree(path)
            else:
                (path / "root.json").unlink()
        return open_held(path)

    monkeypatch.setattr(member, "open_held", remove_first)
    if kind == "dataset":
        with StreamingDataLoader(make(), BATCH, 0) as loader:
            assert sorted(numbers(loader)) == list(range(SAMPLES))
    else:
        mix = MixedDataset({"a": make(batch_size=None)}, weights=Weights({"a": 1}), batch_size=BATCH)
        assert mix.quotas(0) == {"a": SAMPLES}
    assert removed[0].is_dir()


def test_a_fork_holds_nothing_of_the_engine(place: Path, make: Make) -> None:
    """A forked child keeps nothing of its parent's inline engine alive: it ends, and its clients learn of the end.

    Another engine can start while the child lives.
    """
    dataset = make()
    assert len(dataset) == SAMPLES
    stranger = EngineClient(dataset._opening.options.client_settings(Environment.read(), ""))
    stranger.roots()
    connection = stranger._connect()
    with forked():
        inline.end()
        assert select.select([connection], [], [], SECONDS)[0], "no end of file"
        stranger.close()
        dataset.close()
        check_nothing_left(place)
        assert len(dataset) == SAMPLES
        dataset.close()


@contextlib.contextmanager
def forked() -> Iterator[None]:
    """Forks a child that holds what a fork leaves it, and lives as long as the context."""
    lasting_read, lasting_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        if (child := os.fork()) == 0:
            os.close(lasting_write)
            os.read(lasting_read, 1)
            os._exit(0)
    os.close(lasting_read)
    try:
        yield
    finally:
        os.close(lasting_write)
        assert os.waitpid(child, 0)[1] == 0


def test_its_log_is_the_trainers(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """An inline engine writes to the trainer's log what an engine process writes to a file."""
    dataset = make()
    with caplog.at_level(logging.INFO, "streamer"):
        assert len(dataset) == SAMPLES
    assert any(record.threadName == "streamer-engine" and "listening" in record.message for record in caplog.records)


# ---------------------------------------------------------------- the end of the program

PROGRAM = """
import sys, streamer
def train(loader):
    for step, batch in enumerate(loader):
        print(step, flush=True)
        if step == 2:
            {ending}
def main():
    dataset = streamer.StreamingDataset({data!r}, cache_bytes="64MB", engine="inline")
    loader = streamer.StreamingDataLoader(dataset, 4, {workers})
    train(loader)
    return dataset, loader
if __name__ == "__main__":
    kept = main()
"""


def run(
    place: Path, ending: str, workers: int, until: Callable[[subprocess.Popen[str]], None] | None = None
) -> tuple[int, str]:
    """Runs the program in a process group of its own, as a terminal does; returns exit status and standard error."""
    path = place / "train.py"
    path.write_text(PROGRAM.format(data=str(place / "data"), workers=workers, ending=ending))
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(streamer.__file__).parent.parent)},
    ) as process:
        if until is not None:
            until(process)
        _, written = process.communicate(timeout=SECONDS)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(pid)) == process.pid:
                wait_for_end(int(pid))
    return process.returncode, written


def wait_for_end(pid: int) -> None:
    """Waits for the end of a process, because fork server and workers end with the trainer, but after it."""
    handle = os.pidfd_open(pid)
    try:
        assert select.select([handle], [], [], SECONDS)[0], Path(f"/proc/{pid}/cmdline").read_bytes()
    finally:
        os.close(handle)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("ending", "workers", "code", "last"),
    [
        pytest.param("pass", 0, 0, "", marks=SLOW),
        pytest.param("pass", 2, 0, "", marks=SLOW),
        pytest.param("break", 0, 0, "", marks=SLOW),
        pytest.param("break", 2, 0, "", marks=SLOW),
        pytest.param("raise RuntimeError('of the trainer')", 0, 1, "RuntimeError: of the trainer", marks=SLOW),
        pytest.param("raise RuntimeError('of the trainer')", 2, 1, "RuntimeError: of the trainer", marks=SLOW),
        pytest.param("sys.exit('said')", 0, 1, "said", marks=SLOW),
        pytest.param("sys.exit('said')", 2, 1, "said", marks=SLOW),
    ],
    ids=["end-0", "end-2", "break-0", "break-2", "exception-0", "exception-2", "exit-0", "exit-2"],
)
def test_a_program_that_closes_nothing_leaves_nothing(
    place: Path, ending: str, workers: int, code: int, last: str
) -> None:
    """A program that closes neither dataset nor loader leaves nothing behind, however its loop ends.

    It prints its own error and not a line more.
    """
    found, written = run(place, ending, workers)
    assert found == code, written
    check_raised(written, last)
    check_nothing_left(place)


def check_raised(written: str, last: str) -> None:
    """Checks that nothing is printed but one traceback, or none, and notices of a start that takes seconds."""
    lines = [line for line in written.strip().splitlines() if not line.startswith("waiting for the engine")]
    assert lines[-1:] == ([last] if last else []), written
    assert all(line.startswith((" ", "Traceback")) for line in lines[:-1]), written
    assert written.count("Traceback") <= 1, written


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_ctrl_c_leaves_nothing(place: Path, workers: int) -> None:
    """Ctrl-C ends the trainer with KeyboardInterrupt, and the rest of its process group without output.

    A terminal sends it to the whole group.
    """

    def interrupt(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        while process.stdout.readline().strip() != "ready":
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)

    # Python leaves it ignored where a shell that runs these tests in the background ignores it.
    ending = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); print('ready', flush=True)\n"
        "            while True: signal.pause()"
    )
    code, written = run(place, ending, workers, interrupt)
    assert code == -signal.SIGINT
    check_raised(written, "KeyboardInterrupt")
    check_nothing_left(place)
