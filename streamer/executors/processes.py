"""An executor of processes that are new interpreters.

Against `ProcessPoolExecutor`: the caller's script is not imported again (no `if __name__ == "__main__"` is needed, and
functions of a notebook work), and a process that is killed costs its own task only, not those of all others.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from streamer.errors import WorkerError
from streamer.executors.worker import receive, send

P = ParamSpec("P")
T = TypeVar("T")

_Item = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class Processes(Executor):
    """Runs each call in one of `count` processes, which start with their first call.

    Args:
        count: how many run at the same time.
    """

    def __init__(self, count: int) -> None:
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads = [threading.Thread(target=self._serve, name=f"streamer-pack-{i}") for i in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs a function that cloudpickle can pickle; without keyword arguments."""
        if kwargs:
            raise TypeError("keyword arguments are not passed on; use functools.partial")
        future: Future[T] = Future()
        self._items.put((future, fn, args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes: after what was submitted, or at once where futures are to be cancelled."""
        if cancel_futures:
            self._end_now()
        for _ in self._threads:
            self._items.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _end_now(self) -> None:
        with self._lock:
            self._closed = True
            for process in self._running:
                process.kill()
        try:
            while (item := self._items.get_nowait()) is not None:
                item[0].cancel()
        except queue.Empty:
            pass

    def _serve(self) -> None:
        """A thread with a process of its own."""
        process: subprocess.Popen[bytes] | None = None
        while (item := self._items.get()) is not None:
            future, function, arguments = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                process = process or self._start()
                _call(process, future, function, arguments)
            except (EOFError, OSError):
                future.set_exception(_ended(self._end(process)))
                process = None
            except Exception as error:  # noqa: BLE001 - what cannot be pickled
                future.set_exception(error)
        self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        code = f"import sys; sys.path[:] = {sys.path!r}; from streamer.executors.worker import main; main()"
        with self._lock:
            if self._closed:
                raise EOFError
            # A session of its own: Ctrl-C reaches the caller alone, who ends the processes.
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self._running.add(process)
        return process

    def _end(self, process: subprocess.Popen[bytes] | None) -> int:
        """Ends a process that has no task; returns its exit code."""
        if process is None:
            return -signal.SIGKILL
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code


def _call(
    process: subprocess.Popen[bytes], future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    send(process.stdin, (function, arguments))
    succeeded, result = receive(process.stdout)
    if succeeded:
        future.set_result(result)
    else:
        future.set_exception(result)


def _ended(code: int) -> WorkerError:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    advice = (
        "; signal 9 is often the kernel's for want of memory: use fewer processes" if code == -signal.SIGKILL else ""
    )
    return WorkerError(f"a process {how} while it ran a task{advice}", code=code)
