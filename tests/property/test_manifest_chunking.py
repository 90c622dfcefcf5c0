"""Whatever the sizes: every sample once, chunks within their bounds, and one new file changes about one chunk."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streamer.manifest.chunking import OBJECTS_PER_CHUNK, cut_object, hash_keys, pack_in_order, pack_objects

CHUNK_BYTES = 10_000
Pack = Callable[[NDArray[np.uint64], NDArray[np.int64], int], tuple[NDArray[np.int64], NDArray[np.int64]]]
sizes = st.lists(st.one_of(st.just(0), st.integers(1, 3000), st.integers(5000, 40_000)), max_size=400)


def packed(lengths: dict[str, int], pack: Pack = pack_objects) -> list[frozenset[str]]:
    names = sorted(lengths)
    hashes = hash_keys([name.encode() for name in names])
    order, first = pack(hashes, np.array([lengths[n] for n in names], np.int64), CHUNK_BYTES)
    assert sorted(order.tolist()) == list(range(len(names)))
    return [frozenset(names[i] for i in order[a:b]) for a, b in pairwise(first.tolist())]


@given(sizes, st.sampled_from([pack_objects, pack_in_order]))
def test_every_object_is_in_one_chunk_of_bounded_size(lengths, pack):
    """A chunk of several objects has at most 1.5 chunk_bytes and 512 objects; larger objects are alone."""
    named = {f"k{i}": length for i, length in enumerate(lengths)}
    chunks = packed(named, pack)
    assert all(chunks)
    for chunk in chunks:
        if len(chunk) > 1:
            assert sum(named[n] for n in chunk) <= 1.5 * CHUNK_BYTES
            assert len(chunk) <= OBJECTS_PER_CHUNK
            assert all(named[n] <= CHUNK_BYTES for n in chunk)


@given(sizes, st.integers(0, 20_000), st.integers())
def test_one_new_file_changes_one_chunk(lengths, size, number):
    """A new file changes or divides the chunk it falls into, and every other chunk stays as it was."""
    before = {f"k{i}": length for i, length in enumerate(lengths)}
    name = f"new{number}"
    old, new = set(packed(before)), set(packed({**before, name: size}))
    gone, come = old - new, new - old
    assert len(gone) <= 1
    assert frozenset.union(frozenset(), *come) == frozenset.union(frozenset(), *gone) | {name}


@given(st.integers(0, 2**32))
def test_a_thousand_new_files_change_few_chunks(seed):
    """Growth by 1 % leaves most chunks, so most of a cache, as they are."""
    drawn = np.random.default_rng(seed)
    before = {f"{seed}/{i}": int(size) for i, size in enumerate(drawn.integers(100, 900, 5000))}
    after = {**before, **{f"{seed}/new{i}": 500 for i in range(50)}}
    old, new = set(packed(before)), set(packed(after))
    assert len(old - new) <= 50


@given(sizes)
def test_objects_can_keep_their_order(lengths):
    """Objects that are packed in order keep the order of the listing, in a number of chunks that their bytes bound."""
    order, first = pack_in_order(
        hash_keys([b"%d" % i for i in range(len(lengths))]), np.array(lengths, np.int64), 10_000
    )
    assert order.tolist() == list(range(len(lengths)))
    assert len(first) <= 3 + 3 * sum(lengths) / 10_000 + 2 * sum(length > 10_000 for length in lengths)


@pytest.mark.parametrize("spread", [(100, 900), (0, 2)])
def test_in_order_a_new_file_changes_few_chunks(spread):
    """A new file among objects packed in order changes at most four chunks on average.
    The cuts behind the file are found again; objects of no size are included.
    """
    drawn = np.random.default_rng(5)
    before = {f"{i:05}": int(size) for i, size in enumerate(drawn.integers(*spread, 20_000))}
    old = set(packed(before, pack_in_order))
    changed = [
        len(old - set(packed({**before, f"{place:05}x": 500}, pack_in_order))) for place in range(7, 20_000, 1999)
    ]
    assert sum(changed) / len(changed) <= 4
    assert len(old) > 38


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20_000)), min_size=1, max_size=200),
    st.integers(0, 100_000),
)
def test_a_container_is_cut_into_all_its_samples(steps, rest):
    """The chunks, extents and starts of a container cover exactly its samples' bytes, without gaps between samples.
    No chunk of several samples exceeds twice its size.
    """
    position, starts, stops = 0, [], []
    for gap, length in steps:
        starts.append(position + gap * 512)
        stops.append(starts[-1] + length)
        position = stops[-1]
    cut = cut_object(np.array(starts), np.array(stops), position + rest, CHUNK_BYTES)
    assert cut.first_sample[0] == 0
    assert cut.first_sample[-1] == len(starts)
    assert (np.diff(cut.first_sample) > 0).all()
    for c in range(cut.chunks):
        mine = range(cut.first_sample[c], cut.first_sample[c + 1])
        where = [b for i in mine for b in (starts[i], stops[i])]
        rows = slice(cut.first_extent[c], cut.first_extent[c + 1])
        covered = zip(cut.extent_start[rows].tolist(), cut.extent_stop[rows].tolist(), strict=True)
        assert [edge for extent in covered for edge in extent] == joined(where)
        lengths = [stops[i] - starts[i] for i in mine]
        assert cut.sample_start[mine.start : mine.stop].tolist() == np.cumsum([0, *lengths[:-1]]).tolist()
        assert cut.chunk_bytes[c] == sum(lengths)
        assert len(mine) == 1 or cut.chunk_bytes[c] <= 2 * CHUNK_BYTES


def joined(edges: list[int]) -> list[int]:
    """Start, stop, start, stop ... without the places where one range ends as the next begins."""
    found: list[int] = []
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if found and found[-1] == start:
            found[-1] = stop
        else:
            found += [start, stop]
    return found
