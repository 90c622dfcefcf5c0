"""The worker process: `python -m streamer.loader.worker_main NUMBER BOARD BOOT CHANNEL`.

All but the first are descriptors.

Started by `subprocess`, not by multiprocessing: `__main__` of the trainer is not imported again, so lambdas, notebooks
and scripts without a guard work; and torch is not imported unless the transform does it. It starts while the rank still
looks for its engine and its manifest: what it is to make arrives on its channels afterwards.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import signal
import sys
import traceback

import msgspec

from streamer.loader.board import Board
from streamer.loader.control import Channel, Kind, Note, Payload
from streamer.loader.worker import Opened, run

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# glibc gives freed memory back and faults it in again for every batch of samples above 128 KiB; a worker's heap
# keeps what one batch needed instead (32 MiB: glibc's upper limit for the second).
_KEEP_BYTES, _HEAP_BYTES = 1 << 30, 32 << 20
# What nearly every payload needs: 50 ms that pass while the rank waits for its engine.
_LIKELY = "streamer.loader.samples"


class Boot(msgspec.Struct, frozen=True):
    """What a worker process is told at its start.

    Attributes:
        parent: the rank's pid.
        workers: how many the rank has; the board has a row for each.
        path: the trainer's `sys.path`.
        python_path: the trainer's PYTHONPATH, which the start needed for itself.
    """

    parent: int
    workers: int
    path: list[str]
    python_path: str | None


def main() -> None:
    """Runs the worker of the command line."""
    number, board_descriptor, boot, end = map(int, sys.argv[1:])
    told: Boot = pickle.loads(read_whole(boot))  # noqa: S301 - from this process's own trainer (docs/architecture.md, rule 7)
    _follow_parent(told.parent)
    _keep_heap()
    _restore_paths(told)
    os.set_inheritable(board_descriptor, False)
    board = Board(told.workers, board_descriptor)
    channel = Channel.adopt(end)
    if not channel.waiting:
        importlib.import_module(_LIKELY)
    channel.send(Note(Kind.UP))
    _serve(number, channel, board)


def read_whole(descriptor: int) -> bytes:
    """What is in a memory that the rank has sent; closes it."""
    # pread: the descriptor and its position are shared by all workers.
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    os.close(descriptor)
    return content


def _serve(number: int, channel: Channel, board: Board) -> None:
    """Works until the rank closes its end; an error ends the process at once, whatever threads the user has started."""
    try:
        run(number, channel, board, lambda: _open_payload(channel))
    except BaseException:  # noqa: BLE001 - the rank sees the process end
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # The rank sees the end also while a thread of the user keeps the process.
    channel.close()


def _open_payload(channel: Channel) -> Opened | None:
    received = channel.receive()
    if received is None:
        return None
    message, descriptor = received
    assert isinstance(message, Payload)
    assert descriptor is not None
    recipe, rules = pickle.loads(read_whole(descriptor))  # noqa: S301 - from this process's own trainer (docs/architecture.md, rule 7)
    opened = recipe.open(), rules
    # Modules stay: the collector need not look at them again and again, 4 % of what raw bytes cost (2026-11-22).
    gc.freeze()
    return opened


def _follow_parent(parent: int) -> None:
    """Ends with the trainer, even in the middle of a transform. Ctrl-C is the trainer's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # the rank has started this process so
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


if __name__ == "__main__":
    # Boot is pickled by its importable name; run with -m, this module's own name is __main__.
    from streamer.loader.worker_main import main as start

    start()
