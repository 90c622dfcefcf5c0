"""A chunk between store and SSD, and who waits for it."""

from __future__ import annotations

import asyncio
import math

import msgspec

from streamer.cache.policy.answers import CacheLimits
from streamer.engine.datasets import Dataset
from streamer.engine.session import EngineSession


class Waiter(msgspec.Struct):
    """A session that waits for a fetch, and the step at which it needs the chunk."""

    session: EngineSession
    chunk: int
    step: int

    def shares_options(self, fetch: Fetch) -> bool:
        """Whether the fetch reads with the storage options of this session."""
        part, _ = self.session.collection.locate(self.chunk)
        return self.session.collection.datasets[part] is fetch.dataset


class Fetch(msgspec.Struct):
    """One chunk between store and SSD.

    Attributes:
        chunk: its number in the dataset.
        peer_due: when the first peer that waits for it needs it, on the loop's clock.
        limits: the cache's new ones, where publishing changed them.
    """

    key: bytes
    dataset: Dataset
    chunk: int
    waiters: list[Waiter] = msgspec.field(default_factory=list)
    task: asyncio.Task[None] | None = None
    peer_due: float = math.inf
    limits: CacheLimits | None = None

    def owner(self) -> str:
        """The job that needs it first; "" without waiters."""
        first = min(self.waiters, key=lambda waiter: waiter.session.due_at(waiter.step), default=None)
        return "" if first is None else first.session.owner

    def due(self) -> float:
        """Returns when the first session or peer that waits needs it, on the loop's clock; infinity without them."""
        return min(self.peer_due, *(waiter.session.due_at(waiter.step) for waiter in self.waiters), math.inf)
