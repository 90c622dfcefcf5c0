"""The internal state of a loader, for tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # workers import this package with FakeDataset: without torch
    from streamer.loader.dataloader import StreamingDataLoader


@dataclass(frozen=True)
class Inspection:
    """The internal state of a loader.

    Attributes:
        worker_pids: of the running worker processes.
        ready_workers: numbers of the workers that have opened their source.
        starts_by_fork: whether workers are forked from the fork server.
    """

    worker_pids: list[int]
    ready_workers: list[int]
    starts_by_fork: bool


def inspect(loader: StreamingDataLoader) -> Inspection:
    """Returns the current internal state of a loader; any thread."""
    feeder = loader._supply_owner._feeder
    if feeder is None:
        return Inspection([], [], False)
    pool = feeder._pool
    handles = sorted(pool.workers.copy().items())
    return Inspection(
        [handle.process.pid for _, handle in handles if handle.process is not None and handle.process.pid],
        [number for number, handle in handles if handle.ready],
        pool.forked is not None,
    )
