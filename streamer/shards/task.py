"""One shard: reads its samples, writes its file, uploads it, writes its receipt. Depends only on its arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from streamer.annotations.join import Joiner, JoinRules
from streamer.base.concurrency import plain_errors
from streamer.config import FetchConfig
from streamer.errors import DecodeError, Discreet, PackError
from streamer.fetch import Fetcher
from streamer.formats.base import Field, FieldPacker, Opener
from streamer.formats.registry import find_format
from streamer.indexing.tasks import StoreOpener
from streamer.manifest.model import SampleName
from streamer.shards.annotations import rules_here
from streamer.shards.destination import Destination, agrees, files_of
from streamer.shards.job import Job, Transform, transform_name
from streamer.shards.outputs.base import Output, SampleTaker
from streamer.shards.outputs.columns import to_given
from streamer.shards.outputs.registry import KindFinder
from streamer.shards.plan import Batch, RecodedBatch, key_of_file
from streamer.shards.reading import ReadBatch, ReadSample, ShardReader, SourceDataset
from streamer.shards.receipts import Receipt, Written
from streamer.shards.spool import open_spool, spool_folder
from streamer.shards.values import KEY
from streamer.store.addresses.urls import shown


class Recipe(Discreet, msgspec.Struct, frozen=True):
    """The way in which all tasks of a job read and change samples.

    Attributes:
        fields: the fields to write, by name in the source, with their new names; None: all.
        transform: called with each sample; None: there is none.
        joined: annotations of the samples; None: there are none.
        packer: makes values of fields that are not written as their kinds say; None if there are none.
    """

    dataset: SourceDataset
    fields: dict[str, str] | None
    transform: Transform | None
    joined: JoinRules | None
    storage_options: dict[str, object]
    out_storage_options: dict[str, object]
    packer: FieldPacker | None = None


class ShardTask(msgspec.Struct, frozen=True):
    """The shard `number` of a job."""

    job: Job
    recipe: Recipe
    number: int
    batches: Sequence[Batch | RecodedBatch]


def pack_shard(task: ShardTask) -> Receipt:
    """Writes one shard; the same task always writes the same bytes under the same name.

    Raises:
        PackError: a sample cannot be written, or the disk is full.
        DecodeError, RecodeError: a sample cannot be opened.
        StoreError: one of the stores failed.
    """
    return asyncio.run(_pack_shard(task))


def kinds_in_shard(task: ShardTask) -> list[dict[str, str]]:
    """The kinds of the fields of each sample of a shard, which is not written; raises as `pack_shard`."""
    return asyncio.run(find_kinds(task))


async def find_kinds(task: ShardTask) -> list[dict[str, str]]:
    """Does the same as `kinds_in_shard`; annotations are those of this machine."""
    finder = KindFinder(task.job.output)
    async with Fetcher(FetchConfig(), StoreOpener(task.recipe.storage_options)) as source:
        await _write(task, _Making(task.recipe, task.job.output, finder), source)
    return finder.kinds


async def _pack_shard(task: ShardTask) -> Receipt:
    job = task.job
    recipe = task.recipe
    async with (
        Destination(job.url, recipe.out_storage_options) as destination,
        Fetcher(FetchConfig(), StoreOpener(recipe.storage_options)) as source,
    ):
        # Another pack of the same job may have been faster.
        if (done := await receipt_there(destination, job, task.number)) is not None:
            return done
        with open_spool(spool_folder(job), task.number) as path:
            if recipe.joined is not None:
                recipe = msgspec.structs.replace(recipe, joined=await rules_here(destination, job, recipe.joined))
            with job.open_writer(path) as writer:
                await _write(task, _Making(recipe, job.output, writer), source)
                made = MadeShard(task.number, path, await asyncio.to_thread(writer.finish), writer.index)
            return await upload(destination, job, made)


class MadeShard(msgspec.Struct, frozen=True):
    """A shard that is written but not uploaded yet.

    Attributes:
        index: the index file beside it; b"" if there is none.
    """

    number: int
    path: Path
    written: Written
    index: bytes


async def upload(destination: Destination, job: Job, made: MadeShard) -> Receipt:
    """Uploads a written shard, its index before it, then writes its receipt."""
    number = made.number
    index_version = ""
    if made.index:
        with open_spool(spool_folder(job), number) as place:
            place.write_bytes(made.index)
            index_version = (await destination.put_file(job.index_name(number), place)).version
    record = await destination.put_file(job.shard_name(number), made.path)
    if record.size != made.written.size:
        raise PackError(f"{shown(record.url)} has {record.size} bytes after its upload, not {made.written.size}")
    written = msgspec.structs.asdict(made.written)
    receipt = Receipt(shard=number, version=record.version, index_version=index_version, **written)
    await destination.put_receipt(job, receipt)
    return receipt


async def receipt_there(destination: Destination, job: Job, number: int) -> Receipt | None:
    """The receipt of a finished shard."""
    name = job.receipt_name(number)
    records = await destination.records(name)
    receipt = (await destination.receipts([name], records)).get(number)
    if receipt is None:
        return None
    there = {name: record for name in files_of(job, receipt) for record in (await destination.records(name)).values()}
    return receipt if agrees(job, receipt, there) else None


async def _write(task: ShardTask, making: _Making, source: Fetcher) -> None:
    """Writes a batch while the next one is being read."""
    reader = ShardReader(source, task.recipe.dataset)
    with plain_errors():
        async with asyncio.TaskGroup() as group:
            coming = [group.create_task(reader.read(batch)) for batch in task.batches[:1]]
            for number in range(len(task.batches)):
                batch = await coming.pop()
                if number + 1 < len(task.batches):
                    coming.append(group.create_task(reader.read(task.batches[number + 1])))
                with closing(batch):
                    await asyncio.to_thread(making.add, batch)


class _Making:
    """Opens, annotates and changes samples, and passes them to a writer."""

    def __init__(self, recipe: Recipe, output: Output, writer: SampleTaker) -> None:
        self._joiner = None if recipe.joined is None else Joiner(recipe.joined, "auto")
        self._recipe = recipe
        self._output = output
        self._writer = writer
        self._opener: Opener = find_format(recipe.dataset.format, recipe.dataset.options).opener(recipe.dataset.facts)

    def add(self, batch: ReadBatch) -> None:
        """Adds the samples of a batch, whose bytes are not needed afterwards."""
        for read in batch.samples():
            where = f"sample {read.ordinal} of {shown(read.url)}"
            sample = self._open_sample(read, where)
            add_sample(self._writer, self._transform(sample, where), read.ordinal, where)
        self._writer.flush()

    def _open_sample(self, read: ReadSample, where: str) -> dict[str, Any] | None:
        """The sample with the chosen fields and its annotations; None if it has none and is left out."""
        name = read.name
        try:
            key, fields = self._opener.open(read.content, name)
            sample = self._values(self._select_fields(fields, name, where), key or "")
            if (label := self._output_name("label")) and name.label >= 0:
                sample.setdefault(label, name.label)
            if self._joiner is not None:
                found = self._joiner.fields(str(read.ordinal) if key is None else key, fields)
                if found is None:
                    return None
                sample |= self._values(found)
        except (DecodeError, ValueError) as error:
            raise DecodeError(f"{where}: {error}") from error
        if name.object_key:
            key = key_of_file(name.object_key)
        return {KEY: key, **sample} if key is not None else sample

    def _values(self, fields: Iterable[Field], key: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in fields:
            packed = None if self._recipe.packer is None else self._recipe.packer(field, key)
            found |= [self._output.field_value(field)] if packed is None else packed
        return found

    def _select_fields(self, fields: Sequence[Field], name: SampleName, where: str) -> Iterator[Field]:
        names = [field.name for field in fields] + (["label"] if name.label >= 0 else [])
        if self._recipe.fields is not None and (missing := self._recipe.fields.keys() - set(names)):
            raise PackError(f"{where} has no field {min(missing)!r}; it has {', '.join(names)}")
        for field in fields:
            if new := self._output_name(field.name):
                yield field if new == field.name else Field(new, field.content, field.kind)

    def _output_name(self, name: str) -> str | None:
        wanted = self._recipe.fields
        return name if wanted is None else wanted.get(name)

    def _transform(self, sample: dict[str, Any] | None, where: str) -> Mapping[str, Any] | None:
        transform = self._recipe.transform
        if transform is None or sample is None:
            return sample
        given = {name: to_given(value) for name, value in sample.items()}
        changed = _call_transform(transform, given, where)
        return None if changed is None else {**({KEY: sample[KEY]} if KEY in sample else {}), **changed}


def _call_transform(transform: Transform, sample: dict[str, Any], where: str) -> Mapping[str, Any] | None:
    call: Callable[[dict[str, Any]], object] = transform
    try:
        changed = call(sample)
    except Exception as error:  # the user's code may raise anything
        text = f"{where}, key {sample.get(KEY)!r}: {transform_name(transform)} raised {type(error).__name__}: {error}"
        raise PackError(text, sample=str(sample.get(KEY))) from error
    if changed is not None and not isinstance(changed, Mapping):
        raise PackError(f"{where}: {transform_name(transform)} returned {type(changed).__name__}, not a dict or None")
    return changed


def add_sample(writer: SampleTaker, sample: Mapping[str, Any] | None, ordinal: int, where: str) -> None:
    """Adds one sample to a shard, unless it is None; `where` describes it in errors.

    Raises:
        PackError: it cannot be written; names it.
    """
    if sample is None:
        return
    try:
        writer.add(sample, ordinal)
    except PackError as error:
        named = f"{where}, key {sample[KEY]!r}" if KEY in sample else where
        raise PackError(f"{named}: {error}", sample=str(sample.get(KEY))) from error
