"""Runs tasks on an executor: a few at the same time, those that fail for no reason of their own once more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from streamer.errors import StoreError, StreamerError, WorkerError
from streamer.fetch.retry import retryable
from streamer.shards.executors.runner import Runner

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

TRIES = 3


def run_all(runner: Runner, function: Callable[[Task], Outcome], tasks: Iterable[Task]) -> Iterator[Outcome]:
    """Yields the results as they come.

    Args:
        runner: who runs them.
        function: of one task; pure, so that it may be repeated.
        tasks: taken as they are submitted.

    Raises:
        StreamerError: the first error of a task that does not help to repeat, or that came three times.
    """
    rest = iter(tasks)
    running: dict[Future[Outcome], tuple[Task, int]] = {}
    try:
        while True:
            while len(running) < runner.most_tasks and (following := next(rest, None)) is not None:
                running[runner.executor.submit(function, following)] = following, 1
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                task, tries = running.pop(future)
                error = future.exception()
                if error is None:
                    yield future.result()
                    continue
                if tries == TRIES or not _worth_repeating(error):
                    raise error
                logger.warning("a task is run again: %s", error)
                running[runner.executor.submit(function, task)] = task, tries + 1
    finally:
        for future in running:
            future.cancel()


def _worth_repeating(error: BaseException) -> bool:
    """Not what is wrong with the data, and not what only the user can mend."""
    if isinstance(error, WorkerError):
        return not error.details.get("final")
    if isinstance(error, StoreError):
        return retryable(error)
    return isinstance(error, Exception) and not isinstance(error, StreamerError)
