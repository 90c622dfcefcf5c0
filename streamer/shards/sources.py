"""Gives the samples of a pack to its tasks: from ranges of the objects of urls, or from a dataset of the loader.

`prepared.py` makes the source and puts it into the recipe of the job, which travels to tasks. `task.py` reads it there.
`pack.py` recognises a dataset of the loader by `Scannable`.
The protocols at the end stand for classes of the loader (`loader/dataset_scan.py`), which is not imported: packs of
urls need no torch.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from streamer.annotations.join import Joiner, JoinRules
from streamer.base.concurrency import plain_errors
from streamer.config import FetchConfig
from streamer.decode.base import sample_errors
from streamer.decode.rule import StoredSample
from streamer.errors import Discreet
from streamer.fetch import Fetcher
from streamer.formats.registry import find_format
from streamer.indexing.tasks import StoreOpener
from streamer.manifest.table import Manifest
from streamer.shards.annotations import put_table, rules_here
from streamer.shards.destination import Destination
from streamer.shards.job import Job
from streamer.shards.plan import Batch, Int64Array, RecodedBatch
from streamer.shards.reading import ReadBatch, ShardReader, SourceDataset
from streamer.store.addresses.urls import shown

# A batch of samples, in the form that a source reads.
Part = TypeVar("Part")
# A function that takes some samples, whose bytes it needs until it returns.
TakeSamples = Callable[[Iterable[StoredSample]], None]


class PackSource(ABC, Generic[Part]):
    """Reads the samples of a job in a task. It is sent to other processes, so it holds no connections or threads."""

    async def put(self, job: Job, options: Mapping[str, object]) -> None:
        """Uploads what tasks on other machines need to the job's folder; by default nothing.

        Args:
            job: the pack.
            options: storage options of the destination.

        Raises:
            PackError: the disk for temporary files is full.
            StoreError: the destination cannot be written.
        """

    async def settle(self, destination: Destination, job: Job) -> PackSource[Part]:
        """Returns the source with local copies of what `put` has uploaded; by default unchanged.

        Raises:
            StoreError, ManifestError: the copies cannot be read or written.
        """
        return self

    @abstractmethod
    async def feed(self, batches: Sequence[Part], take: TakeSamples) -> None:
        """Reads batches, and calls `take` on a thread with their samples in order, once or once for each batch.

        Raises:
            StreamerError: a sample cannot be read or decoded. Errors of `take` are raised unchanged.
        """


@dataclass(frozen=True, repr=False)
class RangeSource(Discreet, PackSource[Batch | RecodedBatch]):
    """Reads samples as ranges of objects from the store, without an engine and without a cache.

    Attributes:
        dataset: facts about all samples.
        joined: rules by which annotations are joined to the samples, or None if there are none.
        storage_options: storage options of the source.
    """

    dataset: SourceDataset
    joined: JoinRules | None
    storage_options: dict[str, object]

    async def put(self, job: Job, options: Mapping[str, object]) -> None:
        """Uploads the table of annotations, if there is one; see `PackSource.put`."""
        if self.joined is not None:
            await put_table(job, options, self.joined.table)

    async def settle(self, destination: Destination, job: Job) -> RangeSource:
        """Returns the source with a table of annotations on this machine; see `PackSource.settle`."""
        if self.joined is None:
            return self
        return replace(self, joined=await rules_here(destination, job, self.joined))

    async def feed(self, batches: Sequence[Batch | RecodedBatch], take: TakeSamples) -> None:
        """Calls `take` for each batch, while the next one is read; see `PackSource.feed`."""
        async with Fetcher(FetchConfig(), StoreOpener(self.storage_options)) as fetcher:
            reader = ShardReader(fetcher, self.dataset)
            opening = _Opening(self)
            with plain_errors():
                async with asyncio.TaskGroup() as group:
                    coming = [group.create_task(reader.read(batch)) for batch in batches[:1]]
                    for number in range(len(batches)):
                        batch = await coming.pop()
                        if number + 1 < len(batches):
                            coming.append(group.create_task(reader.read(batches[number + 1])))
                        with closing(batch):
                            await asyncio.to_thread(take, opening.open_all(batch))


class _Opening:
    """Opens the samples of a source, and joins annotations to them."""

    def __init__(self, source: RangeSource) -> None:
        self._joiner = None if source.joined is None else Joiner(source.joined, "auto")
        self._opener = find_format(source.dataset.format, source.dataset.options).opener(source.dataset.facts)

    def open_all(self, batch: ReadBatch) -> Iterator[StoredSample]:
        """Yields the samples of a batch, with their annotations and labels.

        Raises:
            DecodeError: a sample cannot be opened, or has no annotations and needs them.
            RecodeError: a block cannot be decoded.
            ConfigError: a library of the format is not installed.
        """
        for read in batch.samples():
            where = f"sample {read.ordinal} of {shown(read.url)}"
            name = read.name
            with sample_errors(where):
                key, fields = self._opener.open(read.content, name)
                found = None
                if self._joiner is not None:
                    found = self._joiner.fields(str(read.ordinal) if key is None else key, fields)
            values: list[tuple[str, object]] = [(field.name, field) for field in fields]
            if name.label >= 0 and all(field.name != "label" for field in fields):
                values.append(("label", name.label))
            yield StoredSample(
                ordinal=read.ordinal,
                where=where,
                key=name.object_key or key,
                fields=values,
                annotations=found or (),
                is_file=bool(name.object_key),
                is_left_out=self._joiner is not None and found is None,
            )


class PartReader(Protocol):
    """Reads samples of a dataset of the loader in a task; it is sent there."""

    def read(self, ordinals: Int64Array) -> Generator[StoredSample]:
        """Yields the samples with these ordinals, in this order; raises StreamerError."""
        ...


class DatasetReader(Protocol):
    """A dataset of the loader, in the process that plans the pack; the first use of most members opens it."""

    @property
    def manifest(self) -> Manifest:
        """Manifest of the dataset."""
        ...

    @property
    def ordinals(self) -> Int64Array | None:
        """Ordinals of the selected samples, ascending, or None for all."""
        ...

    @property
    def urls(self) -> tuple[str, ...]:
        """Urls of the dataset, and of those that it is joined to."""
        ...

    @property
    def storage_options(self) -> dict[str, object]:
        """Storage options of the dataset."""
        ...

    @property
    def field_kinds(self) -> dict[str, str]:
        """Kinds by name of those fields that all samples are known to have."""
        ...

    @property
    def transform(self) -> Callable[..., Any] | None:
        """Transform of the dataset, or None if it has none."""
        ...

    def describe(self) -> dict[str, object]:
        """Describes what is read besides the manifest, as JSON values, for the identity of the job."""
        ...

    def count_row_bytes(self, ordinals: Int64Array) -> Int64Array:
        """Returns about how many bytes each of these samples gets from joins: int64, shape (len(ordinals),)."""
        ...

    def recipe(self) -> PartReader:
        """Makes the reader of tasks."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


@runtime_checkable
class Scannable(Protocol):
    """A dataset of the loader, which `streamer.pack` recognises by this method."""

    def _scan(self) -> DatasetReader:
        """Opens the dataset for a pack; the caller closes the result.

        Raises:
            ConfigError: the samples cannot be packed.
        """
        ...


@dataclass(frozen=True)
class ScannedSource(PackSource[Int64Array]):
    """Reads samples of a dataset of the loader, through the engine of the machine of each task.

    Attributes:
        recipe: the reader of the dataset.
    """

    recipe: PartReader

    async def feed(self, batches: Sequence[Int64Array], take: TakeSamples) -> None:
        """Calls `take` once for all batches, which one session reads; see `PackSource.feed`."""

        def feed() -> None:
            with closing(self.recipe.read(np.concatenate(batches))) as samples:
                take(samples)

        await asyncio.to_thread(feed)
