"""Work in threads that a cancelled task waits for."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamer.base.concurrency import in_thread


async def test_a_cancel_waits_for_the_thread() -> None:
    """A cancelled task waits until its thread has finished its work, however often it is cancelled."""
    started, go_on, over = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(started.set)
        go_on.wait()
        over.set()

    with ThreadPoolExecutor(1) as pool:
        task = asyncio.create_task(in_thread(pool, work))
        await started.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert over.is_set()


async def test_errors_and_results_come_through() -> None:
    """Work in a thread gives its result or raises its error to the caller."""
    with ThreadPoolExecutor(1) as pool:
        assert await in_thread(pool, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(pool, divmod, 7, 0)
