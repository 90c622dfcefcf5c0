"""What the feeder says when something cannot be made."""

from __future__ import annotations

from streamer.errors import IntegrityError, WorkerError
from streamer.loader.pool import Obituary
from streamer.loader.window import Pending

# A sample, or a batch, that was in the hands of so many workers when they died is not tried again.
STRIKES = 2
# A chunk that is still wrong after so many new leases is an error.
REREADS = 3


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


def deadly(pending: Pending, obituary: Obituary) -> WorkerError:
    """A sample, or a batch, that ends every worker."""
    doing = obituary.doing
    what = f"sample {doing.ordinal}" if doing.ordinal >= 0 else "putting the batch together"
    return WorkerError(
        f"{what} (epoch {pending.epoch}, batch {pending.batch}) ended {STRIKES} workers; the last one: "
        f"{obituary.cause}, {obituary.peak_bytes >> 20} MiB at its peak. A SIGKILL that nobody sent means out of "
        "memory: use fewer workers, or on_error='skip' to go on without the sample",
        ordinal=doing.ordinal,
        epoch=pending.epoch,
        batch=pending.batch,
        cause=obituary.cause,
        peak_bytes=obituary.peak_bytes,
    )


def hopeless(deaths: int, obituary: Obituary) -> WorkerError:
    """Workers that die whatever they are given."""
    return WorkerError(
        f"{deaths} workers died without making a batch; the last one: {obituary.cause}, "
        f"{obituary.peak_bytes >> 20} MiB at its peak. See what they wrote to stderr",
        cause=obituary.cause,
        peak_bytes=obituary.peak_bytes,
    )


def unreadable(pending: Pending, chunk: int, reason: str) -> IntegrityError:
    """A chunk that stays wrong."""
    return IntegrityError(
        f"epoch {pending.epoch}, batch {pending.batch}: chunk {chunk} cannot be read after {REREADS} new leases: "
        f"{reason}",
        chunk=chunk,
    )
