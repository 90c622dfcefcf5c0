"""Emulated accelerators: processes that take a batch, sleep for the step, and measure how long they waited."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import BrokenBarrierError
from typing import Literal

from streamer import Order, StreamingDataLoader, StreamingDataset
from streamer.decode.arrays import ArrayDecoder
from streamer.errors import StreamerError
from streamer.formats.names import IMAGES

# Samples whose shapes are compared: they have one shape by chance only where most have it.
_LOOKED_AT = 8
# Batches of a worker that are begun and not yet taken. With 8, as loaders have it, the memory of 12 accelerators on one
# machine takes pages from the cached data: 79 % instead of 96 % utilisation (retinanet, warm, 2026-11-23).
_PREFETCH_BATCHES = 4
# Until all processes have started and opened the data; until one that has sent its figures has closed its loader.
_START_SECONDS = 300.0
_END_SECONDS = 30.0
# Fields that stay bytes: views on the batch's memory, without a copy in the accelerator's process.
_UNDECODED = dict.fromkeys((*IMAGES, "bin", "image", "npy", "npz"), ArrayDecoder("u1"))


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of all accelerators of a run.

    Attributes:
        cache_dir, cache_bytes: cache of the engine, which the first accelerator starts; None: it chooses its limit.
        stacks: whether all samples have the same shape, so that those of a batch are one array.
        seconds: minimum duration of the measurement, after the first step.
    """

    url: str
    manifest: Path
    cache_dir: Path
    cache_bytes: int | None
    batch_size: int
    step_seconds: float
    stacks: bool
    workers: int
    seconds: float
    accelerators: int
    worker_type: Literal["process", "thread"] = "process"
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class AcceleratorResult:
    """The measurement of one accelerator from the end of its first step on: steps, and seconds including waits.

    Attributes:
        bottleneck: headline of its stall report.
    """

    steps: int
    seconds: float
    samples: int
    received_bytes: int
    bottleneck: str


@dataclass(frozen=True)
class Trial:
    """A number of accelerators, measured together.

    Attributes:
        utilisation: computing / total, over all of them; 0 if one failed.
        lowest: utilisation of the slowest one.
        bottleneck: headline of the stall report of the slowest one, or the error that ended the run.
    """

    accelerators: int
    utilisation: float
    lowest: float
    samples_per_second: float
    bytes_per_second: float
    bottleneck: str


def attempt(job: Job) -> Trial:
    """Measures all accelerators of a job at the same time."""
    # Forked from a process that has imported torch: one takes 0.1 s to start, a new interpreter 2 s of CPU.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch"])
    barrier = context.Barrier(job.accelerators)
    with ExitStack() as stack:
        receivers: list[Connection] = []
        for rank in range(job.accelerators):
            receiver, sender = context.Pipe(duplex=False)
            stack.enter_context(receiver)
            with sender:
                process = context.Process(target=_accelerate, args=(job, rank, barrier, sender))
                stack.enter_context(_running(process))
            receivers.append(receiver)
        results = [_receive(receiver) for receiver in receivers]
    errors = [result for result in results if isinstance(result, str)]
    if errors:
        # The longest text: the other accelerators only say that the barrier is broken, or that they have ended.
        return Trial(job.accelerators, 0.0, 0.0, 0.0, 0.0, bottleneck=max(errors, key=len))
    return combine([result for result in results if isinstance(result, AcceleratorResult)], job.step_seconds)


def combine(fed: list[AcceleratorResult], step_seconds: float) -> Trial:
    """Combines the measurements of accelerators that all succeeded."""
    slowest = min(fed, key=lambda one: one.steps / one.seconds)
    return Trial(
        accelerators=len(fed),
        utilisation=sum(one.steps for one in fed) * step_seconds / sum(one.seconds for one in fed),
        lowest=slowest.steps * step_seconds / slowest.seconds,
        samples_per_second=sum(one.samples / one.seconds for one in fed),
        bytes_per_second=sum(one.received_bytes / one.seconds for one in fed),
        bottleneck=slowest.bottleneck,
    )


def has_one_shape(job: Job) -> bool:
    """Whether a few samples have the same fields and shapes, so that batches can be stacked."""
    with closing(_dataset(job)) as dataset:
        places = {dataset.samples * part // _LOOKED_AT for part in range(_LOOKED_AT)}
        return len({_shapes(dataset[place]) for place in places}) == 1


def _shapes(sample: object) -> tuple[tuple[str, object], ...]:
    assert isinstance(sample, Mapping)
    return tuple((name, getattr(value, "shape", None)) for name, value in sample.items())


@contextmanager
def _running(process: BaseProcess) -> Iterator[None]:
    """Runs a process; ends it with the context."""
    process.start()
    try:
        yield
        process.join(_END_SECONDS)
    finally:
        process.terminate()
        process.join()


def _receive(receiver: Connection) -> AcceleratorResult | str:
    """Returns the message of a process: its figures, or the text of an error."""
    try:
        result: AcceleratorResult | str = receiver.recv()
    except EOFError:
        return "an accelerator's process ended without a result"
    return result


# ---------------------------------------------------------------- in the process of one accelerator


def _accelerate(job: Job, rank: int, barrier: Barrier, result: Connection) -> None:
    """Sends a `AcceleratorResult`, or the text of the error that ended it."""
    logging.getLogger("streamer").setLevel(logging.ERROR)  # what it waits for is measured
    # As a launcher sets them. The ranks of one job share its look-ahead.
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(job.accelerators), STREAMER_JOB=str(job.cache_dir))
    try:
        result.send(_measure(job, barrier))
    except StreamerError as error:
        barrier.abort()
        result.send(f"{type(error).__name__}: {error}")
    except BrokenBarrierError:
        pass  # another one has failed, and says why
    except BaseException:
        barrier.abort()
        raise
    finally:
        result.close()


def _dataset(job: Job) -> StreamingDataset:
    return StreamingDataset(
        job.url,
        manifest=job.manifest,
        storage_options=job.storage_options,
        cache_dir=job.cache_dir,
        cache_bytes=job.cache_bytes or "auto",
        engine="auto",
        decode=_UNDECODED,
        order=Order(last_batch="fill"),
    )


def _measure(job: Job, barrier: Barrier) -> AcceleratorResult:
    dataset = _dataset(job)
    loader = StreamingDataLoader(
        dataset,
        job.batch_size,
        job.workers,
        # Of one size they are stacked, and read from the cache file straight into the batch.
        collate_fn=None if job.stacks else list,
        worker_type=job.worker_type,
        prefetch_batches=_PREFETCH_BATCHES * max(1, job.workers),
        report_every=None,
    )
    with closing(dataset), loader:
        len(loader)  # opens the data
        barrier.wait(_START_SECONDS)
        return _steps(loader, job)


def _steps(loader: StreamingDataLoader, job: Job) -> AcceleratorResult:
    begun = 0.0
    steps = 0
    received_bytes = 0
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
                samples = steps * job.batch_size
                return AcceleratorResult(
                    steps=steps,
                    seconds=now - begun,
                    samples=samples,
                    received_bytes=received_bytes,
                    bottleneck=headline,
                )


def _bytes_of(item: object) -> int:
    """Returns the bytes of the arrays in a batch: a stacked one, or a list of samples."""
    if isinstance(item, Mapping):
        return sum(map(_bytes_of, item.values()))
    if isinstance(item, list):
        return sum(map(_bytes_of, item))
    return int(getattr(item, "nbytes", 0))
