"""How objects, samples and ranges become chunks: sizes, cuts, extents and keys."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from streamer.errors import ConfigError
from streamer.manifest.chunking import (
    OBJECTS_PER_CHUNK,
    choose_chunk_bytes,
    chunk_key,
    cut_object,
    cut_spans,
    hash_keys,
    pack_objects,
)
from streamer.manifest.model import Codec

MiB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "whole", "chosen"),
    [
        (np.full(1000, 64 * MiB), False, 8 * MiB),
        (np.full(16, 64 * MiB), False, 2 * MiB),
        (np.full(2, MiB), False, 256 * 1024),
        (np.full(1_281_167, 110_000), True, 8 * MiB),
        (np.full(10_000, 110_000), True, 2 * MiB),
        (np.full(2000, 2**34), False, 32 * MiB),
        (np.full(20_000, 2**34), False, 64 * MiB),
    ],
)
def test_auto_chunk_bytes(sizes, whole, chosen):
    """Chunks have 8 MiB, halved to 256 KiB while there are < 512, doubled to 64 MiB while there are > 1.5 million."""
    assert choose_chunk_bytes("auto", sizes.astype(np.int64), whole) == chosen


@pytest.mark.parametrize("wanted", [0, -1, 1023, (1 << 30) + 1])
def test_chunk_bytes_out_of_range(wanted):
    """A chunk size outside its range raises ConfigError that names it."""
    with pytest.raises(ConfigError, match=f"chunk_bytes={wanted} "):
        choose_chunk_bytes(wanted, np.array([1], np.int64), True)


def pack(sizes: list[int], chunk_bytes: int) -> list[list[int]]:
    hashes = hash_keys([b"key%d" % i for i in range(len(sizes))])
    order, first = pack_objects(hashes, np.array(sizes, np.int64), chunk_bytes)
    return [order[a:b].tolist() for a, b in pairwise(first)]


def test_small_objects_share_chunks_of_about_the_size():
    """Chunks of many small objects have between 0.5 and 1.5 of the wanted size, and each object is in one of them."""
    chunks = pack([1000] * 20_000, 100_000)
    assert sorted(i for chunk in chunks for i in chunk) == list(range(20_000))
    lengths = [1000 * len(chunk) for chunk in chunks]
    assert min(lengths) >= 50_000
    assert max(lengths) <= 150_000


def test_at_most_512_objects_share_a_chunk():
    """At most 512 objects share a chunk, also when they are empty."""
    assert max(len(chunk) for chunk in pack([0] * 5000, 1 << 20)) <= OBJECTS_PER_CHUNK


def test_large_objects_are_alone():
    """An object larger than a chunk is a chunk of its own, and the small ones still share one."""
    chunks = pack([10] * 50 + [2000, 3000], 1000)
    assert [c for c in chunks if 50 in c or 51 in c] == chunks[-2:]
    assert all(len(c) == 1 for c in chunks[-2:])
    assert len(chunks) == 3


@pytest.mark.parametrize("sizes", [[], [0], [5], [5000]])
def test_few_objects(sizes):
    """A dataset of no object or of one object is packed without an error."""
    assert sorted(i for c in pack(sizes, 1000) for i in c) == list(range(len(sizes)))


def test_equal_hashes_stay_together():
    """Objects with equal hashes are packed into one chunk without an endless loop."""
    order, first = pack_objects(np.zeros(3, np.uint64), np.full(3, 900, np.int64), 1000)
    assert (sorted(order.tolist()), first.tolist()) == ([0, 1, 2], [0, 3])


def spans(*lengths: int, gap_after: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    stops = np.cumsum(lengths)
    starts = stops - lengths
    if gap_after is not None:
        starts[gap_after + 1 :] += 7
        stops[gap_after + 1 :] += 7
    return starts.astype(np.int64), stops.astype(np.int64)


def test_an_object_is_cut_into_equal_slices():
    """An object is cut into equal slices: 1,000 bytes at 300 per chunk are four of 250, not three and a rest."""
    starts, stops = spans(*[50] * 20)
    assert cut_spans(starts, stops, 1000, 300).tolist() == [0, 5, 10, 15]


def test_a_large_sample_is_alone():
    """A sample larger than a chunk is a chunk of its own."""
    starts, stops = spans(10, 10, 500, 10, 10)
    assert cut_spans(starts, stops, 540, 100).tolist() == [0, 2, 3]


def test_cuts_do_not_change_when_more_samples_follow():
    """Cuts do not depend on the samples that follow, so a chunk is complete as soon as the next one begins."""
    starts, stops = spans(*[(i * 37) % 400 + 1 for i in range(100)])
    whole = cut_spans(starts, stops, int(stops[-1]), 500).tolist()
    for known in range(1, 100):
        assert cut_spans(starts[:known], stops[:known], int(stops[-1]), 500).tolist() == [c for c in whole if c < known]


def test_extents_join_samples_that_touch():
    """Adjacent samples share an extent; a gap begins an extent, not a chunk, and starts count without it."""
    starts, stops = spans(10, 10, 10, 10, gap_after=1)
    cut = cut_object(starts, stops, 50, 1000)
    assert cut.first_sample.tolist() == [0, 4]
    assert cut.first_extent.tolist() == [0, 2]
    assert (cut.extent_start.tolist(), cut.extent_stop.tolist()) == ([0, 27], [20, 47])
    assert cut.sample_start.tolist() == [0, 10, 20, 30]
    assert cut.chunk_bytes.tolist() == [40]


def test_no_samples_no_chunks():
    """An archive without samples is cut into no chunks."""
    nothing = np.empty(0, np.int64)
    cut = cut_object(nothing, nothing, 1024, 1000)
    assert (cut.chunks, cut.first_sample.tolist(), cut.first_extent.tolist()) == (0, [0], [0])


def test_chunk_key_follows_from_everything():
    """A chunk's key depends on format, url, version, range and cuts, and nothing can be moved between these fields."""
    ranges, starts = np.array([[0, 10]], np.int64), np.array([0, 4], np.uint32)
    base = ("f", [(b"u", b"v")], ranges, starts)
    variants = [
        base,
        ("g", *base[1:]),
        ("f", [(b"u2", b"v")], ranges, starts),
        ("f", [(b"uv", b"")], ranges, starts),
        ("f", [(b"u", b"w")], ranges, starts),
        ("f", [(b"u", b"v")], ranges + 1, starts),
        ("f", [(b"u", b"v")], ranges, starts + 1),
        ("f", [(b"u", b"v")], ranges, starts[:1]),
    ]
    keys = {chunk_key(*variant) for variant in variants}
    assert len(keys) == len(variants)
    assert all(len(key) == 16 for key in keys)
    assert chunk_key(*base, codec=Codec.IDENTITY) == chunk_key(*base)
