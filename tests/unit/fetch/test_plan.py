"""Which ranges a chunk needs."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from streamer.fetch.plan import merged, pieces, requests
from streamer.manifest.model import Extent, ObjectRecord

A = ObjectRecord("s3://b/a", 10_000, "etag:1")
B = ObjectRecord("s3://b/b", 10_000, "etag:2")


def test_touching_extents_of_one_object_are_one_request() -> None:
    """Neighbours join; a gap, another object or another version does not."""
    newer = ObjectRecord("s3://b/a", 10_000, "etag:9")
    extents = [Extent(A, 0, 10), Extent(A, 10, 20), Extent(A, 21, 30), Extent(B, 30, 40), Extent(newer, 40, 50)]
    assert merged(extents) == [Extent(A, 0, 20), Extent(A, 21, 30), Extent(B, 30, 40), Extent(newer, 40, 50)]


def test_empty_extents_are_never_requested() -> None:
    """A sample of 0 bytes costs nothing and separates nothing."""
    assert requests([Extent(A, 0, 10), Extent(B, 5, 5), Extent(A, 10, 20)], 100) == [Extent(A, 0, 20)]
    assert requests([Extent(A, 7, 7)], 100) == []


def test_order_is_kept() -> None:
    """Extents that go backwards stay as they are: the chunk's bytes are their concatenation."""
    extents = [Extent(A, 50, 60), Extent(A, 0, 50)]
    assert requests(extents, 1000) == extents


def test_cuts_lie_on_multiples() -> None:
    """Ranges begin where uploaded parts do; short ends join their neighbour."""
    assert list(pieces(Extent(A, 5, 3995), 1000)) == [Extent(A, 5, 2000), Extent(A, 2000, 3995)]
    assert list(pieces(Extent(A, 0, 1999), 1000)) == [Extent(A, 0, 1999)]
    assert list(pieces(Extent(A, 0, 2000), 1000)) == [Extent(A, 0, 1000), Extent(A, 1000, 2000)]


@given(start=st.integers(0, 5000), length=st.integers(1, 5000), size=st.integers(1, 700))
def test_pieces_tile_the_extent(start: int, length: int, size: int) -> None:
    """Nothing is lost, nothing asked twice, nothing is shorter than a range or as long as two, unless it is alone."""
    found = list(pieces(Extent(A, start, start + length), size))
    assert (found[0].start, found[-1].stop) == (start, start + length)
    assert all(left.stop == right.start for left, right in pairwise(found))
    assert all(piece.length < 2 * size for piece in found)
    assert len(found) == 1 or all(piece.length >= size for piece in found)
