"""One node's engine without bytes: the scheduler, the sessions and the policy that ship, on a simulated link."""

from __future__ import annotations

from collections.abc import Callable

from streamer.cache.policy.cache_policy import CachePolicy
from streamer.config import CacheConfig, EngineConfig
from streamer.engine.collection import Collection
from streamer.engine.datasets import Dataset
from streamer.engine.scheduler import Scheduler
from streamer.engine.session import EngineSession, SessionRequest
from streamer.engine.uses import Columns, affordable_lookahead
from streamer.errors import CacheFullError, StreamerError
from streamer.planning.link import SimulatedLink
from streamer.planning.virtual_clock import VirtualClock


class SimulatedNode:
    """The host of the sessions of one dataset, as `Engine` is.

    Args:
        dataset: what they read.
        limit_bytes: of the cache, for chunks.
        clock: of the simulation.
        link: to the store.
    """

    def __init__(self, dataset: Dataset, limit_bytes: int, clock: VirtualClock, link: SimulatedLink) -> None:
        self._dataset = dataset
        self._clock = clock
        self._config = EngineConfig(cache=CacheConfig(directory=dataset.manifest.path))
        self._collection = Collection([dataset], [""])
        self._policy = CachePolicy(limit_bytes)
        self._policy.add_dataset(dataset.manifest.digest, dataset.file_bytes, dataset.manifest.chunk_keys)
        self._sessions: dict[str, EngineSession] = {}
        self._scheduler = Scheduler(self._policy, self._sessions, _NoAdvice(), clock)
        self._scheduler.in_flight = link
        link.on_finished = self._scheduler.fetch_finished
        self.errors: list[StreamerError] = []

    def open_session(self, consumer: str, world_size: int, on_ready: Callable[[int, int], None]) -> EngineSession:
        """A rank begins."""
        digest = self._dataset.manifest.digest
        request = SessionRequest(job="planned", dataset=digest, consumer=consumer, world_size=world_size)
        callbacks = on_ready, self.errors.append
        session = EngineSession(self, request.consumer, request, self._collection, callbacks)
        self._sessions[session.name] = session
        return session

    # ------------------------------------------------------------ as SessionHost

    @property
    def silent_seconds(self) -> float:
        """As `Engine`."""
        return self._config.silent_seconds

    def now(self) -> float:
        """As `Engine`."""
        return self._clock.time()

    def wake(self) -> None:
        """As `Engine`."""
        self._scheduler.wake()

    def has(self, session: EngineSession) -> bool:
        """As `Engine`."""
        return session.name in self._sessions

    def admit(self, session: EngineSession, columns: Columns) -> None:
        """As `Engine`."""
        if session.admitted or session.failed is not None:
            return
        limit_bytes = self._policy.limit_bytes
        ahead = affordable_lookahead(self._config.lookahead_bytes, limit_bytes, self._dataset.total_bytes)
        try:
            openings = session.plan(columns, ahead, len(self._sessions))
            self._scheduler.freed(self._policy.open_sessions(session.request.job, openings))
        except CacheFullError as error:
            session.fail(error)
            return
        session.admitted = True

    def extended(self, session: EngineSession) -> None:
        """As `Engine`."""
        self._scheduler.extended(session)

    def reject(self, session: EngineSession, chunk: int, reason: str) -> None:
        """No byte is wrong here."""

    def count_error(self, error: StreamerError) -> None:
        """The caller sees it in `errors`."""

    def close_session(self, session: EngineSession) -> None:
        """Sessions last as long as the simulation."""


class _NoAdvice:
    """The page cache of a node without files."""

    def will_need(self, key: bytes) -> None:
        """Nothing to read."""

    def dont_need(self, key: bytes) -> None:
        """Nothing to drop."""
