"""The worker process: `python -m streamer.loader.worker_main ROW CHANNEL BOARD BOOT`, the last three descriptors.

Started by `subprocess`, not by multiprocessing: `__main__` of the trainer is not imported again, so lambdas, notebooks
and scripts without a guard work; and torch is not imported unless the transform does it.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from dataclasses import dataclass

from streamer.loader.board import Board
from streamer.loader.control import Channel
from streamer.loader.maker import MakerRules
from streamer.loader.source import BatchSource
from streamer.loader.worker import run

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# glibc gives freed memory back and faults it in again for every batch of samples above 128 KiB; a worker's heap
# keeps what one batch needed instead (32 MiB: glibc's upper limit for the second).
_KEEP_BYTES, _HEAP_BYTES = 1 << 30, 32 << 20


@dataclass(frozen=True, slots=True)
class Boot:
    """What a worker process is told at its start.

    Attributes:
        parent: the rank's pid.
        workers: how many rows the board has.
        path: the trainer's `sys.path`.
        python_path: the trainer's PYTHONPATH, which the start needed for itself.
        payload: cloudpickled (recipe, rules); unpickled only when `path` is set.
    """

    parent: int
    workers: int
    path: list[str]
    python_path: str | None
    payload: bytes


def main() -> None:
    """Runs the worker of the command line."""
    row, channel, board, boot = (int(argument) for argument in sys.argv[1:5])
    told = _read_boot(boot)
    _follow_parent(told.parent)
    _keep_heap()
    _restore_paths(told)
    os.set_inheritable(board, False)
    run(row, Channel.adopt(channel), Board(told.workers, board), lambda: _open_payload(told.payload))


def _read_boot(descriptor: int) -> Boot:
    count = os.fstat(descriptor).st_size
    # pread: the descriptor and its position are shared by all workers.
    boot = pickle.loads(os.pread(descriptor, count, 0))  # noqa: S301 - from this process's own trainer (law 7)
    os.close(descriptor)
    assert isinstance(boot, Boot)
    return boot


def _follow_parent(parent: int) -> None:
    """Ends with the trainer, even in the middle of a transform. Ctrl-C is the trainer's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    # Bound to the trainer's *thread* that started this process: its feeder, which lives as long as its workers.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


def _keep_heap() -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # not glibc
        return
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _HEAP_BYTES)


def _restore_paths(boot: Boot) -> None:
    sys.path[:] = boot.path
    if boot.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = boot.python_path


def _open_payload(payload: bytes) -> tuple[BatchSource, MakerRules]:
    recipe, rules = pickle.loads(payload)  # noqa: S301 - from this process's own trainer (law 7)
    return recipe.open(), rules


if __name__ == "__main__":
    # Boot is pickled by its importable name; run with -m, this module's own name is __main__.
    from streamer.loader.worker_main import main as start

    start()
