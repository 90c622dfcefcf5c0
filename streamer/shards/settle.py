"""Claims the destination of a pack, and finishes the pack even if another one of the same job is writing.

`pack.py` and `prepared.py` use it. The commands take `PackResult` and `wait_for` from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from streamer.errors import IntegrityError, ObjectChangedError, PackError
from streamer.manifest.model import ObjectRecord
from streamer.removed import replace_name
from streamer.shards.destination import Destination, agrees
from streamer.shards.finish import check_samples, put_manifest
from streamer.shards.job import Job
from streamer.shards.receipts import Receipt
from streamer.shards.spool import sweep_other_jobs
from streamer.store.addresses.urls import shown
from streamer.store.base import Upload

T = TypeVar("T")


def __getattr__(name: str) -> object:
    """Returns the object that an earlier release called `name`, with a warning.

    Raises:
        ImportError, AttributeError: there is no such name any more, or there never was.
    """
    return globals()[replace_name(__name__, name)]


# A pack tries to finish so many times, while another pack of the same job changes shards.
_ROUNDS = 5


@dataclass(frozen=True)
class PackResult:
    """The result of a pack.

    Attributes:
        url: url of the shards; the manifest is below it, in `.streamer/`.
        digest: digest of the manifest, which is that of `streamer index` of the url.
        shards: number of shards.
        samples: number of samples in them.
        bytes: length of all shards together.
    """

    url: str
    digest: str
    shards: int
    samples: int
    bytes: int


def settle_shards(
    job: Job,
    options: Mapping[str, object],
    receipts: dict[int, Receipt],
    write: Callable[[dict[int, Receipt]], dict[int, Receipt]],
    left: Sequence[Upload],
) -> PackResult:
    """Checks all shards and writes their manifest. Shards that have changed meanwhile are written again first.

    At the end it removes unfinished uploads of killed packs.

    Args:
        job: the pack.
        options: storage options of the destination.
        receipts: receipts of all shards, by number.
        write: is given the receipts of the shards that are there as written, writes the others, and returns all.
        left: unfinished uploads, from `claim`.

    Raises:
        PackError: the transform has left out all samples.
        IntegrityError: shards have changed again in each of five rounds, or differ from their receipts.
        ManifestError, OSError: the manifest cannot be made; see `put_manifest`.
        StoreError: the destination cannot be read or written. Errors of `write` are raised unchanged.
    """
    for _ in range(_ROUNDS):
        try:
            return wait_for(_finish(job, options, receipts, left))
        except ObjectChangedError as error:
            changed = error
        receipts = write(wait_for(shards_there(job, options, len(receipts))))
    raise IntegrityError(
        f"shards in {shown(job.url)} change while they are packed ({changed.message}); does another program write "
        "there?",
        url=shown(job.url),
    ) from changed


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end and returns its result; uses a new thread where a loop runs, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def claim(job: Job, options: Mapping[str, object]) -> Sequence[Upload]:
    """Writes the job's description to its destination, and removes files of killed packs on this machine.

    Returns:
        Uploads of shards that killed or running packs have begun and not finished.

    Raises:
        ConfigError: the destination holds something else.
        StoreError: the destination cannot be read or written.
    """
    await asyncio.to_thread(sweep_other_jobs)
    async with Destination(job.url, options) as destination:
        await destination.claim(job, await destination.records())
        return await destination.list_uploads(job)


async def shards_there(job: Job, options: Mapping[str, object], shards: int) -> dict[int, Receipt]:
    """Returns the receipts of finished shards, by number; leaves out shards whose files differ from their receipts.

    Args:
        job: the pack.
        options: storage options of the destination.
        shards: number of all shards.

    Raises:
        StoreError: the destination cannot be read.
    """
    async with Destination(job.url, options) as destination:
        records = await destination.records()
        receipts = await destination.receipts([job.receipt_name(number) for number in range(shards)], records)
    return {n: receipt for n, receipt in receipts.items() if agrees(job, receipt, records)}


async def _finish(
    job: Job, options: Mapping[str, object], receipts: Mapping[int, Receipt], left: Sequence[Upload]
) -> PackResult:
    """Checks one piece of each shard, writes the manifest, and removes the uploads `left`; as `settle_shards`.

    Raises:
        ObjectChangedError: another pack has changed a shard.
    """
    if not any(receipt.samples for receipt in receipts.values()):
        raise PackError("no sample is left: the transform returns None for all of them")
    async with Destination(job.url, options) as destination:
        ordered = [receipts[number] for number in sorted(receipts)]
        records = [ObjectRecord(job.url + job.shard_name(r.shard), r.size, r.version) for r in ordered]
        await check_samples(destination, ordered, records)
        manifest = await put_manifest(destination, job, receipts)
        # All shards are there, so no other pack of this job needs its unfinished uploads any more.
        await destination.abort(left)
    return PackResult(
        url=job.url,
        digest=manifest.digest,
        shards=manifest.objects,
        samples=manifest.samples,
        bytes=manifest.total_bytes,
    )
