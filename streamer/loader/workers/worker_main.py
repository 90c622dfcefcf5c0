"""What every worker process does, forked or started as a new interpreter: settle in its place, then work."""

from __future__ import annotations

import ctypes
import gc
import os
import pickle
import signal
import sys
import traceback

from streamer.loader.workers.fork_protocol import Place, read_memory_file
from streamer.loader.workers.protocol import Channel, Open
from streamer.loader.workers.status_page import StatusPage
from streamer.loader.workers.worker import Opened, run
from streamer.process_memory import keep_freed_memory

_PR_SET_PDEATHSIG = 1
# More than the samples of a batch take: what one has freed, the next one uses.
_KEPT_BYTES = 1 << 30


def serve(number: int, workers: int, status_page: int, channel: int) -> None:
    """Works until the rank closes its end; an error ends the process at once, whatever threads the user has started.

    Args:
        number: of the worker, and its row of the status_page.
        workers: how many rows the status_page has.
        status_page: descriptor.
        channel: descriptor.
    """
    os.set_inheritable(status_page, False)
    keep_freed_memory(_KEPT_BYTES)
    end = Channel.adopt(channel)
    try:
        run(number, end, StatusPage(workers, status_page), lambda: _opened(end))
    except BaseException:  # noqa: BLE001 - the rank sees the process end
        traceback.print_exc()
        leave(1)
    # The rank sees the end also while a thread of the user keeps the process.
    end.close()


def _opened(channel: Channel) -> Opened | None:
    received = channel.receive()
    if received is None:
        return None
    message, descriptor = received
    assert isinstance(message, Open)
    recipe, rules = pickle.loads(read_memory_file(descriptor))  # noqa: S301 - from this process's own trainer (docs/architecture.md, rule 7)
    opened = recipe.open(), rules
    # Modules stay: the collector need not look at them again and again, 4 % of what raw bytes cost (2026-11-22).
    gc.freeze()
    return opened


def settle(place: Place) -> None:
    """Makes this process run where the rank does: environment, `sys.path`, working directory."""
    os.environ.clear()
    # One thread for numpy, torch and BLAS in each worker, as in torch's own workers: there are many of them.
    os.environ.update({"OMP_NUM_THREADS": "1", **place.environment})
    sys.path[:] = place.path
    if place.folder:
        os.chdir(place.folder)


def end_with_parent(parent: int) -> None:
    """Ends this process with the thread that started it, even in the middle of an import or a transform.

    Ctrl-C is ignored: it is the rank's to handle.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # it is blocked while a process is started
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        leave(0)


def leave(code: int) -> None:
    """Ends this process without running what others have registered for its end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
