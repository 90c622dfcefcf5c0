"""A process that runs tasks: what `processes.Processes` starts.

Calls come as frames over standard input, results go out over standard output; both are cloudpickle, from and to the
process that started this one. The process ends with its input.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
import traceback
from collections.abc import Callable
from typing import IO, Any

import cloudpickle  # type: ignore[import-untyped]

from streamer.errors import WorkerError
from streamer.process_memory import collect_rarely, keep_freed_memory

_LENGTH = struct.Struct("<Q")
_KEPT_BYTES = 256 << 20


def send(pipe: IO[bytes], message: object) -> None:
    """Writes one frame."""
    content = cloudpickle.dumps(message)
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:  # noqa: ANN401 - a call, or its result
    """Reads one frame.

    Raises:
        EOFError: the other side is gone.
    """
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    content = pipe.read(length)
    if len(content) < length:
        raise EOFError
    return cloudpickle.loads(content)


def main() -> None:
    """Runs calls until the input ends."""
    # 2.4 CPU s/GB instead of 3.3 for a pack of files of 110 KB, whose buffers were faulted in again (2026-11-23).
    keep_freed_memory(_KEPT_BYTES)
    collect_rarely()
    calls, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a user's code prints must not get among the frames.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    coming: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(calls, coming), daemon=True).start()
    while True:
        send(results, _result(coming.get()))


def _listen(calls: IO[bytes], coming: queue.SimpleQueue[Any]) -> None:
    """Ends the process in the middle of a task when the one that wants its result is gone."""
    while True:
        try:
            call = receive(calls)
        except EOFError:
            os._exit(0)
        except Exception as error:  # noqa: BLE001 - a module of the user's that cannot be imported here
            call = error
        coming.put(call)


def _result(call: tuple[Callable[..., object], tuple[object, ...]] | Exception) -> tuple[bool, object]:
    """Whether it succeeded, and the result or the error."""
    if isinstance(call, Exception):
        return False, WorkerError(f"a task cannot be read by its process: {type(call).__name__}: {call}", final=True)
    function, arguments = call
    try:
        return True, function(*arguments)
    except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
        return False, _portable(error)


def _portable(error: Exception) -> Exception:
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001 - an error that does not survive the pipe goes as text
        return WorkerError("".join(traceback.format_exception(error)))
    return error
