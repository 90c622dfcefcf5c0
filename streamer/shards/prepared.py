"""Prepares a pack of a dataset: indexes it, plans the shards and describes the job; then runs the pack.

`streamer.pack` (`pack.py`) and the command `streamer pack` (`cli/shards/pack_command.py`) use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from streamer.annotations.join import JoinRules, annotations_of, find_matches, pass_over
from streamer.annotations.options import Annotations
from streamer.annotations.table import AnnotationTable
from streamer.base.user_urls import absolute
from streamer.errors import ConfigError, Discreet
from streamer.executors.runner import Runner, run_all
from streamer.formats.registry import restore_format
from streamer.indexing.build import BuildOptions
from streamer.indexing.source import DatasetSource, manifest_of_source
from streamer.manifest.table import Manifest
from streamer.shards.annotations import make_table
from streamer.shards.destination import folder_url
from streamer.shards.job import Job, Transform, transform_name
from streamer.shards.outputs.columns import FIRST_SAMPLES, select_kinds
from streamer.shards.outputs.registry import USUAL_OUTPUT, OutputName, find_output
from streamer.shards.plan import AnyBatch, Int64Array, Order, ShardPlan, batch_of, make_plan, refuse_double_keys
from streamer.shards.progress import Callbacks, Follower
from streamer.shards.reading import SourceDataset
from streamer.shards.receipts import Receipt
from streamer.shards.settle import PackResult, claim, settle_shards, shards_there, wait_for
from streamer.shards.sources import DatasetReader, PackSource, RangeSource, ScannedSource
from streamer.shards.task import Recipe, ShardTask, find_kinds, kinds_in_shard, pack_shard
from streamer.store.addresses.urls import shown


class PackOptions(Discreet, msgspec.Struct, frozen=True):
    """The arguments of `pack` about order and form of what is written, and about the destination.

    Attributes:
        url: url of the destination, ending in a slash.
        prefix: beginning of the names of shards.
        shard_bytes: approximate length of a shard in bytes.
        order: order of the samples.
        seed: seed of the shuffle.
        fields: the fields to write, by name in the source, with their new names. None means all fields.
        transform: changes each sample. None means that there is no transform.
        options: storage options of the destination.
        output: name of the output.
        vocab_size: number of different tokens, or None if the user does not say it.
        annotations: annotations that the user names, or None.
    """

    url: str
    prefix: str
    shard_bytes: int
    order: Order
    seed: int
    fields: dict[str, str] | None
    transform: Transform | None
    options: dict[str, object]
    output: OutputName = USUAL_OUTPUT
    vocab_size: int | None = None
    annotations: Annotations | None = None


class Prepared(msgspec.Struct, frozen=True):
    """A pack of a dataset before anything is written; `run` writes it.

    Attributes:
        manifest: manifest of the source.
        plan: the samples of each shard.
        job: identity of the pack, and names of its files.
        recipe: how every task reads and changes samples.
        locate: is given ordinals, and makes the batch that the source of the recipe reads.
    """

    manifest: Manifest
    plan: ShardPlan
    job: Job
    recipe: Recipe
    locate: Callable[[Int64Array], AnyBatch]

    def task(self, number: int) -> ShardTask:
        """Returns the task that writes the shard of this number."""
        return ShardTask(self.job, self.recipe, number, list(map(self.locate, self.plan.batches(number))))


def prepare(
    source: DatasetSource, writing: PackOptions, folder: Path, runner: Runner, callbacks: Callbacks
) -> Prepared:
    """Prepares the pack of urls: finds or makes their manifest and annotations, and plans the shards.

    Args:
        source: the urls and their options.
        writing: options of the pack.
        folder: local folder in which manifest and annotations are written; nothing is written elsewhere.
        runner: runs tasks of the index, and one that reads the first samples where the output needs them.
        callbacks: functions called with notes and progress of the index.

    Raises:
        ConfigError, PackError, ManifestError, DecodeError, RecodeError, StoreError: as `pack`.
    """
    output = find_output(writing.output, writing.vocab_size)
    _refuse_same_place(source.urls, writing.url)
    options = BuildOptions(on_progress=callbacks.on_index)
    manifest = wait_for(
        manifest_of_source(source=source, folder=folder, runner=runner, options=options, on_note=callbacks.on_note)
    )
    plan = make_plan(
        manifest=manifest,
        order=writing.order,
        seed=writing.seed,
        shard_bytes=writing.shard_bytes,
        overhead=output.overhead_bytes,
    )
    if writing.transform is None and output.has_files:
        refuse_double_keys(manifest)
    content = manifest.content
    joined = _find_annotations(manifest, source, writing, folder)
    dataset = SourceDataset(content.format, content.options, manifest.facts)
    prepared = Prepared(
        manifest=manifest,
        plan=plan,
        job=_describe_job(manifest, writing, {} if joined is None else joined.describe()),
        recipe=_make_recipe(manifest, writing, RangeSource(dataset, joined, dict(source.options))),
        locate=partial(batch_of, manifest),
    )
    if not output.needs_kinds:
        return prepared
    known = _select_kinds({spec.name: spec.kind for spec in manifest.facts.fields}, writing.fields)
    if joined is None:
        return _add_fields(prepared, writing, known, partial(_find_kinds, runner))
    fields = AnnotationTable.open(joined.table).head.fields
    known |= select_kinds({spec.name: spec.kind for spec in fields})
    # The first samples are read in this process: the table of annotations is not yet where other machines find it.
    return _add_fields(prepared, writing, known, lambda task: wait_for(find_kinds(task)))


def prepare_scan(scan: DatasetReader, writing: PackOptions, runner: Runner) -> Prepared:
    """Prepares the pack of a dataset that the loader has opened; writes nothing.

    Args:
        scan: the opened dataset.
        writing: options of the pack.
        runner: runs the task that reads the first samples, where the output needs them.

    Raises:
        ConfigError, PackError, ManifestError, DecodeError, RecodeError, StoreError: as `pack`.
    """
    output = find_output(writing.output, writing.vocab_size)
    _refuse_same_place(tuple(map(absolute, scan.urls)), writing.url)
    manifest = scan.manifest
    plan = make_plan(
        manifest=manifest,
        order=writing.order,
        seed=writing.seed,
        shard_bytes=writing.shard_bytes,
        overhead=output.overhead_bytes,
        selected=scan.ordinals,
        more_bytes=scan.count_row_bytes,
    )
    described = scan.describe()
    if scan.transform is not None:
        described["dataset_transform"] = transform_name(scan.transform)
    elif writing.transform is None and output.has_files:
        refuse_double_keys(manifest, scan.ordinals)
    prepared = Prepared(
        manifest=manifest,
        plan=plan,
        job=_describe_job(manifest, writing, described),
        recipe=_make_recipe(manifest, writing, ScannedSource(scan.recipe())),
        locate=lambda ordinals: ordinals,
    )
    if not output.needs_kinds:
        return prepared
    return _add_fields(prepared, writing, _select_kinds(scan.field_kinds, writing.fields), partial(_find_kinds, runner))


def _describe_job(manifest: Manifest, writing: PackOptions, more: Mapping[str, object]) -> Job:
    """Returns the job of a pack: two runs with equal descriptions are one pack, which the second run continues.

    Args:
        manifest: manifest of the source.
        writing: options of the pack.
        more: facts about annotations and joins, which are added to the description.
    """
    described = {
        "source": manifest.digest,
        "order": writing.order,
        "seed": writing.seed if writing.order == "shuffle" else 0,
        "fields": writing.fields,
        "transform": transform_name(writing.transform),
        "shard_bytes": writing.shard_bytes,
        "prefix": writing.prefix,
        **more,
    }
    return Job(writing.url, writing.prefix, described)


def _make_recipe(manifest: Manifest, writing: PackOptions, source: PackSource[Any]) -> Recipe:
    """Returns what all tasks of the pack are told."""
    return Recipe(
        source=source,
        fields=writing.fields,
        transform=writing.transform,
        out_storage_options=writing.options,
        packer=restore_format(manifest).find_packer(manifest),
    )


def _find_kinds(runner: Runner, task: ShardTask) -> list[dict[str, str]]:
    (kinds,) = run_all(runner, kinds_in_shard, [task])
    return kinds


def _add_fields(
    prepared: Prepared,
    writing: PackOptions,
    known: Mapping[str, str],
    find: Callable[[ShardTask], list[dict[str, str]]],
) -> Prepared:
    """Returns the pack with a job that names the columns, or the field of tokens, found in the first samples.

    Args:
        prepared: the pack.
        writing: options of the pack.
        known: kinds by field, which the source knows of all samples; unused if there is a transform.
        find: returns the kinds of the fields of each sample of a task.

    Raises:
        PackError, ConfigError: as `Output.describe`.
    """
    job = prepared.job
    described = {**job.described, "output": writing.output}
    first = prepared.locate(prepared.plan.ordinals[:FIRST_SAMPLES])
    task = ShardTask(Job(job.url, job.prefix, described), prepared.recipe, 0, [first])
    described |= task.job.output.describe(find(task), {} if writing.transform else known, writing.vocab_size)
    return msgspec.structs.replace(prepared, job=Job(job.url, job.prefix, described))


def _find_annotations(
    manifest: Manifest, source: DatasetSource, writing: PackOptions, folder: Path
) -> JoinRules | None:
    """Makes the table of annotations of the source, and compares it with the keys of samples as far as known.

    Returns None if there are no annotations, or if a file found beside the samples does not name them.

    Raises:
        ConfigError, ManifestError, StoreError: as `make_table` and `find_matches`.
    """
    given = annotations_of(manifest, writing.annotations, source.urls)
    if given is None:
        return None
    try:
        table = wait_for(make_table(given, source.options, folder))
    except ConfigError as error:
        pass_over(error, writing.annotations, given)
        return None
    joined = JoinRules.make(table, given, manifest)
    find_matches(manifest, joined)
    return joined


def _select_kinds(kinds: Mapping[str, str], fields: dict[str, str] | None) -> dict[str, str]:
    """Returns the kinds of fields that the source names, by their new names."""
    return select_kinds(kinds if fields is None else {new: kinds.get(old, "") for old, new in fields.items()})


def run(prepared: Prepared, runner: Runner, callbacks: Callbacks) -> PackResult:
    """Claims the destination, writes the planned shards that are not there yet, then the manifest.

    Args:
        prepared: the pack.
        runner: runs a task for each shard.
        callbacks: `on_progress` is called at the start and after each shard.

    Raises:
        ConfigError: the destination holds something else.
        PackError, IntegrityError, ManifestError, DecodeError, RecodeError, StoreError: as `pack`.
    """
    job = prepared.job
    options = prepared.recipe.out_storage_options
    count = prepared.plan.shards
    left = wait_for(claim(job, options))
    wait_for(prepared.recipe.source.put(job, options))
    earlier = wait_for(shards_there(job, options, count))
    follower = Follower(prepared.plan, earlier, callbacks.on_progress)

    def write(done: dict[int, Receipt]) -> dict[int, Receipt]:
        missing = [number for number in range(count) if number not in done]
        for receipt in run_all(runner, pack_shard, map(prepared.task, missing)):
            follower.count_shard(receipt)
            done[receipt.shard] = receipt
        return done

    return settle_shards(job=job, options=options, receipts=write(earlier), write=write, left=left)


def _refuse_same_place(urls: Sequence[str], url: str) -> None:
    """Refuses a destination within the source or around it, since the next pack would read the shards.

    Raises:
        ConfigError: one is within the other.
    """
    for source in urls:
        place = folder_url(source)
        if place.startswith(url) or url.startswith(place):
            raise ConfigError(
                f"{shown(url)} and the source {shown(source)} are one folder, or one is within the other; pack to "
                "another one",
                field="url",
            )
