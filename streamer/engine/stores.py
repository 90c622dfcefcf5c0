"""One fetcher per set of storage options: datasets with the same credentials share windows and connections."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from typing import Self

from streamer.config import FetchConfig
from streamer.engine.datasets import options_key
from streamer.fetch import Fetcher
from streamer.store import ObjectStore, open_store


class Fetchers:
    """Opens fetchers as they are needed, closes all at the end. On the engine's loop, inside its `async with`."""

    def __init__(self, config: FetchConfig) -> None:
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

    def statistics(self) -> dict[str, int | float]:
        """The counts and gauges of all fetchers: sums, and the worst of the latencies."""
        total: dict[str, int | float] = {}
        for fetcher in self._open.values():
            for name, value in asdict(fetcher.statistics()).items():
                before = total.get(name, 0)
                total[name] = max(before, value) if name.endswith("_seconds") else before + value
        return total


def _open(options: Mapping[str, object], url: str) -> ObjectStore:
    return open_store(url, options)
