"""Runs the fetches of chunks, one per chunk key, however many sessions wait for the chunk.

`scheduler.py` starts them for sessions, and `peers/serving.py` for other engines. `engine.py` ends them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from streamer.base.system_limits import limit_error
from streamer.engine.bring import Fetch, Publisher, Sources, Waiter
from streamer.engine.datasets import Dataset
from streamer.engine.session import EngineSession
from streamer.errors import BrokenError, CacheError, StreamerError

logger = logging.getLogger(__name__)


class InFlight:
    """Runs fetches as tasks, each until its chunk is in the cache or has failed. The engine has one, on its loop.

    Args:
        sources: brings a chunk to the cache.
        publisher: removes the files of evicted chunks.
        tasks: group in which the tasks run.
        finished: called when a fetch is over and was not cancelled, with the error that ended it, or None.
    """

    def __init__(
        self,
        sources: Sources,
        publisher: Publisher,
        tasks: asyncio.TaskGroup,
        finished: Callable[[Fetch, StreamerError | None], None],
    ) -> None:
        self._sources = sources
        self._publisher = publisher
        self._tasks = tasks
        self._finished = finished
        self._fetches: dict[bytes, Fetch] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    def start(self, key: bytes, waiter: Waiter, victims: Iterable[bytes] = ()) -> None:
        """Starts the fetch of a chunk that is not being fetched.

        Args:
            key: key of the chunk.
            waiter: session that waits for it, with the number of the chunk.
            victims: keys of evicted chunks, whose files are removed before the chunk is published.
        """
        self.unlink(victims)
        part, chunk = waiter.session.collection.locate(waiter.chunk)
        self._begin(Fetch(key, waiter.session.collection.datasets[part], chunk, [waiter]))

    def start_for_peer(self, fetch: Fetch, victims: Iterable[bytes] = ()) -> None:
        """Starts the fetch of a chunk for another engine; no session of this engine waits for it yet."""
        self.unlink(victims)
        self._begin(fetch)

    def find(self, key: bytes) -> Fetch | None:
        """Returns the running fetch of a chunk, or None if there is none."""
        return self._fetches.get(key)

    def _begin(self, fetch: Fetch) -> None:
        self._fetches[fetch.key] = fetch
        fetch.task = self._tasks.create_task(self._run(fetch), name=f"fetch {fetch.key.hex()}")

    def join(self, key: bytes, waiter: Waiter) -> bool:
        """Adds a waiter to the running fetch of a chunk. Returns False if there is none."""
        fetch = self._fetches.get(key)
        if fetch is not None:
            fetch.waiters.append(waiter)
        return fetch is not None

    def leave(self, session: EngineSession) -> None:
        """Removes a closed session from the waiters; the fetches continue for other sessions and for the cache."""
        for fetch in self._fetches.values():
            fetch.waiters = [waiter for waiter in fetch.waiters if waiter.session is not session]

    def datasets(self) -> list[Dataset]:
        """Returns the dataset of each running fetch; one of which several chunks are fetched occurs several times."""
        return [fetch.dataset for fetch in self._fetches.values()]

    def unlink(self, keys: Iterable[bytes]) -> None:
        """Starts to remove the files of evicted chunks; does not wait for it."""
        self._publisher.unlink(keys)

    async def finish(self, seconds: float) -> int:
        """Waits at most `seconds` for the running fetches; returns how many are still running."""
        tasks = [fetch.task for fetch in self._fetches.values() if fetch.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        return len(self._fetches)

    def cancel(self) -> None:
        """Cancels all fetches, and does not wait for their end."""
        for fetch in self._fetches.values():
            if fetch.task is not None:
                fetch.task.cancel()

    async def _run(self, fetch: Fetch) -> None:
        """Brings the chunk and calls `finished`, with a BrokenError or CacheError for what is no StreamerError."""
        error: StreamerError | None = None
        try:
            await self._sources.bring(fetch)
        except StreamerError as failure:
            error = failure
        except Exception as failure:
            logger.exception("fetch of chunk %s failed", fetch.key.hex())
            error = BrokenError(f"the engine failed over chunk {fetch.chunk}: {failure!r}; see its log")
            if (limit := limit_error(failure)) is not None:
                # The engine may have what it lacks again in a moment: with this error the chunk is tried a few times.
                error = CacheError(f"the engine cannot fetch chunk {fetch.chunk}: {limit}")
        finally:
            del self._fetches[fetch.key]
        self._finished(fetch, error)
