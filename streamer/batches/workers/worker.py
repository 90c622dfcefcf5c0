"""Runs a worker: takes tasks from its channel, makes batches, writes them into slots, and reports. Free of torch.

Worker processes call `serve` (`batches/workers/__main__.py`, `batches/workers/fork_server_main.py`). Worker threads
call `run` (`batches/workers/pool.py`).
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np

from streamer.base import linux
from streamer.base.message_socket import MESSAGE_BYTES
from streamer.base.process import keep_free_memory
from streamer.base.system_limits import find_shortage
from streamer.batches.batch.buffers import Bytes
from streamer.batches.batch.slot_layout import WritableBatch
from streamer.batches.causes import Stages
from streamer.batches.ring import shared_memory as memory
from streamer.batches.samples.cached_bytes import ChunkUnreadableError
from streamer.batches.samples.recipe import StreamReader
from streamer.batches.workers.batch_maker import BatchMaker, Loaded, MakerRules, SampleFailedError, Stopwatch
from streamer.batches.workers.fork_protocol import ProcessContext, read_memory_file
from streamer.batches.workers.protocol import (
    NO_SLOT,
    Channel,
    FailedTask,
    Forget,
    Made,
    NotOpened,
    Open,
    Report,
    SkippedSample,
    StatusPage,
    Task,
    Unreadable,
    WorkerReady,
    serialize_error,
)
from streamer.errors import WorkerError

Opened = tuple[StreamReader, MakerRules]

# Largest size of a serialized error: it leaves space for the rest of its message.
_ERROR_BYTES = MESSAGE_BYTES // 2
# Largest length of the cause of a skipped sample: enough for its location and the decoder's message.
_CAUSE_CHARACTERS = 2048
# New memory for a slot has an eighth to spare, since the batches of one dataset differ a little in size.
_SPARE_SHARE = 8


def run(row: int, channel: Channel, status_page: StatusPage, open_source: Callable[[], Opened | None]) -> None:
    """Opens the source, and makes batches until the rank closes its end of the channel.

    Args:
        row: Number of the worker, and its row in the status page.
        channel: The worker's end of its channel.
        status_page: Page in which the worker notes what it does.
        open_source: Function that returns reader and rules, or None if the loader was closed before its first batch:
            the worker ends then. Its error is sent to the rank, upon which the worker ends, too.
    """
    try:
        opened = open_source()
    except Exception as error:  # noqa: BLE001 - sent to the trainer
        channel.send(NotOpened(serialize_error(find_shortage(error) or error, _ERROR_BYTES)))
        return
    if opened is None:  # the loader was closed before its first batch
        return
    Worker(channel, status_page, row, *opened).serve()


class _ChannelClosedError(Exception):
    """The rank has closed its end of the channel."""


class SlotMemory:
    """The memory of the slots that a worker has mapped, by the number of the slot."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[memoryview, int]] = {}

    def add(self, slot: int, descriptor: int) -> None:
        """Maps the memory of a slot in place of an earlier one, and closes the descriptor.

        Raises:
            OSError: the memory cannot be mapped.
        """
        try:
            count = os.fstat(descriptor).st_size
            self._slots[slot] = memory.map_memfd(descriptor, count), count
        finally:
            os.close(descriptor)

    def get(self, slot: int) -> Bytes | None:
        """Returns the memory of a slot, or None if it is not mapped yet."""
        if (found := self._slots.get(slot)) is None:
            return None
        mapping, count = found
        return memory.window(mapping, 0, count)

    def forget(self, slot: int) -> None:
        """Unmaps the memory of a slot, if it is mapped."""
        self._slots.pop(slot, None)

    def make(self, slot: int, nbytes: int) -> tuple[Bytes, int]:
        """Makes new memory for a slot, or for NO_SLOT; returns it with its descriptor, which the caller closes.

        Raises:
            ConfigError: there is not enough memory for `nbytes` bytes, or none can be made.
            OSError: the memory cannot be mapped.
        """
        spare = nbytes // _SPARE_SHARE if slot != NO_SLOT else 0
        count = memory.align_to_page(nbytes + spare)
        descriptor = memory.create_memfd("streamer-batch", count)
        mapping = memory.map_memfd(descriptor, count)
        if slot != NO_SLOT:
            self._slots[slot] = mapping, count
        return memory.window(mapping, 0, count), descriptor


class _Work:
    """A batch that is made and not yet written.

    Args:
        packed: the batch.
        stages: times of its stages so far.
        faults: `minor_faults()` before it was begun.
        loaded: its samples, and what is reported of them.
    """

    def __init__(self, packed: WritableBatch, stages: Stages, faults: int, loaded: Loaded) -> None:
        self.packed = packed
        self._stages = stages
        self._faults = faults
        self._samples = len(loaded.made)
        self._slowest = loaded.slowest
        self._repeated = loaded.repeated.tobytes() if loaded.repeated.any() else b""
        self._packed = loaded.packed
        self._tallies = loaded.tallies

    def write(self, slot: Bytes) -> bool:
        """Writes the batch to its slot. Returns False if the slot is too small, also without unused rows."""
        if self.packed.nbytes <= len(slot):
            self.packed.write(slot)
            return True
        # The rows were predicted for a batch of another layout.
        self.packed = self.packed.compact()
        if self.packed.nbytes > len(slot):
            return False
        # It is written to other memory first, because rows of the batch may be in the slot where other parts go.
        whole = np.empty(self.packed.nbytes, np.uint8)
        self.packed.write(whole)
        slot[: whole.size] = whole
        return True

    def report(self, task: int, write_nanoseconds: int, memory_bytes: int) -> Made:
        """Returns the report of the batch, once it is written.

        Args:
            task: number of the task.
            write_nanoseconds: time of writing.
            memory_bytes: size of memory that the worker made for the batch, or 0 if it is in its slot's memory.
        """
        s = self._stages
        return Made(
            number=task,
            nbytes=self.packed.nbytes,
            description=self.packed.description,
            stages=Stages(
                load=s.load,
                read=s.read,
                decode=s.decode,
                transform=s.transform,
                collate=s.collate,
                write=write_nanoseconds,
            ),
            faults=minor_faults() - self._faults,
            samples=self._samples,
            repeated=self._repeated,
            memory_bytes=memory_bytes,
            slowest=self._slowest,
            packed=self._packed,
            tallies=self._tallies,
        )


class Worker:
    """Makes the batches that one channel asks for. Runs on one thread of a worker process or of the rank.

    Args:
        channel: the worker's end of its channel.
        status_page: page in which the worker notes what it does.
        row: row of the worker in the status page.
        source: makes the samples.
        rules: rules of making batches.
    """

    def __init__(
        self, channel: Channel, status_page: StatusPage, row: int, source: StreamReader, rules: MakerRules
    ) -> None:
        self._channel = channel
        self._status_page = status_page
        self._row = row
        self._maker = BatchMaker(source, rules, partial(status_page.begin, row))
        self._slots = SlotMemory()

    def serve(self) -> None:
        """Reports that the worker is ready, and makes batches until the rank closes its end.

        Raises:
            ConfigError, OSError: the memory of a slot cannot be received or mapped.
        """
        self._status_page.idle(self._row)
        try:
            self._send(WorkerReady())
            while (received := self._channel.receive()) is not None:
                message, descriptor = received
                if isinstance(message, Task):
                    if descriptor >= 0:
                        self._slots.add(message.slot, descriptor)
                    self._run_task(message)
                elif isinstance(message, Forget):
                    self._slots.forget(message.slot)
        except _ChannelClosedError:
            return

    def _run_task(self, task: Task) -> None:
        """Makes, writes and reports one batch, or reports why that is not possible."""
        try:
            self._write(task, self._make(task))
        except _ChannelClosedError:
            raise
        except ChunkUnreadableError as error:
            self._send(Unreadable(task.number, error.chunk, error.reason[:_CAUSE_CHARACTERS]))
        except SampleFailedError as error:
            self._fail(task, error.ordinal, error.__cause__ or error)
        except Exception as error:  # noqa: BLE001 - sent to the trainer
            self._fail(task, -1, find_shortage(error) or error)
        except BaseException as error:  # noqa: BLE001 - user code may raise CancelledError; no Ctrl-C comes here
            where = "; ".join(getattr(error, "__notes__", ["raised by a function of this loader"]))
            text = f"{type(error).__name__} ends no batch: raise an Exception instead ({where})"
            self._fail(task, -1, WorkerError(text))
        finally:
            self._status_page.idle(self._row)

    def _make(self, task: Task) -> _Work:
        """Loads and collates the samples of a batch, directly in its slot where possible; reports skipped samples."""
        watch = Stopwatch()
        clock = self._maker.clock()
        faults = minor_faults()
        slot = self._slots.get(task.slot)
        self._maker.set_rounds(task.rounds)
        loaded = self._maker.load(
            task.epoch, task.batch, task=task.number, left_out=frozenset(task.left_out), memory=slot
        )
        stages = self._maker.stages(watch.lap(), clock)
        self._status_page.begin(self._row, task.number, -1, time.monotonic_ns())
        for ordinal, error in loaded.skipped:
            cause = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
            self._send(SkippedSample(task.number, ordinal, cause[:_CAUSE_CHARACTERS]))
        # The tracebacks of errors refer to the list, a cycle that would keep the memory of the samples.
        loaded.skipped.clear()
        packed = self._maker.lay_out(loaded)
        stages = Stages(
            load=stages.load, read=stages.read, decode=stages.decode, transform=stages.transform, collate=watch.lap()
        )
        return _Work(packed, stages, faults, loaded)

    def _write(self, task: Task, work: _Work) -> None:
        """Writes a batch to its slot, or to new memory if it does not fit there, and reports it."""
        watch = Stopwatch()
        slot = self._slots.get(task.slot)
        if slot is not None and work.write(slot):
            self._send(work.report(task.number, watch.lap(), 0))
            return
        target, descriptor = self._slots.make(task.slot, work.packed.nbytes)
        try:
            work.packed.write(target)
            self._send(work.report(task.number, watch.lap(), len(target)), descriptor)
        finally:
            os.close(descriptor)

    def _fail(self, task: Task, ordinal: int, error: BaseException) -> None:
        self._send(FailedTask(task.number, ordinal, serialize_error(error, _ERROR_BYTES)))

    def _send(self, message: Report, descriptor: int = -1) -> None:
        if not self._channel.send(message, descriptor):
            raise _ChannelClosedError


def minor_faults() -> int:
    """Returns the number of minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


# Bytes of freed memory that the process keeps for the next batch: more than the samples of a batch take.
_KEPT_BYTES = 1 << 30


def serve(number: int, workers: int, status_page: int, channel: int) -> None:
    """Runs the worker of this process until the rank closes its end of the channel.

    An error ends the process with code 1, even if user code has started threads.

    Args:
        number: Number of the worker, and its row in the status page.
        workers: number of rows in the status page.
        status_page: file descriptor of the status page.
        channel: file descriptor of the worker's end of its channel.
    """
    os.set_inheritable(status_page, False)
    keep_free_memory(_KEPT_BYTES)
    end = Channel.adopt(channel)
    try:
        run(number, end, StatusPage(workers, status_page), lambda: _open_source(end))
    except BaseException:  # noqa: BLE001 - the rank notices the end of the process
        traceback.print_exc()
        leave(1)
    # The rank notices the end by the closed channel, even while a thread of user code keeps the process.
    end.close()


def _open_source(channel: Channel) -> Opened | None:
    """Waits for recipe and rules, and opens the reader; returns None if the channel is closed before."""
    received = channel.receive()
    if received is None:
        return None
    message, descriptor = received
    assert isinstance(message, Open)
    recipe, rules = pickle.loads(read_memory_file(descriptor))  # noqa: S301 - from this process's own trainer (docs/architecture.md, rule 7)
    opened = recipe.open(), rules
    # The collector need not visit what stays in memory, such as modules: 4 % of the cost of raw bytes (2026-11-22).
    gc.freeze()
    return opened


def enter_context(context: ProcessContext) -> None:
    """Sets environment, `sys.path` and working directory of this process to those of the rank.

    OMP_NUM_THREADS is 1 unless the rank has it.
    """
    os.environ.clear()
    # A worker has one thread for numpy, torch and BLAS, as torch's own workers have: there are many of them.
    os.environb.update({b"OMP_NUM_THREADS": b"1", **context.environment})
    sys.path[:] = map(os.fsdecode, context.path)
    if context.folder:
        # An error is ignored: the folder may have been removed, or may not be entered any more. The rank stays there,
        # too.
        with suppress(OSError):
            os.chdir(context.folder)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when the thread that started it ends, even in the middle of an import.

    `parent` is the pid of that thread's process. Ctrl-C is ignored from now on: the rank handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # it is blocked while a process is started
    linux.end_with_parent(parent)


def flush_output() -> None:
    """Flushes stdout and stderr. Ignores that the process has none, or that their reader has ended."""
    for stream in (sys.stdout, sys.stderr):
        # A stream is None where the descriptor was closed when the interpreter started.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def leave(code: int) -> None:
    """Flushes the output and ends this process with an exit code, without running registered exit functions."""
    flush_output()
    os._exit(code)
