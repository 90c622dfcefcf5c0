"""Shares the next epoch and the manifest between the main process and its DataLoader workers.

Each dataset and each mix has an `EpochCell`. `epoch_dataset.py` takes epochs from it, `loader/members/member.py`
records the manifest, and `loader/rank/opening.py` the rank.

torch's workers live in other processes, and `set_epoch` in the main process never reaches the copies of the dataset
that persistent workers hold (huggingface/datasets #6673). The number is therefore in shared memory without a name: a
memfd that a forked worker inherits and a spawned one receives.

Every `iter()` without `set_epoch` is the next epoch. All workers of one `iter(loader)` must agree on it, for any number
of workers, new or persistent, and even while an earlier, abandoned iteration is still starting.
They agree through the base seed of the iteration, which torch gives to exactly these workers. The first worker that
begins with a seed takes the next epoch and records it; the others read the record.

The first forked worker that finds the manifest records it, too. Otherwise the workers of every epoch would list the
bucket again, and find another manifest when it has grown.

Only workers share the memory. Any other process that gets a dataset by a fork or a pickle may be a rank of its own,
with its own epochs: it begins with a copy of what the cell held at the fork. Whether a process is a worker is decided
at its first use of the cell.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import context, reduction, resource_sharer
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from streamer.base import linux
from streamer.batches.torch_arguments import get_worker_info
from streamer.errors import ConfigError, StateError

# Number of iterations that are recorded: more than can be starting at the same time.
_ENTRIES = 64
# torch warns at far fewer workers.
_MAX_WORKERS = 4096
_ENTRY = np.dtype([("seed", "<i8"), ("round", "<i8"), ("epoch", "<i8"), ("joined", "u1", (_MAX_WORKERS // 8,))])
_DIGESTS = [("manifest", "S32"), ("annotations", "S32")]
_RANKS = [("rank", "<i8"), ("world_size", "<i8"), ("noted", "<i8")]
_TABLE = np.dtype([("next_epoch", "<i8"), *_DIGESTS, *_RANKS, ("iterations", "<i8"), ("entries", _ENTRY, (_ENTRIES,))])


class _Known(NamedTuple):
    """Keeps what a process that is no worker takes over from its parent's cell."""

    next_epoch: int
    manifest: str
    annotations: str


class WorkerTicket(msgspec.Struct, frozen=True):
    """Identifies a worker of one `iter(loader)`.

    Attributes:
        base_seed: Seed that is the same in all workers of one loader's iterator.
        round: Number of earlier iterations of this process with this seed, above 0 in persistent workers.
        worker: Number of the worker, 0 to 4095.
    """

    base_seed: int
    round: int
    worker: int


class EpochCell:
    """Keeps the next epoch and the manifest in shared memory.

    Any process may use it; calls are short and locked across processes.

    Args:
        first: Epoch of the first `begin`.
        manifest: Digest of the manifest, or "" if it is not known.
        annotations: Digest of the table of annotations, or "" if it is not known.
    """

    _pid: int
    _known: _Known

    def __init__(self, first: int = 0, manifest: str = "", annotations: str = "") -> None:
        self._make(_Known(first, manifest, annotations))
        _cells.add(self)

    def __repr__(self) -> str:
        return f"EpochCell(next={self.next_epoch}, manifest={self.manifest or None})"

    @property
    def next_epoch(self) -> int:
        """The epoch of the next `begin`."""
        return int(self._own()["next_epoch"])

    @property
    def manifest(self) -> str:
        """Digest of the manifest that all processes use; "" until one of them has found it."""
        return self._digest("manifest")

    @property
    def annotations(self) -> str:
        """Digest of the table of annotations that all processes use; "" until one of them has found it."""
        return self._digest("annotations")

    def settle_manifest(self, digest: str) -> str:
        """Records the manifest, unless another process was faster; returns the recorded one."""
        return self._settle("manifest", digest)

    def settle_annotations(self, digest: str) -> str:
        """Records the table of annotations, unless another process was faster; returns the recorded one."""
        return self._settle("annotations", digest)

    def replace(self, manifest: str, annotations: str) -> None:
        """Records another manifest and table of annotations, after a change between two epochs."""
        with self._lock() as table:
            table["manifest"] = manifest.encode()
            table["annotations"] = annotations.encode()

    def set(self, epoch: int) -> None:
        """Sets the epoch of the next `begin` in any process; the one after it gets `epoch + 1`."""
        with self._lock() as table:
            table["next_epoch"] = epoch

    def begin(self, ticket: WorkerTicket | None = None) -> int:
        """Returns the epoch of an iteration that begins: the next one, or that of the other workers of the iteration.

        Args:
            ticket: Worker that begins, or None outside of workers.

        Raises:
            ConfigError: a worker number above 4095.
        """
        with self._lock():
            return self._take() if ticket is None else self._join(ticket)

    def keep_rank(self, rank: int, world_size: int) -> None:
        """Records as which rank the samples are read, and refuses another one from then on.

        Raises:
            StateError: the samples were read as another rank before.
        """
        with self._lock() as table:
            before = int(table["rank"]), int(table["world_size"])
            if not before[1]:
                table["rank"] = rank
                table["world_size"] = world_size
        if before[1]:
            check_same_rank("This dataset", before, (rank, world_size))

    def note_once(self) -> bool:
        """Returns True at its first call in all processes, then False: one line about the ranks is logged."""
        with self._lock() as table:
            before = bool(table["noted"])
            table["noted"] = 1
            return not before

    def _digest(self, name: str) -> str:
        return bytes(self._own()[name].item()).decode()

    def _settle(self, name: str, digest: str) -> str:
        with self._lock() as table:
            if not self._digest(name):
                table[name] = digest.encode()
            return self._digest(name)

    def _join(self, ticket: WorkerTicket) -> int:
        """Returns the recorded epoch of a worker's iteration, or takes and records the next epoch. Holds the lock."""
        if ticket.worker >= _MAX_WORKERS:
            raise ConfigError(f"num_workers is above {_MAX_WORKERS}", field="num_workers")
        byte, bit = divmod(ticket.worker, 8)
        entries = self._table["entries"]
        begun = int(self._table["iterations"])
        # The search goes from the newest back: a worker that joins twice under one seed is in a new iteration with a
        # repeated seed.
        for number in range(begun - 1, max(-1, begun - 1 - _ENTRIES), -1):
            entry = entries[number % _ENTRIES]
            if (entry["seed"], entry["round"]) == (ticket.base_seed, ticket.round) and not entry["joined"][
                byte
            ] >> bit & 1:
                entry["joined"][byte] |= 1 << bit
                return int(entry["epoch"])
        epoch = self._take()
        entry = entries[begun % _ENTRIES]
        entry["seed"] = ticket.base_seed
        entry["round"] = ticket.round
        entry["epoch"] = epoch
        entry["joined"][:] = 0
        entry["joined"][byte] = 1 << bit
        self._table["iterations"] += 1
        return epoch

    def _take(self) -> int:
        epoch = int(self._table["next_epoch"])
        self._table["next_epoch"] = epoch + 1
        return epoch

    @contextlib.contextmanager
    def _lock(self) -> Iterator[npt.NDArray[np.void]]:
        """Gives the table to the block alone, among all threads and processes."""
        # The file lock belongs to the process, and ends with it. Two threads of one process need the other lock.
        table = self._own()
        with self._threads:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield table
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _own(self) -> npt.NDArray[np.void]:
        """Returns the table of this process: that of its parent in a worker, one of its own elsewhere."""
        if self._pid != (pid := os.getpid()):
            if get_worker_info() is None:
                self._make(self._known)
            self._pid = pid
        return self._table

    def _make(self, known: _Known) -> None:
        """Makes new shared memory with this content, for this process and its workers."""
        self._attach(linux.memory_file("streamer-epoch"), known)
        os.ftruncate(self._descriptor, _TABLE.itemsize)
        self._map()
        self._pid = os.getpid()
        self._table["next_epoch"] = known.next_epoch
        self._table["manifest"] = known.manifest.encode()
        self._table["annotations"] = known.annotations.encode()

    def _attach(self, descriptor: int, known: _Known) -> None:
        """Takes over shared memory by its descriptor; `_map` then maps it."""
        self._descriptor = descriptor
        # No `__del__`: at the interpreter's exit the names of its module may be gone.
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._threads = threading.Lock()
        # The process whose table it is; 0 where this one has not decided yet.
        self._pid = 0
        # The content that the table had when a process that is no worker was made from this one.
        self._known = known

    def _map(self) -> None:
        self._memory = mmap.mmap(self._descriptor, _TABLE.itemsize)
        self._table = np.frombuffer(self._memory, _TABLE)[0:1].reshape(())

    def _remember(self) -> None:
        """Notes what a child process that is being made takes over, if it is no worker."""
        self._known = _Known(self.next_epoch, self.manifest, self.annotations)

    def __reduce__(self) -> tuple[Callable[..., EpochCell], tuple[object, ...]]:
        """Shares the memory with a process that is being spawned; any other pickle makes a cell with its own epochs."""
        self._remember()
        if context.get_spawning_popen() is None:
            return EpochCell, tuple(self._known)
        return _attach_cell, (reduction.DupFd(self._descriptor), *self._known)


def _attach_cell(handle: resource_sharer.DupFd, *known: object) -> EpochCell:
    cell = EpochCell.__new__(EpochCell)
    cell._attach(handle.detach(), _Known(*known))  # type: ignore[arg-type]
    cell._map()
    _cells.add(cell)
    return cell


def check_same_rank(what: str, before: tuple[int, int], now: tuple[int, int]) -> None:
    """Refuses to go on as another rank than before.

    Args:
        what: What has read as the rank before, the subject of the message.
        before: Rank and world size of what was read.
        now: Rank and world size of this process.

    Raises:
        StateError: rank or world size differ.
    """
    if before != now:
        raise StateError(
            "{} has read as rank {} of {}, and this process is rank {} of {} now: the shares would not fit. Call "
            "torch.distributed.init_process_group before the first batch, or give the dataset rank= and "
            "world_size=".format(what, *before, *now),
            before="{} of {}".format(*before),
            now="{} of {}".format(*now),
        )


_cells: weakref.WeakSet[EpochCell] = weakref.WeakSet()


def _before_fork() -> None:
    for cell in list(_cells):
        cell._remember()


def _after_fork_in_child() -> None:
    for cell in list(_cells):
        cell._threads = threading.Lock()  # a thread of the parent may have held it


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
