"""Worker processes from the side of the rank."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from streamer.base import linux
from streamer.base.processes import import_paths, interpreter, unforked
from streamer.batches.workers.datagrams import readable
from streamer.batches.workers.fork_protocol import ProcessContext, memory_file


class SpawnedProcess:
    """A worker that is a new interpreter. Start it on a thread that runs as long as it (PR_SET_PDEATHSIG).

    Attributes:
        exit_descriptor: readable when it has ended, even while a child of it keeps the channel open; -1: the kernel has
            none.
    """

    refused = ""
    ended_with_server = False

    def __init__(self, number: int, workers: int, descriptors: list[int]) -> None:
        context = current_context()
        inherited = [memory_file("streamer-context", context), *descriptors]
        numbers = [os.getpid(), number, workers]
        try:
            self._process = start_interpreter("streamer.batches.workers", numbers, inherited, context)
        finally:
            os.close(inherited[0])
        self.pid = self._process.pid
        self.exit_descriptor = _pidfd(self.pid)

    def __repr__(self) -> str:
        return f"SpawnedProcess(pid={self.pid}, code={self._process.returncode})"

    def kill(self) -> None:
        """Sends SIGKILL."""
        if self._process.returncode is None:
            self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Waits for its end; returns whether it has ended."""
        if self.exit_descriptor < 0:
            return False
        return readable(self.exit_descriptor, seconds)

    def result(self) -> tuple[int, int]:
        """Reaps it; unlike Popen.wait, also returns its memory."""
        if self.exit_descriptor >= 0:
            os.close(self.exit_descriptor)
            self.exit_descriptor = -1
        if self._process.returncode is not None:
            return self._process.returncode, 0
        try:
            _, status, usage = os.wait4(self.pid, 0)
        except ChildProcessError:  # a SIGCHLD handler of the trainer has reaped it
            self._process.returncode = 0
            return 0, 0
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return self._process.returncode, usage.ru_maxrss << 10


def start_interpreter(
    module: str,
    numbers: Sequence[int],
    descriptors: Sequence[int],
    context: ProcessContext,
    variables: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Starts a new interpreter, which gets numbers and descriptors as the arguments of a module.

    Args:
        module: run as `python -m`.
        numbers: the first arguments.
        descriptors: the other arguments; inherited.
        context: Context of this process.
        variables: Variables of the environment, instead of the context's.
    """
    environment = dict(context.environment)
    for name, value in (variables or {}).items():
        environment[os.fsencode(name)] = os.fsencode(value)
    environment[b"PYTHONPATH"] = os.fsencode(os.pathsep).join(context.path)
    # -P: a file random.py in the working directory must not shadow the standard library.
    command = [interpreter(), "-P", "-m", module, *map(str, [*numbers, *descriptors])]
    with unforked(), _uninterrupted():
        return subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL, env=environment)


def current_context() -> ProcessContext:
    """Returns working directory, `sys.path` ("" is the current directory) and environment of this process."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = ""
    paths = [os.path.abspath(entry) if folder else entry for entry in import_paths()]
    return ProcessContext(os.fsencode(folder), list(map(os.fsencode, paths)), dict(os.environb))


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Blocks Ctrl-C in a process that is started inside, until that process ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_cause(code: int) -> str:
    """Describes an exit code."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _pidfd(pid: int) -> int:
    try:
        return linux.pidfd(pid)
    except OSError:  # before Linux 5.3, or a sandbox without it: the end of file on its channel has to suffice
        return -1
