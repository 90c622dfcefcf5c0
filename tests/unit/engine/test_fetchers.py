"""Fetchers of several sets of credentials: connections of their own, one budget of memory.
Fetchers are real and read local files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamer.config import FetchClient, FetchConfig
from streamer.engine.url_allowlist import Fetchers, UrlAllowlist
from streamer.errors import ClosedError
from streamer.fetch import Fetched
from streamer.fetch.concurrency import FetchLimits
from streamer.fetch.fetcher_set import options_key
from streamer.manifest.model import Chunk, Extent
from streamer.store import ObjectStore
from streamer.store.curl.store import CurlStore
from streamer.store.local_store import LocalStore
from streamer.store.obstore_store import ObstoreStore

KiB = 1024


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Writes one object of 600 KiB."""
    (tmp_path / "a").write_bytes(bytes(600 * KiB))
    return tmp_path / "a"


async def chunk_of(path: Path) -> Chunk:
    """Returns a chunk of one whole file."""
    (record,) = [record async for page in LocalStore().list(f"file://{path}") for record in page]
    return Chunk(0, bytes(16), (Extent(record, 0, record.size),), 0, 1, record.size, record.size)


@pytest.mark.parametrize(("client", "kind"), [("auto", CurlStore), ("curl", CurlStore), ("obstore", ObstoreStore)])
async def test_the_configured_client_reads(client: FetchClient, kind: type[ObjectStore]) -> None:
    """`client` in the section [fetch] decides what reads S3."""
    async with (
        Fetchers(FetchConfig(client=client), UrlAllowlist()) as fetchers,
        fetchers.use({"anon": True}) as fetcher,
    ):
        assert type(fetcher._endpoint("s3://bucket/key").store) is kind


async def settle(fetchers: Fetchers, waiting: int) -> None:
    """Waits until so many requests wait, as the statistics count them."""
    async with asyncio.timeout(60):
        while fetchers.statistics()["waiting"] != waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_all_credentials_share_one_budget(file: Path) -> None:
    """All credentials share one budget of memory: a chunk that does not fit waits, whichever credentials it has."""
    wanted = await chunk_of(file)
    async with (
        Fetchers(FetchConfig(memory_bytes=1024 * KiB), UrlAllowlist()) as fetchers,
        fetchers.use({"key": "ours"}) as ours,
        fetchers.use({"key": "theirs"}) as theirs,
    ):
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


async def test_fetchers_of_old_credentials_are_closed(file: Path) -> None:
    """Fetchers that no session needs are closed at the second look, and their counts stay in the statistics."""
    wanted = await chunk_of(file)
    async with Fetchers(FetchConfig(memory_bytes=4096 * KiB), UrlAllowlist()) as fetchers:
        most = 0
        for number in range(100):
            async with fetchers.use({"token": number}) as fetcher:
                (await fetcher.fetch(wanted)).close()
            if number % 5 == 4:
                fetchers.close_idle(set())
            most = max(most, len(fetchers))
        assert most <= 10
        assert fetchers.statistics()["requests"] == 100
        assert fetchers.statistics()["received_bytes"] == 100 * 600 * KiB
        for _ in range(2):
            fetchers.close_idle({options_key({"token": 99})})
        assert len(fetchers) == 1
        async with fetchers.use({"token": 99}) as last:
            assert last is fetcher, "a session needs it"


async def test_a_fetcher_in_use_stays_open(file: Path) -> None:
    """A fetcher stays open while a chunk is fetched with it, however long that takes, and one look longer."""
    wanted = await chunk_of(file)
    async with Fetchers(FetchConfig(memory_bytes=4096 * KiB), UrlAllowlist()) as fetchers:
        async with fetchers.use({}) as fetcher:
            for _ in range(3):
                fetchers.close_idle(set())
            (await fetcher.fetch(wanted)).close()
        fetchers.close_idle(set())
        assert len(fetchers) == 1, "used since the last look"
        fetchers.close_idle(set())
        assert len(fetchers) == 0
        await asyncio.sleep(0)
        with pytest.raises(ClosedError):
            await fetcher.fetch(wanted)


async def test_first_bytes_count_on_after_a_fetcher_is_gone(file: Path) -> None:
    """The histogram of first bytes keeps the counts of closed fetchers, since a histogram of Prometheus only grows."""
    wanted = await chunk_of(file)
    async with Fetchers(FetchConfig(range_bytes=256 * KiB), UrlAllowlist()) as fetchers:
        counts = []
        for key in ("old", "new"):
            async with fetchers.use({"key": key}) as fetcher:
                (await fetcher.fetch(wanted)).close()
            fetchers.close_idle(())
            fetchers.close_idle(())
            assert len(fetchers) == 0
            counts.append(sum(fetchers.first_bytes().counts))
    assert counts[0] > 0
    assert counts[1] == 2 * counts[0]
    assert fetchers.first_bytes().sum_seconds > 0


async def test_bounds_may_change_while_chunks_are_fetched(file: Path) -> None:
    """Bounds on memory and windows may change while chunks are fetched, as when other processes begin to fetch."""
    wanted = await chunk_of(file)
    async with (
        Fetchers(FetchConfig(memory_bytes=4096 * KiB, window_max=256), UrlAllowlist()) as fetchers,
        fetchers.use({}) as fetcher,
    ):
        held = await fetcher.fetch(wanted)
        assert fetchers.window == fetchers.statistics()["window"] > 2
        fetchers.limit(FetchLimits(2, 700 * KiB))
        assert fetchers.window == 2
        async with asyncio.TaskGroup() as group:
            second: asyncio.Task[Fetched] = group.create_task(fetcher.fetch(wanted))
            await settle(fetchers, waiting=1)  # 600 KiB of 700 are taken
            held.close()
        second.result().close()
        fetchers.limit(FetchLimits(256, 4096 * KiB))
        assert fetchers.memory.gate.limit == fetchers.memory.buffers.most_bytes == 4096 * KiB


async def test_a_rate_that_was_found_can_be_forgotten(file: Path) -> None:
    """`pace_anew` forgets a limit of requests that was found, as when other processes cease to ask the same store."""
    async with Fetchers(FetchConfig(), UrlAllowlist()) as fetchers, fetchers.use({}) as fetcher:
        (await fetcher.fetch(await chunk_of(file))).close()
        (endpoint,) = fetcher._endpoints.values()
        endpoint.pacing.per_second = endpoint.gate.per_second = 50.0
        fetchers.pace_anew()
        assert not endpoint.pacing.limited
        assert endpoint.gate.per_second == float("inf")
