"""Duplicates of slow requests on real sockets: won, lost, broken, cancelled; every byte is compared."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from streamer.fetch import Fetcher, FetchStatistics
from tests.fault.fake_s3 import (
    CONFIG,
    RAMP,
    Act,
    FakeS3,
    KiB,
    MiB,
    Seen,
    fetched,
    fetching,
    once,
    part,
    until,
)

pytestmark = pytest.mark.usefixtures("warm_runtime")


async def warmed(fetcher: Fetcher, server: FakeS3) -> FetchStatistics:
    """Enough requests to know the latency; returns the counts so far (a busy machine may cause duplicates here)."""
    async with asyncio.TaskGroup() as group:
        for i in range(40):
            group.create_task(fetched(fetcher, part(server, i, MiB + i)))
    return fetcher.statistics()


# A full budget after each request: a busy machine may spend it in the warm-up.
HEDGED = replace(CONFIG, hedge=True, hedge_requests_share=1.0, first_byte_seconds=30.0, progress_seconds=5.0)


async def test_duplicate_beats_a_request_that_hangs(server: FakeS3) -> None:
    """Without a first byte a duplicate is sent; its bytes are taken and the loser's connection is dropped."""
    async with fetching(server, config=HEDGED) as fetcher:
        before = await warmed(fetcher, server)
        number_of_first = len(server.seen) + 1
        server.script = once(Act(wait_seconds=10), on=number_of_first)
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
        after = fetcher.statistics()
        loser = server.seen[number_of_first - 1]
        await until(lambda: loser.gone)
    assert (after.hedge_wins - before.hedge_wins, after.retries) == (1, 0)
    assert loser.sent == 0


async def test_the_first_request_of_all_that_hangs(server: FakeS3) -> None:
    """Before any latency is known a duplicate comes after a second, not after the patience of 30."""
    server.script = once(Act(wait_seconds=20))
    async with fetching(server, config=HEDGED) as fetcher:
        async with asyncio.timeout(15):
            assert await fetched(fetcher, part(server, 0, MiB)) == RAMP[:MiB]
        assert (fetcher.statistics().hedge_wins, fetcher.statistics().retries) == (1, 0)


async def test_duplicate_that_is_slower_is_cancelled(server: FakeS3) -> None:
    """When the first request answers before its duplicate, the duplicate is dropped and the bytes are whole."""

    def script(seen: Seen, number: int) -> Act | None:
        late = number - number_of_first
        return Act(wait_seconds=(1.0, 10)[late]) if late in (0, 1) else None

    async with fetching(server, config=HEDGED) as fetcher:
        before = await warmed(fetcher, server)
        number_of_first = len(server.seen) + 1
        server.script = script
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
        after = fetcher.statistics()
        await until(lambda: server.seen[-1].gone)
    assert (after.hedges - before.hedges, after.hedge_wins - before.hedge_wins, after.in_flight) == (1, 0, 0)


async def test_winner_that_breaks_is_resumed(server: FakeS3) -> None:
    """A duplicate that wins and then breaks hands over to another try, which asks only for the rest."""

    def script(seen: Seen, number: int) -> Act | None:
        late = number - number_of_first
        return (Act(wait_seconds=10), Act(reset_after=768 * KiB))[late] if late in (0, 1) else None

    async with fetching(server, config=HEDGED) as fetcher:
        await warmed(fetcher, server)
        number_of_first = len(server.seen) + 1
        server.script = script
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
    assert server.seen[-1].start > 3


async def test_slow_body_is_outpaced(server: FakeS3) -> None:
    """A body far slower than the others is ended and its rest asked for again; its bytes are kept."""
    config = replace(HEDGED, range_bytes=4 * MiB, hedge_bytes_share=1.0)
    async with fetching(server, config=config) as fetcher:
        await warmed(fetcher, server)
        server.script = once(Act(bytes_per_second=MiB // 2), on=len(server.seen) + 1)
        assert await fetched(fetcher, part(server, 0, 4 * MiB)) == RAMP
        assert fetcher.statistics().outpaced == 1
    assert server.seen[-1].start > 0


async def test_no_duplicates_while_the_store_pushes_back(server: FakeS3) -> None:
    """After a 503 nothing is duplicated for a while, however slow the answers are."""
    async with fetching(server, config=HEDGED) as fetcher:
        await warmed(fetcher, server)
        server.script = once(Act(status=503, code="SlowDown"), on=len(server.seen) + 1)
        await fetched(fetcher, part(server, 0, 10))
        before = fetcher.statistics().hedges
        server.script = once(Act(wait_seconds=0.3), on=len(server.seen) + 1)
        assert await fetched(fetcher, part(server, 3, MiB + 3)) == RAMP[3 : MiB + 3]
        assert fetcher.statistics().hedges == before


@pytest.mark.parametrize("hedge", [False, True])
async def test_cancelled_fetch_leaves_the_counters_whole(server: FakeS3, hedge: bool) -> None:
    """A fetch cancelled while it waits, in its body or with a duplicate under way holds nothing afterwards."""
    config = replace(HEDGED, hedge=hedge, window_start=2, window_min=2)
    async with fetching(server, config=config) as fetcher:
        await warmed(fetcher, server)
        server.script = lambda seen, number: Act(wait_seconds=20)
        begin = len(server.seen)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(fetcher.fetch(part(server, i, 3 * MiB + i))) for i in range(4)]
            await until(lambda: len(server.seen) >= begin + (3 if hedge else 2))
            for task in tasks:
                task.cancel()
        assert all(task.cancelled() for task in tasks)
        after = fetcher.statistics()
        assert (after.reserved_bytes, after.waiting) == (0, 0)
        server.script = lambda seen, number: None
        assert await fetched(fetcher, part(server, 0, 10)) == RAMP[:10]
