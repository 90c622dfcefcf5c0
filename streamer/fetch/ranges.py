"""Decides which ranges to request for a chunk: merges extents that are close together, splits large ones. No I/O.

`fetch/fetcher.py` requests these ranges; the engine and `streamer plan` count them (`engine/datasets.py`,
`tools/planning/simulate.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from streamer.config import MiB
from streamer.manifest.model import MOST_GAP_BYTES, Extent, ObjectRecord

# S3's ETag of an object that was uploaded in N parts is "<hash>-N".
_PARTS = re.compile(r"etag:[0-9a-f]{32}-(\d+)")
# Default part sizes in bytes of aws-cli and boto3, of s5cmd, and of rclone (the least that S3 allows).
_USUAL_PARTS = (8 * MiB, 50 * MiB, 5 * MiB)


def merge_adjacent_extents(extents: Iterable[Extent]) -> list[Extent]:
    """Joins neighbouring extents of one object with small gaps (`MOST_GAP_BYTES`) between them, and drops empty ones.

    A joined extent includes the bytes of its gaps. Only extents that follow each other in `extents` are joined.
    """
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
    """Returns the number of bytes between two extents that are joined into one; None if they are not."""
    gap = extent.start - last.stop
    return gap if 0 <= gap <= MOST_GAP_BYTES and last.object == extent.object else None


def close_gaps(content: memoryview, extents: Iterable[Extent]) -> None:
    """Removes the bytes of the gaps from what was fetched, in place: the chunk's bytes are then at the beginning.

    Args:
        content: bytes of the ranges that `plan_ranges` returns for `extents`, one behind the other.
        extents: extents of the chunk.
    """
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
    """Returns the size in bytes of the parts in which an object was uploaded; None if it is unknown or was one part.

    It is inferred without a request: the ETag tells the number of parts, and uploaders use whole MiB. If several sizes
    fit, the result is a usual one (`_USUAL_PARTS`), or else the smallest power of two. If none of these fits, it is the
    number of whole MiB that does, if there is exactly one, else None.

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
    """Returns the length in bytes of the ranges of an object: `range_bytes`, or up to twice that to fit its parts.

    Ranges are whole parts of the object, or equal shares of one part. If its parts are unknown, it is `range_bytes`.

    Source: AWS, "Performance guidelines for Amazon S3": byte-range fetches aligned to the parts.
    """
    part = part_bytes(target)
    if part is None:
        return range_bytes
    if part <= range_bytes:
        return -(-range_bytes // part) * part
    return next(part // share for share in range(part // range_bytes, 0, -1) if part % share == 0)


def pieces(extent: Extent, range_bytes: int) -> Iterator[Extent]:
    """Yields ranges of one to two times `range_bytes` that cover an extent; an extent below that is one range.

    They are cut at multiples of `range_bytes` in the object. The last cut may lie elsewhere, so that the last range is
    not too short.
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
    """Returns the ranges to request for a chunk's extents, in order.

    Their bytes, one behind the other, are the chunk's bytes with small gaps between, which `close_gaps` removes.

    Args:
        extents: extents of the chunk.
        range_bytes: length of a range to aim at.
    """
    planned: list[Extent] = []
    for extent in merge_adjacent_extents(extents):
        if extent.stop - extent.start < 2 * range_bytes:  # most extents, for which a generator would be too expensive
            planned.append(extent)
        else:
            planned.extend(pieces(extent, step_bytes(extent.object, range_bytes)))
    return planned
