"""Finishes a pack: writes the manifest of its shards, even if another pack of the same job is writing."""

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
    return globals()[replace_name(__name__, name)]


# Shards that another pack of the same job writes meanwhile are looked at again.
_ROUNDS = 5


@dataclass(frozen=True)
class PackResult:
    """The result of a pack.

    Attributes:
        url: url of the shards; the manifest is below it, in `.streamer/`.
        digest: digest of the manifest, the one that `streamer index` of the url finds.
        bytes: bytes of the shards.
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
    """Writes the manifest of the shards, again if another pack of the same job changes them.

    At the end it removes unfinished uploads of killed packs.

    Args:
        job: job of the shards.
        options: options of the store.
        receipts: receipts of all shards.
        write: given the receipts of finished shards, writes the others and returns the receipts of all.
        left: unfinished uploads, from `claim`.

    Raises:
        PackError: the transform has left out all samples.
        IntegrityError: the shards have changed again and again, or are not what the receipts say.
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
    """Runs a coroutine and returns its result; runs it in a thread where a loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def claim(job: Job, options: Mapping[str, object]) -> Sequence[Upload]:
    """Records which job writes at its destination, see `Destination.claim`; first removes files of killed packs.

    Returns:
        Uploads of shards that others have begun and not finished.
    """
    await asyncio.to_thread(sweep_other_jobs)
    async with Destination(job.url, options) as destination:
        await destination.claim(job, await destination.records())
        return await destination.list_uploads(job)


async def shards_there(job: Job, options: Mapping[str, object], shards: int) -> dict[int, Receipt]:
    """Returns the receipts of the finished shards by number; shards that differ from theirs are not among them."""
    async with Destination(job.url, options) as destination:
        records = await destination.records()
        receipts = await destination.receipts([job.receipt_name(number) for number in range(shards)], records)
    return {n: receipt for n, receipt in receipts.items() if agrees(job, receipt, records)}


async def _finish(
    job: Job, options: Mapping[str, object], receipts: Mapping[int, Receipt], left: Sequence[Upload]
) -> PackResult:
    if not any(receipt.samples for receipt in receipts.values()):
        raise PackError("no sample is left: the transform returns None for all of them")
    async with Destination(job.url, options) as destination:
        ordered = [receipts[number] for number in sorted(receipts)]
        records = [ObjectRecord(job.url + job.shard_name(r.shard), r.size, r.version) for r in ordered]
        await check_samples(destination, ordered, records)
        manifest = await put_manifest(destination, job, receipts)
        # Now, when no other pack of this job needs them: all shards are there.
        await destination.abort(left)
    return PackResult(
        url=job.url,
        digest=manifest.digest,
        shards=manifest.objects,
        samples=manifest.samples,
        bytes=manifest.total_bytes,
    )
