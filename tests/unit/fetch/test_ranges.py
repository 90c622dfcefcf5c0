"""The ranges that are requested for a chunk."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamer.config import MiB
from streamer.fetch.ranges import close_gaps, merge_adjacent_extents, part_bytes, pieces, plan_ranges, step_bytes
from streamer.manifest.model import MOST_GAP_BYTES, Extent, ObjectRecord

A = ObjectRecord("s3://b/a", 10_000, "etag:1")
B = ObjectRecord("s3://b/b", 10_000, "etag:2")


def test_close_extents_of_one_object_are_one_request() -> None:
    """Extents are one request across a small gap, and not across a large gap, another object or version."""
    newer = ObjectRecord("s3://b/a", 10_000, "etag:9")
    far = 30 + MOST_GAP_BYTES + 1
    extents = [Extent(A, 0, 10), Extent(A, 10, 20), Extent(A, 21, 30), Extent(A, far, 2000)]
    others = [Extent(B, 2000, 2040), Extent(newer, 2040, 2050)]
    assert merge_adjacent_extents(extents + others) == [Extent(A, 0, 30), Extent(A, far, 2000), *others]


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(0, 3000), st.integers(0, 300)), max_size=12))
def test_gaps_are_closed(places: list[tuple[ObjectRecord, int, int]]) -> None:
    """After gaps are closed the fetched bytes are those of the extents, in any order, overlapping or far apart."""
    held = {A: np.arange(3300, dtype=np.uint8).tobytes(), B: bytes(reversed(range(256))) * 13}
    extents = [Extent(record, start, start + length) for record, start, length in places]

    def content(every: list[Extent]) -> bytes:
        return b"".join(held[each.object][each.start : each.stop] for each in every)

    fetched = bytearray(content(plan_ranges(extents, 10_000)))
    close_gaps(memoryview(fetched), extents)
    wanted = content(extents)
    assert fetched[: len(wanted)] == wanted


def test_empty_extents_are_never_requested() -> None:
    """An empty extent is not requested and does not separate its neighbours."""
    assert plan_ranges([Extent(A, 0, 10), Extent(B, 5, 5), Extent(A, 10, 20)], 100) == [Extent(A, 0, 20)]
    assert plan_ranges([Extent(A, 7, 7)], 100) == []


def test_order_is_kept() -> None:
    """Extents that go backwards stay separate and in order, because a chunk's bytes are their concatenation."""
    extents = [Extent(A, 50, 60), Extent(A, 0, 50)]
    assert plan_ranges(extents, 1000) == extents


def test_cuts_lie_on_multiples() -> None:
    """Ranges are cut at multiples of their length, where uploaded parts begin, and short ends join their neighbour."""
    assert list(pieces(Extent(A, 5, 3995), 1000)) == [Extent(A, 5, 2000), Extent(A, 2000, 3995)]
    assert list(pieces(Extent(A, 0, 1999), 1000)) == [Extent(A, 0, 1999)]
    assert list(pieces(Extent(A, 0, 2000), 1000)) == [Extent(A, 0, 1000), Extent(A, 1000, 2000)]


@given(start=st.integers(0, 5000), length=st.integers(1, 5000), size=st.integers(1, 700))
def test_pieces_tile_the_extent(start: int, length: int, size: int) -> None:
    """The pieces of an extent cover it once; each is as long as a range and shorter than two, unless it is alone."""
    found = list(pieces(Extent(A, start, start + length), size))
    assert (found[0].start, found[-1].stop) == (start, start + length)
    assert all(left.stop == right.start for left, right in pairwise(found))
    assert all(piece.length < 2 * size for piece in found)
    assert len(found) == 1 or all(piece.length >= size for piece in found)


def uploaded(size: int, parts: int) -> ObjectRecord:
    """Returns an object as S3 names one that was uploaded in parts."""
    return ObjectRecord("s3://b/big", size, f"etag:{'0' * 32}-{parts}")


@pytest.mark.parametrize(
    ("size", "parts", "expected"),
    [
        (100 * MiB, 13, 8 * MiB),
        (100 * MiB + 1, 21, 5 * MiB),
        (1000 * MiB, 20, 50 * MiB),
        (1000 * MiB, 63, 16 * MiB),
        (999 * MiB, 42, 24 * MiB),
        (100 * MiB, 1, None),
        (100 * MiB, 2, 50 * MiB),
        (120 * MiB, 2, 64 * MiB),
        (10 * MiB, 11, None),
    ],
)
def test_parts_are_guessed_from_the_etag(size: int, parts: int, expected: int | None) -> None:
    """The length of uploaded parts is guessed from their number in the ETag and the size, as whole MiB."""
    assert part_bytes(uploaded(size, parts)) == expected


@pytest.mark.parametrize("version", ["etag:" + "0" * 32, "generation:17-3", "etag:1a2b-3c-5"])
def test_other_versions_tell_nothing_about_parts(version: str) -> None:
    """A plain hash, a generation and an opaque tag that ends in a number tell nothing about uploaded parts."""
    assert part_bytes(ObjectRecord("s3://b/a", 100 * MiB, version)) is None


@given(part=st.integers(5, 200), parts=st.integers(2, 40), range_mib=st.sampled_from([1, 4, 8, 16]))
def test_steps_fit_the_parts(part: int, parts: int, range_mib: int) -> None:
    """A range holds whole uploaded parts or a part whole ranges; no range is too short, or twice as long."""
    target = uploaded(part * MiB * parts - 1, parts)
    found, step = part_bytes(target), step_bytes(target, range_mib * MiB)
    assert range_mib * MiB <= step < 2 * range_mib * MiB
    assert found is None or step % found == 0 or found % step == 0


def test_ranges_end_where_parts_end() -> None:
    """Ranges end where uploaded parts end: parts of 5 MiB give ranges of two parts instead of 8 MiB across three."""
    target = uploaded(100 * MiB, 20)
    found = plan_ranges([Extent(target, 0, 100 * MiB)], 8 * MiB)
    assert [piece.stop for piece in found] == [10 * MiB * number for number in range(1, 11)]
