"""Turns to send chunks to peers: bounded in number and bytes, shared by peers, refused when they would be too late."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from streamer.peers.server import BusyError, Sends


@pytest.mark.parametrize(("length", "most"), [(1, 4), (250, 4), (500, 2), (1000, 1)])
async def test_sends_are_bounded_in_number_and_in_bytes(length: int, most: int):
    """Turns to send are bounded in number for small files and in bytes for large ones."""
    sends = Sends(4, 1000)
    async with AsyncExitStack() as stack:
        for _ in range(most):
            await stack.enter_async_context(sends.turn("a", length, 0.0, 60.0))
        assert sends.under_way == most
        with pytest.raises(BusyError):
            await stack.enter_async_context(sends.turn("a", length, 0.0, 0.0))
    assert sends.under_way == 0
    assert not sends.fits(1001)


async def test_a_greedy_peer_gets_its_share():
    """A peer with 12 requests gets at least 40 % of the turns beside one with 64."""
    sends, turns = Sends(16, 1600), []

    async def ask(peer: str) -> None:
        while len(turns) < 1000:
            async with sends.turn(peer, 100, 0.0, 60.0):
                turns.append(peer)
                await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for peer, count in (("greedy", 64), ("modest", 12)):
            for _ in range(count):
                group.create_task(ask(peer))
    assert 0.4 <= turns.count("modest") / len(turns) <= 0.6


async def test_a_peer_cannot_fill_the_queue():
    """A peer with 256 waiting requests has a further one refused at once."""
    sends = Sends(1, 100)
    async with sends.turn("a", 100, 0.0, 60.0):
        waiting = [asyncio.ensure_future(_turn(sends)) for _ in range(256)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await _turn(sends)
    await asyncio.gather(*waiting)


async def _turn(sends: Sends) -> None:
    """Takes a turn of peer "a" and gives it back."""
    async with sends.turn("a", 100, 0.0, 60.0):
        pass
