"""Reads the internal state of a loader, for tests, and changes the two things of it that they may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:  # workers import this package with FakeDataset: without torch
    from streamer.loader.dataloader import StreamingDataLoader
    from streamer.loader.device.copying import Mover


@dataclass(frozen=True)
class Inspection:
    """The internal state of a loader.

    Attributes:
        worker_pids: of the running worker processes.
        ready_workers: numbers of the workers that have opened their source.
        starts_by_fork: whether workers are forked from the fork server.
        started: whether the thread that feeds the workers exists.
    """

    worker_pids: list[int]
    ready_workers: list[int]
    starts_by_fork: bool
    started: bool = True


def inspect(loader: StreamingDataLoader) -> Inspection:
    """Returns the current internal state of a loader; any thread."""
    feeder = loader._supply_owner._feeder
    if feeder is None:
        return Inspection([], [], False, started=False)
    pool = feeder._pool
    handles = sorted(pool.workers.copy().items())
    return Inspection(
        [handle.process.pid for _, handle in handles if handle.process is not None and handle.process.pid],
        [number for number, handle in handles if handle.ready],
        pool.forked is not None,
    )


def poison_freed_slots(loader: StreamingDataLoader) -> None:
    """Overwrites each freed slot of the ring, so that a late read of one is seen. Call it before the first batch."""
    poisoned = msgspec.structs.replace(loader._supply_owner.settings, poison=True)
    loader._supply_owner.settings = loader._settings = poisoned


def copy_with(loader: StreamingDataLoader, mover: Mover) -> None:
    """Copies batches to the device with `mover`. Call it before the first batch."""
    loader._supply_owner._mover = mover
