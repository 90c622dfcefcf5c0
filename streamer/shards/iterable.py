"""Shards of samples that a program makes: written one after the other, while threads upload earlier ones."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from streamer.errors import PackError
from streamer.executors.runner import Runner, run_all
from streamer.shards.destination import Destination
from streamer.shards.job import Job
from streamer.shards.outputs.base import SampleTaker
from streamer.shards.receipts import Receipt
from streamer.shards.spool import open_spool, spool_folder
from streamer.shards.task import MadeShard, add_sample, receipt_there, upload

# Another one is written meanwhile; each is a file in the folder for temporary files.
_UPLOADS_AT_ONCE = 2
NO_SAMPLES = "the iterable gives no samples"


def pack_iterable(
    samples: Iterable[Mapping[str, Any]],
    job: Job,
    shard_bytes: int,
    options: Mapping[str, object],
    on_shard: Callable[[Receipt], None],
) -> dict[int, Receipt]:
    """Writes all samples; an existing shard with the same bytes is not uploaded again.

    Args:
        samples: dicts, see `values.files_of`; read from the beginning in each run.
        job: the pack.
        shard_bytes: length from which on a shard ends.
        options: storage options.
        on_shard: called with each finished shard.

    Returns:
        The receipts by shard.

    Raises:
        PackError: a sample cannot be written, or there are none; errors of the iterable are raised unchanged.
    """
    receipts: dict[int, Receipt] = {}
    with ExitStack() as files, ThreadPoolExecutor(_UPLOADS_AT_ONCE, "streamer-pack") as threads:
        # The file of a shard is removed after its upload, or at the end.
        closing: defaultdict[int, ExitStack] = defaultdict(lambda: files.enter_context(ExitStack()))
        made = _make_shards(samples, job, shard_bytes, closing)
        for receipt in run_all(Runner(threads, _UPLOADS_AT_ONCE), partial(_upload, job, options), made):
            closing[receipt.shard].close()
            receipts[receipt.shard] = receipt
            on_shard(receipt)
    if not receipts:
        raise PackError(NO_SAMPLES)
    return receipts


def _make_shards(
    samples: Iterable[Mapping[str, Any]], job: Job, shard_bytes: int, closing: Mapping[int, ExitStack]
) -> Iterator[MadeShard]:
    numbered = enumerate(samples)
    number = 0
    following = next(numbered, None)
    while following is not None:
        path = closing[number].enter_context(open_spool(spool_folder(job), number))
        with job.open_writer(path) as writer:
            while following is not None and writer.filled < shard_bytes:
                ordinal, sample = following
                take_sample(writer, sample, ordinal)
                following = next(numbered, None)
            made = MadeShard(number, path, writer.finish(), writer.index)
        yield made
        number += 1


def take_sample(writer: SampleTaker, sample: Mapping[str, Any], ordinal: int) -> None:
    """Passes a sample to a writer.

    Raises:
        PackError: it cannot be written, or is not a dict.
    """
    if not isinstance(sample, Mapping):
        raise PackError(f"sample {ordinal} is a {type(sample).__name__}, not a dict of fields")
    add_sample(writer, sample, ordinal, f"sample {ordinal} of the iterable")


def _upload(job: Job, options: Mapping[str, object], made: MadeShard) -> Receipt:
    async def upload_missing() -> Receipt:
        async with Destination(job.url, options) as destination:
            there = await receipt_there(destination, job, made.number)
            return there if there is not None and there.is_of(made.written) else await upload(destination, job, made)

    return asyncio.run(upload_missing())
