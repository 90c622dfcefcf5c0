"""The workers of one rank: started, told what to make, reaped and replaced. Owned by the feeder's thread."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from streamer.errors import ConfigError
from streamer.forks import unforked
from streamer.loader import memory
from streamer.loader.board import Board, Doing
from streamer.loader.control import Channel
from streamer.loader.handles import ExitReport, WorkerHandle, cause_of
from streamer.loader.maker import MakerRules
from streamer.loader.source import Recipe
from streamer.loader.worker import run
from streamer.loader.worker_main import Boot

WorkerType = Literal["process", "thread"]


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Who is started here hears no Ctrl-C until it can ignore it: while it imports it would end with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Crew(msgspec.Struct, frozen=True):
    """How many workers of what kind.

    Attributes:
        worker_type: processes, or threads of the trainer's process.
        workers: how many, at least one.
    """

    worker_type: WorkerType = "process"
    workers: int = 1


class Pool:
    """All workers.

    Args:
        crew: how many of what kind.

    Attributes:
        workers: those that were started and not reaped, by number.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._boot = _boot_memory(crew.workers) if crew.worker_type == "process" else -1
        self._payload = -1
        self._contents: tuple[Recipe, MakerRules] | None = None
        self._board = Board(crew.workers)
        # One thread for numpy, torch and BLAS in each worker, as in torch's own workers: there are many of them.
        self._environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(_search_path())}
        self.workers: dict[int, WorkerHandle] = {}

    def __repr__(self) -> str:
        return f"Pool({len(self.workers)} of {self._crew.workers} workers, {self._crew.worker_type})"

    @property
    def missing(self) -> list[int]:
        """The numbers of the workers that are not there."""
        return [number for number in range(self._crew.workers) if number not in self.workers]

    def equip(self, recipe: Recipe, rules: MakerRules) -> None:
        """Says what is to be made. Once, on any thread, before `supply`.

        Args:
            recipe: how a worker opens its source.
            rules: how batches are made.

        Raises:
            ConfigError: the recipe cannot be pickled.
        """
        self._contents = recipe, rules
        if self._crew.worker_type == "process":
            self._payload = _payload_memory(recipe, rules)

    def supply(self) -> None:
        """Tells the workers that are there already what is to be made."""
        for handle in self.workers.values():
            handle.equip(self._payload)

    def start(self, number: int) -> WorkerHandle:
        """Starts a worker. Call from a thread that lives as long as the workers (PDEATHSIG)."""
        ours, theirs = Channel.pair()
        ours.set_blocking(False)
        if self._crew.worker_type == "process":
            handle = WorkerHandle(number, ours, self._spawn(number, theirs))
            theirs.close()
            if self._payload >= 0:
                handle.equip(self._payload)
        else:
            handle = WorkerHandle(number, ours)
            arguments = number, theirs
            threading.Thread(target=self._serve, args=arguments, name=f"streamer-worker-{number}", daemon=True).start()
        self.workers[number] = handle
        return handle

    def reap(self, handle: WorkerHandle) -> ExitReport:
        """Removes a worker that has ended, or ends it."""
        code, peak = handle.reap()
        doing = self.doing(handle)
        self._board.rest(handle.number)
        del self.workers[handle.number]
        return ExitReport(cause_of(code), max(0, -code), peak, doing, handle.ready)

    def doing(self, handle: WorkerHandle) -> Doing:
        """What a worker is doing right now."""
        return self._board.doing(handle.number)

    def close(self) -> None:
        """Ends all workers."""
        for handle in self.workers.values():
            handle.dismiss()
        for handle in self.workers.values():
            handle.wait_for_exit()
            handle.reap()
        self.workers.clear()
        self._board.close()
        for descriptor in (self._boot, self._payload):
            if descriptor >= 0:
                os.close(descriptor)

    def _spawn(self, number: int, channel: Channel) -> subprocess.Popen[bytes]:
        descriptors = self._board.descriptor, self._boot, channel.fileno()
        # -P: a file random.py in the working directory is not to shadow the standard library's at start.
        command = [sys.executable, "-P", "-m", "streamer.loader.worker_main", *map(str, (number, *descriptors))]
        with unforked(), _uninterrupted():
            return subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL, env=self._environment)

    def _serve(self, number: int, channel: Channel) -> None:
        assert self._contents is not None
        recipe, rules = self._contents
        try:
            run(number, channel, self._board, lambda: (recipe.open(), rules))
        finally:
            channel.close()


def _search_path() -> list[str]:
    """The trainer's `sys.path`; "" is the working directory of this moment."""
    return [os.path.abspath(entry) for entry in sys.path]


def _boot_memory(workers: int) -> int:
    boot = Boot(os.getpid(), workers, _search_path(), os.environ.get("PYTHONPATH"))
    return _kept("streamer-boot", pickle.dumps(boot, protocol=5))


def _payload_memory(recipe: Recipe, rules: MakerRules) -> int:
    try:
        payload = cloudpickle.dumps((recipe, rules))
    except Exception as error:
        raise ConfigError(
            f"the transform or collate_fn cannot be sent to worker processes ({type(error).__name__}: {error}); open "
            "files, locks and connections inside it, or use num_workers=0 or worker_type='thread'",
            field="transform",
        ) from error
    return _kept("streamer-payload", payload)


def _kept(name: str, content: bytes) -> int:
    descriptor = memory.create_sealed(name, len(content))
    os.pwrite(descriptor, content, 0)
    return descriptor
