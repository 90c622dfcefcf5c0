"""One emulated accelerator: a rank that takes a batch, sleeps for the step, and measures how long it waited."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError

from streamer import StreamingDataLoader, StreamingDataset
from streamer.cli.bench.job import Fed, Job
from streamer.decode.arrays import ArrayDecoder
from streamer.errors import StreamerError
from streamer.formats.names import PICTURES

# Samples whose shapes are compared: they have one shape by chance only where most have it.
_LOOKED_AT = 8
# Batches of a worker that are begun and not yet taken. With 8, as loaders have it, the memory of 12 accelerators on one
# machine takes pages from the cached data: 79 % instead of 96 % utilisation (retinanet, warm, 2026-11-23).
_PREFETCH_BATCHES = 4
# Until all processes have started and opened the data.
_START_SECONDS = 300.0
# Fields that stay bytes: views on the batch's memory, without a copy in the accelerator's process.
_UNDECODED = dict.fromkeys((*PICTURES, "bin", "image", "npy", "npz"), ArrayDecoder("u1"))


def accelerate(job: Job, rank: int, together: Barrier, result: Connection) -> None:
    """The process of one accelerator; sends a `Fed`, or the text of the error that ended it."""
    logging.getLogger("streamer").setLevel(logging.ERROR)  # what it waits for is measured
    # As a launcher sets them. The ranks of one job share its look-ahead.
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(job.accelerators), STREAMER_JOB=str(job.cache_dir))
    try:
        result.send(_fed(job, together))
    except StreamerError as error:
        together.abort()
        result.send(f"{type(error).__name__}: {error}")
    except BrokenBarrierError:
        pass  # another one has failed, and says why
    except BaseException:
        together.abort()
        raise
    finally:
        result.close()


def has_one_shape(job: Job) -> bool:
    """A few samples have the same fields, each with one shape: batches can be stacked."""
    with closing(_dataset(job)) as dataset:
        places = {dataset.samples * part // _LOOKED_AT for part in range(_LOOKED_AT)}
        return len({_shapes(dataset[place]) for place in places}) == 1


def _shapes(sample: object) -> tuple[tuple[str, object], ...]:
    assert isinstance(sample, Mapping)
    return tuple((name, getattr(value, "shape", None)) for name, value in sample.items())


def _dataset(job: Job) -> StreamingDataset:
    return StreamingDataset(
        job.url,
        manifest=job.manifest,
        storage_options=job.storage_options,
        cache_dir=job.cache_dir,
        cache_bytes=job.cache_bytes or "auto",
        engine="auto",
        decode=_UNDECODED,
    )


def _fed(job: Job, together: Barrier) -> Fed:
    dataset = _dataset(job)
    loader = StreamingDataLoader(
        dataset,
        job.batch_size,
        job.workers,
        # Of one size they are stacked, and read from the cache file straight into the batch.
        collate_fn=None if job.stacks else list,
        worker_type=job.worker_type,
        last_batch="fill",
        prefetch_batches=_PREFETCH_BATCHES * max(1, job.workers),
        report_seconds=None,
    )
    try:
        with loader:
            len(loader)  # opens the data
            together.wait(_START_SECONDS)
            return _steps(loader, job)
    finally:
        dataset.close()


def _steps(loader: StreamingDataLoader, job: Job) -> Fed:
    begun, steps, received_bytes = 0.0, 0, 0
    while True:
        for batch in loader:
            time.sleep(job.step_seconds)
            now = time.perf_counter()
            if not begun:
                begun = now
                loader.report()  # the next one begins here
                continue
            steps += 1
            received_bytes += _bytes_of(batch)
            if now - begun >= job.seconds:
                headline = loader.report().headline
                return Fed(
                    steps=steps,
                    seconds=now - begun,
                    samples=steps * job.batch_size,
                    received_bytes=received_bytes,
                    bottleneck=headline,
                )


def _bytes_of(item: object) -> int:
    """Of the arrays in a batch: a stacked one, or a list of samples."""
    if isinstance(item, Mapping):
        return sum(map(_bytes_of, item.values()))
    if isinstance(item, list):
        return sum(map(_bytes_of, item))
    return int(getattr(item, "nbytes", 0))
