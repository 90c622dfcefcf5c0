"""A late peer against the store: who wins, and that every buffer is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from streamer.errors import ObjectNotFoundError
from streamer.peers.source import race


class Buffer:
    """Bytes that must be closed once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = 0

    def close(self) -> None:
        """Counts."""
        self.closed += 1


class Runners:
    """A peer and a store that answer when the test says so."""

    def __init__(self) -> None:
        self.peer: asyncio.Future[Buffer | None] = asyncio.get_running_loop().create_future()
        self.store: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self.late = asyncio.Event()
        self.asked_store = 0
        self.race = asyncio.create_task(race(self._answer(self.peer), self.late, self._from_store))

    @staticmethod
    async def _answer(future: Awaitable[Buffer | None]) -> Buffer | None:
        return await future

    async def _from_store(self) -> Buffer:
        self.asked_store += 1
        return await self.store


async def turn() -> None:
    """Lets all tasks run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_peer_in_time_is_taken_and_the_store_is_not_asked() -> None:
    """One request in all."""
    runners, chunk = Runners(), Buffer("peer")
    runners.peer.set_result(chunk)
    assert await runners.race is chunk
    assert (runners.asked_store, chunk.closed) == (0, 0)


async def test_a_peer_in_time_without_it_ends_the_race() -> None:
    """None: the store is asked as without peers."""
    runners = Runners()
    runners.peer.set_result(None)
    assert await runners.race is None
    assert runners.asked_store == 0


async def test_a_late_peer_without_it_leaves_the_race_to_the_store() -> None:
    """Which was asked when the peer was late."""
    runners, chunk = Runners(), Buffer("store")
    runners.late.set()
    await turn()
    runners.peer.set_result(None)
    await turn()
    runners.store.set_result(chunk)
    assert await runners.race is chunk


async def test_the_store_wins_against_a_late_peer_which_is_cancelled() -> None:
    """Its request ends with the race."""
    runners, chunk = Runners(), Buffer("store")
    runners.late.set()
    await turn()
    runners.store.set_result(chunk)
    assert await runners.race is chunk
    assert runners.peer.cancelled()


async def test_a_late_peer_may_still_win() -> None:
    """Then the store's request is cancelled."""
    runners, chunk = Runners(), Buffer("peer")
    runners.late.set()
    await turn()
    assert runners.asked_store == 1
    runners.peer.set_result(chunk)
    assert await runners.race is chunk
    assert runners.store.cancelled()


async def test_the_loser_of_a_tie_is_closed() -> None:
    """Both are there in one turn of the loop: nothing leaks."""
    runners, first, second = Runners(), Buffer("peer"), Buffer("store")
    runners.late.set()
    await turn()
    runners.peer.set_result(first)
    runners.store.set_result(second)
    winner = await runners.race
    assert winner is first
    assert (first.closed, second.closed) == (0, 1)


async def test_a_failing_store_waits_for_the_peer() -> None:
    """Only when neither has it the reader gets the store's error."""
    runners, chunk = Runners(), Buffer("peer")
    runners.late.set()
    await turn()
    runners.store.set_exception(ObjectNotFoundError("gone"))
    await turn()
    assert not runners.race.done()
    runners.peer.set_result(chunk)
    assert await runners.race is chunk

    runners = Runners()
    runners.late.set()
    await turn()
    runners.peer.set_result(None)
    runners.store.set_exception(ObjectNotFoundError("gone"))
    with pytest.raises(ObjectNotFoundError):
        await runners.race


async def test_a_cancelled_race_leaves_nothing() -> None:
    """The engine ends."""
    runners = Runners()
    runners.late.set()
    await turn()
    runners.race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await runners.race
    assert runners.peer.cancelled()
    assert runners.store.cancelled()
