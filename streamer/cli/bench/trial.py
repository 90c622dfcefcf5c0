"""Runs accelerators, each in a process of its own, and joins what they have measured."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from streamer.cli.bench.accelerator import accelerate
from streamer.cli.bench.job import Fed, Job, Trial, failed, joined

# A process that has sent its figures closes its loader, and ends.
_END_SECONDS = 30.0


def attempt(job: Job) -> Trial:
    """Measures all accelerators of a job at the same time."""
    # Forked from a process that has imported torch: one takes 0.1 s to start, a new interpreter 2 s of CPU.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([accelerate.__module__, "torch"])
    together = context.Barrier(job.accelerators)
    with ExitStack() as stack:
        ends: list[Connection] = []
        for rank in range(job.accelerators):
            here, there = context.Pipe(duplex=False)
            stack.enter_context(here)
            with there:
                process = context.Process(target=accelerate, args=(job, rank, together, there))
                stack.enter_context(_started(process))
            ends.append(here)
        results = [_received(end) for end in ends]
    errors = [result for result in results if isinstance(result, str)]
    if errors:
        return failed(job.accelerators, max(errors, key=len))
    return joined([result for result in results if isinstance(result, Fed)], job.step_seconds)


@contextmanager
def _started(process: BaseProcess) -> Iterator[None]:
    """The process; it is ended with the context."""
    process.start()
    try:
        yield
        process.join(_END_SECONDS)
    finally:
        process.terminate()
        process.join()


def _received(end: Connection) -> Fed | str:
    """What a process has sent: its figures, or the text of an error."""
    try:
        result: Fed | str = end.recv()
    except EOFError:
        return "an accelerator's process ended without a result"
    return result
