"""The main function of worker processes: sets up the process, then serves."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import traceback
from contextlib import suppress

from streamer.base import linux
from streamer.base.process_memory import keep_free_memory
from streamer.batches.workers.fork_protocol import ProcessContext, read_memory_file
from streamer.batches.workers.protocol import Channel, Open, StatusPage
from streamer.batches.workers.worker import Opened, run

# More than the samples of a batch take, so that the next batch reuses the freed memory.
_KEPT_BYTES = 1 << 30


def serve(number: int, workers: int, status_page: int, channel: int) -> None:
    """Serves until the rank closes its end. An error ends the process, even if user code has started threads.

    Args:
        number: Number of the worker, and its row in the status page.
        workers: number of rows in the status page.
        status_page: its descriptor.
        channel: its descriptor.
    """
    os.set_inheritable(status_page, False)
    keep_free_memory(_KEPT_BYTES)
    end = Channel.adopt(channel)
    try:
        run(number, end, StatusPage(workers, status_page), lambda: _open_source(end))
    except BaseException:  # noqa: BLE001 - the rank notices the end of the process
        traceback.print_exc()
        leave(1)
    # The rank notices the end even while a thread of user code keeps the process.
    end.close()


def _open_source(channel: Channel) -> Opened | None:
    received = channel.receive()
    if received is None:
        return None
    message, descriptor = received
    assert isinstance(message, Open)
    recipe, rules = pickle.loads(read_memory_file(descriptor))  # noqa: S301 - from this process's own trainer (docs/architecture.md, rule 7)
    opened = recipe.open(), rules
    # Modules stay in memory: the collector need not visit them, 4 % of the cost of raw bytes (2026-11-22).
    gc.freeze()
    return opened


def enter_context(context: ProcessContext) -> None:
    """Sets environment, `sys.path` and working directory to those of the rank."""
    os.environ.clear()
    # A worker has one thread for numpy, torch and BLAS, as torch's own workers have: there are many of them.
    os.environb.update({b"OMP_NUM_THREADS": b"1", **context.environment})
    sys.path[:] = map(os.fsdecode, context.path)
    if context.folder:
        os.chdir(context.folder)


def end_with_parent(parent: int) -> None:
    """Ends this process with the thread that started it, even in the middle of an import or a transform.

    Ctrl-C is ignored: the rank handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # it is blocked while a process is started
    linux.end_with_parent(parent)


def flush_output() -> None:
    """Writes what was printed, unless the process has no output, or its reader has ended."""
    for stream in (sys.stdout, sys.stderr):
        # A stream is None where the descriptor was closed when the interpreter started.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def leave(code: int) -> None:
    """Ends this process without running registered exit functions."""
    flush_output()
    os._exit(code)
