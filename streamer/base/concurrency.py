"""Runs work concurrently on an asyncio loop, at most so much at once, or in a thread, and raises the first error.

Every room that has coroutines uses it, such as `cache/`, `engine/`, `indexing/`, `shards/` and `store/`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from streamer.errors import ConfigError

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def map_concurrently(
    work: Callable[[Item], Awaitable[Outcome]], items: Sequence[Item], concurrency: int
) -> list[Outcome]:
    """Awaits `work` for every item, at most `concurrency` (1 or more) at once; returns the results in the items' order.

    The first error cancels the rest and is raised as it is, without an ExceptionGroup around it.

    Raises:
        ConfigError: `concurrency` is below 1, with which nothing would be done.
        BaseException: the first error of `work`.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency={concurrency} is below 1: nothing would be done", field="concurrency")
    outcomes: dict[int, Outcome] = {}
    todo = iter(enumerate(items))

    async def worker(source: Iterable[tuple[int, Item]]) -> None:
        for place, item in source:
            outcomes[place] = await work(item)

    with plain_errors():
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(items))):
                group.create_task(worker(todo))
    return [outcomes[place] for place in range(len(items))]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Lets a `with` around a task group raise the first error of the group instead of the group; its cause stays."""
    try:
        yield
    except BaseExceptionGroup as errors:
        first = _first_error(errors)
        raise first from first.__cause__


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first


T = TypeVar("T")


async def in_thread(pool: ThreadPoolExecutor | None, work: Callable[..., T], *args: object) -> T:
    """Runs `work(*args)` in a thread, and returns its result or raises its error.

    If the caller is cancelled, this raises CancelledError only after `work` has ended, so that nothing is written
    later.

    Args:
        pool: pool of the thread. None means the default pool of the running loop.
        work: function that may block.
        args: its positional arguments.
    """
    future = asyncio.get_running_loop().run_in_executor(pool, work, *args)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        raise
    return future.result()
