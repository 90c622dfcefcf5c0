"""A server on a real engine, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamer.config import CacheConfig, EngineConfig
from streamer.engine.engine import Engine
from streamer.service.server import Server


@pytest.fixture
async def server(tmp_path) -> AsyncIterator[Server]:
    """A server whose engine has a cache of 8 MiB."""
    config = EngineConfig(
        cache=CacheConfig(directory=tmp_path / "cache", limit_bytes=8 << 20), grace_seconds=None, settle_seconds=0.0
    )
    async with Engine(config) as engine, asyncio.TaskGroup() as tasks:
        made = Server(config, engine, tasks, lambda: None)
        yield made
        made.close()


@pytest.fixture
async def engine_statistics(server):
    """All statistics of a service."""
    return server.statistics()
