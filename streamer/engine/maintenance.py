"""Does the periodic work of an engine, beside its sessions: a service that runs for months must not grow.

`service/lifecycle.py` runs `maintain` around an engine. It looks after:

    silent sessions      consumers that hang while others wait lose the protection of their look-ahead
    free space           the limit falls while other programs fill the disk, and rises again
    scrub                every chunk that no session holds is compared with its checksums, slowly
    open manifests       those that no session and no fetch uses are closed
    fetchers             those of credentials that no session has are closed
    manifests on disk    superseded and least recently used ones are removed (`manifests/manifest_store.py`)
    removed manifests    their chunks stay, belong to no dataset, and are evicted first

An open manifest or fetcher stays if it was used since the last check. A later session opens one again: a
manifest takes milliseconds, a fetcher one connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from streamer.cache.chunk_cache import ChunkCache
from streamer.cache.policy.answers import CacheLimits
from streamer.engine.engine import Engine
from streamer.errors import CacheError
from streamer.fetch.fetcher_set import options_key

logger = logging.getLogger(__name__)

SILENCE_CHECK_SECONDS = 5.0
# An engine that checks later than this was stopped itself, and messages of its consumers may be unread.
LATE_SECONDS = 1.0
# Interval of the checks for what is unused: a validation between epochs, or a user's next job, comes within minutes.
LOOK_SECONDS = 300.0
# Manifests that no session has open may take this share of the limit. A manifest takes 0.01 to 0.1 % of its data.
IDLE_MANIFESTS_SHARE = 1 / 16


@asynccontextmanager
async def maintain(engine: Engine) -> AsyncIterator[None]:
    """Maintains an open engine inside an `async with`."""
    async with asyncio.TaskGroup() as tasks:
        silence = SilenceWatch(engine, asyncio.get_running_loop())

        def is_in_use(key: bytes) -> bool:
            return any(key in session.keys for session in engine.sessions.values())

        works: dict[str, Callable[[], Awaitable[None]]] = {
            "free space": partial(watch_free_space, engine.cache, engine.apply_limits),
            "scrub": partial(scrub, engine.cache, engine.corruption_reports.drop_chunk, is_in_use),
            "unused": partial(remove_idle, engine),
        }
        running = [tasks.create_task(repeat_after_errors(name, work), name=name) for name, work in works.items()]
        try:
            yield
        finally:
            silence.stop()
            for task in running:
                task.cancel()


async def repeat_after_errors(
    name: str, work: Callable[[], Awaitable[None]], retry_seconds: float = SILENCE_CHECK_SECONDS
) -> None:
    """Runs periodic work until it returns, and begins it again after an OSError or CacheError, which it logs.

    Args:
        name: name of the work, for the log.
        work: work that mostly runs until it is cancelled.
        retry_seconds: pause after an error.
    """
    while True:
        try:
            await work()
            return
        except (OSError, CacheError) as error:
            logger.warning("%s: %s; begun again in %.0f s", name, error, retry_seconds)
        await asyncio.sleep(retry_seconds)


class SilenceWatch:
    """Takes the protection of its look-ahead from a session whose consumer hangs while others wait.

    It looks every `SILENCE_CHECK_SECONDS`, from its making until `stop`.

    Args:
        engine: an open engine.
        loop: the engine's loop.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._timer = loop.call_later(SILENCE_CHECK_SECONDS, self._look)

    def stop(self) -> None:
        """Ends the checks; idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        """Silences the sessions that hang, if any session waits for room, and sets the timer again."""
        engine = self._engine
        late_seconds = self._loop.time() - self._timer.when()
        self._timer = self._loop.call_later(SILENCE_CHECK_SECONDS, self._look)
        if late_seconds > LATE_SECONDS:
            # The time in which this process did not run does not count as silence of consumers.
            for session in engine.sessions.values():
                session.last_message_at = min(engine.now(), session.last_message_at + late_seconds)
        elif any(session.progress.has_requests() for session in engine.sessions.values()):
            for session in engine.sessions.values():
                if session.admitted and session.silent:
                    for part in session.parts.names:
                        engine.scheduler.apply_evictions(engine.policy.silence(part))
            engine.wake()


async def remove_idle(engine: Engine, every_seconds: float = LOOK_SECONDS) -> None:
    """Calls `remove_idle_once` at once, for what an earlier engine left, and then periodically, until it is cancelled.

    Args:
        engine: an open engine.
        every_seconds: interval between two calls.
    """
    while True:
        try:
            await remove_idle_once(engine)
        except OSError as error:
            logger.warning("cannot remove unused manifests: %s; tried again", error)
        await asyncio.sleep(every_seconds)


async def remove_idle_once(engine: Engine) -> None:
    """Closes manifests and fetchers that were not used since the last call, and removes manifests from the disk.

    Those on the disk are removed as by `ManifestStore.remove_idle`.

    Raises:
        OSError: the disk refused to remove a manifest; the next call tries again.
    """
    used = [dataset for session in engine.sessions.values() for dataset in session.collection.datasets]
    held = {dataset.name: dataset for dataset in [*used, *engine.in_flight.datasets()]}
    engine.datasets.drop_idle(held)
    engine.fetchers.close_idle({options_key(dataset.options) for dataset in held.values()})
    opened = {dataset.manifest.digest for dataset in [*engine.datasets.all(), *held.values()]}
    gone = await engine.manifests.remove_idle(opened, int(engine.cache.limit_bytes * IDLE_MANIFESTS_SHARE))
    engine.forget_datasets()
    if gone:
        logger.info("%d unused manifests are removed: %s", len(gone), ", ".join(sorted(gone)))
        await engine.cache.measure()
        engine.apply_limits(engine.cache.limits)


# Rate of the scrub, 4 % of that of a SATA SSD. At this rate 8 TB take eleven days.
SCRUB_BYTES_PER_SECOND = 8 << 20
# Pause between two passes of the scrub.
SCRUB_PAUSE_SECONDS = 60.0
# Interval of looks at the free space, for which the kernel has no event. Other programs may write 2 GB meanwhile, at
# 1 GB/s, hence the default floor.
FREE_SPACE_SECONDS = 2.0


async def scrub(
    cache: ChunkCache,
    on_damaged: Callable[[bytes], None],
    skip: Callable[[bytes], bool] = lambda key: False,
    bytes_per_second: int = SCRUB_BYTES_PER_SECOND,
    pause_seconds: float = SCRUB_PAUSE_SECONDS,
) -> None:
    """Reads every chunk again and again, slowly, and compares it with its checksums, until it is cancelled.

    Args:
        cache: an open cache.
        on_damaged: called with the key of a chunk whose file is corrupt, unreadable or missing; it must forget and
            evict the chunk, if the cache still has it.
        skip: returns whether not to read a chunk now, such as an open one: readers check it, and its pages stay.
        bytes_per_second: rate of reading.
        pause_seconds: pause between two passes.
    """
    while True:
        resident = cache.keys()
        for key in resident:
            if skip(key) or not cache.contains(key):
                continue
            length = cache.length(key)
            if await cache.verify(key):
                cache.note_good_read(key)
            else:
                on_damaged(key)
            await cache.advise(key, "DONTNEED")
            await asyncio.sleep(length / bytes_per_second)
        # It pauses also if every chunk was skipped: an engine whose chunks are all in use would do nothing else.
        await asyncio.sleep(pause_seconds)


async def watch_free_space(
    cache: ChunkCache, on_limit: Callable[[CacheLimits], None], every_seconds: float = FREE_SPACE_SECONDS
) -> None:
    """Measures the free space periodically, until it is cancelled, and passes changed limits on.

    The limits fall while other programs fill the disk, and rise when they free it.

    Args:
        cache: an open cache.
        on_limit: called with changed `cache.limits`; it must tell the policy and evict its victims.
        every_seconds: interval between two looks.
    """
    known = cache.limits
    while True:
        await asyncio.sleep(every_seconds)
        await cache.measure()
        if cache.limits != known:
            known = cache.limits
            on_limit(known)
