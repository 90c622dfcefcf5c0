"""The errors of formats: which object or library, where, why, and what to do."""

from __future__ import annotations

from streamer.errors import ConfigError, ManifestError
from streamer.manifest.model import ObjectRecord


def damaged(record: ObjectRecord, reason: str, offset: int, remedy: str = "write it again") -> ManifestError:
    """An object whose bytes are not what they should be; `Index(on_error="skip")` leaves it out."""
    where = f"{reason} (at byte {offset} of {record.size})"
    return ManifestError(
        f"{record.url} is damaged: {where}; {remedy}, or leave such objects out "
        "(Index(on_error='skip'), --index-errors skip)",
        url=record.url,
        offset=offset,
        size=record.size,
        reason=where,
    )


def check_filled(record: ObjectRecord) -> None:
    """Refuses an object without a byte, as a writer that was killed leaves it.

    Raises:
        ManifestError: it is empty.
    """
    if not record.size:
        raise damaged(record, "it is empty", 0, "delete it if it has no samples")


def refused(record: ObjectRecord, what: str, offset: int = 0) -> ManifestError:
    """An object that this format does not read."""
    return ManifestError(
        f"{record.url} {what} (at byte {offset} of {record.size})", url=record.url, offset=offset, size=record.size
    )


def not_importable(what: str, extra: str, error: ImportError) -> ConfigError:
    """A library that an engine needs to decode a format: what needs which one, and the extra that installs it."""
    return ConfigError(
        f"{what}, which cannot be imported where the engine runs: pip install 'streamer-data[{extra}]' ({error})",
        field="format",
    )


def contradicts(index: ObjectRecord, record: ObjectRecord, what: str) -> ManifestError:
    """An index file that does not belong to the object beside it."""
    return ManifestError(
        f"{index.url} is no index of {record.url} ({record.size} bytes): {what}; write it again, or delete it",
        url=index.url,
        object=record.url,
        size=record.size,
    )
