"""The executor of processes: errors and deaths concern one task. Processes are real, and some are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from streamer.errors import ConfigError, DecodeError, WorkerError
from streamer.executors.processes import Processes
from streamer.executors.runner import Runner, run_all, runner

pytestmark = pytest.mark.process


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Runs an executor of two processes."""
    executor = Processes(2)
    yield executor
    executor.shutdown(cancel_futures=True)


def refuse(number: int) -> int:
    """Raises an error with details."""
    raise DecodeError(f"sample {number}", offset=number)


def end_once(path: str) -> int:
    """Kills its process the first time, and returns its pid the second time."""
    if not os.path.exists(path):
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_results_and_errors_come_back(processes: Processes) -> None:
    """Results and typed errors of tasks are returned, also of lambdas; printed text is not taken for a result."""
    first = [processes.submit(lambda n: (print("noise"), n * n, os.getpid())[1:], n) for n in range(20)]
    assert [future.result()[0] for future in first] == [n * n for n in range(20)]
    assert 1 <= len({future.result()[1] for future in first} - {os.getpid()}) <= 2
    with pytest.raises(DecodeError, match="sample 3") as failure:
        processes.submit(refuse, 3).result()
    assert failure.value.details == {"offset": 3}


def test_an_error_that_cannot_be_pickled_comes_as_text(processes: Processes) -> None:
    """An error that cannot be pickled is raised as a WorkerError with its text."""

    class Odd(Exception):
        def __init__(self, a: int, b: int) -> None:
            super().__init__("odd one")

    def fail() -> None:
        raise Odd(1, 2)

    with pytest.raises(WorkerError, match="odd one"):
        processes.submit(fail).result()


def test_a_killed_process_costs_its_task(processes: Processes, tmp_path: Path) -> None:
    """A killed process fails its task with an error that names the signal, and the executor goes on."""
    future = processes.submit(end_once, str(tmp_path / "ended"))
    with pytest.raises(WorkerError, match="killed by signal 9"):
        future.result()
    assert processes.submit(end_once, str(tmp_path / "ended")).result() > 0


def test_a_task_whose_process_was_killed_runs_again(processes: Processes, tmp_path: Path) -> None:
    """A task whose process was killed runs again, one with OSError three times, and one with damaged data once."""
    assert list(run_all(Runner(processes, 2), end_once, [str(tmp_path / "a"), str(tmp_path / "b")]))
    counted = tmp_path / "counted"

    def fail(number: int) -> None:
        with counted.open("a") as file:
            file.write("x")
        raise (DecodeError if number else OSError)(f"number {number}")

    with pytest.raises(DecodeError, match="number 1"):
        list(run_all(Runner(processes, 1), fail, [1]))
    with pytest.raises(OSError, match="number 0"):
        list(run_all(Runner(processes, 1), fail, [0]))
    assert counted.read_text() == "x" + "xxx"


def test_shutdown_does_not_wait_for_what_nothing_wants() -> None:
    """A shutdown ends running tasks and cancels waiting ones without waiting for them."""
    executor = Processes(1)
    running, waiting = executor.submit(time.sleep, 600), executor.submit(time.sleep, 600)
    while not running.running():
        time.sleep(0.01)
    executor.shutdown(cancel_futures=True)
    assert isinstance(running.exception(), WorkerError)
    with pytest.raises(CancelledError):
        waiting.result()


def test_the_callers_script_is_not_run_again(tmp_path: Path) -> None:
    """Processes do not run the caller's script again, and know its functions and the modules beside it."""
    (tmp_path / "beside.py").write_text("def double(n): return 2 * n\n")
    (tmp_path / "script.py").write_text(
        "import beside\n"
        "from streamer.executors.processes import Processes\n"
        "print('begun')\n"
        "def work(n): return beside.double(n) + 1\n"
        "executor = Processes(2)\n"
        "print(executor.submit(work, 3).result(), executor.submit(beside.double, 4).result())\n"
        "executor.shutdown()\n"
    )
    done = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begun", "7", "8"]


@pytest.mark.parametrize("name", ["threads", "processes:0", "processes:x", "dask:", "ray:", ""])
def test_names_of_executors(name: str) -> None:
    """An unknown name of an executor raises ConfigError before anything starts."""
    with pytest.raises(ConfigError, match="is not processes"), runner(name):
        pass


def test_too_few_threads_are_a_config_error(tmp_path: Path) -> None:
    """An executor whose second thread finds no memory is a ConfigError, and leaves no thread that keeps the program."""
    (tmp_path / "script.py").write_text(
        "import resource, threading\n"
        "from streamer.errors import ConfigError\n"
        "from streamer.executors.processes import Processes\n"
        "taken = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + (6 << 30), taken + (6 << 30)))\n"
        "threading.stack_size(4 << 30)\n"
        "try:\n"
        "    Processes(2)\n"
        "except ConfigError as error:\n"
        "    print(error.details['field'], threading.active_count())\n"
    )
    script = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["RLIMIT_NPROC", "1"]
