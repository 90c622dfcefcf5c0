"""Reads the ends of Parquet files: their footers, and what stands before them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from streamer.errors import ManifestError
from streamer.formats.failures import DamagedError, UnreadError, damaged, refused
from streamer.formats.reading import Reading, read_range, read_ranges
from streamer.manifest.model import ObjectRecord
from streamer.manifest.protocols import Need
from streamer.tables.parquet.footer import ENCRYPTED_MAGIC, MAGIC, TAIL_BYTES, Footer, read_footer

# The first read of a file: most footers are shorter, and the page indexes stand before them.
FIRST_READ = 64 << 10
_MOST_FOOTER_BYTES = 32 << 20


class Tail(msgspec.Struct, frozen=True):
    """The end of a file, as far as it was read, and where its footer begins."""

    content: bytes
    start: int
    footer_start: int

    @property
    def footer(self) -> bytes:
        """The footer."""
        return self.content[self.footer_start - self.start : -TAIL_BYTES]


def read_end(record: ObjectRecord, known: bytes = b"") -> Reading[tuple[Tail, Footer]]:
    """Reads the footer, and what stands before it."""
    content = known or bytes((yield from read_range(*_first(record), record)))
    tail = yield from _whole(record, content)
    try:
        return tail, read_footer(tail.footer, tail.footer_start)
    except UnreadError as error:
        raise refused(record, f"has {error}", tail.footer_start, of_one=True) from error
    except DamagedError as error:
        raise damaged(record, f"in the footer, {error}", tail.footer_start + error.offset) from error


def read_tails(records: Sequence[ObjectRecord]) -> Reading[list[Tail | ManifestError]]:
    """Reads the ends of some files at the same time; of a file that is damaged, returns the error."""
    filled = [record for record in records if record.size]
    contents = yield from read_ranges([Need(*_first(record), record) for record in filled])
    ends = dict(zip((record.url for record in filled), contents, strict=True))
    found: list[Tail | ManifestError] = []
    for record in records:
        try:
            found.append((yield from _whole(record, bytes(ends.get(record.url, b"")))))
        except ManifestError as error:
            found.append(error)
    return found


def _first(record: ObjectRecord) -> tuple[int, int]:
    if record.size < len(MAGIC) + TAIL_BYTES:
        return 0, record.size
    return max(0, record.size - FIRST_READ), record.size


def _whole(record: ObjectRecord, content: bytes) -> Reading[Tail]:
    """Reads the rest of a footer that is longer than the first read."""
    size = record.size
    if size < len(MAGIC) + TAIL_BYTES:
        raise damaged(record, f"{size} bytes are not a Parquet file", 0)
    length = _footer_length(record, content)
    start, stop = size - length - TAIL_BYTES, size - len(content)
    if start < stop:
        content = bytes((yield from read_range(max(0, start - FIRST_READ), stop, record))) + content
    return Tail(content, size - len(content), start)


def _footer_length(record: ObjectRecord, content: bytes) -> int:
    magic = content[-4:]
    size = record.size
    if magic == ENCRYPTED_MAGIC:
        raise encrypted(record)
    if magic != MAGIC:
        raise damaged(
            record,
            f"it ends with {magic!r}, not with {MAGIC!r}, so it is not a Parquet file, or cut off, or compressed as a "
            "whole (then unpack it)",
            size - 4,
        )
    length = int.from_bytes(content[-TAIL_BYTES:-4], "little")
    most = min(size - TAIL_BYTES - len(MAGIC), _MOST_FOOTER_BYTES)
    if not 0 < length <= most:
        raise damaged(record, f"its footer should have {length} bytes, and can have up to {most}", size - TAIL_BYTES)
    return length


def encrypted(record: ObjectRecord) -> ManifestError:
    """Makes the error of a file that is encrypted."""
    return refused(record, "is encrypted, which streamer does not read; write it without encryption")
