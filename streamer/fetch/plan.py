"""What to request for a chunk, as pure functions: merge what touches, split what is large."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from streamer.manifest.model import Extent


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


def pieces(extent: Extent, range_bytes: int) -> Iterator[Extent]:
    """Cuts an extent into ranges of `range_bytes` up to twice that.

    Cuts lie on multiples of `range_bytes` in the object, where uploaded parts usually begin (AWS: "use byte-range
    fetches aligned to the parts"); a short first run is joined to its neighbour, and the last cut moves where it
    would leave a short end, so no range is shorter than `range_bytes` unless the extent is.
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


def requests(extents: Sequence[Extent], range_bytes: int) -> list[Extent]:
    """The ranges to request, whose concatenation is the chunk's bytes."""
    planned: list[Extent] = []
    for extent in merged(extents):
        if extent.stop - extent.start < 2 * range_bytes:  # most: no generator for them
            planned.append(extent)
        else:
            planned.extend(pieces(extent, range_bytes))
    return planned
