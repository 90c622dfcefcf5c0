"""Joins half-open ranges of bytes that lie beside each other; formats describe blocks with them. Pure.

The fetcher joins the extents of a chunk by another rule, and removes the gaps after the fetch (`fetch.ranges`).
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]


def join_ranges(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Joins ranges of which one ends where the next one of the sequence begins; leaves out empty ones."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        elif stop > start:
            joined.append((start, stop))
    return tuple(joined)


def join_near_ranges(ranges: Iterable[Range], near_bytes: int) -> tuple[Range, ...]:
    """Joins ranges, ordered by their beginnings, that overlap or have less than `near_bytes` between them."""
    joined: list[Range] = []
    for start, stop in ranges:
        if joined and start - joined[-1][1] < near_bytes:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return tuple(joined)
