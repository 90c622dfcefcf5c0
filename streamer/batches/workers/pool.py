"""Starts, configures and reaps the workers of one rank.

`batches/workers/supervisor.py` and the feeder (`loader/feed/feeder.py`) use it, on the feeder's thread.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Literal

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from streamer.base.child import describe_exit
from streamer.batches.ring import shared_memory as memory
from streamer.batches.samples.recipe import SampleRecipe
from streamer.batches.samples.sent_code import send_main_by_value
from streamer.batches.torch_arguments import WorkerStart
from streamer.batches.workers.batch_maker import MakerRules
from streamer.batches.workers.fork_server import ForkedPool, fork_server
from streamer.batches.workers.handle import ExitReport, SpawnedProcess, WorkerHandle, WorkerProcess
from streamer.batches.workers.protocol import NOTHING, Channel, Doing, StatusPage
from streamer.batches.workers.worker import run
from streamer.client.held_files import HeldFiles
from streamer.errors import ConfigError

logger = logging.getLogger(__name__)

WorkerType = Literal["process", "thread"]


class WorkerConfig(msgspec.Struct, frozen=True):
    """Number and kind of the workers.

    Attributes:
        worker_type: whether they are processes, or threads of the trainer's process.
        workers: largest number of workers, at least one.
        start: how processes are started: from the fork server, or each as a new interpreter.
        modules: names of the modules that the fork server imports for the workers.
    """

    worker_type: WorkerType = "process"
    workers: int = 1
    start: WorkerStart = "forkserver"
    modules: tuple[str, ...] = ()


class WorkerPool:
    """All workers of one rank.

    Args:
        config: number and kind of the workers.

    Attributes:
        workers: the workers that have been started and not reaped, by number.
        forked: the pool of the fork server from which workers are requested, or None if none is open.

    Raises:
        ConfigError: there is no shared memory for the status page.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._payload = -1
        self._contents: tuple[SampleRecipe, MakerRules] | None = None
        self._status_page = StatusPage(config.workers)
        self._forks = config.worker_type == "process" and config.start == "forkserver"
        self.workers: dict[int, WorkerHandle] = {}
        self.forked: ForkedPool | None = None
        self._held: HeldFiles | None = None

    def __repr__(self) -> str:
        return f"WorkerPool({len(self.workers)} of {self._config.workers} workers, {self._config.worker_type})"

    @property
    def missing(self) -> list[int]:
        """The numbers of the workers that are not running."""
        return [number for number in range(self._config.workers) if number not in self.workers]

    def configure(self, recipe: SampleRecipe, rules: MakerRules) -> None:
        """Sets recipe and rules, and pickles them to shared memory. Called once, on any thread, before `open_sources`.

        Files that the recipe names stay mapped from then on, so that they can be written again if they are removed.

        Raises:
            ConfigError: recipe or rules cannot be pickled, or there is no memory for them.
            OSError: a file that the recipe names cannot be read.
        """
        self._contents = recipe, rules
        self._held = HeldFiles(path for member in recipe.members for path in member.paths)
        if self._config.worker_type == "process":
            send_main_by_value()
            try:
                payload = cloudpickle.dumps((recipe, rules))
            except Exception as error:
                raise ConfigError(
                    "the transform or collate_fn cannot be sent to worker processes "
                    f"({type(error).__name__}: {error}); "
                    "open files, locks and connections inside it, or use num_workers=0 or worker_type='thread'",
                    field="transform",
                ) from error
            self._payload = memory.create_memfd("streamer-payload", len(payload))
            # A write(2) ends after 2 GiB.
            memory.map_memfd(self._payload, len(payload))[:] = payload

    def open_sources(self) -> None:
        """Sends recipe and rules to the running worker processes that do not have them yet."""
        if self._payload >= 0 and self._held is not None:
            self._held.restore()
            for handle in self.workers.values():
                handle.open(self._payload)

    def connect(self) -> ForkedPool | None:
        """Opens a pool of the fork server if workers are forked, and returns it.

        None means that none was opened: there is one already, workers are not forked, or the server has crashed
        repeatedly.

        Raises:
            ConfigError: the fork server cannot be started, see `fork_server`.
        """
        if not self._forks or self.forked is not None:
            return None
        server = fork_server(self._config.modules)
        if server is None:
            self.use_spawn("the fork server has crashed repeatedly")
            return None
        self.forked = server.connect()
        return self.forked

    def use_spawn(self, reason: str) -> None:
        """Makes all further workers new interpreters. Logs a warning with the reason."""
        if self._forks:
            self._forks = False
            logger.warning(
                "workers are started as new interpreters, which takes more time and memory, because %s; "
                "multiprocessing_context='spawn' does so without this warning",
                reason,
            )

    def start(self, number: int) -> WorkerHandle:
        """Starts the worker with a number from `missing`, and returns its handle, without waiting for the worker.

        A process that is started here ends with the calling thread (PR_SET_PDEATHSIG).

        Raises:
            ConfigError, OSError: the system gives no further process, descriptor or memory.
        """
        ours, theirs = Channel.pair()
        ours.set_blocking(False)
        if self._config.worker_type == "process":
            descriptors = [self._status_page.descriptor, theirs.fileno()]
            process: WorkerProcess
            if self._forks and self.forked is not None:
                process = self.forked.start(number, self._config.workers, descriptors)
            else:
                process = SpawnedProcess(number, self._config.workers, descriptors)
            handle = WorkerHandle(number, ours, process)
            theirs.close()
            if self._payload >= 0 and self._held is not None:
                self._held.restore()
                handle.open(self._payload)
        else:
            handle = WorkerHandle(number, ours)
            arguments = number, theirs
            threading.Thread(target=self._serve, args=arguments, name=f"streamer-worker-{number}", daemon=True).start()
        self.workers[number] = handle
        return handle

    def reap(self, handle: WorkerHandle) -> ExitReport:
        """Ends a worker if it still runs, removes it from `workers`, and returns how it ended."""
        code, peak = handle.reap()
        # A worker that ended with its fork server did not crash on its sample.
        ended_with_server = handle.process is not None and handle.process.ended_with_server
        doing = NOTHING if ended_with_server else self.find_status(handle)
        self._status_page.idle(handle.number)
        del self.workers[handle.number]
        cause = "killed after its timeout" if handle.timed_out else describe_exit(code)
        return ExitReport(
            cause=cause,
            signal=max(0, -code),
            peak_bytes=peak,
            doing=doing,
            was_ready=handle.ready,
            timed_out=handle.timed_out,
        )

    def find_status(self, handle: WorkerHandle) -> Doing:
        """Returns the current task and sample of a worker, or the last ones if it has ended."""
        return self._status_page.read(handle.number)

    def close(self) -> None:
        """Ends all workers, and closes the shared memory and the pool of the fork server. Idempotent.

        Threads are not waited for: each ends after its batch.
        """
        for handle in self.workers.values():
            handle.stop()
        for handle in self.workers.values():
            handle.wait_for_exit()
            handle.reap()
        self.workers.clear()
        self._status_page.close()
        if self.forked is not None:
            self.forked.close()
            self.forked = None
        if self._payload >= 0:
            os.close(self._payload)
            self._payload = -1

    def _serve(self, number: int, channel: Channel) -> None:
        """Runs a worker on the calling thread until the rank closes its end of the channel."""
        assert self._contents is not None
        recipe, rules = self._contents
        if self._held is not None:
            self._held.restore()
        try:
            run(number, channel, self._status_page, lambda: (recipe.open(), rules))
        finally:
            channel.close()
