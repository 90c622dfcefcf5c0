"""What the feeder says when something cannot be made."""

from __future__ import annotations

import signal

from streamer.errors import IntegrityError, WorkerError
from streamer.loader.workers.handle import ExitReport
from streamer.loader.workers.pending import Pending

# A sample, or a batch, that was in the hands of so many workers when they died is not tried again.
STRIKES = 2
# A chunk that is still wrong after so many new leases is an error.
REREADS = 3
# Deaths in a row without a single batch made: something is wrong with all workers.
_DEATHS = 20
_BOOT_DEATHS = 3


def unopened(error: BaseException) -> BaseException:
    """The error of a worker that could not open the data set, with what to do."""
    error.add_note(
        "raised when a worker opened the data set. What a script defines travels to workers by value, except what "
        "pickles only by name (functools.cache, classes of C extensions): put those into a module"
    )
    return error


def located(error: BaseException, pending: Pending, ordinal: int) -> BaseException:
    """The error of a sample or a batch, with its place."""
    where = f"sample {ordinal} of " if ordinal >= 0 else ""
    error.add_note(f"raised in a worker by {where}epoch {pending.epoch}, batch {pending.batch}")
    return error


def requeue(pending: Pending, report: ExitReport, skip: bool) -> WorkerError | None:
    """Decides whether a batch is made again after its worker has ended.

    Args:
        pending: the batch.
        report: how the worker ended.
        skip: a sample that ends every worker is left out.

    Returns:
        None if it is made again, else the error with which it fails.
    """
    doing = report.doing
    if doing.task != pending.task or pending.strike(doing.ordinal) < STRIKES:
        return None
    error = deadly(pending, doing.ordinal, report)
    if doing.ordinal < 0 or not skip:
        return error
    pending.left_out.add(doing.ordinal)
    pending.skipped[doing.ordinal] = str(error)
    return None


def deadly(pending: Pending, ordinal: int, report: ExitReport) -> WorkerError:
    """A sample, or a batch, that ends every worker."""
    what = f"sample {ordinal}" if ordinal >= 0 else "putting the batch together"
    return WorkerError(
        f"{what} (epoch {pending.epoch}, batch {pending.batch}) ended {STRIKES} workers; the last one: "
        f"{report.cause}, {report.peak_bytes >> 20} MiB at its peak. A SIGKILL that nobody sent means out of "
        "memory: use fewer workers, or on_error='skip' to go on without the sample",
        ordinal=ordinal,
        epoch=pending.epoch,
        batch=pending.batch,
        cause=report.cause,
        peak_bytes=report.peak_bytes,
    )


def overdue(ordinal: int, timeout_seconds: float) -> WorkerError:
    """A sample that takes too long in a worker that cannot be killed."""
    return WorkerError(
        f"sample {ordinal} has taken longer than timeout={timeout_seconds:g} s in a worker thread, which cannot be "
        "killed; use worker_type='process' to have it replaced",
        ordinal=ordinal,
    )


class Deaths:
    """Counts the workers that died since the last batch was made."""

    def __init__(self) -> None:
        self._count = 0

    def forget(self) -> None:
        """A batch was made, or a run begins."""
        self._count = 0

    def another(self, report: ExitReport) -> WorkerError | None:
        """One more; the error if it makes no sense to go on."""
        self._count += 1
        # A SIGKILL comes from outside and may strike at any time; a worker that ends by itself at start always will.
        by_itself = not report.was_ready and report.signal != signal.SIGKILL
        return hopeless(self._count, report) if self._count >= (_BOOT_DEATHS if by_itself else _DEATHS) else None


def hopeless(deaths: int, report: ExitReport) -> WorkerError:
    """Workers that die whatever they are given."""
    return WorkerError(
        f"{deaths} workers died without making a batch; the last one: {report.cause}, "
        f"{report.peak_bytes >> 20} MiB at its peak. See what they wrote to stderr",
        cause=report.cause,
        peak_bytes=report.peak_bytes,
    )


def unreadable(pending: Pending, chunk: int, reason: str) -> IntegrityError:
    """A chunk that stays wrong."""
    return IntegrityError(
        f"epoch {pending.epoch}, batch {pending.batch}: chunk {chunk} cannot be read after {REREADS} new leases: "
        f"{reason}",
        chunk=chunk,
    )
