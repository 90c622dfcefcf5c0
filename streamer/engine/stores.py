"""One fetcher per set of storage options: datasets with the same credentials share windows and connections."""

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
from streamer.fetch.statistics import FetchStatistics
from streamer.manifest.model import Chunk
from streamer.store import ObjectStore, open_store


class Fetchers:
    """Opens fetchers as they are needed, closes all at the end. On the engine's loop, inside its `async with`."""

    def __init__(self, config: FetchConfig, access: Access) -> None:
        self.access = access
        self._config = config
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
            fetcher = Fetcher(self._config, partial(_open, options))
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
        """The counts and gauges of all fetchers: sums, and the worst of the latencies."""
        total: dict[str, int | float] = {field.name: 0 for field in fields(FetchStatistics)}
        for fetcher in self._open.values():
            for name, value in asdict(fetcher.statistics()).items():
                total[name] = max(total[name], value) if name.endswith("_seconds") else total[name] + value
        return total


def _open(options: Mapping[str, object], url: str) -> ObjectStore:
    return open_store(url, options)
