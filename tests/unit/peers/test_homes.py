"""Homes of chunks by their keys, and which members keep them."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.peers.homes import ChunkPlace, Homes, PeerMember

MEMBERS = [PeerMember(f"{number:032x}", f"10.0.0.{number}:7070", 1 << 30) for number in range(4)]
KEYS = np.random.default_rng(0).integers(0, 256, (2000, 16), dtype=np.uint8)
WORDS = KEYS.view("<u8")[:, 0]


def test_an_engine_alone_is_the_home_of_all() -> None:
    """An engine without other members is the home of all chunks."""
    homes = Homes(MEMBERS[0], ())
    assert homes.share == 1.0
    assert (homes.places(WORDS) == ChunkPlace.HOME).all()
    assert homes.order(KEYS[0].tobytes()) == [MEMBERS[0]]


def test_each_chunk_has_one_home_and_one_second_member() -> None:
    """Each chunk has one home and one second member, on which all engines that know the same members agree."""
    views = [Homes(me, MEMBERS) for me in MEMBERS]
    places = np.stack([homes.places(WORDS) for homes in views])
    assert ((places == ChunkPlace.HOME).sum(axis=0) == 1).all()
    assert ((places == ChunkPlace.SECOND).sum(axis=0) == 1).all()
    for number, key in enumerate(KEYS[:200]):
        first, second = views[0].order(key.tobytes())
        assert places[MEMBERS.index(first), number] == ChunkPlace.HOME
        assert places[MEMBERS.index(second), number] == ChunkPlace.SECOND
    assert [homes.share for homes in views] == pytest.approx([0.25] * 4, abs=0.01)


def test_the_second_member_takes_the_place_of_a_lost_home() -> None:
    """The second member of a chunk becomes its home when the home is lost."""
    before, after = Homes(MEMBERS[0], MEMBERS), Homes(MEMBERS[0], MEMBERS[:3])
    for key in KEYS[:200]:
        order = [member for member in before.order(key.tobytes()) if member != MEMBERS[3]]
        assert after.order(key.tobytes())[0] == order[0]


def test_the_address_and_small_differences_of_size_move_nothing() -> None:
    """Another address of a member and a small difference of its limit move no chunk to another home."""
    other = [PeerMember(one.id, "elsewhere:1", one.limit_bytes + (one.limit_bytes >> 5)) for one in MEMBERS]
    homes, moved = Homes(MEMBERS[1], MEMBERS), Homes(other[1], other)
    assert (homes.places(WORDS) == moved.places(WORDS)).all()
    assert homes.digest == moved.digest
