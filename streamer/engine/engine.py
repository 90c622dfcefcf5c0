"""The engine: makes the chunks of all sessions local in time and keeps what the rule says.

Everything that decides runs synchronously on one loop: sessions say where they stand, `_pump` asks the policy, opens
what is there and launches flights; a flight fetches and publishes one chunk, then pumps again. Nothing polls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Self

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.decision import Admit, Freed, Hit, Wait
from streamer.cache.policy import CachePolicy
from streamer.config import EngineConfig, format_bytes
from streamer.engine.access import Access
from streamer.engine.datasets import Dataset, Datasets
from streamer.engine.flights import Flight, Flights, Passenger
from streamer.engine.indexing import Indexing, ManifestRequest, Report
from streamer.engine.session import EngineSession, SessionRequest, open_bytes
from streamer.engine.statistics import Values, engine_statistics
from streamer.engine.stores import Fetchers
from streamer.engine.track import Columns, Use
from streamer.errors import BrokenError, CacheFullError, ConfigError, IntegrityError, StreamerError
from streamer.manifest.model import Extent

logger = logging.getLogger(__name__)

# A chunk that is wrong again after so many fresh copies is not the network's fault: the disk lies.
MAX_REJECTS = 3
# The look-ahead of all sessions may cost this share of the limit; the rest of the cache makes hits.
LOOKAHEAD_SHARE = 1 / 16
# A chunk that failed in look-ahead is tried again after this pause, or when its reader comes to it.
COOLING_SECONDS = 2.0
SILENCE_CHECK_SECONDS = 5.0
# Eight clients were back within 40 ms of each other (two cores, 2026-11-20).
SETTLE_QUIET_SECONDS = 0.25


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
        self.rejects: Counter[bytes] = Counter()
        # Errors that reached a consumer, by kind.
        self.errors: Counter[str] = Counter()
        self.draining = False
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)
        self._kicked = False
        self._settled = False

    def __repr__(self) -> str:
        return f"Engine({self.config.cache.directory}, {len(self.sessions)} sessions)"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._loop = asyncio.get_running_loop()
            await stack.enter_async_context(self.cache)
            await stack.enter_async_context(self.fetchers)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            self.datasets = Datasets(self.cache.root, self.fetchers.access)
            self.flights = Flights(self.cache, self.fetchers, tasks, self._landed)
            self.indexing = Indexing(self)
            self._restore()
            self._settle_timer = self._loop.call_later(self.config.settle_seconds, self._settle)
            self._settle_by = self.now() + self.config.settle_seconds
            self._silence_timer = self._loop.call_later(SILENCE_CHECK_SECONDS, self._watch_silence)
            stack.callback(lambda: self._settle_timer.cancel())
            stack.callback(lambda: self._silence_timer.cancel())
            stack.callback(self.flights.cancel)
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
        return await self.indexing.manifest(request, report)

    async def read(self, digest: str, options: Mapping[str, object], chunk: int, span: tuple[int, int]) -> bytes:
        """The chunk-local bytes `[start, stop)` straight from the store, for looking at a sample."""
        dataset = self.datasets.get(digest, options)
        dataset.key(chunk)
        fetcher = await self.fetchers.of_chunk(dataset.manifest.chunk(chunk), dataset.options)
        return b"".join([await fetcher.read(piece) for piece in _extents_of(dataset, chunk, span)])

    def statistics(self) -> Values:
        """Counters by name; see `engine.statistics`."""
        return engine_statistics(self)

    # ------------------------------------------------------------ life

    async def drain(self, seconds: float) -> None:
        """Launches nothing any more and waits, at most so long, until what is on its way lies in the cache."""
        self.draining = True
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
        self._freed(self.policy.set_limit(self.cache.limit_bytes))

    def room_bytes(self) -> int:
        """What the kept part can still take without an eviction."""
        state = self.policy.statistics()
        return state.limit_bytes - state.staging_bytes - state.kept_bytes - state.transit_bytes

    def adopt(self, digest: str, kept: Mapping[bytes, int]) -> None:
        """Chunks that were published without a session (key: file bytes) belong to the policy from here on."""
        self.policy.local(list(kept), list(kept.values()), digest)
        self._freed(self.policy.fit())

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
        name = f"{next(self._numbers)} {request.consumer}"
        session = EngineSession(self, name, request, dataset, (on_ready, on_error))
        self.sessions[name] = session
        self._settle_soon()
        return session

    def close_session(self, session: EngineSession) -> None:
        """All leases of the session end; idempotent."""
        if self.sessions.pop(session.name, None) is None:
            return
        self.flights.leave(session)
        if session.admitted:
            self._freed(self.policy.close_session(session.name))
        self.kick()

    def admit(self, session: EngineSession, columns: Columns) -> None:
        """Its first complete schedule tells how much a session has open at once: the policy takes it in, or refuses."""
        if session.admitted or session.failed is not None:
            return
        needed = max(session.request.open_bytes, open_bytes(columns, session.dataset.file_bytes))
        session.lookahead_bytes = self._lookahead_bytes(session)
        try:
            freed = self.policy.open_session(
                session.name, session.request.job, session.dataset.manifest.digest, needed, session.lookahead_bytes
            )
        except CacheFullError as error:
            session.fail(error)
            return
        session.admitted = True
        self._freed(freed)

    def rejected(self, session: EngineSession, chunk: int, reason: str) -> None:
        """A reader found a chunk wrong: drop the file, fetch it again; give up when fresh copies are wrong, too."""
        key = session.dataset.key(chunk)
        logger.warning("%s rejects chunk %d (%s): %s", session.request.consumer, chunk, key.hex(), reason)
        if self.policy.forget(key):
            self.rejects[key] += 1
            self.flights.unlink([key])
        if self.rejects[key] > MAX_REJECTS:
            session.fail(
                IntegrityError(
                    f"chunk {chunk} is wrong on disk after {MAX_REJECTS} fresh copies: {reason}; check the disk of "
                    f"{self.cache.root}",
                    where=str(self.cache.root),
                )
            )
        session.track.lost(chunk, broken=True)
        self.kick()

    # ------------------------------------------------------------ the pump

    def kick(self) -> None:
        """Something changed: pump all sessions once, soon."""
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._pump_all)

    def _pump_all(self) -> None:
        self._kicked = False
        waiting_first = sorted(self.sessions.values(), key=lambda s: s.track.through() - s.track.want)
        for session in waiting_first:
            if session.admitted and session.failed is None:
                self._pump_alone(session)

    def _pump_alone(self, session: EngineSession) -> None:
        """What goes wrong with one session ends that one: the others must move."""
        try:
            self._pump(session)
        except StreamerError as error:
            session.fail(error)
        except Exception as error:
            logger.exception("session %s failed", session.name)
            session.fail(BrokenError(f"the engine failed over this session: {error!r}; see its log"))

    def _pump(self, session: EngineSession) -> None:
        for use in session.track.take_over():
            if not session.track.holds(use.chunk):
                session.keys.pop(session.dataset.key(use.chunk), None)
            self._freed(self.policy.release(session.name, use.chunk))
        self._ask_ahead(session)
        for use in session.track.openable():
            self._open(session, use)
        for chunk in session.reached_cooling():
            self._retry(session, chunk)
        session.announce()

    def _ask_ahead(self, session: EngineSession) -> None:
        """Asks the policy for what the session needs next, until it has enough ahead or there is no room."""
        track = session.track
        while not self.draining:
            if (question := track.next_question()) is not None:
                if not self._ask(session, question):
                    return
                continue
            use = track.next_use()
            if use is None or (use.first > track.want and session.ahead_bytes() >= session.lookahead_bytes):
                return
            self._begin_epoch(session, use)
            self.policy.look_ahead(session.name, use.chunk)
            track.hold(use)

    def _begin_epoch(self, session: EngineSession, use: Use) -> None:
        """The first epoch begins with its first use; later ones when the reader gets there (see `_open`)."""
        if session.running_epoch is None:
            self._start_epoch(session, use.epoch)

    def _start_epoch(self, session: EngineSession, epoch: int) -> None:
        session.running_epoch = epoch
        self.policy.start_epoch(session.name, epoch, session.track.remaining(epoch))

    def _ask(self, session: EngineSession, use: Use) -> bool:
        """One question to the policy; False: no room now."""
        track = session.track
        key = session.dataset.key(use.chunk)
        session.keys[key] = use.chunk
        try:
            answer = self.policy.need(session.name, use.chunk, head=track.blocks_line(use))
        except CacheFullError as error:
            session.fail(error)
            return False
        size = int(session.dataset.file_bytes[use.chunk])
        passenger = Passenger(session, use.chunk, track.first_need(use.chunk))
        match answer:
            case Hit():
                track.arrived(use.chunk)
            case Admit(victims=victims):
                self._evicted(victims)
                self.flights.launch(key, passenger, victims)
            case Wait(fetching=True) if self.flights.join(key, passenger):
                pass
            case Wait():
                return False
        track.answered()
        if use.number >= 0:
            session.count(use.epoch, size, hit=isinstance(answer, Hit))
        return True

    def _open(self, session: EngineSession, use: Use) -> None:
        if use.epoch != session.running_epoch:
            self._start_epoch(session, use.epoch)
        if self.policy.opened(session.name, use.chunk):
            session.track.opened(use)
        else:
            session.track.lost(use.chunk)
            self.kick()

    def _landed(self, flight: Flight, error: StreamerError | None) -> None:
        if error is None:
            for passenger in flight.passengers:
                passenger.session.track.arrived(passenger.chunk)
            self._freed(self.policy.published(flight.key))
        else:
            self.policy.failed(flight.key)
            for passenger in flight.passengers:
                self._missed(passenger, error)
        self.kick()

    def _missed(self, passenger: Passenger, error: StreamerError) -> None:
        """A reader that waits gets the error; a look-ahead tries again after a pause."""
        session, chunk = passenger.session, passenger.chunk
        if session.track.is_wanted(chunk):
            session.fail(error)
            return
        logger.warning("look-ahead of %s failed, trying again: %s", session.request.consumer, error)
        session.cooling.add(chunk)
        self._loop.call_later(COOLING_SECONDS, self._retry, session, chunk)

    def _retry(self, session: EngineSession, chunk: int) -> None:
        if chunk in session.cooling:
            session.cooling.discard(chunk)
            session.track.lost(chunk)
            self.kick()

    # ------------------------------------------------------------ room

    def _freed(self, freed: Freed) -> None:
        self._evicted(freed.victims)
        self.flights.unlink(freed.victims)
        if freed.victims or freed.promoted:
            self.kick()

    def _evicted(self, victims: tuple[bytes, ...]) -> None:
        """Sessions that had a victim in look-ahead ask for it again."""
        for key in victims:
            for session in self.sessions.values():
                if (chunk := session.keys.pop(key, None)) is not None:
                    session.track.lost(chunk)

    def _add_dataset(self, dataset: Dataset) -> None:
        self.policy.add_dataset(dataset.manifest.digest, dataset.file_bytes, dataset.manifest.chunk_keys)

    def _lookahead_bytes(self, session: EngineSession) -> int:
        """This session's part of a look-ahead that costs the hit rate at most LOOKAHEAD_SHARE of the limit."""
        limit = self.cache.limit_bytes
        missing = max(0.0, 1.0 - limit / max(1, session.dataset.total_bytes))
        affordable = self.config.lookahead_bytes
        if missing:
            affordable = min(affordable, int(limit * LOOKAHEAD_SHARE / missing))
        sharers = max(1, len(self.sessions), min(session.request.world_size, 8))
        return max(affordable // sharers, 2 * int(session.dataset.file_bytes.max(initial=0)))

    # ------------------------------------------------------------ over time

    def _restore(self) -> None:
        """Takes in what earlier engines left in the folder."""
        self.policy = CachePolicy(self.cache.limit_bytes, self.config.cache.eviction, settling=True)
        for dataset, keys, sizes in self.cache.catalog():
            self.policy.local(keys, sizes, dataset)
        self._freed(self.policy.fit())

    def _settle_soon(self) -> None:
        """All clients of an engine that died come back at once: when they stop coming, the wait is over."""
        if not self._settled:
            self._settle_timer.cancel()
            at = min(self._settle_by, self.now() + SETTLE_QUIET_SECONDS)
            self._settle_timer = self._loop.call_at(at, self._settle)

    def _settle(self) -> None:
        self._settled = True
        self._freed(self.policy.settle())
        self.kick()

    def _watch_silence(self) -> None:
        """A consumer that hangs while others wait loses the protection of its look-ahead."""
        self._silence_timer = self._loop.call_later(SILENCE_CHECK_SECONDS, self._watch_silence)
        if not any(s.track.next_question() is not None for s in self.sessions.values()):
            return
        for session in self.sessions.values():
            if session.admitted and self.now() - session.heard_at > self.config.silent_seconds:
                self._freed(self.policy.silence(session.name))
        self.kick()


def _extents_of(dataset: Dataset, chunk: int, span: tuple[int, int]) -> list[Extent]:
    """Where the chunk-local bytes `[start, stop)` lie in the store."""
    found, offset = [], 0
    for extent in dataset.manifest.chunk(chunk).extents:
        start, stop = max(span[0] - offset, 0), min(span[1] - offset, extent.length)
        if start < stop:
            found.append(Extent(extent.object, extent.start + start, extent.start + stop))
        offset += extent.length
    return found
