"""Runs calls as tasks of a Ray cluster, by the interface of `concurrent.futures.Executor`.

`runner.py` imports it for an executor that is named "ray:...", since Ray may not be installed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import wait as await_futures
from functools import partial
from typing import Any, ParamSpec, TypeVar

import ray
from ray.exceptions import RayTaskError

P = ParamSpec("P")
T = TypeVar("T")


class RayExecutor(Executor):
    """Runs each call as a Ray task of one core; Ray runs it again if its worker ends."""

    def __init__(self) -> None:
        self._call = ray.remote(_call)
        self._running: dict[Future[Any], Any] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a call of a function that cloudpickle can pickle.

        The future raises the error of the function, or Ray's own if the task could not run or was cancelled.
        """
        future: Future[T] = Future()
        reference = self._call.remote(fn, args, kwargs)
        self._running[future] = reference
        reference.future().add_done_callback(partial(self._finish, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the executor, as that of `concurrent.futures` does.

        Args:
            wait: waits for the calls that still run.
            cancel_futures: cancels these calls, also those that have begun, and does not wait.
        """
        if cancel_futures:
            for reference in list(self._running.values()):
                ray.cancel(reference, force=True)
        elif wait:
            await_futures(list(self._running))

    def _finish(self, future: Future[Any], answer: Future[Any]) -> None:
        """Gives a call's future the result or error of its Ray task, unless the call was cancelled."""
        self._running.pop(future)
        if not future.set_running_or_notify_cancel():
            return
        error = answer.exception()
        if error is None:
            future.set_result(answer.result())
        else:
            # Ray's error says in which worker it happened; its cause is the error of the function.
            future.set_exception(error.cause if isinstance(error, RayTaskError) else error)


def _call(function: Callable[..., T], arguments: tuple[Any, ...], named: dict[str, Any]) -> T:
    return function(*arguments, **named)
