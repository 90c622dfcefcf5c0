"""One fetcher per set of storage options: datasets with the same credentials share windows and connections.

All of them share one budget of memory: with one each, an engine for ten sets of credentials took ten times its own.
Credentials are renewed every few hours, and each renewal is another set: a fetcher that has not been used for a while
is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, fields
from functools import partial, reduce
from typing import Self

from streamer.config import FetchConfig
from streamer.engine.datasets import options_key
from streamer.engine.url_allowlist import UrlAllowlist
from streamer.errors import StreamerError
from streamer.fetch import Fetcher
from streamer.fetch.memory_budget import MemoryBudget
from streamer.fetch.statistics import FetchStatistics, Histogram
from streamer.manifest.model import Chunk
from streamer.store import ObjectStore, open_store

logger = logging.getLogger(__name__)

_NOT_SUMMED = ("_seconds", "reserved_bytes", "reserved_peak_bytes")
# Levels of now; everything else counts on after a fetcher is gone.
_LEVELS = ("window", "in_flight", "waiting", "_seconds", "reserved_bytes", "reserved_peak_bytes")


def _ignore(key: str, text: str) -> None:
    """Without clients."""


class _Pooled:
    """A fetcher, how many users it has, and whether it was used since the last check."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self.users = 0
        self.touched = True


class Fetchers:
    """Opens fetchers as they are needed, closes unused ones. On the engine's loop, in its `async with`.

    Args:
        config: of each.
        allowlist: which urls are read, with which options.
        notify: called with the key of the options and a sentence, when a store has served nothing for a while.

    Attributes:
        memory: for the bytes of all of them.
        most_requests: of each endpoint at once.
    """

    def __init__(
        self, config: FetchConfig, allowlist: UrlAllowlist, notify: Callable[[str, str], None] = _ignore
    ) -> None:
        self.allowlist = allowlist
        self._config = config
        self._notify = notify
        self.memory = MemoryBudget(config)
        self.most_requests = config.window_max
        self._open: dict[str, _Pooled] = {}
        self._past: Counter[str] = Counter()
        self._past_first_bytes = Histogram()

    def __repr__(self) -> str:
        return f"Fetchers({[pooled.fetcher for pooled in self._open.values()]})"

    def __len__(self) -> int:
        return len(self._open)

    async def __aenter__(self) -> Self:
        self._tasks = asyncio.TaskGroup()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for key in list(self._open):
            self._close(key)
        await self._tasks.__aexit__(None, None, None)
        self.memory.buffers.clear()

    @asynccontextmanager
    async def of(self, options: Mapping[str, object]) -> AsyncIterator[Fetcher]:
        """The fetcher for these storage options, open until the end of the block at least."""
        key = options_key(options)
        if key not in self._open:
            opener, notify = partial(self._open_store, options), partial(self._notify, key)
            self._open[key] = _Pooled(Fetcher(self._config, opener, self.memory, notify))
            await self._open[key].fetcher.__aenter__()
        pooled = self._open[key]
        pooled.users += 1
        try:
            yield pooled.fetcher
        finally:
            pooled.users -= 1
            pooled.touched = True

    def of_chunk(self, chunk: Chunk, options: Mapping[str, object]) -> AbstractAsyncContextManager[Fetcher]:
        """The fetcher for a chunk of a dataset with these options.

        Raises:
            AccessDeniedError: an object of the chunk is not served with them.
        """
        self.allowlist.check_chunk(chunk, options)
        return self.of(options)

    def close_idle(self, needed: Container[str]) -> None:
        """Closes fetchers that were not used since the last call.

        Args:
            needed: keys of options (`options_key`) that stay.
        """
        for key, pooled in list(self._open.items()):
            if not (pooled.touched or pooled.users or key in needed):
                self._close(key)
            pooled.touched = False

    def statistics(self) -> dict[str, int | float]:
        """The counts and gauges of all fetchers: sums, the worst of the latencies, and the one memory."""
        total: dict[str, int | float] = {field.name: self._past[field.name] for field in fields(FetchStatistics)}
        for pooled in self._open.values():
            for name, value in asdict(pooled.fetcher.statistics()).items():
                total[name] = max(total[name], value) if name.endswith(_NOT_SUMMED) else total[name] + value
        # Each counts the requests that wait for the shared memory.
        total["waiting"] -= self.memory.gate.waiting * max(0, len(self._open) - 1)
        return total

    def first_bytes(self) -> Histogram:
        """Times to first byte of all fetchers since the start."""
        every = [pooled.fetcher.first_bytes for pooled in self._open.values()]
        return reduce(Histogram.plus, every, self._past_first_bytes)

    def _open_store(self, options: Mapping[str, object], url: str) -> ObjectStore:
        return open_store(url, options, client=self._config.client, guarded=self.allowlist.guarded)

    def _close(self, key: str) -> None:
        fetcher = self._open.pop(key).fetcher
        self._past_first_bytes = self._past_first_bytes.plus(fetcher.first_bytes)
        counts = asdict(fetcher.statistics())
        self._past.update({name: count for name, count in counts.items() if not name.endswith(_LEVELS)})
        self._tasks.create_task(_close_later(fetcher), name="close a fetcher")


async def _close_later(fetcher: Fetcher) -> None:
    try:
        await fetcher.__aexit__(None, None, None)
    except (StreamerError, OSError) as error:
        logger.warning("%r was not closed in order: %s", fetcher, error)
