"""A worker: takes tasks from its socket, makes batches, writes them into slots, says so. Free of torch."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from streamer.loader import memory
from streamer.loader.board import Board
from streamer.loader.control import (
    MEASURE,
    MESSAGE_BYTES,
    Channel,
    Kind,
    Made,
    Note,
    RingShape,
    Stages,
    Task,
)
from streamer.loader.leaves import Bytes
from streamer.loader.maker import BatchMaker, Loaded, MakerRules, SampleFailedError, Stopwatch
from streamer.loader.remote_errors import freeze_error
from streamer.loader.ring import RingView, Shape
from streamer.loader.slots import PackedBatch
from streamer.loader.source import BatchSource, ChunkUnreadableError

Opened = tuple[BatchSource, MakerRules]

# Leaves room for the head of a message.
_ERROR_BYTES = MESSAGE_BYTES // 2
# Of the cause of a skipped sample: enough for its place and what the decoder said.
_CAUSE_BYTES = 2048


def run(row: int, channel: Channel, board: Board, open_source: Callable[[], Opened | None]) -> None:
    """Opens the source and works until the other end is closed; an error at the start goes to the rank."""
    try:
        opened = open_source()
    except Exception as error:  # noqa: BLE001 - it goes to the trainer, whole
        channel.send(Note(Kind.FAILED, 0, -1, freeze_error(error, _ERROR_BYTES)))
        return
    if opened is None:  # nobody wants this worker any more
        return
    source, rules = opened
    try:
        Worker(channel, board, row, source, rules).serve()
    finally:
        source.close()


class _Gone(Exception):  # noqa: N818 - not an error: the rank has closed its end
    """Nobody listens any more."""


class _Work:
    """A batch that is made and waits for its place."""

    def __init__(self, packed: PackedBatch, stages: Stages, faults: int, loaded: Loaded) -> None:
        self.packed = packed
        self._stages = stages
        self._faults = faults
        self._samples, self._slowest = len(loaded.samples), loaded.slowest
        self._repeated = loaded.repeated.tobytes() if loaded.repeated.any() else b""

    def write(self, slot: Bytes) -> bool:
        """Writes the batch to its slot; False: it is too large for it."""
        if self.packed.nbytes <= len(slot):
            self.packed.write(slot)
            return True
        # The rows were kept for another batch than this one turned out to be.
        self.packed = self.packed.compact()
        if self.packed.nbytes > len(slot):
            return False
        # By way of memory elsewhere: parts of it may stand in the slot, where others are to be written.
        whole = np.empty(self.packed.nbytes, np.uint8)
        self.packed.write(whole)
        slot[: whole.size] = whole
        return True

    def made(self, task: int, write_nanoseconds: int, spilled: bool) -> Made:
        s = self._stages
        return Made(
            number=task,
            nbytes=self.packed.nbytes,
            description=self.packed.description,
            stages=Stages(s.load, s.read, s.decode, s.transform, s.collate, write_nanoseconds),
            faults=min(minor_faults() - self._faults, 0xFFFFFFFF),
            samples=self._samples,
            repeated=self._repeated,
            spilled=spilled,
            slowest=self._slowest,
        )


class Worker:
    """Serves one channel until the rank closes its end. Lives on one thread of a worker process or of the rank.

    Args:
        channel: to the rank.
        board: where it says what it is doing.
        row: its row there.
        source: where samples come from.
        rules: how batches are made.
    """

    def __init__(self, channel: Channel, board: Board, row: int, source: BatchSource, rules: MakerRules) -> None:
        self._channel = channel
        self._board = board
        self._row = row
        self._maker = BatchMaker(source, rules, partial(board.begin, row))
        self._ring: tuple[int, RingView] | None = None
        self._held: dict[tuple[int, int], _Work] = {}

    def serve(self) -> None:
        """Works until the other end is closed."""
        self._board.rest(self._row)
        try:
            self._say(Note(Kind.READY))
            while (received := self._channel.receive()) is not None:
                message, descriptor = received
                if isinstance(message, RingShape) and descriptor is not None:
                    self._map(message, descriptor)
                elif isinstance(message, Task):
                    self._perform(message)
        except _Gone:
            return

    def _map(self, ring: RingShape, descriptor: int) -> None:
        try:
            self._ring = ring.number, RingView(descriptor, Shape(ring.slots, ring.slot_bytes))
        finally:
            os.close(descriptor)

    def _perform(self, task: Task) -> None:
        try:
            key = task.epoch, task.batch
            self._hand_over(task, self._held.pop(key) if key in self._held else self._make(task))
        except _Gone:
            raise
        except ChunkUnreadableError as error:
            self._say(Note(Kind.UNREADABLE, task.number, error.chunk, error.reason.encode()[:_ERROR_BYTES]))
        except SampleFailedError as error:
            self._fail(task, error.ordinal, error.__cause__ or error)
        except Exception as error:  # noqa: BLE001 - it goes to the trainer, whole
            self._fail(task, -1, error)
        finally:
            self._board.rest(self._row)

    def _make(self, task: Task) -> _Work:
        watch, clock, faults = Stopwatch(), self._maker.clock(), minor_faults()
        loaded = self._maker.load(task.epoch, task.batch, task.number, frozenset(task.left_out), self._slot(task))
        stages = self._maker.stages(watch.lap(), clock)
        self._board.begin(self._row, task.number, -1, time.monotonic_ns())
        for ordinal, error in loaded.skipped:
            cause = f"{type(error).__name__}: {error}"
            self._say(Note(Kind.SKIPPED, task.number, ordinal, cause.encode(errors="replace")[:_CAUSE_BYTES]))
        # Their tracebacks lead back to the list: a cycle that would keep this worker's memory.
        loaded.skipped.clear()
        packed = self._maker.pack(loaded)
        stages = Stages(stages.load, stages.read, stages.decode, stages.transform, watch.lap())
        return _Work(packed, stages, faults, loaded)

    def _hand_over(self, task: Task, work: _Work) -> None:
        if task.slot == MEASURE:
            self._held[task.epoch, task.batch] = work
            self._say(Note(Kind.NEED, task.number, work.packed.nbytes))
            return
        watch, slot = Stopwatch(), self._slot(task)
        if slot is not None and work.write(slot):
            self._say(work.made(task.number, watch.lap(), spilled=False))
            return
        self._spill(task, work, watch)

    def _slot(self, task: Task) -> Bytes | None:
        """Where the batch will lie; None: not known yet, or not in this worker's ring."""
        if task.slot < 0 or self._ring is None or self._ring[0] != task.ring:
            return None
        return self._ring[1].slot(task.slot)

    def _spill(self, task: Task, work: _Work, watch: Stopwatch) -> None:
        count = memory.page_aligned(work.packed.nbytes)
        descriptor = memory.create_sealed("streamer-spill", count)
        try:
            mapping = memory.map_shared(descriptor, count)
            work.packed.write(memory.window(mapping, 0, count))
            self._say(work.made(task.number, watch.lap(), spilled=True), descriptor)
        finally:
            os.close(descriptor)

    def _fail(self, task: Task, ordinal: int, error: BaseException) -> None:
        self._say(Note(Kind.FAILED, task.number, ordinal, freeze_error(error, _ERROR_BYTES)))

    def _say(self, message: Made | Note, descriptor: int | None = None) -> None:
        if not self._channel.send(message, descriptor):
            raise _Gone


def minor_faults() -> int:
    """Minor page faults of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
