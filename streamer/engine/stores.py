"""One fetcher per set of storage options: datasets with the same credentials share windows and connections.

All of them share one budget of memory: with one each, an engine for ten sets of credentials took ten times its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, fields
from functools import partial
from typing import Self

from streamer.config import FetchConfig
from streamer.engine.access import Access
from streamer.engine.datasets import options_key
from streamer.fetch import Fetcher
from streamer.fetch.memory import Memory
from streamer.fetch.statistics import FetchStatistics
from streamer.manifest.model import Chunk
from streamer.store import ObjectStore, open_store

_NOT_SUMMED = ("_seconds", "reserved_bytes", "reserved_peak_bytes")


class Fetchers:
    """Opens fetchers as they are needed, closes all at the end. On the engine's loop, inside its `async with`."""

    def __init__(self, config: FetchConfig, access: Access) -> None:
        self.access = access
        self._config = config
        self._memory = Memory(config)
        self._open: dict[str, Fetcher] = {}
        self._stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"Fetchers({list(self._open.values())})"

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def of(self, options: Mapping[str, object]) -> Fetcher:
        """The fetcher for these storage options."""
        key = options_key(options)
        if key not in self._open:
            fetcher = Fetcher(self._config, partial(_open, options), self._memory)
            self._open[key] = fetcher
            await self._stack.enter_async_context(fetcher)
        return self._open[key]

    async def of_chunk(self, chunk: Chunk, options: Mapping[str, object]) -> Fetcher:
        """The fetcher for a chunk of a dataset with these options.

        Raises:
            AccessDeniedError: an object of the chunk is not served with them.
        """
        self.access.check_chunk(chunk, options)
        return await self.of(options)

    def statistics(self) -> dict[str, int | float]:
        """The counts and gauges of all fetchers: sums, the worst of the latencies, and the one memory."""
        total: dict[str, int | float] = {field.name: 0 for field in fields(FetchStatistics)}
        for fetcher in self._open.values():
            for name, value in asdict(fetcher.statistics()).items():
                total[name] = max(total[name], value) if name.endswith(_NOT_SUMMED) else total[name] + value
        # Each counts those who wait for the memory that they share.
        total["waiting"] -= self._memory.gate.waiting * max(0, len(self._open) - 1)
        return total


def _open(options: Mapping[str, object], url: str) -> ObjectStore:
    return open_store(url, options)
