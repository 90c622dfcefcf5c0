"""Runs the engine: makes the chunks of all sessions local in time, and keeps those that the policy chooses.

The service runs it (`service/lifecycle.py`, `service/server.py`), and `peers/` calls it. The modules of this folder:

engine.py             the engine, requests, sessions       session.py           one consumer: callbacks, pace, counts
scheduler.py          admits, opens, starts fetches        session_progress.py  a consumer's place in its schedule
datasets.py           opened manifests, rights to them     collection.py        the datasets of a session as one
url_allowlist.py      which urls clients may name          corruption_reports.py chunks that readers found wrong
maintenance.py        what happens over time               statistics.py        counters and levels
windows.py            what sessions have open together     link_need.py         what keeps the link busy, measured
bring.py              a chunk's way to the cache           in_flight.py         the fetches that run
manifests/            requests for manifests               processes/           processes that fetch beside the loop
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy.answers import CacheLimits
from streamer.cache.policy.cache_policy import CachePolicy
from streamer.config import EngineConfig, enough_bytes, format_bytes
from streamer.engine.bring import Publisher, Sources, StoreSource
from streamer.engine.collection import Collection
from streamer.engine.corruption_reports import CorruptionReports
from streamer.engine.datasets import Dataset, Datasets, Preparation, Rights
from streamer.engine.in_flight import InFlight
from streamer.engine.manifests.index_resources import Report
from streamer.engine.manifests.manifests import Manifests
from streamer.engine.processes.pool import FetchPool
from streamer.engine.scheduler import PageCache, Scheduler, Settling
from streamer.engine.session import EngineSession, check_agreement
from streamer.engine.session_progress import affordable_lookahead
from streamer.engine.url_allowlist import Fetchers, UrlAllowlist
from streamer.errors import CacheFullError, ConfigError, ManifestError, StreamerError
from streamer.recode.pool import RecoderPool
from streamer.recode.recoded_chunks import RecodedChunks
from streamer.wire.messages import GetManifest, OpenSession, Part
from streamer.wire.schedule import EpochSchedule
from streamer.wire.store_options import StoreOptions

logger = logging.getLogger(__name__)


class Engine:
    """Serves any number of sessions from one cache folder, on one loop, inside its `async with`; see `UrlAllowlist`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.cache = ChunkCache(config.cache)
        self.fetchers = Fetchers(
            config.fetch, UrlAllowlist(config.datasets, refuse_local=config.refuse_local), self._notify
        )
        self.recoders = RecoderPool(config.fetch.memory_bytes)
        # Called with the key of storage options and a sentence for the sessions that have them; the key "" means all.
        self.on_notice: Callable[[str, str], None] | None = None
        self.sessions: dict[str, EngineSession] = {}
        # Errors that reached a consumer, by kind.
        self.errors: Counter[str] = Counter()
        # Returns the statistics of peers; it is set while this engine shares its cache.
        self.peer_statistics: Callable[[], dict[str, Any]] | None = None
        self._stack = AsyncExitStack()
        self._numbers = itertools.count(1)
        # The value of `manifests.written` when the folder was measured last.
        self._measured = 0
        self._measuring = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Engine({self.config.cache.directory}, {len(self.sessions)} sessions)"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._loop = asyncio.get_running_loop()
            self.cache.on_lost = self._replace_lost
            self.cache.on_warning = self.warn
            self.cache.is_used = lambda: bool(self.sessions)
            await stack.enter_async_context(self.cache)
            await stack.enter_async_context(self.fetchers)
            await stack.enter_async_context(self.recoders)
            self.fetch_pool = FetchPool(
                config=self.config.fetch,
                processes=self.config.fetch_processes,
                fetchers=self.fetchers,
                folder=self.cache.folder,
                notify=self._notify,
                refuse_local=self.config.refuse_local,
            )
            await stack.enter_async_context(self.fetch_pool)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            self.datasets = Datasets(self.cache.root, self.fetchers.allowlist)
            self.policy = CachePolicy(self.cache.limits, settling=True)
            self.scheduler = Scheduler(self.policy, self.sessions, PageCache(self.cache, tasks), self._loop)
            self.publisher = Publisher(self.cache, self.recoders, tasks, self.scheduler.resize_chunk)
            self.sources = Sources(StoreSource(self.fetchers, self.fetch_pool, self.publisher))
            in_flight = InFlight(self.sources, self.publisher, tasks, self.scheduler.end_fetch)
            self.in_flight = self.scheduler.in_flight = in_flight
            self.rights = Rights(self.datasets, self.fetchers)
            self.preparation = Preparation(self.datasets, self.rights, self.policy)
            self.manifests = Manifests(
                root=self.cache.root / "manifests",
                fetchers=self.fetchers,
                target=self,
                recoders=self.recoders,
                datasets=self.datasets,
            )
            self.corruption_reports = CorruptionReports(
                cache=self.cache, forget=self._forget, wake=self.wake, now=self.now, tasks=tasks, warn=self.warn
            )
            self._looked_at = RecodedChunks(self.cache, self.recoders)
            self._restore()
            self._settling = Settling(self._loop, self.config.settle_seconds, self._settle)
            stack.callback(self._settling.stop)
            stack.callback(self.in_flight.cancel)
            stack.callback(self.corruption_reports.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for session in list(self.sessions.values()):
            self.close_session(session)
        await self._stack.aclose()

    def now(self) -> float:
        """Returns the loop's clock, in seconds."""
        return self._loop.time()

    # ------------------------------------------------------------ requests

    async def manifest(self, request: GetManifest, report: Report) -> str:
        """Finds or builds a manifest, as `Manifests.manifest`; returns its digest, with which the client may read."""
        digest = await self.manifests.manifest(request, report)
        self.rights.grant(digest, request.options)
        # The folder is measured once for all manifests written meanwhile, which takes 28 ms for 200 (2026-11-23).
        async with self._measuring:
            if self._measured < self.manifests.written:
                self._measured = self.manifests.written
                await self.cache.measure()
                self.apply_limits(self.cache.limits)
        return digest

    async def read(self, digest: str, options: StoreOptions, chunk: int, span: tuple[int, int] | None) -> bytes:
        """Returns the bytes `span` of a chunk, half-open, for a look at a sample; caches no file.

        If `span` is None, returns the boundaries of a recoded chunk's entries.

        Raises:
            AccessDeniedError: the client has no right to the dataset.
            StreamerError: there is no such dataset or chunk, or the store fails.
        """
        await self.rights.prove(digest, options)
        wanted = (dataset := self.datasets.get(digest, options.mapping)).chunk(chunk)
        dataset.check_key(chunk)
        async with self.fetchers.use_for_chunk(wanted, dataset.options) as fetcher:
            if dataset.manifest.recoded:
                return (await self._looked_at.get(dataset.manifest, wanted, fetcher)).read(span)
            return b"".join([await fetcher.read(piece) for piece in wanted.extents_of(*(span or (0, 0)))])

    # ------------------------------------------------------------ life

    async def drain(self, seconds: float) -> None:
        """Lets no further fetch start, and waits at most `seconds` for those that run."""
        self.scheduler.draining = True
        if left := await self.in_flight.finish(seconds):
            logger.warning("%d chunks were not fetched after %.0f s: their bytes are fetched again", left, seconds)

    async def reload(self, config: EngineConfig) -> None:
        """Applies another limit and other datasets. Everything else needs a new engine.

        Raises:
            ConfigError, AccessDeniedError: open sessions need more, or a url is refused. Nothing has changed then.
        """
        allowlist = UrlAllowlist(config.datasets, refuse_local=config.refuse_local)
        limit = config.cache.limit_bytes
        if limit is not None and limit != self.config.cache.limit_bytes:
            state = self.policy.statistics()
            least = state.open_bytes + state.staging_bytes
            if self.sessions and limit < least:
                raise ConfigError(
                    f"limit_bytes={limit} ({format_bytes(limit)}) is below the {format_bytes(least)} that the "
                    f"{len(self.sessions)} open sessions need; it stays at {format_bytes(self.cache.limit_bytes)}",
                    field="limit_bytes",
                )
            await self.cache.resize(limit)
            self.apply_limits(self.cache.limits)
        self.fetchers.allowlist = allowlist
        self.datasets.reload(allowlist)
        self.config = config
        self.wake()

    def room_bytes(self) -> int:
        """Returns the bytes that fit into the kept part without an eviction."""
        state = self.policy.statistics()
        return state.limit_bytes - state.staging_bytes - state.kept_bytes - state.transit_bytes

    async def keep(self, key: bytes, parts: list[memoryview], sample_offsets: npt.NDArray[np.int64]) -> None:
        """Publishes a chunk that indexing has read anyway, as `ChunkCache.publish`; `adopt` follows it."""
        await self.cache.publish(key, parts, sample_offsets)

    async def make_room(self, share: float) -> None:
        """Evicts this share of the bytes of chunks, but none that is open, and waits until the files are gone.

        It is for a manifest that finds the disk full, which is more important than chunks.
        """
        state = self.policy.statistics()
        self.apply_limits(CacheLimits.make(int((1 - share) * (state.kept_bytes + state.transit_bytes))))
        await self.publisher.wait_for_unlinks()
        await self.cache.measure()
        self.apply_limits(self.cache.limits)

    def adopt(self, digest: str, kept: Mapping[bytes, int]) -> None:
        """Gives chunks that were published without a session (key: file bytes) to the policy."""
        self.policy.local(list(kept), list(kept.values()), digest)
        self.scheduler.apply_evictions(self.policy.fit())

    # ------------------------------------------------------------ sessions

    def open_session(
        self, request: OpenSession, on_ready: Callable[[int, int], None], on_error: Callable[[StreamerError], None]
    ) -> EngineSession:
        """Opens the session of a consumer; the callables are those of `EngineSession`.

        Raises:
            ManifestError, AccessDeniedError, ConfigError: a dataset cannot be used, as `Datasets.get`.
            StateError: it disagrees with another session of its job.
        """
        for other in self.sessions.values():
            check_agreement(request, other.request)
        datasets = tuple(map(self._dataset, request.all_parts))
        names = tuple(part.name for part in request.all_parts)
        # Sessions of equal datasets share the columns, which take 8 bytes a chunk.
        known = (session.collection for session in self.sessions.values())
        collection = next((one for one in known if one.datasets == datasets and one.names == names), None)
        if collection is None:
            self.policy.add_datasets(
                [(one.manifest.digest, one.file_bytes, one.manifest.chunk_keys) for one in datasets]
            )
            collection = Collection(datasets, names)
        for dataset in collection.datasets:
            self.cache.use(dataset.manifest.digest)
        name = f"{next(self._numbers)} {request.consumer}"
        session = EngineSession(
            host=self, name=name, request=request, collection=collection, callbacks=(on_ready, on_error)
        )
        self.sessions[name] = session
        self._settling.end_soon()
        return session

    def connect(self, job: str) -> None:
        """Records a connection of a job, whose datasets stay live until `disconnect`, also between its sessions."""
        self.policy.connect(job)

    def disconnect(self, job: str) -> None:
        """Records the end of a connection of a job, whose sessions are closed."""
        self.policy.disconnect(job)
        self.wake()

    def close_session(self, session: EngineSession) -> None:
        """Closes a session and ends all its leases; idempotent."""
        if self.sessions.pop(session.name, None) is None:
            return
        self.in_flight.leave(session)
        if session.admitted:
            self.scheduler.apply_evictions(self.policy.close_session(*session.parts.names))
            self.scheduler.change_windows()
        self.wake()

    def admit(self, session: EngineSession, schedule: EpochSchedule) -> None:
        """Registers a session with the policy once its first complete schedule shows how much it has open at once.

        A session whose open chunks do not fit fails with `CacheFullError`; later schedules change nothing.
        """
        if session.admitted or session.failed is not None:
            return
        # The bytes of all live data count: a small validation set alone would fit, and its look-ahead over all of it
        # took the room of the training's chunks.
        live_bytes = self.policy.live_bytes({part.dataset for part in session.request.all_parts})
        affordable_bytes = affordable_lookahead(self.config.lookahead_bytes, self.cache.space.max_bytes, live_bytes)
        openings = session.plan(schedule, affordable_bytes, len(self.sessions))
        try:
            freed = self.policy.open_sessions(session.request.job, openings)
        except CacheFullError as error:
            space = self.cache.space
            present = sum(one.request.job == session.request.job for one in self.sessions.values())
            session.fail(
                make_too_small_error(
                    root=self.cache.root,
                    limit_bytes=space.max_bytes,
                    whole_bytes=space.max_whole_bytes,
                    overhead_bytes=space.overhead_bytes + space.send_bytes,
                    wanted_bytes=int(str(error.details["wanted_bytes"])),
                    others_bytes=int(str(error.details["others_bytes"])),
                    to_come=max(0, session.request.sharers - present),
                )
            )
            return
        session.admitted = True
        self.scheduler.apply_evictions(freed)
        self.scheduler.change_windows()

    def continue_passes(self, session: EngineSession) -> None:
        """Records that running passes of a session go on in another epoch's schedule."""
        if session.admitted:
            self.scheduler.continue_passes(session)

    def wake(self) -> None:
        """Schedules all sessions once, soon: something changed."""
        self.scheduler.wake()

    def has(self, session: EngineSession) -> bool:
        """Whether the session is open."""
        return self.sessions.get(session.name) is session

    def reject(self, session: EngineSession, chunk: int, reason: str) -> None:
        """Takes a report that a session's reader found a chunk corrupt, as `CorruptionReports.report`."""
        self.corruption_reports.report(session, chunk, reason)

    def note_good_read(self, session: EngineSession, chunk: int) -> None:
        """Records that a session's reader has read a chunk well that it had reported as corrupt."""
        self.corruption_reports.note_good_read(session, chunk)

    def count_error(self, error: StreamerError) -> None:
        """Counts an error that reaches a consumer."""
        self.errors[type(error).__name__] += 1

    def _notify(self, key: str, text: str) -> None:
        if self.on_notice is not None:
            self.on_notice(key, text)

    @property
    def silent_seconds(self) -> float:
        """Seconds without a message after which a session counts as hanging."""
        return self.config.silent_seconds

    # ------------------------------------------------------------ room

    def _dataset(self, part: Part) -> Dataset:
        """Returns the dataset of a part; an error names the part if it is a member."""
        try:
            return self.datasets.get(part.dataset, part.options.mapping, key=part.options.key)
        except StreamerError as error:
            if not part.name:
                raise
            raise error.of_member(part.name) from error

    def _restore(self) -> None:
        """Adds what earlier engines left in the folder, and the chunks of the read-only layers."""
        self.policy.below(self.cache.layers.keys)
        for dataset, keys, sizes in self.cache.found:
            self.policy.local(keys, sizes, dataset)
        self.scheduler.apply_evictions(self.policy.fit())
        if not self.cache.keys():
            # No client of an earlier engine has anything open, so that no pause is needed. During the pause no
            # selected chunk replaces an unselected one: chunks of the first 0.25 s were not kept.
            self.policy.settle()

    def _settle(self) -> None:
        self.scheduler.apply_evictions(self.policy.settle())
        self.wake()

    def warn(self, text: str) -> None:
        """Passes a sentence about the cache to the logs of all its users."""
        self._notify("", text)

    def _replace_lost(self, keys: list[bytes]) -> None:
        """Asks again for chunks, and writes manifests again, after the cache folder was removed and made again."""
        for key in keys:
            self.policy.forget(key)
        self.scheduler.ask_again_for(keys)
        # Imported late: an engine whose folder stays starts sooner.
        from streamer.annotations.table import publish_table_again
        from streamer.indexing.publish import publish_again

        root = self.cache.root / "manifests"
        again = [partial(publish_again, manifest) for manifest in self.datasets.manifests()]
        again += [partial(publish_table_again, table) for table in list(self.manifests.store.tables.values())]
        for publish in again:
            try:
                publish(root)
            except ManifestError as error:
                logger.warning("%s; workers that start now cannot open the dataset", error)
        self.wake()

    def _forget(self, key: bytes) -> bool:
        """Removes a corrupt or missing chunk from policy and disk; returns False if it was not local."""
        known = self.policy.forget(key)
        if known:
            self.in_flight.unlink([key])
        return known

    def apply_limits(self, limits: CacheLimits) -> None:
        """Tells the policy of other limits: manifests were added, or other programs fill or free the disk."""
        self.scheduler.apply_evictions(self.policy.set_limit(limits))

    def forget_datasets(self) -> None:
        """Forgets datasets whose manifest was removed; their chunks stay without an owner, and are evicted first."""
        known = self.manifests.store.digests() | {manifest.digest for manifest in self.datasets.manifests()}
        gone = self.policy.forget_datasets(known)
        for digest in gone:
            self.cache.forget(digest)
        if gone:
            self.apply_limits(self.cache.limits)


def make_too_small_error(
    *,
    root: Path,
    limit_bytes: int,
    whole_bytes: int,
    overhead_bytes: int,
    wanted_bytes: int,
    others_bytes: int,
    to_come: int,
) -> CacheFullError:
    """Returns the error of a cache that is too small, with a limit that is enough for all consumers.

    Args:
        root: the cache folder.
        limit_bytes: limit of the chunk files.
        whole_bytes: limit of the whole folder.
        overhead_bytes: bytes of the folder that manifests, the catalog and chunks on their way to peers take.
        wanted_bytes: bytes of the chunks that this consumer has open at once, and of one more.
        others_bytes: the same for all other open sessions together.
        to_come: number of consumers of the same job on this machine that have no session yet.
    """
    needed = others_bytes + wanted_bytes * (1 + to_come)
    need = f"{format_bytes(wanted_bytes)} for the chunks that one reader has open and one more"
    if needed > wanted_bytes:
        need += f", {format_bytes(needed)} for all readers of this machine"
    least = needed + overhead_bytes
    return CacheFullError(
        f"the limit of {format_bytes(whole_bytes)} is too small for the cache {root}. Needed are {need}, "
        f"besides {format_bytes(overhead_bytes)} of manifests and catalog. Set cache_bytes to at least "
        f"{enough_bytes(least)}, or pass an Order with a smaller shuffle_window or fewer lanes on all ranks",
        limit_bytes=limit_bytes,
        wanted_bytes=wanted_bytes,
        needed_bytes=needed,
        least_bytes=least,
    )
