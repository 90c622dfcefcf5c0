"""Chunks on their way: one flight per chunk key, however many sessions wait for it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable

import msgspec

from streamer.cache.chunk_cache import ChunkCache
from streamer.engine.datasets import Dataset
from streamer.engine.fetchers import Fetchers
from streamer.engine.session import EngineSession
from streamer.errors import BrokenError, CacheError, StreamerError

logger = logging.getLogger(__name__)

Landed = Callable[["Flight", StreamerError | None], None]


class Passenger(msgspec.Struct):
    """A session that waits for a flight, and the step at which it needs the chunk."""

    session: EngineSession
    chunk: int
    step: int


class Flight(msgspec.Struct):
    """One chunk between store and SSD.

    Attributes:
        limit_bytes: the cache's new limit, where publishing changed it.
    """

    key: bytes
    dataset: Dataset
    chunk: int
    passengers: list[Passenger] = msgspec.field(default_factory=list)
    task: asyncio.Task[None] | None = None
    limit_bytes: int | None = None

    def owner(self) -> str:
        """The job that needs it first; "" when all have left."""
        first = min(self.passengers, key=lambda p: p.session.due_at(p.step), default=None)
        return "" if first is None else first.session.owner

    def due(self) -> float:
        """When the first of its passengers needs it, on the loop's clock; the end of time when all have left."""
        return min((p.session.due_at(p.step) for p in self.passengers), default=math.inf)


class Flights:
    """Fetches and publishes. Owned by the engine, on its loop.

    Args:
        landed: called when a flight is over, with the error if it failed.
    """

    def __init__(self, cache: ChunkCache, fetchers: Fetchers, tasks: asyncio.TaskGroup, landed: Landed) -> None:
        self._cache = cache
        self._fetchers = fetchers
        self._tasks = tasks
        self._landed = landed
        self._in_air: dict[bytes, Flight] = {}
        self._unlinking: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._in_air)

    def launch(self, key: bytes, passenger: Passenger, victims: Iterable[bytes] = ()) -> None:
        """Starts the flight of a chunk; the files of `victims` are gone before it lands."""
        self.unlink(victims)
        flight = Flight(key, passenger.session.dataset, passenger.chunk, [passenger])
        self._in_air[key] = flight
        flight.task = self._tasks.create_task(self._fly(flight), name=f"flight {key.hex()}")

    def join(self, key: bytes, passenger: Passenger) -> bool:
        """Adds a passenger to a flight under way; False: there is none."""
        flight = self._in_air.get(key)
        if flight is not None:
            flight.passengers.append(passenger)
        return flight is not None

    def leave(self, session: EngineSession) -> None:
        """The session is gone; its flights go on for the others and for the cache."""
        for flight in self._in_air.values():
            flight.passengers = [p for p in flight.passengers if p.session is not session]

    def datasets(self) -> list[Dataset]:
        """What is being fetched of."""
        return [flight.dataset for flight in self._in_air.values()]

    def unlink(self, keys: Iterable[bytes]) -> None:
        """Removes files in the background; nothing is written before they are gone."""
        victims = list(keys)
        if victims:
            task = self._tasks.create_task(self._evict(victims))
            self._unlinking.add(task)
            task.add_done_callback(self._unlinking.discard)

    async def land(self, seconds: float) -> int:
        """Waits at most so long for what is on its way; returns how many flights are still in the air."""
        tasks = [flight.task for flight in self._in_air.values() if flight.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return len(self._in_air)

    def cancel(self) -> None:
        """Ends all flights."""
        for flight in self._in_air.values():
            if flight.task is not None:
                flight.task.cancel()

    async def _fly(self, flight: Flight) -> None:
        error: StreamerError | None = None
        try:
            await self._bring(flight)
        except StreamerError as failure:
            error = failure
        except Exception as failure:
            logger.exception("flight of chunk %s failed", flight.key.hex())
            error = BrokenError(f"the engine failed over chunk {flight.chunk}: {failure!r}; see its log")
        finally:
            del self._in_air[flight.key]
        self._landed(flight, error)

    async def _bring(self, flight: Flight) -> None:
        manifest = flight.dataset.manifest
        chunk = manifest.chunk(flight.chunk)
        async with self._fetchers.of_chunk(chunk, flight.dataset.options) as fetcher:
            fetched = await fetcher.fetch(chunk, due=flight.due, owner=flight.owner)
        with fetched:
            await self._room_is_made()
            await self._publish(flight, fetched.parts)

    async def _publish(self, flight: Flight, parts: list[memoryview]) -> None:
        manifest = flight.dataset.manifest
        offsets = manifest.sample_offsets(flight.chunk)
        before = self._cache.limit_bytes
        try:
            await self._cache.publish(flight.key, parts, offsets, dataset=manifest.digest)
        finally:
            # A disk that refuses writes lowers the limit.
            if self._cache.limit_bytes != before:
                flight.limit_bytes = self._cache.limit_bytes

    async def _evict(self, keys: list[bytes]) -> None:
        try:
            await self._cache.evict(keys)
        except CacheError as error:
            logger.warning("%s; their bytes stay counted", error)

    async def _room_is_made(self) -> None:
        while self._unlinking:
            await asyncio.wait(set(self._unlinking))
