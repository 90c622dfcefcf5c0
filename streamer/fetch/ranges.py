"""What to request for a chunk, as pure functions: merge what touches, split what is large."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from streamer.config import MiB
from streamer.manifest.model import Extent, ObjectRecord

# S3 calls an object of N parts "<hash>-N".
_PARTS = re.compile(r"etag:[0-9a-f]{32}-(\d+)")
# What uploaders take unless told otherwise: aws-cli and boto3, then s5cmd, rclone, the least that S3 allows.
_USUAL_PARTS = (8 * MiB, 50 * MiB, 5 * MiB)


def merged(extents: Iterable[Extent]) -> list[Extent]:
    """Joins neighbours of one object that touch, in order; drops empty ones."""
    joined: list[Extent] = []
    for extent in extents:
        if extent.length == 0:
            continue
        last = joined[-1] if joined else None
        if last is not None and last.stop == extent.start and last.object == extent.object:
            joined[-1] = Extent(last.object, last.start, extent.stop)
        else:
            joined.append(extent)
    return joined


def part_bytes(target: ObjectRecord) -> int | None:
    """How large the parts are that an object was uploaded in; None: not known, or of one part.

    Guessed without a request: the ETag tells how many there are, and uploaders take whole MiB. Of several sizes that
    fit, a usual one, else the smallest power of two; where neither fits, only a size without rival.

    Source: AWS, "Checking object integrity": the ETag of a multipart upload.
    """
    found = _PARTS.fullmatch(target.version)
    count = int(found[1]) if found else 0
    if count < 2 or target.size < count:
        return None
    least, most = -(-target.size // count), -(-target.size // (count - 1)) - 1
    for size in (*_USUAL_PARTS, *(MiB << power for power in range(13))):
        if least <= size <= most:
            return size
    only = -(-least // MiB) * MiB
    return only if only <= most < only + MiB else None


def step_bytes(target: ObjectRecord, range_bytes: int) -> int:
    """Length of the ranges of an object, `range_bytes` up to twice that: whole parts of it, or equal shares of a part.

    Source: AWS, "Performance guidelines for Amazon S3": byte-range fetches aligned to the parts.
    """
    part = part_bytes(target)
    if part is None:
        return range_bytes
    if part <= range_bytes:
        return -(-range_bytes // part) * part
    return next(part // share for share in range(part // range_bytes, 0, -1) if part % share == 0)


def pieces(extent: Extent, range_bytes: int) -> Iterator[Extent]:
    """Cuts an extent into ranges of `range_bytes` up to twice that.

    Cuts lie on multiples of `range_bytes` in the object; a short first run is joined to its neighbour, and the last
    cut moves where it would leave a short end, so no range is shorter than `range_bytes` unless the extent is.
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
    """The ranges to request, whose concatenation is the chunk's bytes."""
    planned: list[Extent] = []
    for extent in merged(extents):
        if extent.stop - extent.start < 2 * range_bytes:  # most: no generator for them
            planned.append(extent)
        else:
            planned.extend(pieces(extent, step_bytes(extent.object, range_bytes)))
    return planned
