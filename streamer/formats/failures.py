"""Makes the errors that formats raise over an object or a missing library: where, why, and what to do.

Most formats and the readers of `media/` use it, in the index above all. Parsers raise `DamagedError` and know no
object; `errors_of` turns it into a ManifestError that names the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamer.errors import ManifestError
from streamer.manifest.model import ObjectRecord


class DamagedError(ValueError):
    """Raised by parsers for bytes that are not what they should be.

    Attributes:
        offset: the place of the damage in what is parsed, bytes; 0 if the parser does not know it.
    """

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.offset = offset


class UnreadError(DamagedError):
    """Raised by parsers for data that is in order, but of a kind that is not read."""


@contextmanager
def errors_of(record: ObjectRecord, remedy: str = "write it again", *, of_one: bool = False) -> Iterator[None]:
    """Turns a `DamagedError` that is raised within the context into a ManifestError about the object.

    The offset of the error must be one in the object.

    Args:
        record: the object that is parsed.
        remedy: the advice of an error about damage, as in `make_damage_error`.
        of_one: whether an `UnreadError` is about this object only, as in `make_refusal`.
    """
    try:
        yield
    except UnreadError as error:
        raise make_refusal(record, str(error), error.offset, of_one=of_one) from error
    except DamagedError as error:
        raise make_damage_error(record, str(error), error.offset, remedy) from error


_LEAVE_OUT = "leave such objects out (Index(damaged='skip'), --damaged skip)"


def make_damage_error(record: ObjectRecord, reason: str, offset: int, remedy: str = "write it again") -> ManifestError:
    """Makes the error of a damaged object, which `Index(damaged="skip")` leaves out.

    Args:
        record: the object.
        reason: what is wrong.
        offset: place of the damage in the object, bytes.
        remedy: an imperative clause that says what to do ("write it again").
    """
    where = f"{reason} (at byte {offset} of {record.size})"
    return ManifestError(
        f"{record.url} is damaged: {where}; {remedy}, or {_LEAVE_OUT}",
        url=record.url,
        offset=offset,
        size=record.size,
        reason=where,
    )


def check_not_empty(record: ObjectRecord) -> None:
    """Raises the error of a damaged object (ManifestError) if an object is empty, as a killed writer can leave it."""
    if not record.size:
        raise make_damage_error(record, "it is empty", 0, "delete it if it has no samples")


def check_table(record: ObjectRecord) -> None:
    """Raises ManifestError for an empty object that cannot be left out, because the whole dataset depends on it."""
    if not record.size:
        raise make_refusal(record, "is empty: write it again")


def make_refusal(record: ObjectRecord, what: str, offset: int = 0, *, of_one: bool = False) -> ManifestError:
    """Makes the error of an object that this format does not read.

    Args:
        record: the object.
        what: what is wrong, as the predicate of a sentence whose subject is the object's url ("is compressed ...").
        offset: place in the object to which the error refers, bytes.
        of_one: whether other objects of the dataset may be read well. `Index(damaged="skip")` then leaves this one out.
    """
    where = f"{what} (at byte {offset} of {record.size})"
    more = f"; {_LEAVE_OUT}" if of_one else ""
    error = ManifestError(f"{record.url} {where}{more}", url=record.url, offset=offset, size=record.size)
    if of_one:
        error.details["reason"] = where
    return error
