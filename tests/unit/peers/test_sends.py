"""Turns to send: bounded in number and bytes, shared by peers, given up when they would come too late."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from streamer.peers.server import BusyError, Sends


async def test_sends_are_bounded_in_number_and_in_bytes():
    """Small files by number, large ones by their lengths: a deleted file takes its space until it is sent."""
    for length, most in ((1, 4), (250, 4), (500, 2), (1000, 1)):
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
    """64 requests at once against 12: each gets at least 40 % of the turns."""
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
    """More than 256 requests of one that wait are refused at once."""
    sends = Sends(1, 100)
    async with sends.turn("a", 100, 0.0, 60.0):
        waiting = [asyncio.ensure_future(_turn(sends)) for _ in range(256)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await _turn(sends)
    await asyncio.gather(*waiting)


async def _turn(sends: Sends) -> None:
    async with sends.turn("a", 100, 0.0, 60.0):
        pass
