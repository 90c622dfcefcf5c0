"""Runs calls in processes of this machine, by the interface of `concurrent.futures.Executor`.

The processes are new interpreters. Unlike those of `ProcessPoolExecutor` they do not import the caller's script: no
`if __name__ == "__main__"` is needed, and functions of a notebook work. One that is killed costs its own task only.
Used by `runner.py` and `batches/rows/table.py`; `worker.py` is the program of a process.
"""

from __future__ import annotations

import queue
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, ParamSpec, TypeVar

import cloudpickle  # type: ignore[import-untyped]

from streamer.base.child import Child, whole_environment
from streamer.base.system_limits import name_limits
from streamer.errors import WorkerError

P = ParamSpec("P")
T = TypeVar("T")

_Item = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]


class _Process(NamedTuple):
    """Holds a process, and the connection over which it gets calls and returns results."""

    child: Child
    connection: Connection


class Processes(Executor):
    """Runs each call in one of `count` processes, which start with their first call.

    It has a thread for each process. `shutdown` must be called, or the program does not end. Making the object raises
    ConfigError if no further thread may start.
    """

    def __init__(self, count: int) -> None:
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._running: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._threads: list[threading.Thread] = []
        try:
            for number in range(count):
                thread = threading.Thread(target=self._serve, name=f"streamer-pack-{number}")
                with name_limits():
                    thread.start()
                self._threads.append(thread)
        except BaseException:
            self.shutdown()
            raise

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submits a call of a function that cloudpickle can pickle.

        The future raises the error of the function, WorkerError if the process ends during the call, or the error of
        pickling.

        Raises:
            TypeError: keyword arguments are given.
        """
        if kwargs:
            raise TypeError("keyword arguments are not passed on; use functools.partial")
        future: Future[T] = Future()
        self._items.put((future, fn, args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the processes, after all submitted calls or at once.

        Args:
            wait: whether it returns only when the processes have ended.
            cancel_futures: whether to end them at once: calls that have not begun are cancelled, and processes killed,
                so that their calls fail with WorkerError.
        """
        if cancel_futures:
            with self._lock:
                self._closed = True
                for child in self._running:
                    child.kill()
            try:
                while (item := self._items.get_nowait()) is not None:
                    item[0].cancel()
            except queue.Empty:
                pass
        for _ in self._threads:
            self._items.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _serve(self) -> None:
        """Runs calls one by one, on one thread, by one process; if that ends, the next call starts another one."""
        process: _Process | None = None
        while (item := self._items.get()) is not None:
            future, function, arguments = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                process = process or self._start()
                process.connection.send_bytes(cloudpickle.dumps((function, arguments)))
                succeeded, result = cloudpickle.loads(process.connection.recv_bytes())
            except (EOFError, OSError):
                code = self._end(process)
                process = None
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
                if code == -signal.SIGKILL:
                    advice = "; signal 9 is often the kernel's for want of memory: use fewer processes"
                else:
                    advice = ""
                future.set_exception(WorkerError(f"a process {how} while it ran a task{advice}", code=code))
            except Exception as error:  # noqa: BLE001 - what cannot be pickled
                future.set_exception(error)
            else:
                (future.set_result if succeeded else future.set_exception)(result)
        self._end(process)

    def _start(self) -> _Process:
        """Starts a process; raises EOFError after `shutdown(cancel_futures=True)`."""
        ours, theirs = socket.socketpair()
        with ours, theirs, self._lock:
            if self._closed:
                raise EOFError
            # A task runs the caller's code, with the caller's credentials. Ctrl-C reaches the caller alone.
            child = Child("streamer.executors.worker", [theirs.fileno()], environment=whole_environment({}))
            self._running.add(child)
            return _Process(child, Connection(ours.detach()))

    def _end(self, process: _Process | None) -> int:
        """Closes the connection and waits for the end of the process.

        Returns its exit code, which is negative for a signal; without a process -SIGKILL.
        """
        if process is None:
            return -signal.SIGKILL
        process.connection.close()
        code, _ = process.child.reap()
        with self._lock:
            self._running.discard(process.child)
        return code
