"""Fetchers of several sets of credentials: connections of their own, one budget of memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamer.config import FetchConfig
from streamer.engine.access import Access
from streamer.engine.stores import Fetchers
from streamer.fetch import Fetched
from streamer.manifest.model import Chunk, Extent
from streamer.store.local_store import LocalStore

KiB = 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """One object."""
    (tmp_path / "a").write_bytes(bytes(600 * KiB))
    return tmp_path / "a"


async def chunk_of(path: Path) -> Chunk:
    """A chunk of one whole file."""
    (record,) = [record async for page in LocalStore().list(f"file://{path}") for record in page]
    return Chunk(0, bytes(16), (Extent(record, 0, record.size),), 0, 1, record.size, record.size)


async def settle(fetchers: Fetchers, waiting: int) -> None:
    """Until so many wait, as the statistics count them."""
    async with asyncio.timeout(60):
        while fetchers.statistics()["waiting"] != waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_all_credentials_share_one_budget(file: Path) -> None:
    """With room for one chunk another one waits, whoever's it is, and is counted once."""
    wanted = await chunk_of(file)
    async with Fetchers(FetchConfig(memory_bytes=1024 * KiB), Access()) as fetchers:
        ours, theirs = await fetchers.of({"key": "ours"}), await fetchers.of({"key": "theirs"})
        assert ours is not theirs
        first = await ours.fetch(wanted)
        async with asyncio.TaskGroup() as group:
            second: asyncio.Task[Fetched] = group.create_task(theirs.fetch(wanted))
            await settle(fetchers, waiting=1)
            assert fetchers.statistics()["reserved_bytes"] == 600 * KiB
            first.close()
        second.result().close()
        assert fetchers.statistics()["reserved_peak_bytes"] == 600 * KiB
        assert fetchers.statistics()["reserved_bytes"] == 0
