"""What the ranks of a growing dataset agree on: a wait for another rank ends, also where the store fails."""

from __future__ import annotations

import threading

import pytest

from streamer.errors import StateError
from streamer.loader.rank.growing.offers import StoreOffers


class Store(dict[str, str]):
    """A process group's store, as far as offers use it."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class Lost(Store):
    """Its connection ends."""

    def check(self, keys: list[str]) -> bool:
        raise ConnectionResetError("the store is gone")


def waited(store: Store, seconds: float) -> StoreOffers:
    """Offers of rank 0 of 2, once its wait has ended."""
    offers, woken = StoreOffers(store, "here", 0, 2, seconds), threading.Event()
    assert offers.agreed(3, 7, woken.set) is None
    assert woken.wait(60)
    return offers


def test_the_least_of_all_ranks_counts():
    """As soon as all of them have said theirs."""
    offers = waited(Store({"here/3/1": "5"}), 60)
    assert offers.agreed(3, 9, lambda: None) == 5
    offers.close()


def test_a_rank_that_says_nothing_is_named():
    """After the time of the process group."""
    offers = waited(Store(), 0.01)
    with pytest.raises(StateError, match="ranks 1 have not said within 0 s"):
        offers.agreed(3, 7, lambda: None)
    offers.close()


def test_a_store_that_fails_ends_the_wait():
    """Regression: an error that torch had not raised ended the thread, and nobody woke the feeder."""
    offers = waited(Lost(), 60)
    with pytest.raises(StateError, match="cannot agree on round 3: the store is gone"):
        offers.agreed(3, 7, lambda: None)
    offers.close()
