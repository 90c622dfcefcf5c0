"""`map_concurrently`: order, bound and errors of work on many items in one loop."""

from __future__ import annotations

import asyncio

import pytest

from streamer.base.concurrency import map_concurrently
from streamer.errors import ConfigError


async def test_results_keep_the_order_and_the_bound():
    """Results have the order of their items, whichever ends first, and at most the given number run at once."""
    running = most = 0

    async def work(item: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(10 - item):
            await asyncio.sleep(0)
        running -= 1
        return item * item

    assert await map_concurrently(work, range(10), 3) == [i * i for i in range(10)]
    assert most == 3
    assert await map_concurrently(work, [], 3) == []


async def test_the_first_error_arrives_as_itself():
    """The first error is raised without an ExceptionGroup and with its cause, and the other items are cancelled."""
    cancelled: list[int] = []

    async def work(item: int) -> None:
        if item == 1:
            raise KeyError("bad") from ValueError("why")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    with pytest.raises(KeyError, match="bad") as caught:
        await map_concurrently(work, range(5), 3)
    assert isinstance(caught.value.__cause__, ValueError)
    assert sorted(cancelled) == [0, 2]


async def test_nothing_at_once_is_refused():
    """A bound below 1, with which nothing would be done, raises ConfigError."""

    async def work(item: int) -> int:
        return item

    for concurrency in (0, -1):
        with pytest.raises(ConfigError, match=f"concurrency={concurrency} is below 1"):
            await map_concurrently(work, range(3), concurrency)
