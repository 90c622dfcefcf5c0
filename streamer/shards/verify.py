"""Compares the shards and manifest of a pack with what it wrote, for `streamer verify` (`cli/shards/`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import numpy as np

from streamer.base.concurrency import map_concurrently
from streamer.base.temporary import open_temporary_folder
from streamer.errors import Discreet, IntegrityError, ManifestError
from streamer.executors.runner import Runner, run_dynamic
from streamer.indexing.source import manifest_files
from streamer.manifest.beside import BESIDE
from streamer.manifest.model import Extent, ObjectRecord
from streamer.manifest.transfer import install_files
from streamer.shards.destination import Destination, files_of
from streamer.shards.finish import check_samples, compare, compare_index, manifest_of
from streamer.shards.job import DESCRIPTION_NAME, FOLDER, Job
from streamer.shards.receipts import Receipt
from streamer.store.addresses.urls import shown

_RECEIPT = re.compile(r"\d{6,}\.json")
# Pieces are read together up to this length, by two reads at once.
_READ_BYTES = 32 << 20
_READS_AT_ONCE = 2


@dataclass(frozen=True)
class Verified:
    """The result of a comparison that found no difference.

    Attributes:
        digest: digest of the manifest.
        shards: number of shards.
        samples: number of samples in them.
        bytes: length of all shards together.
        read_samples: number of samples whose bytes were read and compared with their checksums.
    """

    digest: str
    shards: int
    samples: int
    bytes: int
    read_samples: int


async def verify(
    url: str,
    options: Mapping[str, object],
    *,
    runner: Runner | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verified:
    """Compares shards and manifest with what was written.

    Args:
        url: url of the shards, ending in a slash.
        options: storage options as fsspec takes them.
        runner: runs tasks that read all samples. None means that one piece of each shard is read, by this process.
        on_progress: called after each shard that is read whole, with the bytes read so far and those of all shards.

    Raises:
        ObjectChangedError: a shard differs from the one written, or is gone. The error names it.
        IntegrityError: a sample, the manifest or the description differs from what was written, or there are further
            shards.
        ManifestError: there is no pack, or several, or it was not finished.
        StoreError, ConfigError: the store failed, or it or a library of the format is not there.
    """
    async with Destination(url, options) as destination:
        records = await destination.records()
        job = await _job_at(destination, records)
        names = [name for name in records if _RECEIPT.fullmatch(name.removeprefix(job.folder))]
        receipts = await destination.receipts(names, records)
        digest = await _compare_manifest(destination, job, receipts)
        ordered = [receipts[number] for number in sorted(receipts)]
        files = [[records[name] for name in files_of(job, receipt)] for receipt in ordered]
        if runner is None:
            read = await check_samples(destination, ordered, [each[0] for each in files])
    if runner is not None:
        tasks = [CheckTask(*pair, url, options) for pair in zip(ordered, files, strict=True)]
        total = sum(task.receipt.size for task in tasks)
        done = 0
        rest = iter(tasks)
        async with aclosing(run_dynamic(runner, check_shard, lambda: next(rest, None))) as coming:
            async for size in coming:
                done += size
                on_progress(done, total)
    samples = sum(receipt.samples for receipt in ordered)
    return Verified(
        digest=digest,
        shards=len(ordered),
        samples=samples,
        bytes=sum(receipt.size for receipt in ordered),
        read_samples=samples if runner else read,
    )


async def _job_at(destination: Destination, records: Mapping[str, ObjectRecord]) -> Job:
    """Returns the job whose description is at a destination.

    Raises:
        ManifestError: there are no packs, or several.
        IntegrityError: the description was changed.
    """
    where = shown(destination.url)
    found = [name for name in records if name.startswith(FOLDER) and name.endswith(f"/{DESCRIPTION_NAME}")]
    if len(found) != 1:
        raise ManifestError(
            f"{where} has {len(found)} packs; verify needs the receipts of one, which `streamer pack` leaves in "
            f"{FOLDER}",
            url=where,
        )
    record = records[found[0]]
    content = await destination.fetcher.read(Extent(record, 0, record.size))
    try:
        described = msgspec.json.decode(content, type=dict[str, object])
        job = Job(destination.url, str(described["prefix"]), described)
        job.shard_name(0)
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise IntegrityError(f"{shown(record.url)} is not a description of a pack", url=shown(record.url)) from error
    if not found[0].startswith(job.folder):
        raise IntegrityError(f"{shown(record.url)} was changed: it describes pack {job.id}", url=shown(record.url))
    return job


async def _compare_manifest(destination: Destination, job: Job, receipts: Mapping[int, Receipt]) -> str:
    """Compares the manifest at the destination with that of the shards; returns its digest.

    Raises:
        IntegrityError, ObjectChangedError: they differ, or as `manifest_of`.
        ManifestError: there is no manifest.
    """
    where = f"{destination.url}{BESIDE}"
    with open_temporary_folder("verify") as folder:
        expected = await manifest_of(destination, job, receipts, folder / "expected")
        there = install_files(await manifest_files(destination.fetcher, where), folder / "there", shown(where))
    if there.digest != expected.digest:
        raise IntegrityError(
            f"the manifest in {shown(where)} ({there.samples} samples, {there.digest}) is not that of the shards "
            f"({expected.samples} samples, {expected.digest}); pack again: it is written anew",
            url=shown(where),
        )
    return there.digest


class CheckTask(Discreet, msgspec.Struct, frozen=True):
    """The task to read and compare one shard.

    Attributes:
        receipt: its receipt.
        files: objects of the shard and, if it has one, of its index file.
        url: url of the destination.
        options: storage options of the destination.
    """

    receipt: Receipt
    files: Sequence[ObjectRecord]
    url: str
    options: Mapping[str, object]


def check_shard(task: CheckTask) -> int:
    """Reads a whole shard and its index file, and compares them with their checksums; returns the shard's length.

    Raises:
        IntegrityError: a piece or the index file differs.
        StoreError: the store failed.
    """
    asyncio.run(_check(task))
    return task.receipt.size


async def _check(task: CheckTask) -> None:
    """Compares a shard as `check_shard` promises, on a running loop."""
    receipt = task.receipt
    edges = task.receipt.edges
    shard, *indexes = task.files
    async with Destination(task.url, task.options) as destination:
        for record in indexes:
            compare_index(receipt, record, await destination.fetcher.read(Extent(record, 0, record.size)))

        async def check(pieces: range) -> None:
            start, stop = int(edges[pieces.start]), int(edges[pieces.stop])
            content = memoryview(await destination.fetcher.read(Extent(shard, start, stop)))
            for piece in pieces:
                part = content[int(edges[piece]) - start : int(edges[piece + 1]) - start]
                compare(receipt, shard, piece, part)

        # A run is a range of pieces that are read together.
        runs = []
        first = 0
        while first < receipt.pieces:
            last = max(first + 1, int(np.searchsorted(edges, edges[first] + _READ_BYTES, side="right")) - 1)
            runs.append(range(first, last))
            first = last
        await map_concurrently(check, runs, _READS_AT_ONCE)
