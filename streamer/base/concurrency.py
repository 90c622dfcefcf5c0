"""Concurrent work with a limit; the first error is raised without a group around it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def map_concurrently(
    work: Callable[[Item], Awaitable[Outcome]], items: Sequence[Item], concurrency: int
) -> list[Outcome]:
    """Awaits `work` for every item, at most `concurrency` at once; returns the results in the items' order.

    The first error cancels the rest and is raised as it is, without an ExceptionGroup around it.
    """
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
    """Raises the first error of a task group instead of the group, with its own cause."""
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
