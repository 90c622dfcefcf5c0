"""Prepares a pack of a dataset, then runs it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from streamer.annotations.join import JoinRules, annotations_of, find_matches, pass_over
from streamer.annotations.options import Annotations
from streamer.annotations.table import AnnotationTable
from streamer.errors import ConfigError, Discreet
from streamer.executors.runner import Runner, run_all
from streamer.formats.registry import restore_format
from streamer.indexing.build import BuildOptions
from streamer.indexing.source import DatasetSource, manifest_of_source
from streamer.manifest.model import Facts
from streamer.manifest.table import Manifest
from streamer.shards.annotations import make_table, put_table
from streamer.shards.destination import folder_url
from streamer.shards.job import Job, Transform, transform_name
from streamer.shards.outputs.columns import FIRST_SAMPLES, select_kinds
from streamer.shards.outputs.registry import OutputName, find_output
from streamer.shards.plan import Order, ShardPlan, batch_of, make_plan, refuse_double_keys
from streamer.shards.progress import Callbacks, Follower
from streamer.shards.reading import SourceDataset
from streamer.shards.receipts import Receipt
from streamer.shards.settle import Packed, claim, settle_shards, shards_there, wait_for
from streamer.shards.task import Recipe, ShardTask, find_kinds, kinds_in_shard, pack_shard
from streamer.store.addresses.urls import shown


class PackOptions(Discreet, msgspec.Struct, frozen=True):
    """The arguments of `pack` about the destination."""

    url: str
    prefix: str
    shard_bytes: int
    order: Order
    seed: int
    fields: dict[str, str] | None
    transform: Transform | None
    options: dict[str, object]
    output: OutputName = "tar"
    vocabulary: int | None = None
    annotations: Annotations | None = None


class Prepared(msgspec.Struct, frozen=True):
    """A pack of a dataset before anything is written; `run` writes it."""

    manifest: Manifest
    plan: ShardPlan
    job: Job
    recipe: Recipe

    def task(self, number: int) -> ShardTask:
        """Returns the task of one shard."""
        batches = [batch_of(self.manifest, ordinals) for ordinals in self.plan.batches(number)]
        return ShardTask(self.job, self.recipe, number, batches)


def prepare(
    source: DatasetSource, writing: PackOptions, folder: Path, runner: Runner, callbacks: Callbacks
) -> Prepared:
    """Indexes the source and plans the shards; writes nothing but its manifest and annotations, to `folder`.

    Raises:
        ConfigError, PackError, ManifestError, StoreError: as `pack`.
    """
    output = find_output(writing.output, writing.vocabulary)
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
    recipe = Recipe(
        SourceDataset(content.format, content.options, manifest.facts),
        writing.fields,
        writing.transform,
        joined,
        dict(source.options),
        writing.options,
        restore_format(manifest).find_packer(manifest),
    )
    described = {
        "source": manifest.digest,
        "order": writing.order,
        "seed": writing.seed if writing.order == "shuffle" else 0,
        "fields": writing.fields,
        "transform": transform_name(writing.transform),
        "shard_bytes": writing.shard_bytes,
        "prefix": writing.prefix,
    }
    if joined is not None:
        described["annotations"] = [joined.digest, joined.missing, joined.on]
    prepared = Prepared(manifest, plan, Job(writing.url, writing.prefix, described), recipe)
    return _add_fields(prepared, writing, runner) if output.needs_kinds else prepared


def _add_fields(prepared: Prepared, writing: PackOptions, runner: Runner) -> Prepared:
    """Adds the columns, or the field of tokens, that follow from the first samples."""
    manifest = prepared.manifest
    job = prepared.job
    described = {**job.described, "output": writing.output}
    ordinals = prepared.plan.ordinals[:FIRST_SAMPLES]
    task = ShardTask(Job(job.url, job.prefix, described), prepared.recipe, 0, [batch_of(manifest, ordinals)])
    joined = prepared.recipe.joined
    known = _select_kinds(manifest.facts, writing.fields)
    if joined is None:
        (kinds,) = run_all(runner, kinds_in_shard, [task])
    else:  # the table is not yet where other machines find it
        kinds = wait_for(find_kinds(task))
        known |= select_kinds({spec.name: spec.kind for spec in AnnotationTable.open(joined.table).head.fields})
    known = {} if writing.transform else known
    described |= task.job.output.describe(kinds, known, writing.vocabulary)
    return msgspec.structs.replace(prepared, job=Job(job.url, job.prefix, described))


def _find_annotations(
    manifest: Manifest, source: DatasetSource, writing: PackOptions, folder: Path
) -> JoinRules | None:
    """Returns the annotations of the source, after a comparison with the known keys of its samples."""
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


def _select_kinds(facts: Facts, fields: dict[str, str] | None) -> dict[str, str]:
    """Returns the kinds of fields that the source names, by their new names."""
    kinds = {spec.name: spec.kind for spec in facts.fields}
    return select_kinds(kinds if fields is None else {new: kinds.get(old, "") for old, new in fields.items()})


def run(prepared: Prepared, runner: Runner, callbacks: Callbacks) -> Packed:
    """Writes the planned shards that are missing, then the manifest.

    Raises:
        PackError, IntegrityError, DecodeError, StoreError: as `pack`.
    """
    job = prepared.job
    options = prepared.recipe.out_storage_options
    count = prepared.plan.shards
    left = wait_for(claim(job, options))
    if prepared.recipe.joined is not None:
        wait_for(put_table(job, options, prepared.recipe.joined.table))
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
    """Refuses shards among their source files, which the next pack would read."""
    for source in urls:
        place = folder_url(source)
        if place.startswith(url) or url.startswith(place):
            raise ConfigError(
                f"{shown(url)} and the source {shown(source)} are one folder, or one is within the other; pack to "
                "another one",
                field="url",
            )
