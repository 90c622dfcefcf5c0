"""Work in threads whose end a cancellation waits for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def in_thread(pool: ThreadPoolExecutor | None, work: Callable[..., T], *args: object) -> T:
    """Runs `work` in a thread of the pool, or of the loop's. A cancellation waits for its end: no write comes later."""
    future = asyncio.get_running_loop().run_in_executor(pool, work, *args)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise
    return future.result()
