"""Finds executors by name; runs tasks a few at a time, and repeats those that fail by chance.

Used by `shards/`, `indexing/`, `loader/measure.py` and the commands that take `--executor`.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

from streamer.base.cgroup import usable_cores
from streamer.base.extras import require_extra
from streamer.errors import ConfigError, StoreError, StreamerError, WorkerError
from streamer.executors.processes import Processes
from streamer.fetch.retry import retryable

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# A task that fails by chance is run this often in all.
TRIES = 3


class Runner(NamedTuple):
    """Holds an executor, and the number of tasks that it is given at the same time."""

    executor: Executor
    most_tasks: int


@contextmanager
def runner(on: str | Executor) -> Iterator[Runner]:
    """Starts the executor of a name, and ends it with the context. One that is given is used as it is, and stays.

    Args:
        on: "processes" (one for each core), "processes:8", "dask:tcp://scheduler:8786", "ray:auto" or "ray:" with
            another address that `ray.init` takes, or an executor.

    Raises:
        ConfigError: there is no such name, its package is not installed, or no cluster answers.
    """
    if isinstance(on, Executor):
        yield Runner(on, 2 * usable_cores())
        return
    kind, _, rest = on.partition(":")
    if kind == "processes" and (not rest or (rest.isdecimal() and int(rest) > 0)):
        count = int(rest) if rest else usable_cores()
        executor = Processes(count)
        try:
            yield Runner(executor, 2 * count)
        finally:
            # Tasks that are still running then are no longer wanted.
            executor.shutdown(cancel_futures=True)
    elif kind == "dask" and rest:
        with _dask(rest) as found:
            yield found
    elif kind == "ray" and rest:
        with _ray(rest) as found:
            yield found
    else:
        raise ConfigError(f"on={on!r} is not processes, processes:8, dask:tcp://scheduler:8786 or ray:auto", field="on")


@contextmanager
def _dask(address: str) -> Iterator[Runner]:
    """Connects to a Dask scheduler while the block runs; raises ConfigError without Dask or a scheduler."""
    with require_extra("on='dask:...', here and on its workers,", field="on"):
        from distributed import Client
    try:
        client = Client(address)
    except (OSError, ValueError) as error:
        raise ConfigError(f"on='dask:{address}': no scheduler answers there ({error})", field="on") from error
    with client:
        # It is not pure: a task is run again where its result is known but its shard is gone.
        executor = client.get_executor(pure=False)
        try:
            yield Runner(executor, 2 * max(1, sum(client.nthreads().values())))
        finally:
            executor.shutdown(wait=False)


@contextmanager
def _ray(address: str) -> Iterator[Runner]:
    """Connects to a Ray cluster while the block runs; raises ConfigError without Ray or a cluster."""
    with require_extra("on='ray:...', here and on its workers,", field="on"):
        import ray

        from streamer.executors.on_ray import RayExecutor
    # A program that uses Ray is connected already.
    connected = ray.is_initialized()
    try:
        if not connected:
            ray.init(address, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"on='ray:{address}': no cluster answers there ({error})", field="on") from error
    executor = RayExecutor()
    try:
        yield Runner(executor, 2 * max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        # Tasks that are still running then are no longer wanted.
        executor.shutdown(cancel_futures=True)
        if not connected:
            ray.shutdown()


# ---------------------------------------------------------------- running tasks


def run_all(runner: Runner, function: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Iterator[Outcome]:
    """Runs the tasks and yields their results as they come, in no fixed order.

    When it ends early, by an error or because its caller stops, the tasks that have not begun are cancelled.

    Args:
        runner: the executor.
        function: runs one task. It is pure, so that it may be repeated.
        tasks: the tasks, none of them None; they are read as they are submitted.

    Raises:
        Exception: the error of a task, if a repetition cannot help or it was the third try.
    """
    ended: queue.SimpleQueue[Future[Outcome]] = queue.SimpleQueue()
    with _Tasks(runner, function, partial(next, iter(tasks), None), ended.put) as work:
        while work.runs():
            yield from work.outcome(ended.get())


async def run_dynamic(
    runner: Runner, function: Callable[[Task], Outcome], next_task: Callable[[], Task | None]
) -> AsyncGenerator[Outcome, None]:
    """Runs tasks as `run_all` does, on an event loop, where the result of a task may bring further tasks.

    Args:
        runner: the executor.
        function: runs one task. It is pure, so that it may be repeated.
        next_task: returns one more task, or None if there is none now. If no task runs then, all is done.

    Raises:
        Exception: see `run_all`.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Queue[Future[Outcome]]()

    def notify(future: Future[Outcome]) -> None:
        with suppress(RuntimeError):  # the loop is closed: its result is no longer wanted
            loop.call_soon_threadsafe(ended.put_nowait, future)

    with _Tasks(runner, function, next_task, notify) as work:
        while work.runs():
            for outcome in work.outcome(await ended.get()):
                yield outcome


class _Tasks(Generic[Task, Outcome]):
    """Holds the running tasks, and how often each was submitted. A context manager; its end cancels what still runs.

    Args:
        runner: the executor.
        function: runs one task.
        next_task: returns one more task, or None if there is none now.
        on_end: is given the future of each task that has ended, on any thread.
    """

    def __init__(
        self,
        runner: Runner,
        function: Callable[[Task], Outcome],
        next_task: Callable[[], Task | None],
        on_end: Callable[[Future[Outcome]], object],
    ) -> None:
        self._runner = runner
        self._function = function
        self._next_task = next_task
        self._on_end = on_end
        self._running: dict[Future[Outcome], tuple[Task, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for future in self._running:
            future.cancel()

    def runs(self) -> bool:
        """Submits new tasks up to `most_tasks`; returns whether any task runs."""
        while len(self._running) < self._runner.most_tasks and (task := self._next_task()) is not None:
            self._submit(task, 1)
        return bool(self._running)

    def outcome(self, future: Future[Outcome]) -> Iterator[Outcome]:
        """Yields the result of an ended task, or nothing if it is run again; else raises the task's error."""
        task, tries = self._running.pop(future)
        error = future.exception()
        if error is None:
            yield future.result()
        elif tries == TRIES or not _is_transient(error):
            raise error
        else:
            logger.warning("a task is run again: %s", error)
            self._submit(task, tries + 1)

    def _submit(self, task: Task, tries: int) -> None:
        future = self._runner.executor.submit(self._function, task)
        self._running[future] = task, tries
        future.add_done_callback(self._on_end)


def _is_transient(error: BaseException) -> bool:
    """Returns whether a repetition may help: not for wrong data, and not for errors that only the user can correct."""
    if isinstance(error, WorkerError):
        return not error.details.get("final")
    if isinstance(error, StoreError):
        return retryable(error)
    return isinstance(error, Exception) and not isinstance(error, StreamerError)
