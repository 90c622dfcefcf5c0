"""`streamer.pack`: any dataset, or what a program makes, as WebDataset tars with their manifest beside them."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from streamer.config import parse_bytes
from streamer.errors import ConfigError, IntegrityError, ObjectChangedError
from streamer.manifest import protocols
from streamer.manifest.model import ObjectRecord
from streamer.manifest.table import Manifest
from streamer.shards.destination import Destination, folder_url
from streamer.shards.executors import runner
from streamer.shards.finish import agrees, check_samples, put_manifest
from streamer.shards.iterable import pack_iterable
from streamer.shards.job import Job, Transform, transform_name
from streamer.shards.plan import Order, Plan, batch_of, make_plan, refuse_double_keys
from streamer.shards.receipts import Receipt
from streamer.shards.running import run_all
from streamer.shards.source import Source, manifest_of_source
from streamer.shards.task import Recipe, ShardTask, pack_shard
from streamer.store.urls import shown

T = TypeVar("T")

# Shards that another pack of the same job writes meanwhile are looked at again.
_ROUNDS = 5


@dataclass(frozen=True)
class Packed:
    """What a pack has written.

    Attributes:
        url: of the shards; the manifest is below it, in `.streamer/`.
        digest: of the manifest, the one that `streamer index` of the url finds.
        shards, samples: how many.
        bytes: of the shards.
    """

    url: str
    digest: str
    shards: int
    samples: int
    bytes: int


@dataclass(frozen=True)
class PackProgress:
    """How far a pack is.

    Attributes:
        shards_done: written and uploaded, in this run or an earlier one.
        shards: all; None: an iterable does not say.
        samples_done: in those that are done.
        bytes_done: of those that are done.
        earlier_bytes: of those that an earlier run has written.
        bytes: of all shards, about; None as for `shards`.
    """

    shards_done: int
    shards: int | None
    samples_done: int
    bytes_done: int
    earlier_bytes: int
    bytes: int | None


class Callbacks(msgspec.Struct, frozen=True):
    """What is called while a pack runs: with a line about the source; while it is indexed; after each shard."""

    on_note: Callable[[str], None] = lambda note: None
    on_index: Callable[[protocols.Progress], None] = lambda step: None
    on_progress: Callable[[PackProgress], None] = lambda step: None


class Prepared(msgspec.Struct, frozen=True):
    """A pack of a dataset before anything is written: `run` does it."""

    manifest: Manifest
    plan: Plan
    job: Job
    recipe: Recipe

    def task(self, number: int) -> ShardTask:
        """The task of one shard."""
        batches = [batch_of(self.manifest, ordinals) for ordinals in self.plan.batches(number)]
        return ShardTask(self.job, self.recipe, number, batches)


def pack(
    source: str | os.PathLike[str] | Sequence[str] | Iterable[Mapping[str, Any]],
    url: str | os.PathLike[str],
    *,
    transform: Transform | None = None,
    fields: Mapping[str, str] | Sequence[str] | None = None,
    order: Order = "manifest",
    seed: int = 0,
    shard_bytes: int | str = "1GB",
    prefix: str = "shard-",
    storage_options: Mapping[str, object] | None = None,
    out_storage_options: Mapping[str, object] | None = None,
    format: str = "auto",  # noqa: A002 - as StreamingDataset calls it
    format_options: Mapping[str, object] | None = None,
    extensions: Sequence[str] | None = None,
    manifest: str | None = None,
    on: str | Executor = "processes",
    on_progress: Callable[[PackProgress], None] = lambda step: None,
) -> Packed:
    """Writes samples as WebDataset tars, with their manifest beside them in `.streamer/`.

    A pack that was killed goes on where it stopped when it is called again with the same arguments, and ends with the
    same bytes. The manifest comes last: where it is, all shards are.

    Args:
        source: urls of a dataset, in any format that is read; or an iterable of dicts. Of these, bytes are written as
            they are, texts as `name.txt`, an int named "label" or "cls" as `cls`, arrays as `name.npy`, all other
            values together as one `json`; "__key__" is the sample's name.
        url: of the shards; empty before, or with an earlier run of the same pack.
        transform: gets each sample as a dict of bytes with its "__key__", and returns a dict as above, or None to leave
            the sample out. Samples of class folders have a "label".
        fields: those to write, or a mapping from their names to new ones; None: all.
        order: "manifest"; "name" (raw files only); or "shuffle": of raw files all at random, of others whole chunks,
            with the samples of those that are read together (128 MiB) mixed.
        seed: of the shuffle.
        shard_bytes: bytes of a shard, about; "512MB".
        prefix: what the names of shards begin with.
        storage_options: of the source, as fsspec takes them.
        out_storage_options: of the destination; None: those of the source.
        format: of the source; "auto": by the names of its objects.
        format_options: of the format.
        extensions: of the raw files that are samples; None: in class folders the commonest, else all.
        manifest: of the source, where it was indexed to; None: it is indexed.
        on: "processes" (one for each core), "processes:8", "dask:tcp://scheduler:8786", or an executor. An iterable is
            written by this process.
        on_progress: called after each shard.

    Raises:
        ConfigError: an option that cannot be, or a destination that holds something else.
        PackError: a sample that cannot be written (it is named), or a full disk.
        IntegrityError: the shards that are there are not those that were written.
        ManifestError, DecodeError, StoreError: from the source or the destination.
    """
    size = parse_bytes(shard_bytes, "shard_bytes")
    out_options = dict((storage_options if out_storage_options is None else out_storage_options) or {})
    target = folder_url(os.fspath(url))
    callbacks = Callbacks(on_progress=on_progress)
    urls = _urls(source)
    if urls is None:
        if transform is not None or fields is not None:
            raise ConfigError("an iterable is packed as it is: change the samples where they are made", field="source")
        samples, described = cast("Iterable[Mapping[str, Any]]", source), _described_iterable(prefix, size)
        return _pack_samples(samples, Job(target, prefix, described), size, out_options, callbacks)
    with tempfile.TemporaryDirectory(prefix="streamer-pack-") as folder:
        prepared = prepare(
            Source(
                urls=urls,
                format=format,
                format_options=dict(format_options or {}),
                extensions=None if extensions is None else tuple(extensions),
                manifest=manifest,
                options=dict(storage_options or {}),
            ),
            Writing(target, prefix, size, order, seed, _renaming(fields), transform, out_options),
            Path(folder),
            callbacks,
        )
        return run(prepared, on, callbacks)


class Writing(msgspec.Struct, frozen=True):
    """What is to be written of a source; see `pack`."""

    url: str
    prefix: str
    shard_bytes: int
    order: Order
    seed: int
    fields: dict[str, str] | None
    transform: Transform | None
    options: dict[str, object]


def prepare(source: Source, writing: Writing, folder: Path, callbacks: Callbacks) -> Prepared:
    """Indexes the source and plans the shards; writes nothing but the manifest of the source, to `folder`.

    Raises:
        ConfigError, PackError, ManifestError, StoreError: as `pack`.
    """
    _refuse_same_place(source.urls, writing.url)
    manifest = waited(manifest_of_source(source, folder, callbacks.on_note, callbacks.on_index))
    plan = make_plan(manifest, writing.order, writing.seed, writing.shard_bytes)
    if writing.transform is None:
        refuse_double_keys(manifest)
    content = manifest.content
    recipe = Recipe(
        content.format,
        content.options,
        manifest.facts,
        writing.fields,
        writing.transform,
        dict(source.options),
        writing.options,
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
    return Prepared(manifest, plan, Job(writing.url, writing.prefix, described), recipe)


def run(prepared: Prepared, on: str | Executor, callbacks: Callbacks) -> Packed:
    """Writes what is planned and not there yet, then the manifest.

    Raises:
        PackError, IntegrityError, DecodeError, StoreError: as `pack`.
    """
    job, options, count = prepared.job, prepared.recipe.out_storage_options, prepared.plan.shards
    waited(_claim(job, options))
    earlier = waited(_shards_there(job, options, count))
    follower = _Follower(prepared.plan, earlier, callbacks.on_progress)

    def write(done: dict[int, Receipt]) -> dict[int, Receipt]:
        missing = [number for number in range(count) if number not in done]
        if not missing:
            return done
        with runner(on) as executor:
            for receipt in run_all(executor, pack_shard, map(prepared.task, missing)):
                follower.done(receipt)
                done[receipt.shard] = receipt
        return done

    return _settled(job, options, write(earlier), write)


def _settled(
    job: Job,
    options: Mapping[str, object],
    receipts: dict[int, Receipt],
    write: Callable[[dict[int, Receipt]], dict[int, Receipt]],
) -> Packed:
    """Writes the manifest of what is there; looks again where another pack of the same job writes, too.

    Args:
        job: whose shards they are.
        options: of the store.
        receipts: of all shards.
        write: given the receipts of shards that are there, writes the others; returns those of all.
    """
    for _ in range(_ROUNDS):
        try:
            return waited(_finish(job, options, receipts))
        except ObjectChangedError as error:
            changed = error
        receipts = write(waited(_shards_there(job, options, len(receipts))))
    raise IntegrityError(
        f"shards in {shown(job.url)} change while they are packed ({changed.message}); does another program write "
        "there?",
        url=shown(job.url),
    ) from changed


def waited(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine; in a notebook, whose loop runs already, from a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _pack_samples(
    samples: Iterable[Mapping[str, Any]],
    job: Job,
    shard_bytes: int,
    options: dict[str, object],
    callbacks: Callbacks,
) -> Packed:
    waited(_claim(job, options))
    follower = _Follower(None, {}, callbacks.on_progress)
    receipts = pack_iterable(samples, job, shard_bytes, options, follower.done)
    # What another run of the same program has written has other versions, where these are times.
    return _settled(job, options, receipts, lambda there: receipts | there)


async def _claim(job: Job, options: Mapping[str, object]) -> None:
    async with Destination(job.url, options) as destination:
        await destination.claim(job, await destination.records())


async def _shards_there(job: Job, options: Mapping[str, object], shards: int) -> dict[int, Receipt]:
    """The receipts of the shards that are done."""
    async with Destination(job.url, options) as destination:
        records = await destination.records()
        receipts = await destination.receipts([job.receipt_name(number) for number in range(shards)], records)
    return {n: receipt for n, receipt in receipts.items() if agrees(receipt, records.get(job.shard_name(n)))}


async def _finish(job: Job, options: Mapping[str, object], receipts: Mapping[int, Receipt]) -> Packed:
    """Checks the shards and writes their manifest.

    Raises:
        ObjectChangedError: a shard is not, or no longer, the one of its receipt.
    """
    async with Destination(job.url, options) as destination:
        ordered = [receipts[number] for number in sorted(receipts)]
        records = [ObjectRecord(job.url + job.shard_name(r.shard), r.size, r.version) for r in ordered]
        await check_samples(destination, ordered, records)
        manifest = await put_manifest(destination, job, receipts)
    return Packed(job.url, manifest.digest, manifest.objects, manifest.samples, manifest.total_bytes)


class _Follower:
    """Counts shards for the progress."""

    def __init__(
        self, plan: Plan | None, earlier: Mapping[int, Receipt], on_progress: Callable[[PackProgress], None]
    ) -> None:
        self._plan, self._on_progress = plan, on_progress
        self._shards, self._samples = len(earlier), sum(receipt.samples for receipt in earlier.values())
        self._bytes = self._earlier_bytes = sum(receipt.size for receipt in earlier.values())
        self._planned_bytes = 0 if plan is None else sum(int(plan.shard_bytes[number]) for number in earlier)
        self._report()

    def done(self, receipt: Receipt) -> None:
        """One more."""
        self._shards += 1
        self._samples += receipt.samples
        self._bytes += receipt.size
        if self._plan is not None:
            self._planned_bytes += int(self._plan.shard_bytes[receipt.shard])
        self._report()

    def _report(self) -> None:
        plan = self._plan
        left = None if plan is None else max(0, int(plan.shard_bytes.sum()) - self._planned_bytes)
        self._on_progress(
            PackProgress(
                shards_done=self._shards,
                shards=None if plan is None else plan.shards,
                samples_done=self._samples,
                bytes_done=self._bytes,
                earlier_bytes=self._earlier_bytes,
                bytes=None if left is None else self._bytes + left,
            )
        )


def _urls(source: object) -> tuple[str, ...] | None:
    """The urls of a dataset, files of this machine by their whole paths; None: it is an iterable of samples."""
    if isinstance(source, str | os.PathLike):
        return (absolute(os.fspath(source)),)
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | os.PathLike) for item in source):
        return tuple(absolute(os.fspath(item)) for item in source)
    return None


def absolute(url: str) -> str:
    """A path of this machine as every process understands it; a url as it is."""
    if "://" in url:
        return url
    return os.path.abspath(url).rstrip("/") + ("/" if url.endswith("/") else "")


def _described_iterable(prefix: str, shard_bytes: int) -> dict[str, Any]:
    return {"source": "an iterable", "prefix": prefix, "shard_bytes": shard_bytes}


def _renaming(fields: Mapping[str, str] | Sequence[str] | None) -> dict[str, str] | None:
    if fields is None:
        return None
    return dict(fields) if isinstance(fields, Mapping) else {name: name for name in fields}


def _refuse_same_place(urls: Sequence[str], url: str) -> None:
    """Shards among the files that they are made of would be packed the next time.

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
