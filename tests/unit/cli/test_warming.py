"""`streamer warm`: which chunks it chooses, in which slices, how fast; nothing is fetched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np

from streamer.cache.policy.table import charge, draw_ranks, to_keys
from streamer.cli.warm_command import summary
from streamer.cli.warming import Pace, Warmed, cut, file_bytes, plan
from streamer.formats.chunkfile import CRC_BYTES, HEADER_BYTES
from streamer.manifest.table import Manifest
from streamer.peers.homes import ChunkPlace, Homes, PeerMember

CHUNKS = 40


def _manifest() -> Manifest:
    """Stands for a manifest of chunks of 1000 bytes and two samples, some keys ending in zeros; it has no files."""
    keys = np.random.default_rng(3).integers(0, 256, (CHUNKS, 16), np.uint8)
    keys[5, 12:] = 0
    lengths, samples = np.full(CHUNKS, 1000), np.full(CHUNKS, 2)
    return cast(
        Manifest,
        SimpleNamespace(chunk_keys=keys, chunk_local_bytes=lengths, chunk_samples=samples, chunks=CHUNKS),
    )


def _size() -> int:
    return HEADER_BYTES + 1000 + 2 * CRC_BYTES


def test_what_fits_is_what_the_cache_would_keep() -> None:
    """Warming chooses the chunks of the highest ranks that fit, which no epoch evicts."""
    manifest = _manifest()
    chosen = plan(manifest, set(), room_bytes=10 * charge(_size()))
    ranks = draw_ranks(to_keys(manifest.chunk_keys))
    assert chosen.chunks.tolist() == np.argsort(-ranks)[:10].tolist()
    assert (chosen.present_chunks, chosen.missing_chunks) == (0, 30)
    assert file_bytes(manifest).tolist() == [_size()] * CHUNKS


def test_among_peers_the_chunks_of_this_engine_come_first() -> None:
    """Among peers each engine warms the chunks at home there first, so that two together read every chunk once."""
    manifest, members = _manifest(), [PeerMember("a"), PeerMember("b")]
    chosen = []
    for me, other in (members, members[::-1]):
        homes = Homes(me, [other])
        own = homes.places(to_keys(manifest.chunk_keys).view("<u8").reshape(-1, 2)[:, 0]) == ChunkPlace.HOME
        room = int(own.sum()) * charge(_size())
        chosen.append(plan(manifest, set(), room, places=homes.places).chunks.tolist())
        assert sorted(chosen[-1]) == np.flatnonzero(own).tolist()
    assert sorted(chosen[0] + chosen[1]) == list(range(CHUNKS))


def test_what_is_there_is_left_alone_and_counts() -> None:
    """Cached chunks are not fetched again and count as present, also with a key that ends in zero bytes."""
    manifest = _manifest()
    present = {manifest.chunk_keys[number].tobytes() for number in (5, 6, 7)}
    chosen = plan(manifest, present, room_bytes=10 * charge(_size()))
    assert (chosen.present_chunks, len(chosen.chunks), chosen.missing_chunks) == (3, 7, 30)
    assert not {5, 6, 7} & set(chosen.chunks.tolist())


def test_chunks_of_layers_take_no_room() -> None:
    """Chunks of layers count as present and take no bytes of the limit."""
    manifest = _manifest()
    below = frozenset(manifest.chunk_keys[number].tobytes() for number in (5, 6, 7))
    chosen = plan(manifest, set(), 10 * charge(_size()), below)
    assert (chosen.present_chunks, len(chosen.chunks), chosen.missing_chunks) == (3, 10, 27)
    assert not {5, 6, 7} & set(chosen.chunks.tolist())


def test_a_full_cache_needs_nothing() -> None:
    """A cache with more chunks present than fit needs none to be fetched."""
    manifest = _manifest()
    present = {key.tobytes() for key in manifest.chunk_keys}
    chosen = plan(manifest, present, room_bytes=charge(_size()))
    assert (chosen.present_chunks, len(chosen.chunks), chosen.missing_chunks) == (CHUNKS, 0, 0)


def test_an_export_takes_all_beginning_with_what_is_there() -> None:
    """An export takes all chunks, the cached ones first, before they are evicted."""
    manifest = _manifest()
    present = {manifest.chunk_keys[number].tobytes() for number in (5, 6)}
    chosen = plan(manifest, present, room_bytes=None)
    assert sorted(chosen.chunks.tolist()) == list(range(CHUNKS))
    assert set(chosen.chunks[:2].tolist()) == {5, 6}


def test_slices_have_a_limit_or_one_chunk() -> None:
    """Slices have at most the limit of bytes or one chunk, and each chunk is in one of them."""
    slices = list(cut(np.array([3, 3, 3, 20, 1, 1]), 7))
    assert [(part.start, part.stop) for part in slices] == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(cut(np.array([], np.int64), 7)) == []


def test_a_pace_waits_for_what_came_too_early() -> None:
    """A pace of 100 bytes per second waits another 1.5 s after 250 bytes in one second, and without a rate never."""
    clock, waits = [0.0], []
    pace = Pace(100, now=lambda: clock[0], sleep=waits.append)
    clock[0] = 1.0
    pace.hold(250)
    pace.hold(100)
    assert waits == [1.5]
    assert pace.slice_bytes(1 << 40) == 100
    Pace(0, now=lambda: 0.0, sleep=waits.append).hold(10**12)
    assert waits == [1.5]


def test_a_slice_leaves_most_of_a_small_cache_free() -> None:
    """A slice is a sixteenth of the limit, at most 256 MiB."""
    assert Pace(0).slice_bytes(1600) == 100
    assert Pace(0).slice_bytes(1 << 40) == 256 << 20


def test_the_summary_says_what_the_epochs_will_hit() -> None:
    """The summary tells local and fetched chunks, and what share of every epoch will be hits."""
    manifest = _manifest()
    chosen = plan(manifest, {manifest.chunk_keys[5].tobytes()}, room_bytes=10 * charge(_size()))
    lines = summary(chosen, Warmed(chunks=9, local_chunks=10, total_bytes=9 * _size(), fetched_bytes=9000), 2.0)
    assert lines[0] == "10 of 40 chunks are local; 9.0 kB fetched, 4.5 kB/s"
    assert lines[1].startswith("30 chunks have no room: 25% of every epoch will be hits")
