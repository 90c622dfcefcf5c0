"""The race of a late peer against the store: which one wins, and that every buffer is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from streamer.errors import ObjectNotFoundError
from streamer.peers.source import race


class Buffer:
    """Stands for a fetched chunk, which must be closed once: it counts its closings and has no bytes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = 0

    def close(self) -> None:
        """Counts the closing."""
        self.closed += 1


class Runners:
    """Stands for a peer and a store that answer when the test says so."""

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
    """Lets all tasks run to their next wait."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_peer_in_time_is_taken_and_the_store_is_not_asked() -> None:
    """A peer that answers in time is taken and the store is not asked."""
    runners, chunk = Runners(), Buffer("peer")
    runners.peer.set_result(chunk)
    assert await runners.race is chunk
    assert (runners.asked_store, chunk.closed) == (0, 0)


async def test_a_peer_in_time_without_it_ends_the_race() -> None:
    """A peer that answers in time without the chunk ends the race with None, and the store is not asked by it."""
    runners = Runners()
    runners.peer.set_result(None)
    assert await runners.race is None
    assert runners.asked_store == 0


async def test_a_late_peer_without_it_leaves_the_race_to_the_store() -> None:
    """A late peer that does not have the chunk leaves the race to the store, which was asked meanwhile."""
    runners, chunk = Runners(), Buffer("store")
    runners.late.set()
    await turn()
    runners.peer.set_result(None)
    await turn()
    runners.store.set_result(chunk)
    assert await runners.race is chunk


async def test_the_store_wins_against_a_late_peer_which_is_cancelled() -> None:
    """A store that answers before a late peer wins, and the peer's request is cancelled."""
    runners, chunk = Runners(), Buffer("store")
    runners.late.set()
    await turn()
    runners.store.set_result(chunk)
    assert await runners.race is chunk
    assert runners.peer.cancelled()


async def test_a_late_peer_may_still_win() -> None:
    """A late peer that answers before the store wins, and the store's request is cancelled."""
    runners, chunk = Runners(), Buffer("peer")
    runners.late.set()
    await turn()
    assert runners.asked_store == 1
    runners.peer.set_result(chunk)
    assert await runners.race is chunk
    assert runners.store.cancelled()


async def test_the_loser_of_a_tie_is_closed() -> None:
    """If a late peer and the store answer in one turn of the loop, one is taken and the other's buffer is closed."""
    runners, first, second = Runners(), Buffer("peer"), Buffer("store")
    runners.late.set()
    await turn()
    runners.peer.set_result(first)
    runners.store.set_result(second)
    winner = await runners.race
    assert winner is first
    assert (first.closed, second.closed) == (0, 1)


async def test_a_failing_store_waits_for_the_peer() -> None:
    """A store that fails leaves the race to the peer; its error is raised only if the peer fails as well."""
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
    """A cancelled race cancels the requests to the peer and to the store."""
    runners = Runners()
    runners.late.set()
    await turn()
    runners.race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await runners.race
    assert runners.peer.cancelled()
    assert runners.store.cancelled()
