"""Containers indexed in tasks: each task reads some of them and reports where their samples are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec
import numpy as np

from streamer.base.bounded_map import map_concurrently
from streamer.config import FetchConfig
from streamer.errors import Discreet, ManifestError
from streamer.executors.runner import Runner, run_dynamic
from streamer.fetch import Fetcher
from streamer.indexing.build import BuildOptions
from streamer.indexing.container_rows import Budget, Container, Partial, index_container
from streamer.indexing.stores import StoreOpener, TaskReader
from streamer.manifest.blocks import Block
from streamer.manifest.packing import Cut
from streamer.manifest.protocols import Indexer, Note, Short

Found: TypeAlias = Cut | list[Block] | Short | Partial | ManifestError
# The place of a container in its task, and what is found in it; in any order.
Findings: TypeAlias = list[tuple[int, Found | Note]]

# A task that dies costs as much again; one of 1 GB takes a second at 10 Gbit/s.
_TASK_BYTES = 1 << 30
_TASK_CONTAINERS = 256
# At least this many tasks for each that runs at once, so that the last ones end together.
_SHARES = 4


class ContainersTask(Discreet, msgspec.Struct, frozen=True):
    """A task: the containers from number `first` on."""

    first: int
    containers: Sequence[Container]
    indexer: Indexer
    options: Mapping[str, object]


class IndexTasks(Discreet, msgspec.Struct, frozen=True):
    """Indexes containers on an executor, with storage options as fsspec takes them; see `builder.build.Elsewhere`."""

    runner: Runner
    options: Mapping[str, object]

    async def __call__(
        self, containers: Sequence[Container], indexer: Indexer
    ) -> AsyncGenerator[tuple[int, Found | Note], None]:
        """Yields the place of a container and the findings in it, or why it is damaged, and notes about it."""
        tasks = iter(
            ContainersTask(first, containers[first:stop], indexer, self.options)
            for first, stop in groups([each.record.size for each in containers], self.runner.most_tasks)
        )
        async with aclosing(run_dynamic(self.runner, index_containers, lambda: next(tasks, None))) as coming:
            async for first, some in coming:
                for place, found in some:
                    yield first + place, found


def groups(sizes: Sequence[int], most_tasks: int) -> Iterator[tuple[int, int]]:
    """Yields half-open ranges of containers with about the same number of bytes, one for each task. Pure."""
    limit = min(_TASK_BYTES, sum(sizes) // (_SHARES * most_tasks))
    first = filled = 0
    for number, size in enumerate(sizes):
        if number > first and (filled + size > limit or number - first == _TASK_CONTAINERS):
            yield first, number
            first = number
            filled = 0
        filled += size
    if sizes:
        yield first, len(sizes)


def index_containers(task: ContainersTask) -> tuple[int, Findings]:
    """Indexes containers: returns the number of the first, and the findings, or errors, in each; raises StoreError."""
    return task.first, asyncio.run(_index(task))


async def _index(task: ContainersTask) -> Findings:
    bounds = BuildOptions()
    sizes = np.array([container.record.size for container in task.containers], np.int64)
    budget = Budget.divide(bounds.memory_bytes, bounds.concurrency, sizes, 0)
    notes: Findings = []
    async with Fetcher(FetchConfig(), StoreOpener(task.options)) as fetcher:
        reader = TaskReader(fetcher)

        async def index(place: int) -> Found:
            try:
                return await index_container(
                    task.containers[place],
                    task.indexer,
                    reader,
                    ahead=budget.ahead,
                    on_chunk=None,
                    on_read=lambda need: None,
                    on_note=lambda note: notes.append((place, note)),
                )
            except ManifestError as error:
                return error

        found = await map_concurrently(index, range(len(task.containers)), budget.parallel_objects)
    return [*notes, *enumerate(found)]
