"""A store without a network for unit tests of the fetcher."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from streamer.manifest.model import Extent
from streamer.store.base import Get, Take
from streamer.store.local_store import LocalStore


class AnsweringStore(LocalStore):
    """Stands for an object store: it answers each request as the test says, without a network.

    Args:
        answer: awaited for each request, with what is asked for and where the bytes go.
    """

    def __init__(self, answer: Callable[[Extent, Take], Awaitable[None]]) -> None:
        super().__init__()
        self._answer = answer

    async def get(self, asked: Get, take: Take) -> None:
        """See ObjectStore.get."""
        await self._answer(Extent(asked.target, asked.start, asked.stop), take)
