"""The errors of formats: which object or library, where, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamer.errors import ConfigError, ManifestError
from streamer.manifest.model import ObjectRecord


class DamagedError(ValueError):
    """Raised by parsers for bytes that are not what they should be; `offset` is the place of the damage in them."""

    def __init__(self, reason: str, offset: int = 0) -> None:
        super().__init__(reason)
        self.offset = offset


class UnreadError(DamagedError):
    """Raised by parsers for data of a kind that is not read."""


@contextmanager
def errors_of(record: ObjectRecord, remedy: str = "write it again", *, of_one: bool = False) -> Iterator[None]:
    """Turns errors of a parser into those of an object, in which their offsets are; raises ManifestError.

    `of_one`: see `make_refusal`.
    """
    try:
        yield
    except UnreadError as error:
        raise make_refusal(record, str(error), error.offset, of_one=of_one) from error
    except DamagedError as error:
        raise make_damage_error(record, str(error), error.offset, remedy) from error


_LEAVE_OUT = "leave such objects out (Index(damaged='skip'), --damaged skip)"


def make_damage_error(record: ObjectRecord, reason: str, offset: int, remedy: str = "write it again") -> ManifestError:
    """Makes the error of an object with the wrong bytes; `Index(damaged="skip")` leaves it out."""
    where = f"{reason} (at byte {offset} of {record.size})"
    return ManifestError(
        f"{record.url} is damaged: {where}; {remedy}, or {_LEAVE_OUT}",
        url=record.url,
        offset=offset,
        size=record.size,
        reason=where,
    )


def check_not_empty(record: ObjectRecord) -> None:
    """Refuses an object without a byte, as a writer that was killed leaves it; raises ManifestError."""
    if not record.size:
        raise make_damage_error(record, "it is empty", 0, "delete it if it has no samples")


def check_table(record: ObjectRecord) -> None:
    """Refuses a table without a byte, which cannot be left out; raises ManifestError."""
    if not record.size:
        raise make_refusal(record, "is empty: write it again")


def make_refusal(record: ObjectRecord, what: str, offset: int = 0, *, of_one: bool = False) -> ManifestError:
    """Makes the error of an object that this format does not read.

    `of_one`: the others may well be read, so that `Index(damaged="skip")` leaves it out.
    """
    where = f"{what} (at byte {offset} of {record.size})"
    more = f"; {_LEAVE_OUT}" if of_one else ""
    error = ManifestError(f"{record.url} {where}{more}", url=record.url, offset=offset, size=record.size)
    if of_one:
        error.details["reason"] = where
    return error


@contextmanager
def require_extra(what: str, extra: str) -> Iterator[None]:
    """Imports a library that the extra installs; raises ConfigError, which begins with `what`, if it is missing."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{what}, which cannot be imported where the engine runs: pip install 'streamer-data[{extra}]' ({error})",
            field="format",
        ) from error
