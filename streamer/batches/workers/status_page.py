"""The current task and sample of each worker, in a page of shared memory: readable after a crash of the worker."""

from __future__ import annotations

import os
import struct
import time

import msgspec

from streamer.batches.ring import shared_memory as memory

# task, ordinal (-1: none), monotonic nanoseconds at which it began. A cache line per worker.
_ROW = struct.Struct("<qqq")
_ROW_BYTES = 64


class Doing(msgspec.Struct, frozen=True):
    """One worker's row.

    Attributes:
        task: number of the task.
        ordinal: the sample being loaded; -1 between samples.
        since: CLOCK_MONOTONIC, nanoseconds.
    """

    task: int
    ordinal: int
    since: int


# Between two tasks.
NOTHING = Doing(0, -1, 0)


class StatusPage:
    """The rows of all workers; each is written by its worker and read by the rank.

    Args:
        workers: number of rows.
        descriptor: memory of an existing page, or None to create one.
    """

    def __init__(self, workers: int, descriptor: int | None = None) -> None:
        count = memory.page_aligned(workers * _ROW_BYTES)
        self.descriptor = memory.create_sealed("streamer-status-page", count) if descriptor is None else descriptor
        self._mapping = memory.map_shared(self.descriptor, count)

    def begin(self, row: int, task: int, ordinal: int, since: int) -> None:
        """The worker of this row begins a sample; `since` is the current `time.monotonic_ns`."""
        _ROW.pack_into(self._mapping, row * _ROW_BYTES, task, ordinal, since)

    def idle(self, row: int) -> None:
        """The worker of this row is between samples."""
        _ROW.pack_into(self._mapping, row * _ROW_BYTES, 0, -1, time.monotonic_ns())

    def doing(self, row: int) -> Doing:
        """The last task and sample of the worker of this row."""
        return Doing(*_ROW.unpack_from(self._mapping, row * _ROW_BYTES))

    def close(self) -> None:
        """Closes the descriptor; the mapping ends with the object, which a worker thread may still hold."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
