"""Decides which ranges to request for a chunk: merges what is close together, splits what is large. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from streamer.config import MiB
from streamer.manifest.model import MOST_GAP_BYTES, Extent, ObjectRecord

# S3's ETag of an object of N parts is "<hash>-N".
_PARTS = re.compile(r"etag:[0-9a-f]{32}-(\d+)")
# Default part sizes of uploaders: aws-cli and boto3, then s5cmd, rclone, and the least that S3 allows.
_USUAL_PARTS = (8 * MiB, 50 * MiB, 5 * MiB)


def merge_adjacent_extents(extents: Iterable[Extent]) -> list[Extent]:
    """Joins extents of one object that follow each other, with the bytes of small gaps; drops empty ones."""
    joined: list[Extent] = []
    for extent in extents:
        if extent.length == 0:
            continue
        last = joined[-1] if joined else None
        if last is not None and _gap(last, extent) is not None:
            joined[-1] = Extent(last.object, last.start, extent.stop)
        else:
            joined.append(extent)
    return joined


def _gap(last: Extent, extent: Extent) -> int | None:
    """Returns the number of bytes between two extents that one range takes together; None if each has its own."""
    gap = extent.start - last.stop
    return gap if 0 <= gap <= MOST_GAP_BYTES and last.object == extent.object else None


def close_gaps(content: memoryview, extents: Iterable[Extent]) -> None:
    """Moves the bytes of the extents together, in place: `content` has those of `plan_ranges`, with the gaps."""
    at = stop = 0
    last: Extent | None = None
    for extent in extents:
        if extent.length == 0:
            continue
        at += 0 if last is None else _gap(last, extent) or 0
        if at > stop:
            content[stop : stop + extent.length] = content[at : at + extent.length]
        at = at + extent.length
        stop = stop + extent.length
        last = extent


def part_bytes(target: ObjectRecord) -> int | None:
    """Returns the size of the parts in which an object was uploaded, or None if it is unknown or there is one part.

    It is inferred without a request: the ETag tells the number of parts, and uploaders use whole MiB. If several sizes
    fit, it is a usual one, or else the smallest power of two; if none of these fits, only a size without alternative.

    Source: AWS, "Checking object integrity": the ETag of a multipart upload.
    """
    found = _PARTS.fullmatch(target.version)
    count = int(found[1]) if found else 0
    if count < 2 or target.size < count:
        return None
    least = -(-target.size // count)
    largest = -(-target.size // (count - 1)) - 1
    for size in (*_USUAL_PARTS, *(MiB << power for power in range(13))):
        if least <= size <= largest:
            return size
    only = -(-least // MiB) * MiB
    return only if only <= largest < only + MiB else None


def step_bytes(target: ObjectRecord, range_bytes: int) -> int:
    """Returns the length of the ranges of an object, up to twice `range_bytes`: whole parts, or equal shares of one.

    Source: AWS, "Performance guidelines for Amazon S3": byte-range fetches aligned to the parts.
    """
    part = part_bytes(target)
    if part is None:
        return range_bytes
    if part <= range_bytes:
        return -(-range_bytes // part) * part
    return next(part // share for share in range(part // range_bytes, 0, -1) if part % share == 0)


def pieces(extent: Extent, range_bytes: int) -> Iterator[Extent]:
    """Cuts an extent into ranges of one to two times `range_bytes`.

    Cuts lie on multiples of `range_bytes` in the object; a short first run is joined to the next one, and the last cut
    moves if it would leave a short end, so no range is shorter than `range_bytes` unless the extent is.
    """
    start = extent.start
    while extent.stop - start >= 2 * range_bytes:
        cut = (start // range_bytes + 1) * range_bytes
        if cut - start < range_bytes:
            cut += range_bytes
        cut = min(cut, extent.stop - range_bytes)
        yield Extent(extent.object, start, cut)
        start = cut
    yield Extent(extent.object, start, extent.stop)


def plan_ranges(extents: Sequence[Extent], range_bytes: int) -> list[Extent]:
    """Returns the ranges to request; their concatenation is the chunk's bytes with its small gaps, see `close_gaps`."""
    planned: list[Extent] = []
    for extent in merge_adjacent_extents(extents):
        if extent.stop - extent.start < 2 * range_bytes:  # most extents, for which a generator would be too expensive
            planned.append(extent)
        else:
            planned.extend(pieces(extent, step_bytes(extent.object, range_bytes)))
    return planned
