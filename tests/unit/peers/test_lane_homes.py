"""Homes of chunks that one job reads by lanes."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.peers.homes import ChunkPlace, Homes, LaneHomes, LaneReaders, PeerMember

MEMBERS = [PeerMember(f"{number:032x}", f"10.0.0.{number}:7070", 1 << 30) for number in range(4)]
CHUNKS, LANES = 3000, 6
KEYS = np.random.default_rng(0).integers(0, 256, (CHUNKS, 16), dtype=np.uint8)
WORDS = KEYS.view("<u8")[:, 0]
CHUNK_LANES = np.random.default_rng(1).integers(0, LANES, CHUNKS)
# Lanes 0 to 3 have one reader each; lane 4 has members 0 and 1, lane 5 members 2 and 3, who reads three times as much.
READERS = [[(0, 8)], [(1, 8)], [(2, 8)], [(3, 8)], [(0, 4), (1, 4)], [(2, 2), (3, 6)]]
# Lane 0 was at member 3 before.
FORMER: list[list[tuple[int, int]]] = [[(3, 100)], [], [], [], [], []]


def _readers(**changes: object) -> LaneReaders:
    """Makes the readers of all lanes, with some fields changed."""
    return LaneReaders(**{"words": WORDS, "lanes": CHUNK_LANES, "readers": READERS, "former": FORMER} | changes)


def _views(**datasets: LaneReaders) -> list[LaneHomes]:
    """Returns the homes as each member sees them."""
    return [LaneHomes(me, MEMBERS, datasets) for me in MEMBERS]


def test_a_chunk_is_kept_where_its_lane_is_read() -> None:
    """A chunk's home is a reader of its lane, in proportion to what each reads; other readers know its place."""
    views = _views(train=_readers())
    places = np.stack([homes.places(WORDS) for homes in views])
    assert ((places == ChunkPlace.HOME).sum(axis=0) == 1).all()
    home = places.argmax(axis=0)
    for lane, readers in enumerate(READERS):
        mine = lane == CHUNK_LANES
        for member, share in readers:
            expected = share / sum(share for _, share in readers)
            assert (home[mine] == member).mean() == pytest.approx(expected, abs=0.05)
            assert (places[member, mine] >= ChunkPlace.READ).all()
    assert (places[3, CHUNK_LANES == 0] == ChunkPlace.SECOND).all()
    assert (places[2, CHUNK_LANES == 0] == ChunkPlace.OTHER).all()
    assert sum(homes.share for homes in views) == pytest.approx(1.0)


def test_all_members_agree_on_the_home_and_on_where_it_looks() -> None:
    """All members agree on a chunk's home and on where it is looked for next, former holders before other readers."""
    views = _views(train=_readers())
    for number in range(200):
        orders = [[member.id for member in homes.order(KEYS[number].tobytes())] for homes in views]
        assert orders == [orders[0]] * 4
        lane = CHUNK_LANES[number]
        home = MEMBERS.index(views[0].order(KEYS[number].tobytes())[0])
        assert views[home].places(WORDS[number : number + 1]) == [ChunkPlace.HOME]
        assert len(orders[0]) == (2 if lane in (0, 4, 5) else 1)
        if lane == 0:
            assert orders[0] == [MEMBERS[0].id, MEMBERS[3].id]


def test_chunks_in_no_lane_have_homes_by_their_keys() -> None:
    """Chunks in no lane, and those of other datasets, have homes by their keys."""
    homes = LaneHomes(MEMBERS[1], MEMBERS, {"part": _readers(lanes=np.where(np.arange(CHUNKS) < 100, CHUNK_LANES, -1))})
    by_keys = Homes(MEMBERS[1], MEMBERS)
    assert (homes.places(WORDS[100:]) == by_keys.places(WORDS[100:])).all()
    assert homes.order(KEYS[100].tobytes()) == by_keys.order(KEYS[100].tobytes())
    assert homes.digest == by_keys.digest


def test_of_two_selections_the_first_counts_for_others_and_both_for_the_cache() -> None:
    """For a chunk in two selections the first decides where it is looked for, and both decide what the cache keeps."""
    other = _readers(readers=[*READERS[1:], READERS[0]], former=[[]] * LANES)
    homes, alone = LaneHomes(MEMBERS[0], MEMBERS, {"train": _readers(), "val": other}), _views(train=_readers())[0]
    assert homes.order(KEYS[0].tobytes()) == alone.order(KEYS[0].tobytes())
    assert (homes.places(WORDS) == np.maximum(alone.places(WORDS), _views(val=other)[0].places(WORDS))).all()


@pytest.mark.parametrize("known", [0, CHUNKS])
def test_a_dataset_without_a_lane_has_homes_by_keys(known: int) -> None:
    """A dataset whose chunks no lane has, or that has no chunks, leaves each chunk its home by its key."""
    unread = LaneReaders(words=WORDS[:known], lanes=np.full(known, -1), readers=[], former=[])
    homes, by_keys = LaneHomes(MEMBERS[1], MEMBERS, {"val": unread}), Homes(MEMBERS[1], MEMBERS)
    assert (homes.places(WORDS) == by_keys.places(WORDS)).all()
    assert homes.order(KEYS[0].tobytes()) == by_keys.order(KEYS[0].tobytes())
    assert homes.share == by_keys.share
