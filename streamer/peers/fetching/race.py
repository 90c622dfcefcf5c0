"""Runs a late peer against the store: the first whole chunk wins, the other request is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from streamer.engine.processes.process import SharedBytes
from streamer.fetch.fetcher import Fetched
from streamer.peers.fetching.received import Received

FromStore = Fetched | SharedBytes


async def race(
    peer: Coroutine[Any, Any, Received | None], late: asyncio.Event, store: Callable[[], Coroutine[Any, Any, FromStore]]
) -> Received | FromStore | None:
    """Returns what the peer brings, or the store, if it is faster than a late peer or the late peer brings nothing.

    None: the peer brings nothing and is not late.

    Args:
        peer: asks the peer; returns None if it brings nothing, and raises nothing.
        late: is set when the store should be asked as well.
        store: asks the store; called at most once.

    Raises:
        StreamerError: a late peer brought nothing and the store failed.
    """
    asked = asyncio.create_task(peer)
    is_late = asyncio.create_task(late.wait())
    fetched: asyncio.Task[FromStore] | None = None
    winner: asyncio.Task[Received | None] | asyncio.Task[FromStore] | None = None
    try:
        await asyncio.wait({asked, is_late}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            winner = asked
            return asked.result()
        fetched = asyncio.create_task(store())
        await asyncio.wait({asked, fetched}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done() or fetched.exception() is not None:
            winner = asked
            if (brought := await asked) is not None:
                return brought
        winner = fetched
        return await fetched
    finally:
        is_late.cancel()
        await _end([task for task in (asked, fetched) if task is not None and task is not winner])


async def _end(losers: list[asyncio.Task[Any]]) -> None:
    """Cancels the requests that run; gives back what the others brought."""
    for task in losers:
        task.cancel()
    for result in await asyncio.gather(*losers, return_exceptions=True):
        if result is not None and not isinstance(result, BaseException):
            result.close()
