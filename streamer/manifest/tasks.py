"""Many things at a time, few enough, and the first error as itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def bounded_map(
    work: Callable[[Item], Awaitable[Outcome]], items: Sequence[Item], concurrency: int
) -> list[Outcome]:
    """Awaits `work` for every item, at most `concurrency` at once; the results in the items' order.

    The first error cancels the rest and is raised as it is, without an ExceptionGroup around it.
    """
    outcomes: dict[int, Outcome] = {}
    todo = iter(enumerate(items))

    async def worker(source: Iterable[tuple[int, Item]]) -> None:
        for place, item in source:
            outcomes[place] = await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(items))):
                group.create_task(worker(todo))
    except BaseExceptionGroup as errors:
        first = first_error(errors)
        raise first from first.__cause__
    return [outcomes[place] for place in range(len(items))]


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, at any depth; its own cause stays."""
    first = errors.exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first
