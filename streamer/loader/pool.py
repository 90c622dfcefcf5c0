"""The workers of one rank: started, told, listened to, buried and replaced. Owned by the feeder's thread."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import cloudpickle  # type: ignore[import-untyped]

from streamer.errors import ConfigError
from streamer.loader import memory
from streamer.loader.board import Board, Doing
from streamer.loader.control import Channel, Made, Note, RingShape, Task
from streamer.loader.maker import MakerRules
from streamer.loader.ring import Ring
from streamer.loader.source import Recipe
from streamer.loader.window import Pending
from streamer.loader.worker import run
from streamer.loader.worker_main import Boot

WorkerType = Literal["process", "thread"]

# A worker that is told to go finishes its batch if it can in this time; then it is killed (law 6: it costs nothing).
_FAREWELL_SECONDS = 0.5

Answer = tuple[Made | Note, int | None]


@dataclass(frozen=True, slots=True)
class Obituary:
    """How a worker ended.

    Attributes:
        cause: "killed by SIGKILL", "exit code 3", ...
        signal: the signal that ended it, 0 for none.
        peak_bytes: its largest resident size, 0 if unknown.
        doing: what it was doing.
        was_ready: whether it had ever come up.
    """

    cause: str
    signal: int
    peak_bytes: int
    doing: Doing
    was_ready: bool


class Handle:
    """One worker as the rank sees it."""

    def __init__(self, row: int, channel: Channel, process: subprocess.Popen[bytes] | None) -> None:
        self.row = row
        self.channel = channel
        self.process = process
        self.tasks: deque[Pending] = deque()
        self.ready = False
        # Readable when the process is gone, also when a child of its own keeps the socket open.
        self.pidfd = _pidfd(process.pid) if process else -1

    def __repr__(self) -> str:
        kind = f"pid {self.process.pid}" if self.process else "thread"
        return f"Handle({self.row}, {kind}, {len(self.tasks)} tasks)"

    def answers(self) -> Iterator[Answer | None]:
        """What the worker has said so far; None at the end: it is gone."""
        while True:
            try:
                received = self.channel.receive()
            except BlockingIOError:
                return
            if received is None:
                yield None
                return
            message, descriptor = received
            if isinstance(message, (Made, Note)):
                yield message, descriptor

    def tell(self, pending: Pending) -> None:
        """Sends the task. A worker that is gone is noticed by its end of file."""
        ring = pending.ring.number if pending.ring else 0
        self.channel.send(
            Task(pending.task, pending.epoch, pending.batch, ring, pending.slot, tuple(sorted(pending.left_out)))
        )

    def give(self, ring: Ring) -> None:
        """Sends a new ring."""
        self.channel.send(RingShape(ring.number, ring.shape.slots, ring.shape.slot_bytes), ring.descriptor)

    def kill(self) -> None:
        """SIGKILL, for a process."""
        if self.process and self.process.returncode is None:
            self.process.kill()

    def bury(self) -> tuple[int, int]:
        """Ends it if need be, waits for its end; returns its exit code and its largest resident size in bytes."""
        self.channel.close()
        if self.process is None:
            return 0, 0
        self.kill()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        return _wait(self.process)


class Pool:
    """All workers.

    Args:
        recipe: how a worker opens its source.
        rules: how batches are made.
        workers: how many.
        worker_type: processes, or threads of this process.

    Raises:
        ConfigError: the recipe cannot be pickled.
    """

    def __init__(self, recipe: Recipe, rules: MakerRules, workers: int, worker_type: WorkerType) -> None:
        self._recipe = recipe
        self._rules = rules
        self._worker_type = worker_type
        self._boot = _boot_memory(recipe, rules, workers) if worker_type == "process" else -1
        self._board = Board(workers)
        # One thread for numpy, torch and BLAS in each worker, as in torch's own workers: there are many of them.
        self._environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(_search_path())}
        self.handles: list[Handle] = []

    def __repr__(self) -> str:
        return f"Pool({len(self.handles)} {self._worker_type} workers)"

    def start(self, row: int) -> Handle:
        """Starts the worker of a row. Call from a thread that lives as long as the workers (PDEATHSIG)."""
        ours, theirs = Channel.pair()
        ours.set_blocking(False)
        if self._worker_type == "process":
            handle = Handle(row, ours, self._spawn(row, theirs))
            theirs.close()
        else:
            handle = Handle(row, ours, None)
            threading.Thread(target=self._serve, args=(row, theirs), name=f"streamer-worker-{row}", daemon=True).start()
        self.handles = sorted([*(h for h in self.handles if h.row != row), handle], key=lambda h: h.row)
        return handle

    def bury(self, handle: Handle) -> Obituary:
        """Takes a worker off that is gone, or is to go."""
        code, peak = handle.bury()
        doing = self._board.doing(handle.row)
        self._board.rest(handle.row)
        self.handles.remove(handle)
        return Obituary(_cause(code), max(0, -code), peak, doing, handle.ready)

    def doing(self, handle: Handle) -> Doing:
        """What a worker is doing right now."""
        return self._board.doing(handle.row)

    def close(self) -> None:
        """Ends all workers."""
        for handle in self.handles:
            handle.channel.close()
        for handle in self.handles:
            _await_end(handle)
            handle.bury()
        self.handles = []
        self._board.close()
        if self._boot >= 0:
            os.close(self._boot)

    def _spawn(self, row: int, theirs: Channel) -> subprocess.Popen[bytes]:
        descriptors = (theirs.fileno(), self._board.descriptor, self._boot)
        # -P: a file random.py in the working directory is not to shadow the standard library's at start.
        command = [sys.executable, "-P", "-m", "streamer.loader.worker_main", str(row), *map(str, descriptors)]
        return subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL, env=self._environment)

    def _serve(self, row: int, channel: Channel) -> None:
        try:
            run(row, channel, self._board, lambda: (self._recipe.open(), self._rules))
        finally:
            channel.close()


def _search_path() -> list[str]:
    """The trainer's `sys.path`; "" is the working directory of this moment."""
    return [os.path.abspath(entry) for entry in sys.path]


def _boot_memory(recipe: Recipe, rules: MakerRules, workers: int) -> int:
    try:
        payload = cloudpickle.dumps((recipe, rules))
    except Exception as error:
        raise ConfigError(
            f"the transform or collate_fn cannot be sent to worker processes ({type(error).__name__}: {error}); open "
            "files, locks and connections inside it, or use num_workers=0 or worker_type='thread'",
            field="transform",
        ) from error
    boot = Boot(os.getpid(), workers, _search_path(), os.environ.get("PYTHONPATH"), payload)
    frozen = pickle.dumps(boot, protocol=5)
    descriptor = memory.create_sealed("streamer-boot", len(frozen))
    os.pwrite(descriptor, frozen, 0)
    return descriptor


def _await_end(handle: Handle) -> None:
    if handle.pidfd >= 0:
        select.select([handle.pidfd], [], [], _FAREWELL_SECONDS)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:  # before Linux 5.3, or a sandbox without it: its end of file has to do
        return -1


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """Reaps the process, with its memory: what Popen.wait does not tell."""
    if process.returncode is not None:
        return process.returncode, 0
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:  # somebody else's SIGCHLD handler was faster
        process.returncode = 0
        return 0, 0
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss * 1024


def _cause(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
