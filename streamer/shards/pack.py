"""Offers `streamer.pack`: writes a dataset, or samples of a program, as tars, Parquet or tokens with their manifest.

A pack of urls or of a `StreamingDataset` is prepared and run by `prepared.py`, as for the command. Samples that a
program makes are written here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import msgspec

from streamer.annotations.options import Annotations
from streamer.base.temporary import open_temporary_folder
from streamer.base.user_urls import absolute, take_logins
from streamer.batches import checks
from streamer.config import parse_bytes
from streamer.errors import ConfigError, PackError
from streamer.executors.runner import Runner, run_all, runner
from streamer.formats import AUTO
from streamer.formats.base import Format
from streamer.indexing.source import DatasetSource
from streamer.removed import check_arguments
from streamer.shards.destination import Destination, folder_url
from streamer.shards.job import Job, Transform
from streamer.shards.outputs.base import Output, SampleTaker
from streamer.shards.outputs.columns import FIRST_SAMPLES
from streamer.shards.outputs.registry import OLD_OUTPUTS, USUAL_OUTPUT, KindFinder, OutputName, find_output
from streamer.shards.plan import Order
from streamer.shards.prepared import PackOptions, prepare, prepare_scan, run
from streamer.shards.progress import Callbacks, Follower, PackProgress
from streamer.shards.receipts import Receipt
from streamer.shards.settle import PackResult, claim, settle_shards, wait_for
from streamer.shards.sources import Scannable
from streamer.shards.spool import open_spool, spool_folder
from streamer.shards.task import MadeShard, add_sample, receipt_there, upload
from streamer.shards.values import copy_sample, copy_view

# So many shards of an iterable are uploaded while another one is written. Each is a temporary file until then.
_UPLOADS_AT_ONCE = 2


@check_arguments("pack")
def pack(
    source: str | os.PathLike[str] | Sequence[str] | Scannable | Iterable[Mapping[str, Any]],
    url: str | os.PathLike[str],
    *,
    transform: Transform | None = None,
    fields: Mapping[str, str] | Sequence[str] | None = None,
    annotations: str | Annotations | Mapping[str, object] | None = None,
    order: Order = "manifest",
    seed: int = 0,
    shard_bytes: int | str = "1GB",
    prefix: str = "shard-",
    storage_options: Mapping[str, object] | None = None,
    out_storage_options: Mapping[str, object] | None = None,
    format: str | Format = AUTO,  # noqa: A002 - as the dataset calls it
    output_format: OutputName | None = None,
    vocab_size: int | None = None,
    manifest: str | None = None,
    executor: str | Executor = "processes",
    on_progress: Callable[[PackProgress], None] = lambda step: None,
) -> PackResult:
    """Writes samples as WebDataset tars, Parquet or tokens, with their manifest beside them in `.streamer/`.

    A pack that was killed goes on where it stopped when it is called again with the same arguments, and ends with the
    same bytes. The manifest comes last: where it is, all shards are.

    Args:
        source: urls of a dataset, in any format that is read. Or a `StreamingDataset`, of which the selected samples
            are written, with the fields of its annotations and joins, all as they are stored, or with what its
            transform returns. Or an iterable of dicts: in tars their bytes are written as they are, texts as
            `name.txt`, an int named "label" or "cls" as `cls`, arrays as `name.npy`, all other values together as one
            `json`. "__key__" is the sample's name.
        url: url of the shards, where nothing is yet, or an earlier run of the same pack.
        transform: gets each sample as a dict with its "__key__", files as bytes and other values decoded. It returns a
            dict as above, or None to leave the sample out. Samples of class folders have a "label".
        fields: names of the fields to write, a mapping from their names to new ones, or None for all fields.
        annotations: the url of a file with labels, boxes or texts, which samples get as fields. `Annotations` has its
            options, as for `StreamingDataset`. By default the metadata.csv, .jsonl or .parquet beside the files.
        order: "manifest", "name" (raw files only) or "shuffle": of raw files all at random, of others whole chunks,
            with the samples of those that are read together (128 MiB) mixed.
        seed: seed of the shuffle.
        shard_bytes: approximate size of a shard in bytes, or a text as "512MB".
        prefix: beginning of the names of the shards.
        storage_options: options of the source, as fsspec takes them.
        out_storage_options: options of the destination, or None for those of the source.
        format: Format of the source, as for `StreamingDataset`: a name, or one with options (`streamer.formats`), as
            `Folder(extensions=["jpg"])`. "auto" finds it by the names of the objects.
        output_format: "webdataset" (tars, by default), "parquet" (columns follow from the first 64 samples), or
            "tokens" (the one field that is a list of integers, as Megatron's .bin and .idx). See docs/pack.md.
        vocab_size: Number of different tokens. Below 65,500 they take 2 bytes, else 4. By default 4, or 2 if the first
            samples have unsigned arrays of 1 or 2 bytes. A token that is not below it is an error.
        manifest: Url of the source's manifest. By default the source is indexed.
        executor: "processes" (one for each core), "processes:8", "dask:tcp://scheduler:8786", "ray:auto", or an object.
            A `StreamingDataset` is read through the engine and the cache of the machine of each process. An iterable
            is written by this process.
        on_progress: called at the start and after each shard.

    Raises:
        ConfigError: an option is invalid, or the destination holds something else.
        PackError: a sample cannot be written (it is named), or the disk is full.
        IntegrityError: existing shards differ from those that were written.
        ManifestError, DecodeError, RecodeError, StoreError: the source or the destination failed.
        Exception: errors of an iterable, of the engine and of the executor are raised unchanged.
    """
    _refuse_old_format(format, output_format)
    _check_arguments(
        {"url": url, "manifest": manifest},
        {"storage_options": storage_options, "out_storage_options": out_storage_options},
        {"transform": transform, "on_progress": on_progress},
        {"seed": seed, "vocab_size": vocab_size},
        prefix=prefix,
    )
    written = USUAL_OUTPUT if output_format is None else output_format
    size = parse_bytes(shard_bytes, "shard_bytes")
    given = storage_options if out_storage_options is None else out_storage_options
    (target,), out_options = take_logins([folder_url(os.fspath(url))], given or {})
    callbacks = Callbacks(on_progress=on_progress)
    joined = Annotations.parse(annotations)
    urls = _urls(source)
    if urls is None and not isinstance(source, Scannable):
        if transform is not None or fields is not None or annotations is not None:
            raise ConfigError("an iterable is packed as it is: change the samples where they are made", field="source")
        if format != AUTO or manifest is not None:
            raise ConfigError("format= and manifest= are of a url that is packed, not of an iterable", field="source")
        output = find_output(written, vocab_size)
        samples, fields_described = _describe_samples(cast("Iterable[Mapping[str, Any]]", source), output, vocab_size)
        described = {"source": "an iterable", "prefix": prefix, "shard_bytes": size, **fields_described}
        return _pack_samples(
            samples=samples,
            job=Job(target, prefix, described),
            shard_bytes=size,
            options=dict(out_options),
            callbacks=callbacks,
        )
    beside = ("" if manifest is None else os.fspath(manifest), "" if joined is None else joined.url)
    (*plain, manifest_url, joined_url), options = take_logins((*(urls or ()), *beside), storage_options or {})
    writing = PackOptions(
        url=target,
        prefix=prefix,
        shard_bytes=size,
        order=order,
        seed=seed,
        fields=_field_names(fields),
        transform=transform,
        options=dict(out_options),
        output=written,
        vocab_size=vocab_size,
        annotations=None if joined is None else replace(joined, url=joined_url),
    )
    of_url = DatasetSource(
        urls=tuple(plain),
        **_describe_format(format),
        manifest=None if manifest is None else manifest_url,
        options=dict(options),
    )
    if isinstance(source, Scannable):
        _refuse_options_of_urls(of_url, writing)
        with closing(source._scan()) as scan, runner(executor) as running:
            if out_storage_options is None:
                writing = msgspec.structs.replace(writing, options=scan.storage_options)
            return run(prepare_scan(scan, writing, running), running, callbacks)
    with open_temporary_folder("pack") as folder, runner(executor) as running:
        prepared = prepare(of_url, writing, folder=folder, runner=running, callbacks=callbacks)
        return run(prepared, running, callbacks)


def _refuse_old_format(source_format: object, output_format: OutputName | None) -> None:
    """Refuses `format=` with the name of an output, unless it is clear that the source has this format.

    Raises:
        ConfigError: the format of the source may be meant as that of the shards, which it was before release 0.2.
    """
    new = OLD_OUTPUTS.get(source_format) if isinstance(source_format, str) else None
    if new is not None and (output_format is None or new != source_format):
        raise ConfigError(
            f"format={source_format!r} of pack is the format of the source since 0.2: the shards have "
            f"output_format={new!r}. A source of this format needs both, as format={new!r}, output_format=...",
            field="format",
        )


def _describe_format(given: str | Format) -> dict[str, Any]:
    """Returns the arguments of `DatasetSource` that stand for a format.

    Raises:
        ConfigError: `given` is neither a name nor a format.
    """
    if isinstance(given, str):
        return {"format": given}
    if not isinstance(given, Format):
        raise ConfigError(
            f"format={given!r}: give a name, or a format with options as streamer.formats has them", field="format"
        )
    chosen = given.chosen_extensions
    return {
        "format": given.requested_name,
        "format_options": given.options,
        "extensions": None if chosen is None else tuple(sorted(chosen)),
    }


def _refuse_options_of_urls(of_url: DatasetSource, writing: PackOptions) -> None:
    """Refuses options about the source when this is a dataset, which has its own.

    Raises:
        ConfigError: one of them is given; names it.
    """
    usual = DatasetSource(urls=())
    given = [name for name in usual.__struct_fields__ if getattr(of_url, name) != getattr(usual, name)]
    given += [] if writing.annotations is None else ["annotations"]
    if given:
        name = {"format_options": "format", "extensions": "format", "options": "storage_options"}.get(
            given[0], given[0]
        )
        raise ConfigError(
            f"{name}= is an option of a url that is packed: give it to StreamingDataset(...), not to pack()", field=name
        )


def _pack_samples(
    samples: Iterable[Mapping[str, Any]], job: Job, shard_bytes: int, options: dict[str, object], callbacks: Callbacks
) -> PackResult:
    """Runs the pack of an iterable: claims the destination, writes the shards, then the manifest.

    Args:
        samples: dicts, see `pack_iterable`.
        job: the pack.
        shard_bytes: length in bytes from which on a shard ends.
        options: storage options of the destination.
        callbacks: `on_progress` is called at the start and after each shard.

    Raises:
        ConfigError, PackError, IntegrityError, StoreError: as `pack`.
    """
    left = wait_for(claim(job, options))
    follower = Follower(None, {}, callbacks.on_progress)
    receipts = pack_iterable(
        samples=samples, job=job, shard_bytes=shard_bytes, options=options, on_shard=follower.count_shard
    )
    # `there` has the shards that another run of the same program has written again: the same bytes with other versions.
    return settle_shards(job=job, options=options, receipts=receipts, write=lambda there: receipts | there, left=left)


def _urls(source: object) -> tuple[str, ...] | None:
    """Returns the urls of a dataset, local paths made absolute; None if `source` is not a url or a list of urls.

    Raises:
        ConfigError: it is nothing that can be packed.
    """
    if isinstance(source, bytes) or not isinstance(source, str | os.PathLike | Iterable | Scannable):
        raise ConfigError(
            f"source={source!r} is no url, no list of urls, no dataset and no iterable of dicts", field="source"
        )
    if isinstance(source, str | os.PathLike):
        return (absolute(os.fspath(source)),)
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | os.PathLike) for item in source):
        return tuple(absolute(os.fspath(item)) for item in source)
    return None


def _describe_samples(
    samples: Iterable[Mapping[str, Any]], output: Output, vocab_size: int | None
) -> tuple[Iterable[Mapping[str, Any]], dict[str, Any]]:
    """Finds what all shards have, such as columns, from the first `FIRST_SAMPLES` samples.

    Args:
        samples: the samples.
        output: the output of the shards.
        vocab_size: number of different tokens, if the user says it.

    Returns:
        All samples, from the first one, and what the description of the job must have about the shards.

    Raises:
        PackError: there are no samples, or the output cannot have these.
        ConfigError: it is not clear which field has the tokens.
    """
    if not output.needs_kinds:
        return samples, {}
    coming = iter(samples)
    first = []
    finder = KindFinder(output)
    for ordinal, sample in enumerate(islice(coming, FIRST_SAMPLES)):
        take_sample(finder, sample, ordinal)
        # A copy: the iterable may give the same dict or array again, with other values.
        first.append(copy_sample(sample))
    if not first:
        raise PackError(NO_SAMPLES)
    return chain(first, coming), {"output": output.name, **output.describe(finder.kinds, {}, vocab_size)}


def _check_arguments(
    urls: Mapping[str, object],
    mappings: Mapping[str, object],
    functions: Mapping[str, object],
    numbers: Mapping[str, object],
    prefix: object,
) -> None:
    """Makes sure that arguments of `pack`, given by their names, have the types that they must have.

    Raises:
        ConfigError: one of them has another type, or a number is negative.
    """
    if not isinstance(prefix, str):
        raise ConfigError(f"prefix={prefix!r} is not a text", field="prefix")
    for name, url in urls.items():
        if checks.path(name, cast("str | None", url)) is None and name != "manifest":
            raise ConfigError(f"{name}=None is not a url or a path", field=name)
    for name, options in mappings.items():
        checks.mapping(name, cast("Mapping[str, object] | None", options))
    for name, function in functions.items():
        if checks.function(name, function) is None and name != "transform":
            raise ConfigError(f"{name}=None cannot be called", field=name)
    for name, number in numbers.items():
        if number is not None or name != "vocab_size":
            checks.at_least(name, number, 0)


def _field_names(fields: Mapping[str, str] | Sequence[str] | None) -> dict[str, str] | None:
    """Returns the fields to write by name, with their new names; ConfigError if they are no names."""
    if fields is None:
        return None
    is_set = isinstance(fields, set | frozenset)  # whose order differs between processes, and so the job's id
    names = fields.values() if isinstance(fields, Mapping) else ()
    if is_set or not checks.are_names(fields) or not checks.are_names(names):
        raise ConfigError(f"fields={fields!r}: give a list of names, or a mapping of names to new ones", field="fields")
    return dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields}


NO_SAMPLES = "the iterable gives no samples"


def pack_iterable(
    samples: Iterable[Mapping[str, Any]],
    job: Job,
    shard_bytes: int,
    options: Mapping[str, object],
    on_shard: Callable[[Receipt], None],
) -> dict[int, Receipt]:
    """Writes all samples as shards and uploads them, except those that are there already with the same bytes.

    Args:
        samples: dicts (see `values.files_of`), read from the beginning in each run.
        job: the pack.
        shard_bytes: length in bytes from which on a shard ends.
        options: storage options of the destination.
        on_shard: called with the receipt of each finished shard.

    Returns:
        The receipts by number of the shard.

    Raises:
        PackError: a sample cannot be written, there are none, or the disk is full.
        StoreError: the destination cannot be written.
        Exception: errors of the iterable are raised unchanged.
    """
    receipts: dict[int, Receipt] = {}
    with ExitStack() as files, ThreadPoolExecutor(_UPLOADS_AT_ONCE, "streamer-pack") as threads:
        # The file of a shard is removed after its upload, or at the end.
        spools: dict[int, ExitStack] = {}

        def open_file(number: int) -> Path:
            spools[number] = files.enter_context(ExitStack())
            return spools[number].enter_context(open_spool(spool_folder(job), number))

        made = _make_shards(samples, job, shard_bytes, open_file)
        for receipt in run_all(Runner(threads, _UPLOADS_AT_ONCE), partial(_upload, job, options), made):
            spools.pop(receipt.shard).close()
            receipts[receipt.shard] = receipt
            on_shard(receipt)
    if not receipts:
        raise PackError(NO_SAMPLES)
    return receipts


def _make_shards(
    samples: Iterable[Mapping[str, Any]], job: Job, shard_bytes: int, open_file: Callable[[int], Path]
) -> Iterator[MadeShard]:
    """Yields the shards, each written to a file that `open_file` makes for its number; raises PackError."""
    numbered = enumerate(samples)
    number = 0
    following = next(numbered, None)
    while following is not None:
        path = open_file(number)
        with job.open_writer(path) as writer:
            while following is not None and writer.filled < shard_bytes:
                ordinal, sample = following
                take_sample(writer, sample, ordinal)
                following = next(numbered, None)
            made = MadeShard(number, path, writer.finish(), writer.index)
        yield made
        number += 1


def take_sample(writer: SampleTaker, sample: Mapping[str, Any], ordinal: int) -> None:
    """Passes a sample of an iterable to a writer.

    Args:
        writer: a writer of shards, or what finds the kinds of fields.
        sample: the sample, of which any type may be given.
        ordinal: its number in the iterable.

    Raises:
        PackError: the sample cannot be written, or is not a dict. The error names the number.
    """
    if not isinstance(sample, Mapping):
        raise PackError(f"sample {ordinal} is a {type(sample).__name__}, not a dict of fields")
    owned = {name: copy_view(value) for name, value in sample.items()}
    add_sample(writer, owned, ordinal, f"sample {ordinal} of the iterable")


def _upload(job: Job, options: Mapping[str, object], made: MadeShard) -> Receipt:
    """Uploads a shard and its receipt, unless it is there with the same bytes; returns the receipt."""

    async def upload_shard() -> Receipt:
        async with Destination(job.url, options) as destination:
            there = await receipt_there(destination, job, made.number)
            return there if there is not None and there.is_of(made.written) else await upload(destination, job, made)

    return asyncio.run(upload_shard())
