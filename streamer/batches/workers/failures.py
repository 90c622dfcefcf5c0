"""Makes the errors for samples, batches and workers that fail, and counts crashes until the run must end.

The feeder uses it (`loader/feed/feeder.py`).
"""

from __future__ import annotations

import signal

from streamer.batches.samples.cached_bytes import REREADS
from streamer.batches.workers.handle import ExitReport, Pending
from streamer.errors import IntegrityError, WorkerError

# A sample, or a batch, is not tried again after this many workers have crashed on it.
MAX_CRASHES_PER_SAMPLE = 2
# The run ends after this many crashes in a row without a finished batch.
_MAX_CRASHES_IN_A_ROW = 20
# The same, if the last worker crashed by itself before it had opened the dataset.
_MAX_START_CRASHES = 3


def add_open_hint(error: BaseException) -> BaseException:
    """Adds a note with a hint to the error of a worker that cannot open the dataset; returns the error."""
    error.add_note(
        "raised when a worker opened the dataset. Objects that a script defines are sent to workers by value, except "
        "those that pickle only by name (functools.cache, classes of C extensions): put those into a module"
    )
    return error


def add_place(error: BaseException, pending: Pending, ordinal: int) -> BaseException:
    """Adds a note with epoch and batch to an error that a worker reported; returns the error.

    The error came from a sample, or from the collate function if `ordinal` is -1.
    """
    where = "a sample" if ordinal >= 0 else "the collate function"
    error.add_note(f"raised in a worker by {where} of epoch {pending.epoch}, batch {pending.batch}")
    return error


def count_crash(pending: Pending, report: ExitReport) -> bool:
    """Counts the crash of a worker on a sample of a batch; returns whether it was the last one allowed.

    Crashes between two samples of the batch are counted together. A crash between tasks, or while another batch was
    made, is not counted.
    """
    doing = report.doing
    return doing.task == pending.task and pending.count_crash(doing.ordinal) >= MAX_CRASHES_PER_SAMPLE


def explain_crashes(pending: Pending, what: str, report: ExitReport, timeout_seconds: float) -> WorkerError:
    """Returns the error for a sample, or a batch, on which two workers crashed or exceeded the timeout.

    Args:
        pending: The batch.
        what: Text that names the sample.
        report: The end of the last worker.
        timeout_seconds: The loader's `timeout=`.
    """
    where = f"{what}, epoch {pending.epoch}, batch {pending.batch},"
    if report.timed_out:
        text = (
            f"{where} took longer than timeout={timeout_seconds:g} s in {MAX_CRASHES_PER_SAMPLE} workers, which were "
            "ended for it: raise timeout= if such samples may take longer, look for what blocks (a lock, the network) "
            "if they may not, or continue without the sample by on_error='skip'"
        )
    else:
        text = (
            f"{where} crashed {MAX_CRASHES_PER_SAMPLE} workers; the last: {report.cause}, "
            f"{report.peak_bytes >> 20} MiB at its peak. A SIGKILL that was not sent on purpose means out of memory: "
            "use fewer workers, or on_error='skip' to continue without the sample"
        )
    return WorkerError(
        text,
        ordinal=report.doing.ordinal,
        epoch=pending.epoch,
        batch=pending.batch,
        cause=report.cause,
        peak_bytes=report.peak_bytes,
    )


def explain_overdue(what: str, ordinal: int, timeout_seconds: float) -> WorkerError:
    """Returns the error for a sample that exceeds the timeout in a worker thread, which cannot be killed.

    Args:
        what: Text that names the sample.
        ordinal: Code of the sample.
        timeout_seconds: The loader's `timeout=`.
    """
    return WorkerError(
        f"{what} has taken longer than timeout={timeout_seconds:g} s in a worker thread, which cannot be "
        "killed; use worker_type='process' to have it replaced",
        ordinal=ordinal,
    )


class CrashStreak:
    """Counts the workers that have crashed since the last batch was finished."""

    def __init__(self) -> None:
        self._count = 0

    def reset(self) -> None:
        """Starts again at 0: a batch is finished, or a run begins."""
        self._count = 0

    def add(self, report: ExitReport) -> WorkerError | None:
        """Counts a crash; returns the error with which the run ends, or None if the run goes on."""
        self._count += 1
        # A SIGKILL comes from outside, at any time. A worker that ends by itself at its start does so every time.
        at_start = not report.was_ready and report.signal != signal.SIGKILL
        limit = _MAX_START_CRASHES if at_start else _MAX_CRASHES_IN_A_ROW
        if self._count < limit:
            return None
        return WorkerError(
            f"{self._count} workers crashed without finishing a batch; the last one: {report.cause}, "
            f"{report.peak_bytes >> 20} MiB at its peak. See what they wrote to stderr",
            cause=report.cause,
            peak_bytes=report.peak_bytes,
        )


def explain_unreadable(pending: Pending, chunk: int, reason: str) -> IntegrityError:
    """Returns the error for a chunk that is still missing or wrong after `REREADS` new leases.

    Args:
        pending: The batch that needs the chunk.
        chunk: Number of the chunk in the session.
        reason: What was wrong, as `ChunkUnreadableError` has it.
    """
    return IntegrityError(
        f"epoch {pending.epoch}, batch {pending.batch}: chunk {chunk} cannot be read after {REREADS} new leases: "
        f"{reason}",
        chunk=chunk,
    )
