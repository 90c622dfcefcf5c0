"""Tests of what the ranks of a growing dataset agree on: a wait for another rank ends, also where the store fails."""

from __future__ import annotations

import time

import pytest

from streamer.errors import StateError
from streamer.loader.kinds.growing.growth import POLL_SECONDS, Offers


class Store(dict[str, str]):
    """Stands for a process group's store, as far as offers use it: a dict in this process.

    It has neither waits nor timeouts.
    """

    looks = 0

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        self.looks += 1
        return all(key in self for key in keys)


class Lost(Store):
    """Stands for a store whose connection ends at the first look."""

    def check(self, keys: list[str]) -> bool:
        raise ConnectionResetError("the store is gone")


def offers_of(store: Store, rank: int = 0, world: int = 2, seconds: float = 60.0) -> Offers:
    return Offers(store, "here", rank, world, timeout_seconds=seconds)


def answer(offers: Offers, number: int, cohorts: int) -> int | None:
    """Returns what is known after one look more."""
    time.sleep(POLL_SECONDS)
    return offers.agree_on(number, cohorts)


def test_the_least_of_all_ranks_counts():
    """Ranks agree on the least offer of all as soon as each has made one; the first offer of a rank counts."""
    store = Store()
    ranks = [offers_of(store, rank, 3) for rank in range(3)]
    assert [ranks[rank].agree_on(3, cohorts) for rank, cohorts in ((0, 7), (1, 5))] == [None, None]
    assert answer(ranks[0], 3, 2) is None
    assert ranks[2].agree_on(3, 6) is None
    assert [answer(offers, 3, 1) for offers in ranks] == [5, 5, 5]


def test_a_new_session_gets_the_same_answer():
    """A new session gets the answer that rank 0 gave before, in a session that ended before it knew."""
    store = Store({"here/3/1": "5"})
    offers = offers_of(store)
    assert [offers.agree_on(3, 7), answer(offers, 3, 0)] == [5, 5]


def test_the_store_is_asked_now_and_then():
    """The store is asked at intervals, although the feeder asks after each event."""
    store = Store()
    offers = offers_of(store)
    begun = time.monotonic()
    for _ in range(1000):
        assert offers.agree_on(3, 7) is None
    assert store.looks <= 2 + 2 * (time.monotonic() - begun) / POLL_SECONDS


@pytest.mark.parametrize(("rank", "said", "silent"), [(0, [0], "1, 2"), (1, [1], "0, 2"), (1, [0, 1, 2], "0")])
def test_a_rank_that_says_nothing_is_named(rank: int, said: list[int], silent: str):
    """Ranks that make no offer within the time of the process group are named.

    Where all have made one it is rank 0, which answers.
    """
    store = Store({f"here/3/{other}": "5" for other in said})
    offers = offers_of(store, rank, 3, 0.01)
    assert offers.agree_on(3, 7) is None
    time.sleep(0.02)
    with pytest.raises(StateError, match=f"ranks {silent} have not said within 0 s"):
        offers.agree_on(3, 7)


def test_time_in_which_nothing_looks_does_not_count(monkeypatch: pytest.MonkeyPatch):
    """The time between two looks at the store does not count as waiting for other ranks.

    A session may end before the answer, and the next one begin an hour later: the other ranks may be as late.
    """
    offers = offers_of(Store())
    assert offers.agree_on(3, 7) is None
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    assert offers.agree_on(3, 7) is None


def test_a_store_that_fails_ends_the_wait():
    """A store that fails ends the wait with a `StateError` that has the store's message.

    Regression: an error that torch had not raised ended the wait, and the feeder did not hear of it.
    """
    with pytest.raises(StateError, match="cannot agree on round 3: the store is gone"):
        offers_of(Lost()).agree_on(3, 7)
