"""Packs one shard: reads its samples, writes its file, uploads it, and writes its receipt.

`prepared.py` runs it as a task of an executor, in another process or on another machine. `pack.py` uploads with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from streamer.decode.base import sample_errors
from streamer.decode.rule import StoredSample
from streamer.errors import Discreet, PackError
from streamer.formats.base import Field, FieldPacker
from streamer.shards.destination import Destination, agrees, files_of
from streamer.shards.job import Job, Transform, transform_name
from streamer.shards.outputs.base import Output, SampleTaker
from streamer.shards.outputs.columns import field_value, to_given, to_json
from streamer.shards.outputs.registry import KindFinder
from streamer.shards.plan import AnyBatch, key_of_file
from streamer.shards.receipts import Receipt, Written
from streamer.shards.sources import PackSource
from streamer.shards.spool import open_spool, spool_folder
from streamer.shards.values import KEY, copy_view
from streamer.store.addresses.urls import shown


class Recipe(Discreet, msgspec.Struct, frozen=True):
    """The way in which all tasks of a job read and change samples.

    Attributes:
        source: gives the samples.
        fields: the fields to write, by name in the source, with their new names. None means all fields.
        transform: changes each sample. None means that there is no transform.
        out_storage_options: storage options of the destination.
        packer: makes values of fields that are not written as their kinds say. None means that there are no such
            fields.
    """

    source: PackSource[Any]
    fields: dict[str, str] | None
    transform: Transform | None
    out_storage_options: dict[str, object]
    packer: FieldPacker | None = None


class ShardTask(msgspec.Struct, frozen=True):
    """The task to write one shard.

    Attributes:
        job: the pack.
        recipe: how samples are read and changed.
        number: number of the shard.
        batches: its samples in the order in which they are written, in batches as the source reads them.
    """

    job: Job
    recipe: Recipe
    number: int
    batches: Sequence[AnyBatch]


def pack_shard(task: ShardTask) -> Receipt:
    """Writes and uploads one shard, and returns its receipt. A shard that is there already is not written again.

    The same task writes the same bytes under the same name, Parquet only with the same version of pyarrow.

    Raises:
        PackError: a sample cannot be written, or the disk is full.
        DecodeError, RecodeError: a sample cannot be opened.
        ManifestError: the table of annotations cannot be copied to this machine.
        ConfigError: a library is not installed on this machine.
        StoreError: one of the stores failed.
        StreamerError: a dataset of the loader cannot be read.
        OSError: the folder for temporary files cannot be made, or the file of the shard not written.
    """
    return asyncio.run(_pack_shard(task))


def kinds_in_shard(task: ShardTask) -> list[dict[str, str]]:
    """Returns the kinds of fields, by name, of each sample of a task, and writes nothing. Raises as `pack_shard`.

    A table of annotations must be on this machine.
    """
    return asyncio.run(find_kinds(task))


async def find_kinds(task: ShardTask) -> list[dict[str, str]]:
    """Returns the kinds as `kinds_in_shard` does, on a running loop; a table of annotations must be on this machine."""
    finder = KindFinder(task.job.output)
    await task.recipe.source.feed(task.batches, _Making(task.recipe, task.job.output, finder).add_all)
    return finder.kinds


async def _pack_shard(task: ShardTask) -> Receipt:
    """Does what `pack_shard` promises, on a running loop."""
    job = task.job
    recipe = task.recipe
    async with Destination(job.url, recipe.out_storage_options) as destination:
        # Another pack of the same job may have been faster.
        if (done := await receipt_there(destination, job, task.number)) is not None:
            return done
        with open_spool(spool_folder(job), task.number) as path:
            source = await recipe.source.settle(destination, job)
            with job.open_writer(path) as writer:
                await source.feed(task.batches, _Making(recipe, job.output, writer).add_all)
                made = MadeShard(task.number, path, await asyncio.to_thread(writer.finish), writer.index)
            return await upload(destination, job, made)


class MadeShard(msgspec.Struct, frozen=True):
    """A shard that is written but not uploaded yet.

    Attributes:
        number: number of the shard.
        path: its temporary file, which `upload` may move to the destination.
        written: facts about the file.
        index: content of the index file beside it; b"" if there is none.
    """

    number: int
    path: Path
    written: Written
    index: bytes


async def upload(destination: Destination, job: Job, made: MadeShard) -> Receipt:
    """Uploads the index file of a shard if it has one, then the shard, then its receipt, which is returned.

    Raises:
        PackError: the shard has another length after its upload, or the disk is full.
        StoreError: the destination cannot be written.
        ConfigError, OSError: the destination is no url, or the folder for temporary files cannot be made.
    """
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
    """Returns the receipt of a shard, or None if there is none or the files of the shard differ from it.

    Raises:
        StoreError: the destination cannot be read.
    """
    name = job.receipt_name(number)
    records = await destination.records(name)
    receipt = (await destination.receipts([name], records)).get(number)
    if receipt is None:
        return None
    there = {name: record for name in files_of(job, receipt) for record in (await destination.records(name)).values()}
    return receipt if agrees(job, receipt, there) else None


class _Making:
    """Chooses and changes the fields of samples by a recipe, and passes the samples to a writer.

    Args:
        recipe: the fields to write, and the transform.
        output: converts fields of the source to values.
        writer: writer of the shard, or what finds the kinds of fields.
    """

    def __init__(self, recipe: Recipe, output: Output, writer: SampleTaker) -> None:
        self._recipe = recipe
        self._output = output
        self._writer = writer

    def add_all(self, samples: Iterable[StoredSample]) -> None:
        """Passes samples to the writer; their bytes are not needed afterwards.

        Raises:
            PackError: a sample cannot be written, lacks a wanted field, or the transform has failed.
            DecodeError: a field cannot be decoded.
        """
        for stored in samples:
            sample = None if stored.is_left_out else self._transform(self._make_sample(stored), stored.where)
            add_sample(self._writer, sample, stored.ordinal, stored.where)
        self._writer.flush()

    def _make_sample(self, stored: StoredSample) -> dict[str, Any]:
        """Returns the sample as values by name: its key, the chosen fields under new names, and its annotations.

        Raises:
            PackError: it lacks a wanted field.
            DecodeError: a field cannot be decoded.
            ConfigError: a library is not installed.
        """
        key = stored.key
        made = {} if key is None else {KEY: key_of_file(key) if stored.is_file else key}
        with sample_errors(stored.where):
            wanted = self._recipe.fields
            names = [name for name, _ in stored.fields]
            if wanted is not None and (missing := wanted.keys() - set(names)):
                raise PackError(f"{stored.where} has no field {min(missing)!r}; it has {', '.join(names)}")
            for name, value in stored.fields:
                if wanted is not None and name not in wanted:
                    continue
                new = name if wanted is None else wanted[name]
                # A field that a join has renamed keeps its extension, which tells its kind.
                if isinstance(value, Field) and name != value.name:
                    new = _add_extension(new, value)
                made |= self._values(new, value, key or "")
            for field in stored.annotations:
                made |= self._values(field.name, field, "")
        return made

    def _values(self, name: str, value: object, key: str) -> Mapping[str, Any]:
        """Returns the values of a field by name: one under the new name, or those that the recipe's packer makes."""
        if isinstance(value, list):
            return {name: [self._list_item(name, each) for each in value]}
        if not isinstance(value, Field):
            return {name: copy_view(value)}
        field = value if name == value.name else Field(name, value.content, value.kind)
        packed = None if self._recipe.packer is None else self._recipe.packer(field, key)
        if packed is not None:
            return dict(packed)
        written, content = self._output.field_value(field)
        return {written: content}

    def _list_item(self, name: str, value: object) -> object:
        """Returns one item of a list of several joined rows, which is written as JSON."""
        if not isinstance(value, Field):
            return value
        renamed = Field(_add_extension(name, value) if name != value.name else name, value.content, value.kind)
        return to_json(*field_value(renamed))

    def _transform(self, sample: dict[str, Any], where: str) -> Mapping[str, Any] | None:
        """Returns what the transform makes of a sample, with its key, or None to leave it out.

        Raises:
            PackError: the transform has failed, or returned something else.
            DecodeError: a field is damaged JSON.
        """
        transform = self._recipe.transform
        if transform is None:
            return sample
        with sample_errors(where):
            given = {name: to_given(name, value) for name, value in sample.items()}
        call: Callable[[dict[str, Any]], object] = transform
        try:
            changed = call(given)
        except Exception as error:  # the user's code may raise anything
            text = (
                f"{where}, key {given.get(KEY)!r}: {transform_name(transform)} raised {type(error).__name__}: {error}"
            )
            raise PackError(text, sample=str(given.get(KEY))) from error
        if changed is not None and not isinstance(changed, Mapping):
            raise PackError(
                f"{where}: {transform_name(transform)} returned {type(changed).__name__}, not a dict or None"
            )
        if changed is None:
            return None
        owned = {name: copy_view(value) for name, value in changed.items()}
        return {KEY: sample[KEY], **owned} if KEY in sample else owned


def _add_extension(name: str, field: Field) -> str:
    """Returns `name` with the extension of the stored name, where that extension tells the kind of the field."""
    ending = field.name.rpartition(".")[2]
    return name if field.kind or name.rpartition(".")[2] == ending else f"{name}.{ending}"


def add_sample(writer: SampleTaker, sample: Mapping[str, Any] | None, ordinal: int, where: str) -> None:
    """Adds one sample to a shard, unless it is None.

    Args:
        writer: the writer of the shard, or what finds the kinds of fields.
        sample: values by field. None means that the sample is left out.
        ordinal: its number in the source.
        where: the name of the sample in errors.

    Raises:
        PackError: the sample cannot be written. The error names it.
    """
    if sample is None:
        return
    try:
        writer.add(sample, ordinal)
    except PackError as error:
        named = f"{where}, key {sample[KEY]!r}" if KEY in sample else where
        raise PackError(f"{named}: {error}", sample=str(sample.get(KEY))) from error
