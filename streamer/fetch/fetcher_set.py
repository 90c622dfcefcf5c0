"""Keeps one fetcher for each set of storage options: datasets with the same options share windows and connections.

The engine (`engine/url_allowlist.py`) and each fetch process (`engine/processes/fetching.py`) have one such set.
`engine/` and the service name storage options by `options_key`. Its fetchers share one budget of memory: with a budget
each, an engine for ten sets of credentials took ten times the memory of one. A user renews credentials every few hours,
which makes another set of options. Therefore a fetcher that has not been used for a while is closed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial, reduce
from typing import Self, TypeAlias

from streamer.config import FetchConfig
from streamer.errors import StreamerError
from streamer.fetch.concurrency import FetchLimits
from streamer.fetch.fetcher import Fetcher
from streamer.fetch.memory_budget import MemoryBudget
from streamer.fetch.statistics import COUNTS, Histogram, counts_of, sum_statistics
from streamer.store.addresses.urls import Address, split
from streamer.store.base import ObjectStore

logger = logging.getLogger(__name__)

# Opens the store of a root (a bucket or a host) with storage options, given the address of a url in it.
OpenStore: TypeAlias = Callable[[Mapping[str, object], Address], ObjectStore]


def options_key(options: Mapping[str, object]) -> str:
    """Returns a text that is equal for equal storage options. It holds their secrets."""
    return json.dumps(dict(options), sort_keys=True, default=repr)


def ignore_notice(key: str, text: str) -> None:
    """Ignores a notice; for sets whose fetches no client waits for."""


class _Pooled:
    """Holds a fetcher, how many `use` blocks have it open, and whether one ended since the last `close_idle`."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self.users = 0
        self.touched = True


class FetcherSet:
    """Opens fetchers as they are needed, and closes unused ones. It works on one event loop, inside its `async with`.

    Args:
        config: bounds and budgets of each fetcher.
        open_store: opens the stores that they read.
        notify: called with the key of the options and a sentence, when a store has served nothing for a while.

    Attributes:
        memory: the budget of memory that all fetchers share.
        most_requests: largest window of an endpoint by `config`, which `limit` does not change.
    """

    def __init__(
        self, config: FetchConfig, open_store: OpenStore, notify: Callable[[str, str], None] = ignore_notice
    ) -> None:
        self._config = config
        self._open_store = open_store
        self._notify = notify
        self.memory = MemoryBudget(config)
        self.most_requests = config.window_max
        self._open: dict[str, _Pooled] = {}
        self._past: Counter[str] = Counter()
        self._past_first_bytes = Histogram()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[pooled.fetcher for pooled in self._open.values()]})"

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
    async def use(self, options: Mapping[str, object]) -> AsyncIterator[Fetcher]:
        """Gives the fetcher for these storage options, which is open until the end of the `async with` at least."""
        key = options_key(options)
        if key not in self._open:
            opener = partial(self._open_store, options)
            notify = partial(self._notify, key)
            fetcher = Fetcher(self._config, opener, memory=self.memory, notify=notify, find_address=self.find_address)
            self._open[key] = _Pooled(fetcher)
            await self._open[key].fetcher.__aenter__()
        pooled = self._open[key]
        pooled.users += 1
        try:
            yield pooled.fetcher
        finally:
            pooled.users -= 1
            pooled.touched = True

    def find_address(self, url: str) -> Address:
        """Splits a url into its root and the rest; raises ConfigError. A subclass may keep what it has split."""
        return split(url)

    def close_idle(self, needed: Container[str]) -> None:
        """Starts to close the fetchers that were not used since the last call.

        Args:
            needed: keys of options (`options_key`) whose fetchers stay open.
        """
        for key, pooled in list(self._open.items()):
            if not (pooled.touched or pooled.users or key in needed):
                self._close(key)
            pooled.touched = False

    def limit(self, limits: FetchLimits) -> None:
        """Sets other limits, those of this process's share; requests in flight go on."""
        self._config = limits.apply(self._config)
        self.memory.resize(limits.memory_bytes)
        for pooled in self._open.values():
            pooled.fetcher.limit(limits)

    def pace_anew(self) -> None:
        """Forgets the rates that the stores were found to permit (`Endpoint.pace_anew`)."""
        for pooled in self._open.values():
            pooled.fetcher.pace_anew()

    @property
    def refused_by_chance(self) -> bool:
        """Whether some store is known to refuse requests by chance, and none limits the rate otherwise (`Pacing`)."""
        pacings = [pacing for pooled in self._open.values() for pacing in pooled.fetcher.pacings]
        return any(one.by_chance for one in pacings) and all(one.by_chance or not one.limited for one in pacings)

    @property
    def window(self) -> int:
        """Number of requests that all open fetchers may have at once."""
        return sum(pooled.fetcher.window for pooled in self._open.values())

    def counts(self) -> Counter[str]:
        """Returns what all fetchers have counted since the start, closed ones too, by the names of `COUNTS`."""
        total = self._past.copy()
        for pooled in self._open.values():
            total.update(counts_of(pooled.fetcher.tally))
        return total

    def statistics(self) -> dict[str, int | float]:
        """Returns the values of `FetchStatistics` by name: sums over all fetchers, for latencies the largest.

        The counts (`COUNTS`) include closed fetchers.
        """
        total = sum_statistics([asdict(pooled.fetcher.statistics()) for pooled in self._open.values()])
        # Every fetcher counts the requests that wait for the shared memory, and its bytes.
        total["waiting"] -= self.memory.gate.waiting * max(0, len(self._open) - 1)
        total["reserved_bytes"] = self.memory.gate.used
        total["reserved_peak_bytes"] = self.memory.gate.peak
        return {**total, **{name: total[name] + self._past[name] for name in COUNTS}}

    def first_bytes(self) -> Histogram:
        """Returns the histogram of the times to first byte of all fetchers since the start, closed ones too."""
        every = [pooled.fetcher.first_bytes for pooled in self._open.values()]
        return reduce(Histogram.plus, every, self._past_first_bytes)

    def _close(self, key: str) -> None:
        """Keeps the counts of a fetcher, and starts a task that closes it."""
        fetcher = self._open.pop(key).fetcher
        self._past_first_bytes = self._past_first_bytes.plus(fetcher.first_bytes)
        self._past.update(counts_of(fetcher.tally))
        self._tasks.create_task(_close_later(fetcher), name="close a fetcher")


async def _close_later(fetcher: Fetcher) -> None:
    try:
        await fetcher.__aexit__(None, None, None)
    except (StreamerError, OSError) as error:
        logger.warning("%r was not closed in order: %s", fetcher, error)
