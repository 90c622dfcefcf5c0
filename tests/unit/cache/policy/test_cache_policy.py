"""Single decisions of the cache policy, each as docs/cache.md describes it; chunks are keys without files."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from streamer.cache.policy.answers import Admit, CachePart, Hit, Wait
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.cache.policy.sessions import SessionOpening
from streamer.cache.policy.table import charge
from streamer.cache.policy.victims import BATCH
from streamer.errors import CacheError, CacheFullError

LENGTH = 4096
COST = charge(LENGTH)


def key_of(dataset: str, chunk: int) -> bytes:
    return f"{dataset}{chunk:03}".encode().ljust(16, b"\0")


def policy_of(chunks: int, settling: bool = False, **datasets: int) -> CachePolicy:
    """Makes a policy whose limit is this many chunks, with datasets by name and length."""
    policy = CachePolicy(chunks * COST, settling=settling)
    for name, count in datasets.items():
        policy.add_dataset(name, [LENGTH] * count, [key_of(name, chunk) for chunk in range(count)])
    return policy


def fetch(policy: CachePolicy, session: str, chunk: int) -> Admit:
    policy.look_ahead(session, chunk)
    answer = policy.need(session, chunk)
    assert isinstance(answer, Admit)
    policy.publish(answer.key)
    return answer


def use(policy: CachePolicy, session: str, chunk: int) -> None:
    fetch(policy, session, chunk)
    assert policy.open(session, chunk)
    policy.release(session, chunk)


def test_a_chunk_is_fetched_once_for_all() -> None:
    """A second session waits for the first one's fetch and then hits; a failed fetch frees its reserved bytes."""
    policy = policy_of(10, a=20)
    for name in ("s", "t"):
        policy.open_session(name, "j", "a", COST, COST)
        policy.look_ahead(name, 3)
    first = policy.need("s", 3)
    assert first == Admit(key_of("a", 3), CachePart.KEPT)
    assert policy.need("t", 3) == Wait(first.key, fetching=True)
    policy.drop_fetch(first.key)
    assert policy.statistics().kept_bytes == 0
    again = policy.need("t", 3)
    assert isinstance(again, Admit)
    policy.publish(again.key)
    assert policy.need("s", 3) == Hit(again.key)


def test_kept_fills_first_then_transit() -> None:
    """The first chunks are kept until the limit less staging is full, and the next ones are in transit."""
    policy = policy_of(10, a=40)
    policy.open_session("s", "j", "a", COST, 2 * COST)
    policy.start_epoch("s", range(40))
    staging = policy.statistics().staging_bytes
    kept = (10 * COST - staging) // COST
    places = [fetch(policy, "s", chunk).place for chunk in range(kept + 2)]
    assert places == [CachePart.KEPT] * kept + [CachePart.TRANSIT] * 2


def ranks_of(policy: CachePolicy, count: int) -> list[int]:
    return [int(policy._table.rank[policy._table.find(key_of("a", chunk))]) for chunk in range(count)]


def test_a_selected_chunk_replaces_an_evictable_unselected_one() -> None:
    """A selected chunk is kept at once in place of the lowest rank; an unselected one passes through transit."""
    policy = policy_of(20, a=40)
    policy.open_session("s", "j", "a", COST, COST)
    by_rank = sorted(range(40), key=ranks_of(policy, 40).__getitem__)
    room = (20 * COST - policy.statistics().staging_bytes) // COST
    for chunk in by_rank[5 : 5 + room]:
        use(policy, "s", chunk)
    assert policy.statistics().kept_chunks == room
    assert fetch(policy, "s", by_rank[0]) == Admit(key_of("a", by_rank[0]), CachePart.TRANSIT)
    assert fetch(policy, "s", by_rank[39]) == Admit(
        key_of("a", by_rank[39]), CachePart.KEPT, (key_of("a", by_rank[5]),)
    )
    freed = policy.release("s", by_rank[0])
    assert (freed.victims, freed.promoted) == ((key_of("a", by_rank[0]),), ())


def test_a_held_chunk_that_is_not_chosen_makes_room_by_a_flag() -> None:
    """A kept chunk that a look-ahead holds moves to transit for a selected one, and leaves after its use."""
    policy = policy_of(20, a=40)
    policy.open_session("s", "j", "a", COST, COST)
    by_rank = sorted(range(40), key=ranks_of(policy, 40).__getitem__)
    room = (20 * COST - policy.statistics().staging_bytes) // COST
    for chunk in by_rank[40 - room - 1 : -1]:
        use(policy, "s", chunk)
    lowest = by_rank[40 - room - 1]
    policy.look_ahead("s", lowest)
    assert isinstance(policy.need("s", lowest), Hit)
    assert fetch(policy, "s", by_rank[39]) == Admit(key_of("a", by_rank[39]), CachePart.KEPT)
    assert policy.statistics().transit_chunks == 1
    assert policy.open("s", lowest)
    assert policy.release("s", lowest).victims == (key_of("a", lowest),)


def test_what_is_chosen_follows_limit_and_sessions() -> None:
    """The selected chunks are the highest ranks that fit the quota of the current limit; a finished job has none."""
    policy = policy_of(20, a=40)
    policy.open_session("s", "j", "a", COST, COST)
    rows = range(40)
    ranks = sorted(ranks_of(policy, 40), reverse=True)

    def selected() -> list[int]:
        return sorted((int(policy._table.rank[row]) for row in rows if policy._table.is_selected(row)), reverse=True)

    room = (20 * COST - policy.statistics().staging_bytes) // COST
    assert selected() == ranks[:room]
    policy.set_limit(10 * COST)
    room = (10 * COST - policy.statistics().staging_bytes) // COST
    assert selected() == ranks[:room]
    policy.set_limit(60 * COST)
    assert selected() == ranks
    policy.close_session("s")
    assert selected() == []


def test_s_is_the_design_s_formula() -> None:
    """Staging is 1.1 (1 - f) (open + look-ahead) + 2 chunks, and nothing without sessions."""
    policy = policy_of(10, a=40)
    assert policy.statistics().staging_bytes == 0
    policy.open_session("s", "j", "a", COST, 2 * COST)
    assert policy.statistics().staging_bytes == int(1.1 * 0.75 * 3 * COST) + 2 * COST
    policy.close_session("s")
    assert policy.statistics().staging_bytes == 0


def test_s_has_room_for_two_deviations_of_the_misses() -> None:
    """Staging holds the misses and two standard deviations, or a tenth and two chunks more where that is larger.
    In a window of 64 chunks at f = 1/4 the misses are 48 +- 3.5, so staging is 55 chunks."""
    policy = policy_of(100, a=400)
    policy.open_session("s", "j", "a", 16 * COST, 48 * COST)
    assert policy.statistics().staging_bytes == max(int(1.1 * 48 * COST) + 2 * COST, int((48 + 2 * 12**0.5) * COST))
    policy = policy_of(300, a=400)
    policy.open_session("s", "j", "a", 16 * COST, 48 * COST)
    assert policy.statistics().staging_bytes == int(16 * COST + 2 * 12**0.5 * COST) > int(1.1 * 16 * COST) + 2 * COST


def test_a_boundless_look_ahead_stages_no_more_than_its_dataset() -> None:
    """A session stages at most its dataset, so a small one evicts no kept chunk of a large one beside it."""
    policy = policy_of(20, train=40, valid=2)
    policy.connect("j")
    policy.open_session("t", "j", "train", COST, COST)
    for chunk in range(12):
        use(policy, "t", chunk)
    policy.close_session("t")
    kept = policy.statistics().kept_chunks
    assert kept == 12
    assert policy.live_bytes("valid") == 42 * COST
    policy.open_session("v", "j", "valid", COST, 1 << 40)
    now = policy.statistics()
    assert now.kept_chunks == kept
    assert now.staging_bytes <= 4 * COST


def test_what_a_session_without_value_has_open_stays_when_it_closes() -> None:
    """Transit chunks of a closed session stay for one that continues there, and leave after its use of them."""
    policy = policy_of(10, a=40)
    window = SessionOpening("s", "a", 7 * COST, 0, 0.0)
    policy.open_sessions("j", [window])
    for chunk in range(6):
        assert fetch(policy, "s", chunk).place is CachePart.TRANSIT
        assert policy.open("s", chunk)
    assert policy.close_session("s").victims == ()
    ahead = np.arange(6, dtype=np.uint32)
    assert policy.open_sessions("j", [structs.replace(window, session="t", ahead=ahead)]).victims == ()
    for chunk in range(6):
        policy.look_ahead("t", chunk)
        assert policy.need("t", chunk) == Hit(key_of("a", chunk))
        assert policy.open("t", chunk)
    # What is used up leaves, so that fresh chunks have room.
    assert policy.release("t", 0).victims == (key_of("a", 0),)


def test_chunks_of_a_finished_job_go_first_the_longest_unused_before() -> None:
    """Chunks of finished jobs are evicted before those of a live one, the dataset that is unused longest first."""
    policy = policy_of(10, a=4, b=3, c=20)
    for name, count in (("a", 4), ("b", 3)):
        policy.open_session(name, name, name, COST, COST)
        for chunk in range(count):
            use(policy, name, chunk)
        policy.close_session(name)
    victims = list(policy.open_session("s", "j", "c", COST, COST).victims)
    policy.start_epoch("s", range(20))
    for chunk in range(6):
        victims += fetch(policy, "s", chunk).victims
    assert [victim[:1] for victim in victims] == [b"a"] * 4 + [b"b"] * 3


def test_a_job_s_data_are_live_while_a_connection_is_open() -> None:
    """Chunks of a connected job are not evicted between two of its sessions as those of a finished job are."""
    policy = policy_of(14, a=6, b=6)
    policy.connect("j")
    policy.open_session("s", "j", "a", COST, COST)
    for chunk in range(6):
        use(policy, "s", chunk)
    policy.close_session("s")
    policy.open_session("t", "j", "b", COST, COST)
    for chunk in range(6):
        assert not any(key.startswith(b"a") for key in fetch(policy, "t", chunk).victims)
    policy.disconnect("j")


def test_a_dataset_below_its_quota_takes_from_one_above() -> None:
    """The dataset of a second live job evicts chunks of the first one until both have an equal share."""
    policy = policy_of(20, a=40, b=40)
    policy.open_session("s", "j", "a", COST, COST)
    for chunk in range(20):
        use(policy, "s", chunk)
    policy.open_session("t", "k", "b", COST, COST)
    for chunk in range(20):
        use(policy, "t", chunk)
    table = policy._table
    kept = {group.name: group.kept_bytes // COST for group in table.groups}
    assert abs(kept["a"] - kept["b"]) <= 2


def test_a_shared_chunk_belongs_to_the_live_dataset() -> None:
    """A new version of a dataset keeps the chunks it shares with the old one, whose others are evicted first."""
    policy = CachePolicy(20 * COST)
    shared = [key_of("x", chunk) for chunk in range(5)]
    policy.local([*shared, *(key_of("old", chunk) for chunk in range(5))], [LENGTH] * 10, "old")
    policy.add_dataset("new", [LENGTH] * 30, [*shared, *(key_of("new", chunk) for chunk in range(25))])
    policy.open_session("s", "j", "new", COST, COST)
    policy.start_epoch("s", range(30))
    victims = [victim for chunk in range(5, 17) for victim in fetch(policy, "s", chunk).victims]
    assert {victim[:3] for victim in victims} == {b"old"}
    policy.look_ahead("s", 0)
    assert policy.need("s", 0) == Hit(shared[0])


def test_a_head_of_line_pushes_out_what_hurts_least() -> None:
    """Look-ahead waits while transit is full, and a blocking need evicts one transit chunk that is not open."""
    policy = policy_of(6, a=40)
    policy.open_session("s", "j", "a", 4 * COST, 0)
    policy.start_epoch("s", range(40))
    chunk = 0
    while True:
        policy.look_ahead("s", chunk)
        answer = policy.need("s", chunk)
        if isinstance(answer, Wait):
            break
        policy.publish(answer.key)
        chunk += 1
    assert answer == Wait(key_of("a", chunk), fetching=False)
    assert policy.open("s", 0)
    last_place = policy.need("s", chunk, blocking=True)
    assert last_place == Admit(key_of("a", chunk), CachePart.TRANSIT)
    policy.look_ahead("s", chunk + 1)
    forced = policy.need("s", chunk + 1, blocking=True)
    assert isinstance(forced, Admit)
    assert len(forced.victims) == 1
    assert forced.victims[0] not in (key_of("a", 0), key_of("a", 1))


def test_nothing_is_evicted_while_settling() -> None:
    """No need evicts a chunk until the policy has settled, though the limit holds.
    Clients of an earlier engine open their chunks again first."""
    policy = policy_of(4, settling=True, a=20)
    policy.local([key_of("old", chunk) for chunk in range(6)], [LENGTH] * 6, "old")
    assert len(policy.fit().victims) == 2
    policy.open_session("s", "j", "a", COST, COST)
    policy.look_ahead("s", 0)
    assert policy.need("s", 0, blocking=True) == Wait(key_of("a", 0), fetching=False)
    assert policy.settle().victims
    assert isinstance(policy.need("s", 0, blocking=True), Admit)


def test_a_smaller_limit_at_restart_evicts_the_oldest_dataset_first() -> None:
    """`fit` after `local` evicts chunks of the oldest dataset until the rest is within the limit."""
    policy = CachePolicy(5 * COST)
    policy.local([key_of("old", chunk) for chunk in range(4)], [LENGTH] * 4, "old")
    policy.local([key_of("new", chunk) for chunk in range(4)], [LENGTH] * 4, "new")
    victims = policy.fit().victims
    assert [victim[:3] for victim in victims] == [b"old"] * 3
    assert policy.statistics().kept_bytes == 5 * COST


def test_layers_cost_nothing_until_they_are_wrong() -> None:
    """A chunk of a layer is a hit without a charge; once it is forgotten, it is fetched and charged like any other."""
    policy = CachePolicy(10 * COST)
    policy.below([key_of("a", 0)])
    policy.add_dataset("a", [LENGTH] * 4, [key_of("a", chunk) for chunk in range(4)])
    policy.open_session("s", "j", "a", COST, COST)
    policy.look_ahead("s", 0)
    assert policy.need("s", 0) == Hit(key_of("a", 0))
    assert policy.statistics().kept_bytes == 0
    assert policy.forget(key_of("a", 0))
    assert not policy.forget(key_of("a", 0))
    assert isinstance(policy.need("s", 0), Admit)
    assert policy.statistics().kept_bytes == COST


def test_a_silent_session_loses_its_look_ahead_not_its_open_chunks() -> None:
    """A silent session keeps its open chunks protected; its next call protects its look-ahead again."""
    policy = policy_of(10, a=40)
    policy.open_session("s", "j", "a", COST, COST)
    for chunk in (0, 1):
        fetch(policy, "s", chunk)
    policy.open("s", 0)
    policy.silence("s")
    assert policy._table.referenced == {policy._table.find(key_of("a", 0)): 1}
    policy.look_ahead("s", 2)
    assert len(policy._table.referenced) == 3


def test_opened_says_no_to_a_chunk_that_is_gone() -> None:
    """`open` returns False for a chunk that was forgotten, and the session needs it again."""
    policy = policy_of(10, a=4)
    policy.open_session("s", "j", "a", COST, COST)
    fetch(policy, "s", 0)
    policy.forget(key_of("a", 0))
    assert not policy.open("s", 0)
    assert isinstance(policy.need("s", 0), Admit)


def test_a_stuck_head_is_told_the_numbers() -> None:
    """A blocking need raises CacheFullError when sessions have so many chunks open that none can be evicted."""
    policy = policy_of(3, a=10)
    policy.open_session("s", "j", "a", COST, 0)
    for chunk in range(3):
        policy.look_ahead("s", chunk)
        answer = policy.need("s", chunk, blocking=True)
        policy.publish(answer.key)
        policy.open("s", chunk)
    policy.look_ahead("s", 3)
    with pytest.raises(CacheFullError, match="are open in 1 sessions"):
        policy.need("s", 3, blocking=True)


def test_misuse_is_an_error() -> None:
    """The policy raises CacheError for taken names, unknown datasets, unannounced chunks and unadmitted fetches."""
    policy = policy_of(10, a=4)
    policy.open_session("s", "j", "a", COST, COST)
    with pytest.raises(CacheError, match="name taken"):
        policy.open_session("s", "j", "a", COST, COST)
    with pytest.raises(CacheError, match="not added"):
        policy.open_session("t", "j", "none", COST, COST)
    with pytest.raises(CacheError, match="not announced"):
        policy.need("s", 0)
    with pytest.raises(CacheError, match="does not reference"):
        policy.release("s", 0)
    with pytest.raises(CacheError, match="was not admitted"):
        policy.publish(key_of("a", 0))
    policy.close_session("nobody")


def test_statistics_and_hit_rate() -> None:
    """Statistics count each use of a chunk once, however often its need is asked, and each fetch once."""
    policy = policy_of(10, a=4)
    assert policy.statistics().hit_rate == 0.0
    policy.open_session("s", "j", "a", COST, COST)
    use(policy, "s", 0)
    policy.look_ahead("s", 0)
    for _ in range(3):
        policy.need("s", 0)
    now = policy.statistics()
    assert (now.needs, now.hits, now.hit_rate) == (2, 1, 0.5)
    assert "1 sessions" in repr(policy)


def test_many_chunks_are_no_burden() -> None:
    """A use of one chunk among 200,000 computes no array of the length of the table."""
    count = 200_000
    keys = np.random.default_rng(0).integers(0, 256, (count, 16), dtype=np.uint8)
    policy = CachePolicy(count // 2 * COST)
    policy.add_dataset("a", np.full(count, LENGTH), keys)
    policy.open_session("s", "j", "a", COST, COST)
    policy.start_epoch("s", np.arange(count))
    calls = 0

    class Counting(np.ndarray):
        def __array_ufunc__(self, *args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            return NotImplemented

    policy._table.state = policy._table.state.view(Counting)
    for chunk in range(1000):
        use(policy, "s", chunk)
    assert calls == 0


def test_a_lower_limit_is_reached_at_once_however_many_chunks_are_scheduled() -> None:
    """A limit far below what is kept holds after one call, also where a session still has all kept chunks ahead."""
    chunks = 3 * BATCH
    policy = policy_of(2 * chunks, a=chunks)
    policy.open_session("s", "j", "a", COST, COST)
    for chunk in range(chunks):
        use(policy, "s", chunk)
    policy.start_epoch("s", range(chunks))
    policy.set_limit(BATCH // 4 * COST)
    assert policy.statistics().kept_bytes <= BATCH // 4 * COST
