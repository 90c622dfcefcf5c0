"""The engine: makes the chunks of all sessions local in time and keeps what the rule says.

engine.py       its life, questions, sessions       session.py     one consumer: callbacks, pace, counts
pump.py         asks, opens, launches               track.py       where a consumer is in its schedule
flights.py      chunks on their way                 indexing.py    manifests for those who ask
maintenance.py  what happens over time              pages.py       advice to the kernel
rejects.py      chunks that readers found wrong     shelf.py       the manifests on the disk
settling.py     the pause after a start             statistics.py  counters and levels
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Self

import numpy as np
import numpy.typing as npt

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy import CachePolicy
from streamer.cache.table import charged_bytes
from streamer.config import EngineConfig, format_bytes
from streamer.engine.access import Access
from streamer.engine.datasets import Dataset, Datasets
from streamer.engine.flights import Flights
from streamer.engine.indexing import Indexing, ManifestRequest, Report
from streamer.engine.pages import Pages
from streamer.engine.pump import Pump
from streamer.engine.rejects import Rejects
from streamer.engine.session import EngineSession, SessionRequest, open_bytes
from streamer.engine.settling import Settling
from streamer.engine.stores import Fetchers
from streamer.engine.track import Columns
from streamer.errors import CacheFullError, ConfigError, StreamerError

logger = logging.getLogger(__name__)

# The look-ahead of all sessions may cost this share of the limit; the rest of the cache makes hits.
LOOKAHEAD_SHARE = 1 / 16


class Engine:
    """One cache folder, one fetcher, any number of sessions. Lives on one loop, inside its `async with`.

    Args:
        config: complete.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.cache = ChunkCache(config.cache)
        self.fetchers = Fetchers(config.fetch, Access(config.datasets))
        self.sessions: dict[str, EngineSession] = {}
        # Errors that reached a consumer, by kind.
        self.errors: Counter[str] = Counter()
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"Engine({self.config.cache.directory}, {len(self.sessions)} sessions)"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._loop = asyncio.get_running_loop()
            await stack.enter_async_context(self.cache)
            await stack.enter_async_context(self.fetchers)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            self.datasets = Datasets(self.cache.root, self.fetchers.access)
            self.policy = CachePolicy(self.cache.limit_bytes, settling=True)
            self.pump = Pump(self.policy, self.sessions, Pages(self.cache, tasks), self._loop)
            self.flights = self.pump.flights = Flights(self.cache, self.fetchers, tasks, self.pump.landed)
            self.indexing = Indexing(self.cache.root / "manifests", self.fetchers, self)
            self.rejects = Rejects(self.cache, self._forget, self.kick, self.now, tasks)
            self._restore()
            self._settling = Settling(self._loop, self.config.settle_seconds, self._settle)
            stack.callback(self._settling.stop)
            stack.callback(self.flights.cancel)
            stack.callback(self.rejects.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for session in list(self.sessions.values()):
            self.close_session(session)
        await self._stack.aclose()

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self._loop.time()

    # ------------------------------------------------------------ questions

    async def manifest(self, request: ManifestRequest, report: Report) -> str:
        """Finds or builds a manifest; returns its digest. It lies in the cache folder then."""
        digest = await self.indexing.manifest(request, report)
        await self.cache.measure()
        self.limit_changed(self.cache.limit_bytes)
        return digest

    async def read(self, digest: str, options: Mapping[str, object], chunk: int, span: tuple[int, int]) -> bytes:
        """The chunk-local bytes `[start, stop)` straight from the store, for looking at a sample."""
        dataset = self.datasets.get(digest, options)
        dataset.key(chunk)
        wanted = dataset.manifest.chunk(chunk)
        async with self.fetchers.of_chunk(wanted, dataset.options) as fetcher:
            return b"".join([await fetcher.read(piece) for piece in wanted.extents_of(*span)])

    # ------------------------------------------------------------ life

    async def drain(self, seconds: float) -> None:
        """Launches nothing any more and waits, at most so long, until what is on its way lies in the cache."""
        self.pump.draining = True
        if left := await self.flights.land(seconds):
            logger.warning("%d chunks were not down after %.0f s: their bytes are fetched again", left, seconds)

    async def reload(self, config: EngineConfig) -> None:
        """Takes over another limit and other datasets; everything else needs a new engine.

        Raises:
            ConfigError: the limit is below what is open; nothing has changed then.
        """
        limit = config.cache.limit_bytes
        if limit is not None and limit != self.config.cache.limit_bytes:
            await self._resize(limit)
        self.fetchers.access = Access(config.datasets)
        self.datasets.reload(self.fetchers.access)
        self.config = config
        self.kick()

    async def _resize(self, limit_bytes: int) -> None:
        state = self.policy.statistics()
        least = state.open_bytes + state.staging_bytes
        if self.sessions and limit_bytes < least:
            raise ConfigError(
                f"limit_bytes={limit_bytes} ({format_bytes(limit_bytes)}) is below the {format_bytes(least)} that the "
                f"{len(self.sessions)} open sessions need; the limit stays at {format_bytes(self.cache.limit_bytes)}",
                field="limit_bytes",
            )
        await self.cache.resize(limit_bytes)
        self.pump.freed(self.policy.set_limit(self.cache.limit_bytes))

    def room_bytes(self) -> int:
        """What the kept part can still take without an eviction."""
        state = self.policy.statistics()
        return state.limit_bytes - state.staging_bytes - state.kept_bytes - state.transit_bytes

    async def keep(self, key: bytes, parts: list[memoryview], sample_offsets: npt.NDArray[np.int64]) -> None:
        """Publishes a chunk without a session; call `adopt` once its manifest is known."""
        await self.cache.publish(key, parts, sample_offsets)

    def adopt(self, digest: str, kept: Mapping[bytes, int]) -> None:
        """Chunks that were published without a session (key: file bytes) belong to the policy from here on."""
        self.policy.local(list(kept), list(kept.values()), digest)
        self.pump.freed(self.policy.fit())

    # ------------------------------------------------------------ sessions

    def open_session(
        self,
        request: SessionRequest,
        on_ready: Callable[[int, int], None],
        on_error: Callable[[StreamerError], None],
    ) -> EngineSession:
        """A consumer begins.

        Raises:
            ManifestError: the dataset is not here.
            StateError: it disagrees with another session of its job.
        """
        for other in self.sessions.values():
            request.check_agrees(other.request)
        dataset = self.datasets.get(request.dataset, request.options)
        self._add_dataset(dataset)
        self.cache.use(dataset.manifest.digest)
        name = f"{next(self._numbers)} {request.consumer}"
        session = EngineSession(self, name, request, dataset, (on_ready, on_error))
        self.sessions[name] = session
        self._settling.session_opened()
        return session

    def connect(self, job: str) -> None:
        """A connection of the job began: its data stay live between its sessions (validation between epochs)."""
        self.policy.connect(job)

    def disconnect(self, job: str) -> None:
        """A connection of the job ended; its sessions are closed."""
        self.policy.disconnect(job)
        self.kick()

    def close_session(self, session: EngineSession) -> None:
        """All leases of the session end; idempotent."""
        if self.sessions.pop(session.name, None) is None:
            return
        self.flights.leave(session)
        if session.admitted:
            self.pump.freed(self.policy.close_session(session.name))
        self.kick()

    def admit(self, session: EngineSession, columns: Columns) -> None:
        """Its first complete schedule tells how much a session has open at once: the policy takes it in, or refuses."""
        if session.admitted or session.failed is not None:
            return
        needed = max(session.request.open_bytes, open_bytes(columns, charged_bytes(session.dataset.file_bytes)))
        session.lookahead_bytes = self._lookahead_bytes(session)
        session.planned_bytes = needed + session.lookahead_bytes
        try:
            freed = self.policy.open_session(
                session.name, session.request.job, session.dataset.manifest.digest, needed, session.lookahead_bytes
            )
        except CacheFullError as error:
            session.fail(error)
            return
        session.admitted = True
        self.pump.freed(freed)

    def kick(self) -> None:
        """Something changed: pump all sessions once, soon."""
        self.pump.kick()

    def has(self, session: EngineSession) -> bool:
        """Whether the session is open."""
        return self.sessions.get(session.name) is session

    def reject(self, session: EngineSession, chunk: int, reason: str) -> None:
        """A session's reader found a chunk wrong; see `rejects`."""
        self.rejects.hear(session, chunk, reason)

    def count_error(self, error: StreamerError) -> None:
        """An error reaches a consumer."""
        self.errors[type(error).__name__] += 1

    @property
    def silent_seconds(self) -> float:
        """A session that was not heard of for this long counts as hanging."""
        return self.config.silent_seconds

    # ------------------------------------------------------------ room

    def _add_dataset(self, dataset: Dataset) -> None:
        self.policy.add_dataset(dataset.manifest.digest, dataset.file_bytes, dataset.manifest.chunk_keys)

    def _lookahead_bytes(self, session: EngineSession) -> int:
        """This session's part of a look-ahead that costs the hit rate at most LOOKAHEAD_SHARE of the limit."""
        limit = self.cache.limit_bytes
        # Of all live data: a small validation set would fit alone, and took the room of the training's chunks for a
        # look-ahead over all of it.
        live_bytes = self.policy.live_bytes(session.dataset.manifest.digest)
        missing = max(0.0, 1.0 - limit / max(1, live_bytes))
        affordable = self.config.lookahead_bytes
        if missing:
            affordable = min(affordable, int(limit * LOOKAHEAD_SHARE / missing))
        sharers = max(1, len(self.sessions), min(session.request.world_size, 8))
        return max(affordable // sharers, 2 * int(session.dataset.file_bytes.max(initial=0)))

    def _restore(self) -> None:
        """Takes in what earlier engines left in the folder, and what lies in the layers below it."""
        self.policy.below(self.cache.layer_keys())
        for dataset, keys, sizes in self.cache.catalog():
            self.policy.local(keys, sizes, dataset)
        self.pump.freed(self.policy.fit())
        if not self.cache.keys():
            # No client of an earlier engine has anything open here. While a policy settles, what should stay cannot
            # take the place of what need not: the first quarter of a second was missing in the kept set afterwards.
            self.policy.settle()

    def _settle(self) -> None:
        self.pump.freed(self.policy.settle())
        self.kick()

    def _forget(self, key: bytes) -> bool:
        """A chunk whose file is wrong or gone leaves the policy and the disk; False: it was not local."""
        known = self.policy.forget(key)
        if known:
            self.flights.unlink([key])
        return known

    def limit_changed(self, limit_bytes: int) -> None:
        """Manifests were added, or others fill the disk or leave it."""
        self.pump.freed(self.policy.set_limit(limit_bytes))

    def forget_datasets(self) -> None:
        """Versions of datasets whose manifest is gone: nobody can ask for them by name, their chunks are nobody's."""
        known = self.indexing.shelf.digests() | {dataset.manifest.digest for dataset in self.datasets.all()}
        gone = self.policy.forget_datasets(known)
        for digest in gone:
            self.cache.forget(digest)
        if gone:
            self.limit_changed(self.cache.limit_bytes)

    def policy_holds(self, key: bytes) -> bool:
        """Some session has the chunk in look-ahead or open."""
        return any(key in session.keys for session in self.sessions.values())
