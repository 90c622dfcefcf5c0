"""What tests may see of a loader's inside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # workers import this package with FakeDataset: without torch
    from streamer.loader.dataloader import StreamingDataLoader


@dataclass(frozen=True)
class Inspection:
    """What tests may see of a loader's inside.

    Attributes:
        worker_pids: of the worker processes that run.
        ready_workers: numbers of the workers that have opened their source.
        starts_by_fork: whether workers are forked from the fork server.
    """

    worker_pids: list[int]
    ready_workers: list[int]
    starts_by_fork: bool


def inspect(loader: StreamingDataLoader) -> Inspection:
    """The inside of a loader right now; any thread."""
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
