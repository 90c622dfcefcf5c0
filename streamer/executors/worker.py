"""Runs tasks in a process of its own: `python -m streamer.executors.worker CONNECTION`.

`processes.py` starts it, sends calls over the connection (an inherited socket), and gets their results; both are
pickled by cloudpickle. The process ends with the connection.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from streamer.base.process import collect_rarely, keep_free_memory
from streamer.errors import WorkerError

# Freed memory that the process keeps for later tasks.
_KEPT_BYTES = 256 << 20


def main(descriptor: int) -> None:
    """Runs calls until the connection ends; `descriptor` is its socket. Does not return."""
    # 2.4 CPU s/GB instead of 3.3 for a pack of files of 110 KB, whose buffers were faulted in again (2026-11-23).
    keep_free_memory(_KEPT_BYTES)
    collect_rarely()
    # Output of a user's code is not among the lines of a command.
    os.dup2(2, 1)
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    coming = queue.SimpleQueue[Any]()
    threading.Thread(target=_listen, args=(connection, coming), daemon=True).start()
    while True:
        connection.send_bytes(cloudpickle.dumps(_result(coming.get())))


def _listen(connection: Connection, coming: queue.SimpleQueue[Any]) -> None:
    """Puts calls, or the error of reading one, into `coming`; ends the process when the connection ends."""
    while True:
        try:
            call = cloudpickle.loads(connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            os._exit(0)
        except Exception as error:  # noqa: BLE001 - a module of the user's that cannot be imported here
            call = error
        coming.put(call)


def _result(call: tuple[Callable[..., object], tuple[object, ...]] | Exception) -> tuple[bool, object]:
    """Runs a call; returns True and its result, or False and its error. An error of reading it is returned, too."""
    if isinstance(call, Exception):
        return False, WorkerError(f"a task cannot be read by its process: {type(call).__name__}: {call}", final=True)
    function, arguments = call
    try:
        return True, function(*arguments)
    except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
        try:
            cloudpickle.loads(cloudpickle.dumps(error))
        except Exception:  # noqa: BLE001 - an error that does not survive the pipe goes as text
            return False, WorkerError("".join(traceback.format_exception(error)))
        return False, error


if __name__ == "__main__":
    main(int(sys.argv[1]))
