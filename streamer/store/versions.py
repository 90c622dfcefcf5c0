"""Makes and compares the texts that pin a read to a version: ETag, generation, version id, commit, or size and time.

All stores use it. A manifest keeps the text of each object (`ObjectRecord.version`), and every read compares it with
what the store has now.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from streamer.errors import ObjectChangedError
from streamer.manifest.model import ObjectRecord
from streamer.store.addresses.urls import shown

ETAG = "etag:"
VERSION = "version:"
GENERATION = "generation:"
COMMIT = "commit:"
STAT = "stat:"

_TIME_NAMES = ("mtime", "LastModified", "last_modified", "updated", "created")


def etag_version(etag: str) -> str:
    """Returns the version for an ETag: `etag:` and the tag without quotes. A weak tag keeps its W/ and its quotes."""
    return ETAG + (etag if etag.startswith("W/") else etag.strip('"'))


def stat_version(size: int, modified_ns: int) -> str:
    """Returns the version for a size in bytes and the time of the last change in ns, for stores without versions.

    A time of 0 means that the size alone pins the object (`pin_by_size`).
    """
    return f"{STAT}{size}:{modified_ns}"


def nanoseconds(moment: datetime | float) -> int:
    """Returns a time in nanoseconds since 1970, rounded to microseconds, which a float of seconds can hold."""
    if isinstance(moment, datetime):
        return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    return round(moment * 1e6) * 1000


def choose_version(tag: str | None, version: str | None, size: int, modified: datetime | None) -> str:
    """Returns the version for what an object store reports: by its ETag, else its version id, else size and time."""
    if tag:
        return etag_version(tag)
    if version:
        return VERSION + version
    return stat_version(size, nanoseconds(modified) if modified else 0)


def read_version(entry: Mapping[str, object]) -> str:
    """Returns the version for an entry of fsspec's `info` or `ls`, by the names that its filesystems use.

    These are an ETag, else a generation, else a commit, else size and time; what is missing counts as 0.
    """
    for name in ("ETag", "etag", "e_tag"):
        if isinstance(etag := entry.get(name), str) and etag:
            return etag_version(etag)
    if generation := entry.get("generation"):
        return f"{GENERATION}{generation}"
    if isinstance(commit := entry.get("last_commit"), Mapping):  # the Hugging Face Hub
        return f"{COMMIT}{commit['oid']}"
    size = entry.get("size")
    time_ns = 0
    for name in _TIME_NAMES:
        if isinstance(moment := entry.get(name), (datetime, float, int)):
            time_ns = nanoseconds(moment)
            break
    return stat_version(size if isinstance(size, int) else 0, time_ns)


def if_match(version: str) -> str | None:
    """Returns the value of the If-Match header that pins a version; None if it is no strong ETag (RFC 9110 13.1.1)."""
    if not version.startswith(ETAG) or version.startswith(ETAG + "W/"):
        return None
    return f'"{version.removeprefix(ETAG)}"'


def require(target: ObjectRecord, found: str) -> None:
    """Compares the version that the store has now (`found`) with that of the manifest.

    Does not compare an object that is pinned by its size. Weak and strong ETags count as equal if their text is.

    Raises:
        ObjectChangedError: they differ. The message names both.
    """
    if target.version == stat_version(target.size, 0):  # pinned by its size, which each store compares
        return
    if found != target.version and _strip_weakness(found) != _strip_weakness(target.version):
        raise make_change_error(target, found)


def _strip_weakness(version: str) -> str:
    """Returns a version without the mark of a weak ETag: a proxy may weaken a tag and leave the bytes as they are."""
    weak = ETAG + "W/"
    return ETAG + version.removeprefix(weak).strip('"') if version.startswith(weak) else version


def pin_by_size(record: ObjectRecord) -> ObjectRecord:
    """Returns the same record, pinned by its size alone."""
    return ObjectRecord(record.url, record.size, stat_version(record.size, 0))


def make_disagreement(target: ObjectRecord, read: object) -> ObjectChangedError:
    """Returns the error for an object that the store lists with the manifest's version, but reads with another one.

    Args:
        target: the object of the manifest.
        read: the version in the answer to a read, or None if the read was refused.
    """
    return ObjectChangedError(
        f"{shown(target.url)}: the store still lists the version that the manifest has, {target.version} "
        f"({target.size} bytes), but reads {f'answer {read}' if read else 'refuse it'}: to index it again does not "
        "help. Usually a gateway or proxy changes ETags: read past it, or give storage_options={'pin': 'size'} and "
        "index it again, after which objects are pinned by their size, and a change of equal size is not seen",
        url=shown(target.url),
        expected=target.version,
        actual=str(read) if read else None,
        option="pin",
    )


def make_change_error(target: ObjectRecord, found: str | None) -> ObjectChangedError:
    """Returns the error for an object that changed since it was indexed; `found`: its version now, None if unknown."""
    return ObjectChangedError(
        f"{shown(target.url)} changed since it was indexed: the manifest has {target.version} "
        f"({target.size} bytes), the store {found or 'another version'}; index it again",
        url=shown(target.url),
        expected=target.version,
        actual=found,
    )
