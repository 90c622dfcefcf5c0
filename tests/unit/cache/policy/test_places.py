"""What the policy keeps among peers: chunks at home here first, then those it is second for, then the others.
Places are given by a table; no peer runs."""

from __future__ import annotations

import numpy as np
import pytest

from streamer.cache.policy.answers import Admit, CachePart, Wait
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.table import Places, Words, charge
from streamer.peers.homes import ChunkPlace

CHUNK_BYTES = 100_000
CHUNKS = 400
KEYS = np.random.default_rng(3).integers(0, 256, (CHUNKS, 16), dtype=np.uint8)


def placed(home: int, second: int) -> Places:
    """Returns places where the chunks of the lowest numbers are at home here, and the next ones second."""
    words = KEYS.view("<u8")[:, 0]
    places = np.full(CHUNKS, ChunkPlace.OTHER)
    places[:home] = ChunkPlace.HOME
    places[home : home + second] = ChunkPlace.SECOND
    known = dict(zip(words.tolist(), places.tolist(), strict=True))

    def of(asked: Words) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Looks up the place of each chunk by the first word of its key."""
        return np.array([known[word] for word in asked.tolist()], np.int64)

    return of


def policy_of(chunks: float) -> CachePolicy:
    """Makes a policy with a limit of so many chunks and one session that has nothing open yet."""
    policy = CachePolicy(int(chunks * charge(CHUNK_BYTES)))
    policy.add_dataset("d", [CHUNK_BYTES] * CHUNKS, KEYS)
    policy.open_session("s", "job", "d", CHUNK_BYTES, CHUNK_BYTES)
    return policy


def selected(policy: CachePolicy) -> set[int]:
    """Returns the numbers of the chunks that stay once they are fetched."""
    return {number for number in range(CHUNKS) if policy.is_selected(KEYS[number].tobytes())}


def read(policy: CachePolicy, number: int) -> None:
    """Uses a chunk once, from its need to its release."""
    policy.look_ahead("s", number)
    answer = policy.need("s", number, blocking=True)
    if isinstance(answer, Admit):
        policy.publish(answer.key)
    policy.open("s", number)
    policy.release("s", number)


@pytest.mark.parametrize(("room", "home", "second"), [(60, 100, 100), (120, 100, 100), (240, 100, 100)])
def test_homes_are_selected_first(room: int, home: int, second: int) -> None:
    """All chunks at home here are selected before any that this engine is second for, and those before any other."""
    policy = policy_of(room)
    policy.place(placed(home, second))
    found = selected(policy)
    count = [len(found & set(part)) for part in (range(100), range(100, 200), range(200, CHUNKS))]
    assert sum(count) == pytest.approx(room, abs=8)
    assert count[0] >= min(home, room - 8)
    assert count[1] == 0 or count[0] == home
    assert count[2] == 0 or count[1] == second


def test_without_peers_ranks_are_as_they_were() -> None:
    """Places of peers change which chunks are selected, and the last peer's leaving restores the selection."""
    policy = policy_of(60)
    before = selected(policy)
    policy.place(placed(100, 100))
    assert selected(policy) != before
    policy.place(None)
    assert selected(policy) == before


def test_datasets_that_come_later_have_places_as_well() -> None:
    """A dataset that is added after the places are known selects its chunks by them."""
    policy = CachePolicy(60 * charge(CHUNK_BYTES))
    policy.place(placed(100, 100))
    policy.add_dataset("d", [CHUNK_BYTES] * CHUNKS, KEYS)
    policy.open_session("s", "job", "d", CHUNK_BYTES, CHUNK_BYTES)
    assert selected(policy) <= set(range(100))


def test_a_chunk_at_home_takes_the_place_of_one_that_peers_keep() -> None:
    """A chunk at home here evicts one that a peer keeps, even where a running epoch still needs that one."""
    policy = policy_of(60)
    policy.place(placed(50, 0))
    policy.start_epoch("s", np.arange(CHUNKS))
    for number in range(300, CHUNKS):
        read(policy, number)
    # All that is kept is at home elsewhere, and a second job has all of it ahead.
    policy.open_session("t", "other job", "d", CHUNK_BYTES, CHUNK_BYTES)
    policy.start_epoch("t", np.arange(CHUNKS))
    policy.look_ahead("s", 0)
    answer = policy.need("s", 0)
    assert isinstance(answer, Admit)
    assert answer.place is CachePart.KEPT
    assert policy.statistics().scheduled_evicted_chunks == len(answer.victims) == 1


def test_a_chunk_of_others_never_takes_the_place_of_one_at_home() -> None:
    """A chunk that is at home elsewhere waits or passes through transit, and evicts no selected chunk of this home."""
    policy = policy_of(40)
    policy.place(placed(100, 0))
    for number in range(100):
        read(policy, number)
    policy.start_epoch("s", np.arange(CHUNKS))
    kept = selected(policy)
    policy.look_ahead("s", 300)
    answer = policy.need("s", 300)
    assert isinstance(answer, Wait) or (answer.place, answer.victims) == (CachePart.TRANSIT, ())
    assert all(policy.is_local(KEYS[number].tobytes()) for number in kept)
