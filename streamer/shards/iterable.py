"""Shards of samples that a program makes: written one after the other, while threads upload earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import msgspec

from streamer.errors import PackError
from streamer.executors.runner import Runner, run_all
from streamer.shards.destination import Destination
from streamer.shards.job import Job
from streamer.shards.outputs.writer import SampleTaker, shard_writer
from streamer.shards.receipts import Receipt
from streamer.shards.spool import spool_folder, spooled
from streamer.shards.task import Made, add_sample, receipt_there, upload

# Another one is written meanwhile; each is a file in the folder for temporary files.
_UPLOADS_AT_ONCE = 2
NO_SAMPLES = "the iterable gives no samples"


class _Upload(msgspec.Struct, frozen=True):
    """A shard to be uploaded."""

    job: Job
    made: Made
    options: Mapping[str, object]


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
        closing: dict[int, ExitStack] = {}
        made = _made(samples, job, shard_bytes, options, lambda number: files.enter_context(_opened(closing, number)))
        for receipt in run_all(Runner(threads, _UPLOADS_AT_ONCE), _upload, made):
            closing[receipt.shard].close()
            receipts[receipt.shard] = receipt
            on_shard(receipt)
    if not receipts:
        raise PackError(NO_SAMPLES)
    return receipts


def _opened(closing: dict[int, ExitStack], number: int) -> ExitStack:
    """Closes the file of a shard after its upload, or at the end."""
    return closing.setdefault(number, ExitStack())


def _made(
    samples: Iterable[Mapping[str, Any]],
    job: Job,
    shard_bytes: int,
    options: Mapping[str, object],
    opened: Callable[[int], ExitStack],
) -> Iterator[_Upload]:
    numbered = enumerate(samples)
    number = 0
    following = next(numbered, None)
    while following is not None:
        path = opened(number).enter_context(spooled(spool_folder(job), number))
        with shard_writer(job, path) as writer:
            while following is not None and writer.filled < shard_bytes:
                ordinal, sample = following
                take_sample(writer, sample, ordinal)
                following = next(numbered, None)
            made = Made(number, path, writer.finish(), writer.index)
        yield _Upload(job, made, options)
        number += 1


def take_sample(writer: SampleTaker, sample: Mapping[str, Any], ordinal: int) -> None:
    """Passes a sample to a writer.

    Raises:
        PackError: it cannot be written, or is not a dict.
    """
    if not isinstance(sample, Mapping):
        raise PackError(f"sample {ordinal} is a {type(sample).__name__}, not a dict of fields")
    add_sample(writer, sample, ordinal, f"sample {ordinal} of the iterable")


def _upload(task: _Upload) -> Receipt:
    return asyncio.run(_uploaded(task))


async def _uploaded(task: _Upload) -> Receipt:
    async with Destination(task.job.url, task.options) as destination:
        there = await receipt_there(destination, task.job, task.made.number)
        if there is not None and there.is_of(task.made.written):
            return there
        return await upload(destination, task.job, task.made)
